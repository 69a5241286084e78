"""Benchmarks of a cluster: its writes, reads, queues, transactions and recorders."""
