"""A disk that is full can be made to have room again.

Found by review: trimming is an entry like any other and was refused on a full disk, and the checkpoint that
lets segments go needed room too, so that retention could never free anything. Found by review again: entries
were kept and checkpoints were made by their number, however large the entries are, so that with the defaults
retention freed nothing for the first 10,000 entries. The tests therefore change sizes only.
"""

import msgspec

from hawser.cluster.node.retention import Retention
from hawser.cluster.node.transaction.participant import carry_before
from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Command, Propose, Reason, Receive, Refuse, Tick
from hawser.log.replica import Done, Output, Replica, Settings
from hawser.log.state.commands import AT_END, AdvanceTime, TrimTo, encode_command
from hawser.log.state.results import Accepted, Finished, Outcome, OutOfRange, Trimmed
from hawser.log.state.topic import Topic
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.testing.disk import SimDisk
from hawser.transaction.commands import BranchCommit
from hawser.transaction.identity import LANE_FORMAT, Label, TransactionId, Xid
from hawser.transaction.participant.branches import Branches, transactional_parts
from hawser.transaction.participant.maintenance import BranchMaintenance, Carry

SMALL = Settings(
    journal=JournalSettings(segment_bytes=4096, ballast_bytes=4096),
    parts=transactional_parts,
)
# As nodes have them.
DEFAULTS = Settings(journal=JournalSettings(segment_bytes=8 << 20), parts=transactional_parts)
TICKS_A_SECOND = 10
LARGE = bytes(Batch.of([Record(b"x" * (256 << 10))]).data)


def _leader(capacity_bytes: int, settings: Settings) -> Replica:
    disk = SimDisk()
    disk.capacity_bytes = capacity_bytes
    member = Replica.create(disk, "s", "n1.a", 1, settings)
    member.step(Receive("o", m.FenceRequest(1)))
    member.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    return member


def _full(capacity_bytes: int) -> tuple[Replica, bytes, int]:
    """A leader whose disk takes no more batches like this one, and how many it took."""
    member = _leader(capacity_bytes, SMALL)
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


def _accepted(member: Replica, batch: bytes) -> bool:
    return any(isinstance(each, Done) for each in _propose(member, Kind.BATCH, batch))


def _second(
    member: Replica, retention: Retention, branch_maintenance: BranchMaintenance | None = None
) -> None:
    """What a leader does in a second."""
    actions = []
    if branch_maintenance is not None:
        before = carry_before(member)
        actions = branch_maintenance.tick(0.0, lambda owner: False, carry_before=before)
    for action in actions:
        assert isinstance(action, Carry), action
        entry = member.entry(action.index)
        _propose(member, Kind(entry.kind), bytes(entry.payload), action.label)
    start = retention.start_of(member.machine.part(Topic), member.journal)
    if start is not None:
        _propose(member, Kind.TRIM, encode_command(TrimTo(start)))
    for _ in range(TICKS_A_SECOND):
        member.step(Tick())


def _kept_bytes(member: Replica) -> int:
    disk = member.journal._storage
    return sum(disk.size(name) for name in disk.names())


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


def test_retention_frees_a_disk_of_large_batches() -> None:
    """The disk has room for 190 batches, far fewer than the entries that followers may want."""
    member = _leader(48 << 20, DEFAULTS)
    for number in range(300):
        assert _accepted(member, LARGE), number
        if number % 4 == 0:
            _second(member, Retention(8 << 20))
    topic = member.machine.part(Topic)
    assert topic.end == 301
    assert topic.count >= 32, "8 MiB are kept"


def test_a_prepared_transaction_keeps_no_disk_full() -> None:
    """Found by review: its batch was carried forward by the number of entries behind it, and never if the
    last operation had prepared the branch."""
    member = _leader(48 << 20, DEFAULTS)
    transaction = TransactionId(Xid(LANE_FORMAT, b"lane", b""), 1)
    label = Label(transaction, 1, last=True, coordinator="jobs@0123456789abcdef/0").encode()
    _propose(member, Kind.BATCH, LARGE, label)
    branch_maintenance = BranchMaintenance(member.machine.part(Branches))
    for number in range(400):
        assert _accepted(member, LARGE), number
        if number % 4 == 0:
            _second(member, Retention(8 << 20), branch_maintenance)
    branch = member.machine.part(Branches).register.get(transaction)
    assert branch is not None and branch.is_prepared
    commit = encode_command(BranchCommit())
    (done,) = _propose(member, Kind.BRANCH_COMMIT, commit, Label(transaction).encode())
    assert isinstance(done, Done) and done.result == Finished(Outcome.COMMITTED)
    topic = member.machine.part(Topic)
    assert topic.end == 402
    batches = member.read(401, 1)
    assert not isinstance(batches, OutOfRange) and bytes(batches[0][1].payload) == LARGE


def test_a_disk_that_is_full_gives_up_what_is_kept_for_followers() -> None:
    member = _leader(20 << 20, DEFAULTS)
    assert sum(_accepted(member, LARGE) for _ in range(80)) < 80
    _propose(member, Kind.TRIM, encode_command(TrimTo(AT_END)))
    member.step(Tick())
    assert _accepted(member, LARGE)
    assert member.journal.first > 1


def test_a_disk_that_another_shard_found_full_gets_room_from_all() -> None:
    member = _leader(1 << 30, DEFAULTS)
    for _ in range(80):
        assert _accepted(member, LARGE)
    _propose(member, Kind.TRIM, encode_command(TrimTo(AT_END)))
    _second(member, Retention())
    before = _kept_bytes(member)
    assert before > 16 << 20, "the rest is kept for followers"
    member.make_room()
    member.step(Tick())
    assert _kept_bytes(member) <= before - (8 << 20)


def test_what_is_trimmed_goes_while_nothing_is_written() -> None:
    """Retention by age ends everything at once, and then the topic is idle."""
    member = _leader(1 << 30, DEFAULTS)
    for _ in range(160):
        assert _accepted(member, LARGE)
    _second(member, Retention())
    before = _kept_bytes(member)
    assert before > 40 << 20
    _propose(member, Kind.TRIM, encode_command(TrimTo(AT_END)))
    _second(member, Retention())
    assert _kept_bytes(member) < before - (16 << 20)


def test_a_restart_has_few_bytes_to_apply_again() -> None:
    member = _leader(1 << 30, DEFAULTS)
    for _ in range(160):
        assert _accepted(member, LARGE)
        _second(member, Retention())
    assert member.journal.checkpoint is not None
    assert (member.machine.applied - member.journal.checkpoint.index) * len(LARGE) < 3 * (8 << 20)


def test_what_the_saved_state_needs_stays_until_another_is_saved() -> None:
    """A restart begins with the saved state: that must not speak of entries that are gone."""
    member, _, accepted = _full(256 << 10)
    _propose(member, Kind.TRIM, encode_command(TrimTo(accepted // 2)))
    member.step(Tick())
    assert member.journal.checkpoint is not None
    disk = member.journal._storage
    assert isinstance(disk, SimDisk)
    member.journal.drop_ballast()
    member._has_ballast = False
    _propose(member, Kind.TRIM, encode_command(TrimTo(accepted)))
    disk.capacity_bytes = 0
    assert not _accepted(member, LARGE)
    saved = member.journal.checkpoint
    member.step(Tick())
    assert member.journal.checkpoint is saved, "there was no room for another"
    again = Replica.open(disk, 2, SMALL)
    first = again.read(accepted // 2, 1)
    assert not isinstance(first, OutOfRange) and first[0][0] == accepted // 2


def test_retention_by_time_goes_on_without_room() -> None:
    """It trims what is old by the time of the log, which an entry advances."""
    member, _, _ = _full(256 << 10)
    advance = encode_command(AdvanceTime(0, 1_000_000_000, 1_000_000_000))
    assert any(isinstance(each, Done) for each in _propose(member, Kind.ADVANCE_TIME, advance))


def test_messages_that_go_with_a_commit_take_no_room_that_is_kept_for_what_frees_some() -> None:
    """Found by review: a commit counted as what frees room, also when messages went with it."""
    member, _, _ = _full(256 << 10)
    label = Label(TransactionId(Xid(LANE_FORMAT, b"lane", b""), 1)).encode()
    much = bytes(Batch.of([Record(b"y" * 10_000)]).data)
    for deliveries, refused in (({"t": much}, True), ({}, False)):
        commit = encode_command(BranchCommit(((0, 1),), (), deliveries))
        outputs = _propose(member, Kind.BRANCH_COMMIT, commit, label)
        assert (outputs == [Refuse("tag", Reason.FULL)]) == refused, outputs
