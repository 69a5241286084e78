"""What nobody had thought of stops the member, before it can say anything more.

Found by review: an assertion within a step left memory ahead of the disk, the link logged it, and the member
went on to answer for an epoch that it had not made durable.
"""

import pytest

from hawser.log.entry import Entry, EntryId, Kind
from hawser.log.protocol import messages as m
from hawser.log.protocol.doors import Command, Halt, Propose, Reason, Receive, Refuse
from hawser.log.replica import Replica
from hawser.testing.disk import SimDisk


def _member() -> Replica:
    return Replica.create(SimDisk(), "s", "n1.a", 1)


def test_a_failed_assertion_halts(monkeypatch: pytest.MonkeyPatch) -> None:
    member = _member()

    def fail(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(member.journal, "append", fail)
    entry = Entry.make(5, 1, Kind.NOTHING)
    outputs = member.step(Receive("n2.a", m.AddEntriesRequest(5, EntryId(0, 0), (entry,), 0)))
    assert any(isinstance(output, Halt) for output in outputs)
    assert isinstance(member.failure, AssertionError)
    assert member.step(Receive("n2.a", m.HeartbeatRequest(5, 1, 0))) == []


@pytest.mark.parametrize(
    "entries",
    [
        (Entry.make(5, 2, Kind.NOTHING),),
        (Entry.make(5, 1, Kind.NOTHING), Entry.make(5, 3, Kind.NOTHING)),
        (Entry.make(5, 1, Kind.NOTHING), Entry.make(4, 2, Kind.NOTHING)),
        (Entry.make(6, 1, Kind.NOTHING),),
    ],
)
def test_entries_that_no_leader_sends_change_nothing(entries: tuple[Entry, ...]) -> None:
    member = _member()
    member.step(Receive("n2.a", m.AddEntriesRequest(5, EntryId(0, 0), entries, 0)))
    assert member.halted is None
    assert member.journal.head.index == 0


def test_what_no_entry_can_hold_is_refused() -> None:
    member = _member()
    member.step(Receive("o", m.FenceRequest(1)))
    member.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    outputs = member.step(Propose((Command(Kind.BATCH, bytes(65 << 20), "large"),)))
    assert outputs == [Refuse("large", Reason.TOO_LARGE)]
