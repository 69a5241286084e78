"""Benchmarks on one host: topics, queues, recovery and start-up."""
