"""Whole clusters in one thread, from a seed."""
