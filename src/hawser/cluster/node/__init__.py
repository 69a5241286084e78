"""The node's process: hosts replicas of many shards, serves clients, does as operators tell it."""
