"""`hawser demo`: publishers, the agent, the leader and the Spark driver are killed -9, and the books balance.

The stage runs the whole path from shared memory to tables, everybody in a process of its own. Each publisher
keeps a ledger outside Hawser, which is true after a kill at any instant: the offset of each receipt. At the
end the raw table is compared with the ledgers, row by row:

- every sample of the region from 1 to the head is there once and in order, and nothing else is;
- a run of a publisher: its messages are there unchanged, each once, at exactly the offsets of its receipts,
  and one more at most, published when it was killed before it could note the receipt;
- everything went on after each kill, and no slot of the region is leaked.
"""
