"""The participant: the branches of transactions on one shard, from the first operation to the end."""
