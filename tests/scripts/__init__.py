"""Dialogues with real members, operators and disks: what they are told, and all that they say and do."""
