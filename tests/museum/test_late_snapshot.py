"""Pieces of a snapshot that was installed long ago come again while the member pulls another one.

Found by reading while the protocol was modelled: the pull took whichever snapshot answered first, so the old
one replaced a log that had gone on, and entries that were acknowledged were gone.
"""

from hawser.log.entry import Entry, EntryId, Kind
from hawser.log.journal.journal import Journal
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Promise, Receive, Send
from hawser.log.replica import Replica, Settings
from hawser.log.snapshot_transfer import Pulling, Serving
from hawser.testing.disk import SimDisk


def _pieces(journal: Journal, epoch: int) -> list[m.ReadSnapshotResponse]:
    """All pieces of the journal's snapshot, as its leader would send them."""
    serving = Serving(journal, piece_bytes=1 << 20, patience=10)
    puller = Pulling(Journal.format(SimDisk(), "s", "x.1"), "l.1", Promise(epoch), 0)
    pieces = []
    while not puller.is_complete:
        request = puller.request().message
        assert isinstance(request, m.ReadSnapshotRequest)
        pieces.append(serving.piece(request))
        assert puller.take(pieces[-1])
    return pieces


def test_an_old_snapshot_does_not_replace_a_log_that_went_on() -> None:
    source = Journal.format(SimDisk(), "s", "l.1")
    source.append([Entry.make(1, index, Kind.NOTHING) for index in range(1, 4)])
    source.sync()
    machine = Replica(source, 1, Settings()).machine
    for entry in source.read(1, 3, 1 << 20):
        machine.apply(entry)
    saved = machine.save()
    source.save_checkpoint(3, saved.state, saved.blocks)
    old = _pieces(source, 1)

    member = Replica.create(SimDisk(), "s", "f.1", 1)
    member.step(Receive("operator", m.FenceRequest(1)))
    entries = tuple(Entry.make(1, index, Kind.NOTHING) for index in range(1, 6))
    member.step(Receive("l.1", m.AddEntriesRequest(1, EntryId(0, 0), entries, 0)))
    sync = member.begin_sync()
    sync.run()
    member.finish_sync(sync)
    outputs = member.step(Receive("l.1", m.SnapshotNeeded(1, EntryId(1, 5))))
    assert any(isinstance(each, Send) and isinstance(each.message, m.ReadSnapshotRequest) for each in outputs)
    for piece in old:
        member.step(Receive("l.1", piece))
    assert member.journal.head == EntryId(1, 5)
    assert member.halted is None
