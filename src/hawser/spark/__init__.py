"""Spark: the source of `format("hawser")`, sessions, and the pipelines."""
