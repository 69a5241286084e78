"""Benchmarks of Spark: the source, the sink and the audit."""
