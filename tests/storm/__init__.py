"""Storms: many processes, killed at random, judged by an exact model."""
