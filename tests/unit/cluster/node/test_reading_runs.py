"""Batches that are not in memory any more are read together, and not without end in one turn of a node."""

from typing import Any

import pytest

from hawser.errors import Corrupt
from hawser.log.entry import Kind
from hawser.log.journal.errors import Damaged
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Command, Propose, Receive
from hawser.log.replica import Replica, Settings
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.testing.disk import SimDisk

COUNT = 6000


class CountingDisk(SimDisk):
    """Counts the reads."""

    reads = 0

    def read(self, name: str, start: int, size: int) -> bytes:
        self.reads += 1
        return super().read(name, start, size)


def batch(number: int) -> bytes:
    return bytes(Batch.of([Record(b"%d" % number, timestamp_ns=1)]).data)


def cold(*kinds: int, count: int = COUNT) -> tuple[Replica, CountingDisk]:
    """A leader with so many small batches, none of them in memory; of other kinds there are some between."""
    disk = CountingDisk()
    settings = Settings(journal=JournalSettings(tail_bytes=0))
    replica = Replica.create(disk, "s", "n.a", 1, settings)
    replica.step(Receive("o", m.FenceRequest(1)))
    replica.step(Receive("o", m.BecomeLeaderRequest(1, ("n.a",), {})))
    commands = []
    for number in range(count):
        commands += [Command(Kind.BATCH, batch(number)), *(Command(kind, b"") for kind in kinds)]
    for begin in range(0, len(commands), 1000):
        replica.step(Propose(tuple(commands[begin : begin + 1000])))
        while replica.sync_wanted:
            sync = replica.begin_sync()
            sync.run()
            replica.finish_sync(sync)
    assert replica.machine.part(Topic).count == count
    disk.reads = 0
    return replica, disk


def values(found: Any) -> list[bytes]:
    return [record.value for _, entry in found for record in Batch.read(entry.payload).records()]


@pytest.mark.parametrize("kinds", [(), (Kind.NOTHING, Kind.NOTHING)])
def test_small_batches_are_read_together(kinds: tuple[int, ...]) -> None:
    """One fetch made a system call for each batch: 4 MiB of them stopped all shards of a node for 0.7 s."""
    replica, disk = cold(*kinds)
    offset, found = 1, []
    answers = 0
    while some := replica.read(offset, 4 << 20):
        assert isinstance(some, list)
        assert len(some) <= 4096
        found += values(some)
        offset += len(some)
        answers += 1
    assert found == [b"%d" % number for number in range(COUNT)]
    assert answers <= 6
    assert disk.reads < 60


def test_a_read_that_is_bounded_gives_one_batch_at_least() -> None:
    replica, _ = cold(count=20)
    assert values(replica.read(7, 1)) == [b"6"]
    assert values(replica.read(7, 1 << 20, 1)) == [b"6"]
    assert values(replica.read(1, 1 << 20)) == [b"%d" % number for number in range(20)]


def test_damage_that_nobody_asked_for_keeps_no_batch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, _ = cold(count=50)
    read = replica.journal.read
    bad = replica.machine.applied - 10

    def damaged(first: int, last: int, most: int) -> Any:
        found = read(first, last, most)
        if any(entry.index == bad for entry in found):
            raise Damaged("log", 0, bad, "planted")
        return found

    monkeypatch.setattr(replica.journal, "read", damaged)
    # Entry 1 is the leader's own.
    before = bad - 2
    found = [values(replica.read(offset, 1))[0] for offset in range(1, before + 1)]
    assert found == [b"%d" % number for number in range(before)]
    assert replica.entry(bad - 1).index == bad - 1
    with pytest.raises(Corrupt):
        replica.entry(bad)
    assert replica.entry(bad + 1).index == bad + 1


def test_messages_that_are_lent_one_after_the_other_are_read_together() -> None:
    replica, disk = cold(count=2000)
    for index in range(2, 2002):
        assert replica.entry(index).index == index
    assert disk.reads < 30
