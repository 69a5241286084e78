"""The transactions on the shards that a node leads.

`service.TransactionService` belongs to one shard and one leader's term. It has two halves: `Participant` runs
the branches on the shard, and `CoordinatorDriver` runs the transactions that the shard decides. `PeerClient`
carries their requests to the leaders of other shards.
"""
