"""Hostile surroundings: everything around Hawser goes wrong, and it answers clearly."""
