"""A snapshot: a checkpoint, its blocks and the kept entries, cut into pieces for a follower.

Its parts, in order: 0 the manifest, 1 the checkpoint, one for each block, and last the frames of the kept
entries through the checkpoint's index. Each part is sealed or consists of frames. The receiver checks every
byte, and so does the sender, to report damage where it is.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from hawser.log.epochs import Epochs
from hawser.log.journal.checkpoints import Blocks, Record
from hawser.log.journal.errors import Gone
from hawser.log.journal.reader import read_segment
from hawser.log.journal.sealed import Magic, seal
from hawser.log.journal.segment import FRAMES_START, Segment

__all__ = ["FIRST_BLOCK_PART", "Manifest", "Piece", "Snapshot"]

FIRST_BLOCK_PART: Final = 2


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The first part: what the snapshot contains."""

    shard: str
    first: int
    index: int


class Piece(NamedTuple):
    """Some bytes of a part; `last` ends the part, `done` the snapshot."""

    data: bytes
    last: bool
    done: bool


class _Span(NamedTuple):
    """The frames of one segment within the last part: it begins at `position` and has `size` bytes."""

    segment: Segment
    position: int
    size: int
    last: int


class Snapshot:
    """A snapshot of a journal. Pieces may be requested in any order and repeatedly; `Gone` after the journal
    made another checkpoint or removed a segment."""

    def __init__(
        self,
        owner: str,
        segments: list[Segment],
        record: Record,
        blocks: Blocks,
        is_current: Callable[[], bool],
    ) -> None:
        first = segments[0].first
        self._is_current = is_current
        self._blocks = blocks
        self._record = record
        self._epochs = record.epochs()
        self._spans = _spans(segments, record.index)
        manifest = seal(Magic.MANIFEST, msgspec.msgpack.encode(Manifest(record.shard, first, record.index)))
        self._texts = {0: manifest, 1: record.packed()}
        self._block: tuple[int, bytes] = (0, b"")
        whole = f"{owner} {segments[0].generation} {record.sequence} {first}".encode()
        # 63 bits, so that it is a positive integer in every language.
        self.identity = (int.from_bytes(blake2b(whole, digest_size=8).digest(), "little") >> 1) or 1

    def piece(self, part: int, position: int, max_bytes: int) -> Piece:
        """At most `max_bytes` bytes of a part from `position` on; Gone if they were removed."""
        assert part >= 0 and position >= 0 and max_bytes > 0
        if not self._is_current():
            raise Gone(
                "the journal has another checkpoint or has removed entries since; begin a new snapshot"
            )
        entries_part = FIRST_BLOCK_PART + len(self._record.blocks)
        if part > entries_part:
            raise Gone(f"a snapshot of {entries_part + 1} parts has no part {part}")
        if part == entries_part:
            return self._entries_piece(position, max_bytes)
        whole = self._texts[part] if part < FIRST_BLOCK_PART else self._whole_block(part)
        data = whole[position : position + max_bytes]
        return Piece(data, position + len(data) >= len(whole), False)

    def _whole_block(self, part: int) -> bytes:
        if self._block[0] != part:
            self._block = (part, self._blocks.read_sealed(self._record.blocks[part - FIRST_BLOCK_PART]))
        return self._block[1]

    def _entries_piece(self, position: int, max_bytes: int) -> Piece:
        total = self._spans[-1].position + self._spans[-1].size if self._spans else 0
        for span in self._spans:
            if position < span.position + span.size:
                data = _frames(span, position - span.position, max_bytes, self._epochs)
                is_last = position + len(data) >= total
                return Piece(data, is_last, is_last)
        return Piece(b"", True, True)


def _spans(segments: list[Segment], last: int) -> list[_Span]:
    spans = []
    position = 0
    for segment in segments:
        if segment.first > last:
            break
        upto = min(last, segment.last)
        size = segment.start_of(upto + 1) - FRAMES_START
        spans.append(_Span(segment, position, size, upto))
        position += size
    return spans


def _frames(span: _Span, position: int, max_bytes: int, epochs: Epochs) -> bytes:
    """The bytes of whole, checked entries from `position` within the span on."""
    byte = FRAMES_START + position
    index, start = span.segment.frame_at(byte)
    skipped = byte - start
    entries = read_segment(span.segment, index, span.last, max_bytes, epochs)
    return b"".join([entry.frame for entry in entries])[skipped : skipped + max_bytes]
