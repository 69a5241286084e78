"""What nobody had thought of stops the member, before it can say anything more.

Found by review: an assertion within a step left memory ahead of the disk, the link logged it, and the member
went on to answer for an epoch that it had not made durable.
"""

import pytest

from hawser.log.entry import Entry, EntryId, Kind
from hawser.log.journal.storage import StorageFailed
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Command, Halt, Propose, Reason, Receive, Refuse, Send
from hawser.log.replica import Replica, Retired
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


def _halted(monkeypatch: pytest.MonkeyPatch, cause: str) -> Replica:
    """A member in epoch 5 that halted with its disk in order."""
    member = _member()
    member.step(Receive("o", m.FenceRequest(5)))
    kind = 99 if cause == "an entry of an unknown kind" else Kind.NOTHING
    entry = Entry.make(5, 1, kind)
    if cause == "a failed assertion":
        monkeypatch.setattr(member.journal, "append", None)
    member.step(Receive("n2.a", m.AddEntriesRequest(5, EntryId(0, 0), (entry,), 0)))
    while member.sync_wanted:
        sync = member.begin_sync()
        sync.run()
        member.finish_sync(sync)
    member.step(Receive("n2.a", m.HeartbeatRequest(5, 1, 1)))
    if cause == "a broken invariant":
        member.step(Receive("n3.a", m.TruncateRequest(6, EntryId(5, 1), EntryId(0, 0))))
    assert member.halted
    return member


CAUSES = ["an entry of an unknown kind", "a failed assertion", "a broken invariant"]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_halted_member_is_retired(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    """It answered no request to retire, so its topic was never deleted, and a swap never ended."""
    member = _halted(monkeypatch, cause)
    assert member.step(Receive("o", m.RetireRequest(4))) == []
    assert member.step(Receive("o", m.RetireRequest(7))) == [Retired(), Send("o", m.RetireResponse(7))]
    assert member.journal._storage.names() == []
    assert member.step(Receive("o", m.RetireRequest(7))) == []


@pytest.mark.parametrize("cause", CAUSES)
def test_a_halted_member_answers_nothing_else(monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    member = _halted(monkeypatch, cause)
    for message in (m.FenceRequest(9), m.StatusRequest(9), m.HeartbeatRequest(5, 1, 1)):
        assert member.step(Receive("o", message)) == []


def test_a_halted_member_whose_files_cannot_be_removed_loses_its_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node puts its files aside, and says to the next request that the member is gone."""
    member = _halted(monkeypatch, "an entry of an unknown kind")

    def fail() -> None:
        raise StorageFailed("planted")

    monkeypatch.setattr(member.journal, "destroy", fail)
    assert member.step(Receive("o", m.RetireRequest(7))) == [Halt("planted", disk_lost=True)]
