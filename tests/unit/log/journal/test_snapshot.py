"""Snapshots from one journal to another, and everything that may go wrong between them."""

from random import Random
from typing import Any

import pytest

from hawser.log.entry import Entry, EntryId
from hawser.log.journal import (
    BadSnapshot,
    Damaged,
    Gone,
    Installation,
    Journal,
    Settings,
    Snapshot,
    StorageFull,
)
from hawser.log.protocol.events import Promise
from hawser.testing.disk import SimDisk

SETTINGS = Settings(segment_bytes=1000, tail_bytes=0)
PROMISE = Promise(7, installed=7)
BLOCKS = {"one": b"1" * 500, "empty": b"", "two": bytes(range(256)) * 3}
Pieces = list[tuple[int, int, bytes, bool, bool]]


def made(first: int, last: int, epoch: int = 1) -> list[Entry]:
    return [
        Entry.make(epoch, index, 1, bytes([index]) * (index * 31 % 200)) for index in range(first, last + 1)
    ]


def source(disk: SimDisk | None = None, kept_from: int = 20) -> Journal:
    """A journal with a checkpoint at 33, blocks, and entries beyond it."""
    journal = Journal.format(disk or SimDisk(), "shard", "a.1", SETTINGS)
    for entry in made(1, 30) + made(31, 40, epoch=2):
        journal.append([entry])
    journal.sync()
    for name, data in BLOCKS.items():
        journal.write_block(name, data)
    journal.save_checkpoint(33, b"state" * 100, list(BLOCKS))
    journal.retain(kept_from)
    return journal


def target(disk: SimDisk | None = None) -> Journal:
    """Another member's, with other entries."""
    journal = Journal.format(disk or SimDisk(), "shard", "b.1", SETTINGS)
    journal.append(made(1, 9, epoch=1))
    journal.sync()
    return journal


def pieces_of(snapshot: Snapshot, max_bytes: int) -> Pieces:
    pieces: Pieces = []
    part, position, done = 0, 0, False
    while not done:
        data, last, done = snapshot.piece(part, position, max_bytes)
        assert len(data) <= max_bytes
        pieces.append((part, position, data, last, done))
        part, position = (part + 1, 0) if last else (part, position + len(data))
    return pieces


def put(installation: Installation, pieces: Pieces) -> None:
    for piece in pieces:
        installation.put(*piece)


@pytest.mark.parametrize("max_bytes", [1, 7, 100, 1000, 1 << 20])
@pytest.mark.parametrize("kept_from", [1, 20, 34])
def test_the_receiver_becomes_what_the_sender_was(max_bytes: int, kept_from: int) -> None:
    disk = SimDisk()
    theirs, mine = source(kept_from=kept_from), target(disk)
    installation = mine.begin_install()
    put(installation, pieces_of(theirs.snapshot(), max_bytes))
    assert mine.head == EntryId(1, 9)
    installation.finish(PROMISE)
    for each in (mine, Journal.open(disk, SETTINGS)):
        assert (each.head, each.synced, each.first) == (EntryId(2, 33), 33, theirs.first)
        assert each.epochs.pairs() == [(1, 1), (2, 31)]
        assert each.checkpoint == theirs.checkpoint
        assert each.promise == PROMISE
        assert each.member == "b.1"
        assert {name: each.read_block(name) for name in BLOCKS} == BLOCKS
        expected = (made(1, 30) + made(31, 33, epoch=2))[theirs.first - 1 :]
        assert (each.read(each.first, 33, 1 << 30) if expected else []) == expected
        assert list(each.verify())
    assert all("00000002" in name or name == "vow" for name in disk.names())


def test_the_receiver_goes_on_from_there() -> None:
    disk = SimDisk()
    mine = target(disk)
    installation = mine.begin_install()
    put(installation, pieces_of(source().snapshot(), 300))
    installation.finish(PROMISE)
    mine.append(made(34, 60, epoch=8))
    mine.sync()
    mine.truncate(50)
    mine.save_checkpoint(45, b"mine", ["one"])
    mine.retain(46)
    again = Journal.open(disk, SETTINGS)
    assert again.read(again.first, 50, 1 << 30) == made(34, 50, epoch=8)[again.first - 34 :]
    assert again.epochs.pairs() == [(1, 1), (2, 31), (8, 34)]


def test_a_snapshot_without_any_entry_kept() -> None:
    theirs = Journal.format(SimDisk(), "shard", "a.1", Settings(segment_bytes=32))
    for entry in made(1, 5):
        theirs.append([entry])
    theirs.sync()
    theirs.reserve(5000)
    theirs.save_checkpoint(5, b"state", [])
    theirs.retain(6)
    disk = SimDisk()
    mine = target(disk)
    installation = mine.begin_install()
    put(installation, pieces_of(theirs.snapshot(), 10))
    installation.finish(PROMISE)
    assert (mine.first, mine.head) == (6, EntryId(1, 5))
    assert Journal.open(disk).head == EntryId(1, 5)


def test_nothing_of_the_log_is_touched_before_the_end() -> None:
    disk = SimDisk()
    mine = target(disk)
    pieces = pieces_of(source().snapshot(), 300)
    installation = mine.begin_install()
    put(installation, pieces[:-1])
    mine.append(made(10, 12))
    mine.sync()
    assert Journal.open(disk.copy(), SETTINGS).read(1, 12, 1 << 30) == made(1, 12)
    installation.drop()
    installation.drop()
    assert all("00000001" in name or name == "vow" for name in disk.names())
    assert mine.read(1, 12, 1 << 30) == made(1, 12)
    put(again := mine.begin_install(), pieces)
    again.finish(PROMISE)
    assert mine.head == EntryId(2, 33)


def test_beginning_again_ends_the_first() -> None:
    mine = target()
    pieces = pieces_of(source().snapshot(), 300)
    put(mine.begin_install(), pieces[:10])
    again = mine.begin_install()
    put(again, pieces)
    again.finish(PROMISE)
    assert mine.head == EntryId(2, 33)


def test_pieces_come_in_order() -> None:
    pieces = pieces_of(source().snapshot(), 300)
    for wrong in (pieces[1:], [pieces[0], *pieces[2:]], [*pieces[:3], pieces[1]], [*pieces, pieces[-1]]):
        with pytest.raises(BadSnapshot, match="expected part"):
            put(target().begin_install(), wrong)


@pytest.mark.parametrize("kept", [0, 1, 5, -1])
def test_half_a_snapshot_is_not_installed(kept: int) -> None:
    mine = target()
    installation = mine.begin_install()
    put(installation, pieces_of(source().snapshot(), 300)[:kept])
    with pytest.raises(BadSnapshot, match="not complete"):
        installation.finish(PROMISE)
    assert mine.head == EntryId(1, 9)


def test_a_snapshot_that_ends_early_is_refused() -> None:
    *pieces, (part, position, data, _, _) = pieces_of(source().snapshot(), 300)
    for early in (
        [*pieces[:-3], (*pieces[-3][:3], True, True)],
        [*pieces, (part, position, data[:-1], True, True)],
    ):
        with pytest.raises(BadSnapshot):
            put(installation := target().begin_install(), early)
            installation.finish(PROMISE)


def test_another_shards_snapshot_is_refused() -> None:
    other = Journal.format(SimDisk(), "other", "a.1", SETTINGS)
    other.append(made(1, 3))
    other.sync()
    other.save_checkpoint(3, b"", [])
    with pytest.raises(BadSnapshot, match="of shard other"):
        put(target().begin_install(), pieces_of(other.snapshot(), 300))


def test_changed_bytes_are_refused() -> None:
    """Any bit of any piece; what is installed nevertheless is what was sent."""
    pieces = pieces_of(source().snapshot(), 300)
    random = Random(5)
    for turn in range(300):
        place = turn % len(pieces)
        part, position, data, last, done = pieces[place]
        if not data:
            continue
        byte = random.randrange(len(data))
        changed = data[:byte] + bytes([data[byte] ^ 1 << random.randrange(8)]) + data[byte + 1 :]
        installation = target().begin_install()
        with pytest.raises(BadSnapshot):
            put(installation, [*pieces[:place], (part, position, changed, last, done), *pieces[place + 1 :]])
            installation.finish(PROMISE)


def test_a_damaged_sender_says_so() -> None:
    disk = SimDisk()
    journal = source(disk, kept_from=1)
    disk.write("block-00000001-one", 100, b"damage")
    with pytest.raises(Damaged, match="block-00000001-one"):
        pieces_of(journal.snapshot(), 300)
    disk = SimDisk()
    journal = source(disk, kept_from=1)
    disk.write("log-00000001-0000000000000001", 13000, b"damage")
    with pytest.raises(Damaged, match="log-00000001-0000000000000001"):
        pieces_of(journal.snapshot(), 300)


def test_identities_differ_between_checkpoints() -> None:
    journal = source(kept_from=1)
    seen = [journal.snapshot().identity]
    assert journal.snapshot().identity == seen[0]
    journal.retain(20)
    seen.append(journal.snapshot().identity)
    journal.save_checkpoint(33, b"state" * 100, [])
    seen.append(journal.snapshot().identity)
    assert len(set(seen)) == 3
    assert all(0 < identity < 1 << 63 for identity in seen)


def test_a_snapshot_whose_parts_are_gone_says_so() -> None:
    journal = source(kept_from=1)
    replaced, trimmed = journal.snapshot(), journal.snapshot()
    journal.append(made(41, 50, epoch=3))
    assert replaced.piece(1, 0, 10).data
    journal.retain(20)
    with pytest.raises(Gone):
        trimmed.piece(1, 0, 10)
    replaced = journal.snapshot()
    journal.save_checkpoint(34, b"", [])
    with pytest.raises(Gone):
        replaced.piece(1, 0, 10)
    with pytest.raises(Gone):
        journal.snapshot().piece(99, 0, 10)


def test_a_full_disk_leaves_the_log() -> None:
    disk = SimDisk()
    mine = target(disk)
    disk.capacity_bytes = sum(disk.size(name) for name in disk.names()) + 20_000
    installation = mine.begin_install()
    with pytest.raises(StorageFull):
        put(installation, pieces_of(source(kept_from=1).snapshot(), 300))
    installation.drop()
    assert Journal.open(disk, SETTINGS).read(1, 9, 1 << 30) == made(1, 9)


def test_a_sync_of_the_old_log_does_not_count_for_the_new() -> None:
    mine = target()
    mine.append(made(10, 40))
    sync = mine.begin_sync()
    installation = mine.begin_install()
    put(installation, pieces_of(source().snapshot(), 300))
    installation.finish(PROMISE)
    mine.append(made(34, 36, epoch=8))
    sync.run()
    assert mine.end_sync(sync) == 33
    assert mine.sync() == 36


def test_each_byte_of_a_piece_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the piece was copied for each entry in it: a piece of small entries held up the node."""
    copied = 0

    class Counted(bytearray):
        def __getitem__(self, key: Any) -> Any:
            nonlocal copied
            found = super().__getitem__(key)
            copied += len(found) if isinstance(key, slice) else 1
            return found

    theirs = Journal.format(SimDisk(), "shard", "a.1", Settings())
    theirs.append([Entry.make(1, index, 1, b"small") for index in range(1, 2001)])
    theirs.sync()
    theirs.save_checkpoint(2000, b"state", [])
    installation = target().begin_install()
    installation._pending = Counted()
    pieces = pieces_of(theirs.snapshot(), 1 << 20)
    put(installation, pieces)
    assert copied <= 3 * sum(len(data) for _, _, data, _, _ in pieces)
