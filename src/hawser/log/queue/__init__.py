"""Delivery of a queue's messages by its leader. This state is soft: it ends with the leader's term."""
