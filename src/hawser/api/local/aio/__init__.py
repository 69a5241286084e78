"""The asynchronous API over shared memory."""
