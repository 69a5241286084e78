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

SETTINGS = Settings(
    journal=JournalSettings(segment_bytes=4096, ballast_bytes=4096),
    checkpoint_entries=10_000,
    spare_entries=0,
)


def _propose(member: Replica, kind: Kind, payload: bytes) -> list[Output]:
    outputs = member.step(Propose((Command(kind, payload, "tag"),)))
    if member.sync_wanted:
        sync = member.begin_sync()
        sync.run()
        outputs += member.finish_sync(sync)
    return outputs


def test_a_full_disk_is_trimmed_and_goes_on() -> None:
    disk = SimDisk()
    disk.capacity_bytes = 256 << 10
    member = Replica.create(disk, "s", "n1.a", 1, SETTINGS)
    member.step(Receive("o", m.FenceRequest(1)))
    member.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    batch = bytes(Batch.of([Record(b"x" * 100)]).data)
    accepted = 0
    while True:
        outputs = _propose(member, Kind.BATCH, batch)
        if outputs == [Refuse("tag", Reason.FULL)]:
            break
        (done,) = [output for output in outputs if isinstance(output, Done)]
        assert isinstance(done.result, Accepted)
        accepted += 1
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
