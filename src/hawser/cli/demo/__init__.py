"""`hawser demo`: publishers and subscribers are killed -9 at random, and the books still balance.

Every process keeps a ledger outside Hawser, written so that a kill at any instant leaves it true up to
the last whole line: a publisher notes each receipt, a subscriber each message before it lets go of it.
An auditor, a reliable subscriber that is never killed, sees every message. At the end:

- offsets are dense from 1 to the head, and the auditor missed nothing;
- a run of a publisher: its messages stand in the topic in its order, at exactly the offsets of its
  receipts, and one more at most, published when it was killed before it could note the receipt;
- a run of a subscriber, from where it started to the head, or to its last note if it was killed:
  received + missed = published, and what it received is byte for byte what was published;
- a subscriber that keeps its position goes on where its killed run stopped: at its last note, or, killed
  between the note and moving the position, one step before it;
- a reliable one missed nothing while it lived, a durable one nothing at all;
- after recovery no slot is lent, read or leaked.
"""
