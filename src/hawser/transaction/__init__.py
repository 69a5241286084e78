"""Transactions: publishes, puts, accepts and positions of groups that happen together or not at all.

Pure, as the log is: whatever is decided is decided by applying entries, and by nothing else.

- `identity.py`: xids, incarnations and the label that every entry of a transaction carries;
- `branches.py`: what a shard keeps of the transactions that touch it, from their first operation to the end;
  `staged.py` is what an operation does then, `register.py` what is remembered;
- `coordinator.py`: where the outcome of a transaction that others complete is decided, in one entry, and
those of
  clients are kept until everybody has heard; `ledger.py` has the steps, `calls.py` those of the XA interface;
- `xa.py`: what each call of that gets in each state, as one table;
- `coordinator.py` and `branch_maintenance.py`: what the leaders of home and of a shard do about them, sans
I/O;
- `client.py`: one transaction as its client sees it, sans I/O;
- `observers.py`: whoever wants to be told.
"""
