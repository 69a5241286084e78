"""What is applied from the log of a shard: the state behind its commit index, the same on every member."""
