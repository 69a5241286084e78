"""`hawser log scan|verify`: read a node's log on disk without the node, and without changing it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import hawser
from hawser.cli.log.files import FrozenFiles, ShardFiles, shards_of
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import count, exit_with, notice, print_json
from hawser.log.entry import Entry, Kind
from hawser.log.journal import checkpoints
from hawser.log.journal.errors import Damaged, NotFormatted
from hawser.log.journal.journal import Journal
from hawser.log.journal.promise import PromiseFile
from hawser.log.journal.storage import StorageFailed
from hawser.log.state.commands import QueueSettle, count_of, decoder
from hawser.log.state.machine import Machine
from hawser.log.state.part import Unsupported
from hawser.log.state.queue import Queue
from hawser.log.state.results import Accepted, Place, Settled
from hawser.log.state.subqueue import Subqueue
from hawser.log.state.topic import Topic
from hawser.record.batch import BadBatch, Header
from hawser.transaction.participant.branches import transactional_parts

__all__ = ["scan", "verify"]

_UNHEALTHY = 4
_read_settle = decoder(QueueSettle)
_READ_BYTES = 1 << 20
_ROW = "{:<32} {:>8} {:>10} {:<16} {:>12} {:>8} {:>10}"


def _options(function: Any) -> Any:
    directory = click.option(
        "--dir",
        "directory",
        type=click.Path(path_type=Path),
        required=True,
        metavar="D",
        help="The directory of a node, or of one shard.",
    )
    shard = click.option("--shard", "only", metavar="TOPIC", help="Only shards whose name begins with TOPIC.")
    return directory(shard(shared_options(function)))


@click.command()
@_options
def scan(directory: Path, only: str | None) -> None:
    """Print every entry: shard, epoch, index, kind, first offset, number of records, bytes.

    The offset is that of the entry's first record, once the entry is committed. A duplicate of a batch has no
    offset. An entry that moves messages to or from the dead letters has the offset of the first message in
    its new place. With -o json each entry is one object per line.
    """
    with shards_of(directory) as found:
        if not wants_json():
            click.echo(_ROW.format("shard", "epoch", "index", "kind", "offset", "records", "bytes").rstrip())
        for shard in _chosen(found, only):
            for line in _entries(shard):
                if wants_json():
                    print_json(line)
                else:
                    click.echo(_ROW.format(*("" if value is None else value for value in line.values())))


@click.command()
@_options
def verify(directory: Path, only: str | None) -> None:
    """Check every byte of every log. Names the first damage and exits with 4.

    The rest of an interrupted write after the synced entries is not damage; a node removes it when it starts.
    """
    files = entries = 0
    with shards_of(directory) as found:
        chosen = _chosen(found, only)
        for shard in chosen:
            try:
                checked, through = _verified(shard)
            except (Damaged, StorageFailed) as damage:
                with exit_with(_UNHEALTHY):
                    _report_damage(shard, damage)
            files += checked
            entries += through
    if wants_json():
        print_json({"whole": True, "shards": len(chosen), "files": files, "entries": entries})
    else:
        notice(f"{count(len(chosen))} shards, {count(files)} files, {count(entries)} entries: no damage")


def _chosen(found: list[ShardFiles], only: str | None) -> list[ShardFiles]:
    chosen = [each for each in found if each.shard.startswith(only or "")]
    if only is not None and not chosen:
        raise hawser.NotFound(f"no shard in the directory has a name that begins with {only!r}")
    return chosen


def _verified(shard: ShardFiles) -> tuple[int, int]:
    """The number of checked files and entries."""
    storage = FrozenFiles(shard.path)
    try:
        journal = Journal.open(storage)
    except NotFormatted:
        return 0, 0
    # A damaged checkpoint is reported even if the node could rebuild it from the complete log.
    frozen = FrozenFiles(shard.path)
    promises = PromiseFile.open(frozen)
    checkpoints.load(frozen, promises.generation, promises.identity.shard)
    files = sum(1 for _ in journal.verify())
    return files, journal.head.index - journal.first + 1


def _report_damage(shard: ShardFiles, damage: Damaged | StorageFailed) -> None:
    if not wants_json():
        notice(f"{click.style('damaged:', fg='red')} shard {shard.shard} in {shard.path}: {damage}")
        return
    line: dict[str, Any] = {
        "whole": False,
        "shard": shard.shard,
        "path": str(shard.path),
        "text": str(damage),
    }
    if isinstance(damage, Damaged):
        line |= {"file": damage.file, "byte": damage.byte, "index": damage.index, "reason": damage.reason}
    print_json(line)


def _entries(shard: ShardFiles) -> Iterator[dict[str, Any]]:
    """The printed fields of each entry."""
    try:
        journal = Journal.open(FrozenFiles(shard.path))
    except NotFormatted:
        return
    except (Damaged, StorageFailed) as damage:
        raise hawser.Corrupt(f"shard {shard.shard} in {shard.path}: {damage}") from damage
    offsets = _Offsets(journal)
    index = journal.first
    while index <= journal.head.index:
        for entry in journal.read(index, journal.head.index, _READ_BYTES):
            yield _line(journal.shard, entry, offsets.of(entry))
            index = entry.index + 1


def _line(shard: str, entry: Entry, offset: int | None) -> dict[str, Any]:
    records = None
    if entry.kind in (Kind.BATCH, Kind.QUEUE_PUT):
        try:
            records = Header.read(entry.payload).records
        except BadBatch:
            records = 0
    elif entry.kind == Kind.QUEUE_SETTLE:
        settled = _read_settle(entry)
        records = 0 if settled is None else count_of(settled.runs)
    kind = Kind(entry.kind).name.lower().replace("_", " ") if entry.kind in _KINDS else f"kind {entry.kind}"
    return {
        "shard": shard,
        "epoch": entry.epoch,
        "index": entry.index,
        "kind": kind,
        "offset": offset,
        "records": records,
        "bytes": len(entry.frame),
    }


_KINDS = frozenset(Kind)


class _Offsets:
    """The offset of each entry's first record: from the checkpoint's index, then by applying later
    entries."""

    def __init__(self, journal: Journal) -> None:
        self._machine: Machine | None = Machine(_Blocks(journal), transactional_parts())
        if journal.checkpoint is not None:
            self._machine.load(journal.checkpoint.state)
        queue = self._machine.part(Queue)
        parts = (self._machine.part(Topic), queue.messages, queue.dead_letters)
        self._known = {index: offset for part in parts for index, offset in _places(part)}

    def of(self, entry: Entry) -> int | None:
        """The offset of an entry; None if it has no retained records. Entries must come in order."""
        machine = self._machine
        if machine is None or entry.index <= machine.applied:
            return self._known.pop(entry.index, None)
        try:
            result = machine.apply(entry)
        except Unsupported:
            # The entry is of another version of Hawser, so later offsets are unknown.
            self._machine = None
            return None
        if isinstance(result, Settled):
            return result.first_offset or None
        return result.first_offset if isinstance(result, Accepted) else None


def _places(part: Topic | Subqueue) -> Iterator[tuple[int, int]]:
    offset = part.start
    while offset < part.end:
        place = part.locate(offset)
        assert isinstance(place, Place)
        yield place.index, place.first_offset
        offset = place.first_offset + place.count


class _Blocks:
    """The blocks of the checkpoint, and new ones in memory."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._new: dict[str, bytes] = {}

    def write(self, name: str, data: bytes) -> None:
        self._new[name] = data

    def read(self, name: str) -> bytes:
        return self._new[name] if name in self._new else self._journal.read_block(name)
