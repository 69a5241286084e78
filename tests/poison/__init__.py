"""Poison: what happens when the shared control region is scribbled over."""
