"""Transactions: publishes, puts, accepts and group positions that take effect together or not at all.

Pure, like the log: every decision is the result of applying an entry.

- `identity.py`: xids, incarnations, and the label that every entry of a transaction carries.
- `commands.py`: the payloads of the entries.
- `client.py`: one transaction as its client runs it.
- `participant/`: the branches of a shard, from the first operation to the end.
- `coordinator/`: decisions about transactions of several shards, and how the other shards learn them.
- `xa/`: the calls of the XA interface and the table of their results.
- `register.py`, `expiry.py`: what a shard remembers of transactions that have ended, and for how long.

The state machines (`branches.py`, `decisions.py`, `ledger.py`, `calls.py`) apply entries on every replica.
The machines of a leader (`maintenance.py`, `coordinator.py`) propose entries and keep nothing that a new
leader needs."""
