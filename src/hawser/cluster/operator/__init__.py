"""The operator's process: who is where, who leads, and what people asked for."""
