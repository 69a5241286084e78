"""Samples copied from a region, as the columns of a batch."""

import struct
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Self

from hawser.memory import Message, Sample
from hawser.record.batch import MAX_BATCH_BYTES, Batch
from hawser.record.metadata import decode_metadata, encode_metadata
from hawser.record.record import Stamp

__all__ = ["BLOCK_BYTES", "Block", "fits_in_batch"]

# The size of other producers' batches: large enough to be cheap, small enough not to delay other requests.
BLOCK_BYTES: Final = 1 << 20

# Upper bound of a batch's bytes besides a value with its key and headers.
_SPARE_BYTES: Final = 4096


def fits_in_batch(sample: Sample | Message) -> bool:
    """Whether a batch can hold the sample."""
    metadata = encode_metadata(sample.key, sample.headers) or b""
    return len(sample) + len(metadata) <= MAX_BATCH_BYTES - _SPARE_BYTES


class Block(NamedTuple):
    """Consecutive samples from offset `first` on. `value_offsets` and `value_data` are the buffers of the
    value column. `metadata` has the encoded key and headers of each sample, if any sample has some; otherwise
    `keys` may have one key for each."""

    first: int
    timestamps: "array[int]"
    value_offsets: bytes
    value_data: bytes
    metadata: Sequence[bytes] | None
    keys: Sequence[bytes] | None = None

    @classmethod
    def of(cls, columns: tuple[int, bytes, bytes, bytes, Sequence[bytes] | None]) -> Self:
        """A block of the columns of `Subscriber.take_columns`."""
        first, timestamps, value_offsets, value_data, metadata = columns
        return cls(first, array("q", timestamps), value_offsets, value_data, metadata)

    @classmethod
    def of_samples(cls, samples: Sequence[Sample | Message]) -> Self:
        """A block of samples with consecutive offsets."""
        sizes = [len(sample) for sample in samples]
        metadata = [encode_metadata(sample.key, sample.headers) or b"" for sample in samples]
        return cls(
            samples[0].offset,
            array("q", [sample.timestamp_ns for sample in samples]),
            struct.pack(f"<{len(samples) + 1}i", *accumulate(sizes, initial=0)),
            b"".join(map(bytes, samples)),
            metadata if any(metadata) else None,
        )

    @property
    def last(self) -> int:
        """The offset of the last sample."""
        return self.first + len(self.timestamps) - 1

    def starting_at(self, position: int) -> "Block":
        """The samples from offset `position` on, which must be in the block."""
        assert self.first <= position <= self.last
        skipped = position - self.first
        if not skipped:
            return self
        count = len(self.timestamps) - skipped
        offsets = struct.unpack_from(f"<{count + 1}i", self.value_offsets, 4 * skipped)
        return Block(
            position,
            self.timestamps[skipped:],
            struct.pack(f"<{len(offsets)}i", *(each - offsets[0] for each in offsets)),
            self.value_data[offsets[0] :],
            None if self.metadata is None else self.metadata[skipped:],
            None if self.keys is None else self.keys[skipped:],
        )

    def batch(self, stamp: Stamp) -> Batch:
        """The samples as a batch; Corrupt if the key or headers of a sample cannot be decoded."""
        keys: Sequence[bytes | None] = self.keys or [None] * len(self.timestamps)
        headers: Sequence[Mapping[str, bytes]] = ()
        if self.metadata is not None:
            keys, headers = zip(*map(decode_metadata, self.metadata), strict=True)
        return Batch.of_columns(self.timestamps, self.value_offsets, self.value_data, keys, headers, stamp)
