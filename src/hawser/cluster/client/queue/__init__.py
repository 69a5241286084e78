"""Consuming queues: the session that receives messages, and their acknowledgement."""
