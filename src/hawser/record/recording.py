"""Recorders: how a recording identifies its source, and marks the samples that it lost.

A recorder is a producer of a special kind. Its id names the recorder and the recorded region; the incarnation
of each of its batches is the offset in that region of the batch's first record, and the sequence is always 1.
So the newest batch says where to continue: behind its last record. A gap is one record in a batch of its own,
whose incarnation is the last missing offset. A recorded queue has no gaps: messages that could not be
recorded had been accepted.
"""

from typing import Final, NamedTuple

import msgspec

from hawser.record.record import Record

__all__ = ["GAP_HEADER", "Gap", "is_recorder", "recorder_id"]

GAP_HEADER: Final = "hawser-gap"

_PREFIX: Final = b"recorder:"


class Gap(NamedTuple):
    """Samples `first` to `last` of a region were not recorded, because they were overwritten or are too large
    for a batch."""

    first: int
    last: int

    @property
    def lost(self) -> int:
        """The number of missing samples."""
        return self.last - self.first + 1

    def record(self, timestamp_ns: int) -> Record:
        """The record of this gap."""
        return Record(b"", None, {GAP_HEADER: self.encode()}, timestamp_ns)

    def encode(self) -> bytes:
        """The value of the header of a gap record."""
        return msgspec.json.encode({"first": self.first, "last": self.last})

    @classmethod
    def decode(cls, data: bytes) -> "Gap":
        """The gap in bytes from `encode`; ValueError for other bytes."""
        try:
            found = msgspec.json.decode(data, type=dict[str, int])
            gap = cls(found["first"], found["last"])
        except (msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"{data!r} is not the header of a gap: {error}") from error
        if not 0 < gap.first <= gap.last:
            raise ValueError(f"a gap from {gap.first} to {gap.last} is impossible")
        return gap


def recorder_id(name: str, region: str) -> bytes:
    """The producer id of the recorder of this name for the region with this uuid."""
    return _PREFIX + f"{name}/{region}".encode()


def is_recorder(producer: bytes) -> bool:
    return producer.startswith(_PREFIX)
