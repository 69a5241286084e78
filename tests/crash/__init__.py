"""Participants killed and stopped at every instruction, and what the survivors find."""
