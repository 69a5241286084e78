"""Transactions on the shards that a node leads: participant, coordinator, and the calls between them."""
