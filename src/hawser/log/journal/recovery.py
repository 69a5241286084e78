"""Recovery of a journal when it is opened: it checks all files and repairs what a crash can leave.

| found                                                | means                          | then         |
|------------------------------------------------------|--------------------------------|--------------|
| files of another generation, or being written        | interrupted, or not finished   | removed      |
| segments before the first that the promise names     | their removal was interrupted  | removed      |
| a bad last segment without a byte of frames          | its creation was interrupted   | removed      |
| no whole frame at an index above every durable mark  | never synced, or truncated     | cut there    |
| bytes that are not zero behind the last frame        | the same                       | zeroed       |
| slots of the promise that differ                     | a promise was interrupted      | made equal   |

Anything else is damage, which a power loss cannot leave. The mark is the highest one of all segments and the
checkpoint; everything that it covers was on disk once.
"""

import struct
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from hawser.log.entry import HEADER_BYTES
from hawser.log.epochs import Epochs
from hawser.log.journal import checkpoints, file_names
from hawser.log.journal.checkpoints import Record
from hawser.log.journal.errors import Damaged, NotFormatted
from hawser.log.journal.promise import Identity, PromiseFile
from hawser.log.journal.segment import FRAMES_START, Segment
from hawser.log.journal.storage import Storage

__all__ = [
    "Log",
    "check_unformatted",
    "open_log",
    "open_promise",
    "remove_leftovers",
    "Stop",
    "scan",
]


class Log(NamedTuple):
    """A journal's checked content; everything behind it is cleared, without a sync yet."""

    segments: list[Segment]
    epochs: Epochs
    record: Record | None


def open_promise(storage: Storage) -> PromiseFile:
    """Open the promise; NotFormatted without a journal, Damaged if there must have been one."""
    if file_names.PROMISE not in storage.names():
        check_unformatted(storage)
        raise NotFormatted("there is no journal here; format one, or look for the right directory")
    promises = PromiseFile.open(storage)
    if promises.generation == 0:
        remove_leftovers(storage, 0, None)
        storage.remove(file_names.PROMISE)
        storage.sync_names()
        raise NotFormatted("the journal that was here has been destroyed; format a new one")
    return promises


def check_unformatted(storage: Storage) -> None:
    """Raises Damaged if the promise is missing and entries are there."""
    for name in storage.names():
        parsed = file_names.parse(name)
        if parsed is None or parsed.kind != "log":
            continue
        segment = Segment(storage, parsed.generation, int(parsed.rest, 16), storage.size(name))
        if not segment.is_clear(FRAMES_START):
            raise Damaged(file_names.PROMISE, 0, 0, f"it is missing, and {name} holds entries")


def remove_leftovers(storage: Storage, generation: int, record: Record | None) -> None:
    """Remove files of other generations and blocks that the checkpoint does not list, durably."""
    blocks = record.blocks if record else ()
    found = False
    for name in storage.names():
        parsed = file_names.parse(name)
        if name == file_names.NEW_PROMISE:
            is_left_over = True
        elif parsed is None:
            is_left_over = False
        else:
            is_unlisted = parsed.kind == "block" and parsed.rest not in blocks
            is_left_over = parsed.generation != generation or parsed.is_new or is_unlisted
        if is_left_over:
            storage.remove(name)
            found = True
    if found:
        storage.sync_names()


def open_log(storage: Storage, promises: PromiseFile) -> Log:
    """Open and repair the log of this generation; Damaged if a repair would lose synced data."""
    identity, generation = promises.identity, promises.generation
    firsts = sorted(
        int(parsed.rest, 16)
        for parsed in map(file_names.parse, storage.names())
        if parsed is not None and parsed.kind == "log" and parsed.generation == generation
    )
    if promises.first not in firsts:
        raise Damaged(
            file_names.segment_name(generation, promises.first), 0, promises.first, "the segment is missing"
        )
    while firsts[0] < promises.first:
        storage.remove(file_names.segment_name(generation, firsts.pop(0)))
    record = _load_checkpoint(storage, generation, identity.shard, firsts[0])
    remove_leftovers(storage, generation, record)
    covered = record.index if record else 0
    segments = _open_segments(storage, identity, generation, firsts, covered)
    mark = max(covered, *(segment.mark for segment in segments))
    base = record.epochs() if record else Epochs()
    if firsts[0] > base.head.index + 1:
        raise Damaged(segments[0].name, 0, base.head.index + 1, "the segments before it are missing")
    base.cut(firsts[0] - 1)
    pairs = base.pairs()
    _scan_and_mend(segments, mark, pairs)
    epochs = Epochs(pairs, segments[-1].last)
    if record is not None:
        _check_agreement(segments, epochs, record)
    return Log(segments, epochs, record)


def _load_checkpoint(storage: Storage, generation: int, shard: str, first: int) -> Record | None:
    """The checkpoint; a damaged one is discarded if the log can replace it."""
    try:
        record = checkpoints.load(storage, generation, shard)
        for block in record.blocks if record else ():
            file = file_names.block_name(generation, block)
            if file not in storage.names():
                raise Damaged(file, 0, 0, "the block is missing")
    except Damaged:
        if first > 1:
            raise
        storage.remove(file_names.checkpoint_name(generation))
        storage.sync_names()
        return None
    return record


def _open_segments(
    storage: Storage, identity: Identity, generation: int, firsts: list[int], covered: int
) -> list[Segment]:
    """Open all segments without their entries. One whose creation was interrupted is the last, and empty."""
    segments: list[Segment] = []
    for first in firsts:
        try:
            segments.append(Segment.open(storage, identity, generation, first))
        except Damaged:
            torn = Segment(
                storage, generation, first, storage.size(file_names.segment_name(generation, first))
            )
            is_needed = not segments or first != firsts[-1] or not torn.is_clear(FRAMES_START)
            if is_needed or max(covered, *(segment.mark for segment in segments)) >= first:
                raise
            torn.remove()
    return segments


def _scan_and_mend(segments: list[Segment], mark: int, pairs: list[tuple[int, int]]) -> None:
    for place, segment in enumerate(segments):
        following = segments[place + 1] if place + 1 < len(segments) else None
        stop = scan(segment, following.first - 1 if following else None, pairs)
        if stop is None:
            continue
        if stop.is_order or stop.index <= mark:
            raise Damaged(segment.name, stop.byte, stop.index, stop.reason)
        # The last one first, so that the rest is a valid log at every moment.
        while len(segments) > place + 1:
            segments.pop().remove()
        segment.clear_rest()
        return


def _check_agreement(segments: list[Segment], epochs: Epochs, record: Record) -> None:
    """Check that the log and the checkpoint agree as far as both go."""
    assert record.index <= epochs.head.index  # the mark covers it
    told = epochs.copy()
    told.cut(record.index)
    if told.pairs() != list(record.pairs):
        index = min(first for _, first in set(told.pairs()) ^ set(record.pairs))
        segment = max((each for each in segments if each.first <= index), key=lambda each: each.first)
        raise Damaged(segment.name, segment.start_of(index), index, "its epoch is not the checkpoint's")


_FIELDS: Final = struct.Struct("<IIQQBBHI")
_CHUNK_BYTES: Final = 1 << 20
_NO_LIMIT: Final = 1 << 64


class Stop(msgspec.Struct, frozen=True):
    """Where a scan ended: the next entry, its byte, and why it was not read. `is_order` is true for a whole
    frame that cannot follow the one before it, which no crash causes."""

    index: int
    byte: int
    reason: str
    is_order: bool = False


def scan(segment: Segment, last: int | None, pairs: list[tuple[int, int]]) -> Stop | None:
    """Read a segment's frames through entry `last`, or as far as there are any; None if `last` was reached.

    Sets the segment's places and end, and adds (epoch, first index) to `pairs` for each new epoch.
    """
    limit = _NO_LIMIT if last is None else last
    want = _CHUNK_BYTES
    while segment.last < limit:
        start = segment.end
        data = segment.storage.read(segment.name, start, want)
        stop = _walk(segment, data, limit, pairs)
        if stop is not None:
            return stop
        if segment.end > start:
            want = _CHUNK_BYTES
            continue
        if len(data) < want:
            return Stop(segment.last + 1, start, "cut off by the end of the file")
        want = HEADER_BYTES + _FIELDS.unpack_from(data)[1]
        if start + want > segment.size:
            return Stop(segment.last + 1, start, "impossible length")
        assert want > len(data)
    return None


def _walk(segment: Segment, data: bytes, limit: int, pairs: list[tuple[int, int]]) -> Stop | None:
    """Check the whole frames in `data`, which begins at the segment's known end."""
    start = segment.end
    index = segment.last + 1
    epoch = pairs[-1][0] if pairs else 0
    at = 0
    stop = None
    view = memoryview(data)
    whole = len(data) - HEADER_BYTES
    while at <= whole and index <= limit:
        checksum, length, found_epoch, found, _, _, transaction_size, zero = _FIELDS.unpack_from(data, at)
        end = at + HEADER_BYTES + length
        if end > len(data):
            break
        if crc32c(view[at + 4 : end]) != checksum:
            reason = "checksum differs" if any(view[at : at + HEADER_BYTES]) else "no entry"
            stop = Stop(index, start + at, reason)
            break
        if zero or transaction_size > length:
            stop = Stop(index, start + at, "impossible header")
            break
        if found != index or found_epoch < epoch or not found_epoch:
            found_name = f"entry {found_epoch}:{found}"
            stop = Stop(index, start + at, f"{found_name} cannot follow {epoch}:{index - 1}", is_order=True)
            break
        if found_epoch > epoch:
            pairs.append((found_epoch, index))
            epoch = found_epoch
        if start + at >= segment.next_place:
            segment.note_place(index, start + at)
        index += 1
        at = end
    segment.note_end(index - 1, start + at)
    return stop
