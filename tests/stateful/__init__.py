"""Model-based tests: random calls, compared with a dumb twin after each."""
