"""The node process: it hosts replicas of many shards, serves clients, and carries out the orders of
operators."""
