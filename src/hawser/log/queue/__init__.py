"""What the leader of a queue does: it lends messages to consumers. None of it outlives the leader."""
