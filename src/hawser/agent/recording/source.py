"""A topic in shared memory as its recorder takes it: in blocks, while publishers wait for the unrecorded.

The position kept in the region moves when a block is recorded, not when it is taken. It tells publishers how
far they may go, and a later run where to begin; what is recorded the cluster alone knows.
"""

import struct
from array import array
from types import TracebackType
from typing import Final, Self

from hawser.agent.recording.blocks import Block
from hawser.memory import Domain, Region, Sample
from hawser.memory.names import group_record
from hawser.record.batch import MAX_BATCH_BYTES
from hawser.record.metadata import encode_metadata
from hawser.record.origin import Gap

__all__ = ["Source"]

_DURABLE: Final = 2
# As the batches of other producers: large enough to be cheap, small enough not to hold up anything.
_BLOCK_SAMPLES: Final = 10_000
_BLOCK_BYTES: Final = 1 << 20
# What a batch has beside a value with its key and headers, generously.
_SPARE_BYTES: Final = 4096


class Source:
    """The durable subscription of the recorder `name`: everything that is there and everything that comes.
    NotFound if there is no such topic, UsageError while another recorder of this name lives."""

    def __init__(self, domain: str, topic: str, name: str, max_lag: int | None) -> None:
        record = group_record(name)
        self._region = Domain.of_url(domain).open(topic)
        try:
            self.mark = _kept_mark(self._region, record)
            self._subscriber = self._region.subscriber(
                name,
                history=int(self._region.settings()["history"]),
                reliable=_DURABLE,
                record=record,
                commit=True,
                max_lag=max_lag or 0,
            )
        except BaseException:
            self._region.close()
            raise

    @property
    def uuid(self) -> str:
        """Of the region: one made anew under the same name has another."""
        return self._region.uuid

    @property
    def schema(self) -> str | None:
        """The fingerprint of the schema that the topic was made with, if it was."""
        return str(self._region.settings()["schema"]) or None

    @property
    def head(self) -> int:
        """Offset of the newest sample."""
        return self._subscriber.head

    @property
    def next_offset(self) -> int:
        """Offset of the sample that is taken next, if it is not overwritten before."""
        return self._subscriber.position + 1

    def take(self, timeout: float) -> Block | Gap | None:
        """The next samples that are there, or a gap instead of one that no batch can hold; None if there are
        none within `timeout` seconds. Closed if the topic was deleted."""
        columns = self._subscriber.take_columns(_BLOCK_SAMPLES, _BLOCK_BYTES, timeout)
        if columns is None:
            return None
        if columns[1]:
            return Block.of(columns)
        sample = self._subscriber.take(0)
        if sample is None:
            return None
        with sample:
            return _alone(sample)

    def commit(self) -> None:
        """All that was taken is recorded: publishers may go on."""
        self._subscriber.commit()
        self.mark = self._subscriber.position

    def close(self) -> None:
        self._subscriber.close()
        self._region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _kept_mark(region: Region, record: str) -> int:
    """Up to where a former run has recorded, at least; 0 if there was none."""
    return next((each["mark"] for each in region.records() if each["name"] == record), 0)


def _alone(sample: Sample) -> Block | Gap:
    """A block of one sample."""
    metadata = encode_metadata(sample.key, sample.headers) or b""
    if len(sample) + len(metadata) > MAX_BATCH_BYTES - _SPARE_BYTES:
        return Gap(sample.offset, sample.offset)
    offsets = struct.pack("<2i", 0, len(sample))
    return Block(
        sample.offset,
        array("q", [sample.timestamp_ns]),
        offsets,
        bytes(sample),
        [metadata] if metadata else None,
    )
