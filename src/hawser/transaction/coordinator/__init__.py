"""The coordinator: decides transactions in the log of one shard and tells the other shards."""
