"""The public names on one host, over shared memory."""
