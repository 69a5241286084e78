"""`hawser demo`: everybody is killed -9 on the way from shared memory to an audit, and the books balance.

The stage runs the whole path, everybody in a process of its own. Each publisher keeps a ledger outside
Hawser, which is true after a kill at any instant: the offset of each receipt. At the end every part of the
path has to prove itself, message by message:

- publishing: what publishers were told is what was recorded, unchanged, and one more at most for each that
  was killed before it could note the receipt; no slot of the region is leaked;
- recording: every sample of the region is in the log once and in order, and nothing else is;
- sorting and checking, by transactions: every message has one result, every hundredth was done once, and the
  queue is empty;
- landing: every record of the topics is in the table once;
- totalling: the totals that Spark wrote back are those of all messages, each batch once;
- auditing: `hawser pipeline audit`, which knows nothing of the demo, finds the same;
- and everything went on after each kill.
"""
