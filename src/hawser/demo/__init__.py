"""`hawser demo`: runs the path from shared memory to an audit, kills each process in it, and verifies every
message.

The orchestrator runs the whole path, each program in a process of its own. Each publisher writes the offset
of each receipt to a ledger outside Hawser, which is correct after a kill at any instant. At the end each part
is verified, message by message:

- publishers: the recorded messages are those of the receipts, unchanged, plus at most one for each publisher
  that was killed before it wrote the receipt; no slot of the region is leaked;
- recording: each sample of the region is in the log once and in order, and nothing else is;
- workers, with transactions: each message has one result, each hundredth was processed once, and the queue is
  empty;
- landing: each record of the topics is in the table once;
- totals: the totals that Spark wrote back match all messages, each batch once;
- audit: `hawser pipeline audit`, which is independent of the demo, agrees;
- kills: each part made progress after each kill.
"""
