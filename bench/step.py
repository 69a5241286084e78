"""What a leader's `step` costs for one entry: python bench/step.py

A leader with two followers gets an entry, hears that it is on its own disk and on both of theirs, commits and
answers: everything `step` does for that entry, without a disk or a network. Prints JSON lines.
"""

import json
import statistics
import time
from typing import Final

from hawser.log.entry import Entry, EntryId, Kind
from hawser.log.epochs import Epochs
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Append, Command, Promise, Propose, Receive, Send, Synced
from hawser.log.protocol.node import Node

ROUNDS: Final = 7
ENTRIES: Final = 20_000
MEMBERS: Final = ("a.1", "b.1", "c.1")


class Log:
    """Entries in memory, for the followers that fall behind: none does here."""

    first = 1

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        return self.entries[first - 1 : last]


def leader() -> Node:
    """A leader whose followers are attached and have everything."""
    log = Log()
    node = Node("a.1", 1, Promise(), Epochs(), 0, log)
    node.step(Receive("operator", m.FenceRequest(1)))
    followers = {member: EntryId(0, 0) for member in MEMBERS[1:]}
    for effect in node.step(Receive("operator", m.BecomeLeaderRequest(1, MEMBERS, followers))):
        if isinstance(effect, Append):
            log.entries.extend(effect.entries)
    settle(node)
    return node


def settle(node: Node) -> None:
    """The leader and both followers have synced."""
    node.step(Synced(node.head.index))
    for member in MEMBERS[1:]:
        node.step(Receive(member, m.AddEntriesResponse(node.epoch, node.head, True, node.epoch)))
    assert node.commit == node.head.index


def measure(batch: int) -> float:
    """Microseconds an entry, `batch` of them in each proposal."""
    node = leader()
    event = Propose(tuple(Command(Kind.BATCH, b"x" * 100, tag=number) for number in range(batch)))
    proposals = ENTRIES // batch
    start = time.perf_counter()
    for _ in range(proposals):
        effects = node.step(event)
        assert sum(type(effect) is Send for effect in effects) == 2
        settle(node)
    return (time.perf_counter() - start) / (proposals * batch) * 1e6


def main() -> None:
    for batch in (1, 16):
        times = sorted(measure(batch) for _ in range(ROUNDS))
        print(
            json.dumps(
                {
                    "what": "leader step",
                    "entries_per_proposal": batch,
                    "microseconds_per_entry": round(statistics.median(times), 2),
                    "slowest": round(times[-1], 2),
                }
            )
        )


if __name__ == "__main__":
    main()
