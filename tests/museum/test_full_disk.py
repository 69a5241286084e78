"""A disk that is full can be made to have room again.

Found by review: trimming is an entry like any other and was refused on a full disk, and the checkpoint that
lets segments go needed room too, so that retention could never free anything.
"""

import msgspec

from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.doors import Command, Propose, Reason, Receive, Refuse, Tick
from hawser.log.replica import Done, Output, Replica, Settings
from hawser.log.state.commands import TrimTo, encode_command
from hawser.log.state.results import Accepted, Trimmed
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.testing.disk import SimDisk
from hawser.transaction.commands import BranchCommit
from hawser.transaction.identity import LANE_FORMAT, Label, TransactionId, Xid
from hawser.transaction.parts import transactional_parts

SETTINGS = Settings(
    journal=JournalSettings(segment_bytes=4096, ballast_bytes=4096),
    checkpoint_entries=10_000,
    spare_entries=0,
    parts=transactional_parts,
)


def _full(capacity_bytes: int) -> tuple[Replica, bytes, int]:
    """A leader whose disk takes no more batches like this one, and how many it took."""
    disk = SimDisk()
    disk.capacity_bytes = capacity_bytes
    member = Replica.create(disk, "s", "n1.a", 1, SETTINGS)
    member.step(Receive("o", m.FenceRequest(1)))
    member.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    batch = bytes(Batch.of([Record(b"x" * 100)]).data)
    accepted = 0
    while True:
        outputs = _propose(member, Kind.BATCH, batch)
        if outputs == [Refuse("tag", Reason.FULL)]:
            return member, batch, accepted
        (done,) = [output for output in outputs if isinstance(output, Done)]
        assert isinstance(done.result, Accepted)
        accepted += 1


def _propose(member: Replica, kind: Kind, payload: bytes, label: bytes = b"") -> list[Output]:
    outputs = member.step(Propose((Command(kind, payload, "tag", transaction=label),)))
    if member.sync_wanted:
        sync = member.begin_sync()
        sync.run()
        outputs += member.finish_sync(sync)
    return outputs


def test_a_full_disk_is_trimmed_and_goes_on() -> None:
    member, batch, accepted = _full(256 << 10)
    assert accepted > 100
    (trimmed,) = [
        output
        for output in _propose(member, Kind.TRIM, encode_command(TrimTo(accepted)))
        if isinstance(output, Done)
    ]
    assert isinstance(trimmed.result, Trimmed)
    member.step(Tick())
    member.step(Tick())
    assert member.journal.first > 1
    assert [output for output in _propose(member, Kind.BATCH, batch) if isinstance(output, Done)]
    assert msgspec.structs.asdict(trimmed.result)["start"] == accepted


def test_messages_that_go_with_a_commit_take_no_room_that_is_kept_for_what_frees_some() -> None:
    """Found by review: a commit counted as what frees room, also when messages went with it."""
    member, _, _ = _full(256 << 10)
    label = Label(TransactionId(Xid(LANE_FORMAT, b"lane", b""), 1)).encode()
    much = bytes(Batch.of([Record(b"y" * 10_000)]).data)
    for deliveries, refused in (({"t": much}, True), ({}, False)):
        commit = encode_command(BranchCommit(((0, 1),), (), deliveries))
        outputs = _propose(member, Kind.BRANCH_COMMIT, commit, label)
        assert (outputs == [Refuse("tag", Reason.FULL)]) == refused, outputs
