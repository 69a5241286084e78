"""Real nodes and operators, killed, stopped and starved while clients write and read; judged by histories."""
