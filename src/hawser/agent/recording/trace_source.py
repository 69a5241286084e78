"""The source of a domain's trace ring: records in blocks, lost records as gaps.

Offsets are the positions of the ring, from 1 on. Writers do not wait for the recorder, so a slow or late
recorder loses the oldest records. Reading does not change the ring: the next run takes unrecorded records
again.
"""

import time
from array import array
from typing import Final
from uuid import UUID

from hawser.agent.recording.blocks import Block
from hawser.agent.recording.source import Source
from hawser.errors import Closed
from hawser.memory import Domain
from hawser.memory.trace_ring import TraceNames, lead_to, open_ring
from hawser.record.recording import Gap
from hawser.record.trace import RECORD_BYTES, trace_key, trace_subjects, trace_times

__all__ = ["TraceSource"]

_BLOCK_RECORDS: Final = 8192
_LOOK_SECONDS: Final = 0.01


class TraceSource(Source):
    """The records of the ring, from the oldest on. NotFound if there is no ring."""

    schema = None

    def __init__(self, domain: str, names: TraceNames) -> None:
        opened = Domain.of_url(domain)
        self._ring = open_ring(opened)
        # The creator of the ring may have been killed before it pointed all regions to it.
        lead_to(opened, self._ring)
        self._names = names
        self.uuid = str(UUID(bytes=self._ring.uuid))
        self._position = max(0, self._ring.head - self._ring.records)
        self.mark = 0

    @property
    def head(self) -> int:
        return self._ring.head

    @property
    def next_offset(self) -> int:
        return self._position + 1

    def take(self, timeout: float) -> Block | Gap | None:
        """The next records, keyed by the names of topic and participant, or a gap in place of lost ones.
        Closed if the ring was removed or replaced."""
        deadline = time.monotonic() + timeout
        while True:
            wanted = self._position
            first, data = self._ring.read(wanted, _BLOCK_RECORDS)
            self._position = first + len(data) // RECORD_BYTES
            if data:
                return self._block(first, data)
            if first > wanted:
                return Gap(wanted + 1, first)
            if first == self._ring.head and not self._ring.current:
                raise Closed("the trace ring was removed; recording resumes with a new ring")
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)

    def take_again(self, first: int, last: int) -> Block | Gap | None:
        start, data = self._ring.read(first - 1, min(_BLOCK_RECORDS, last - first + 1))
        data = data[: max(0, last - start) * RECORD_BYTES]
        return self._block(start, data) if data else None

    def commit(self) -> None:
        """The position is not saved: writers do not wait, and the next run asks the cluster."""
        self.mark = self._position

    def close(self) -> None:
        """The ring needs no release."""

    def _block(self, first: int, data: bytes) -> Block:
        subjects = trace_subjects(data)
        known = {subject: self._key(*subject) for subject in set(subjects)}
        ends = array("i", range(0, len(data) + 1, RECORD_BYTES)).tobytes()
        return Block(first + 1, trace_times(data), ends, data, None, [known[subject] for subject in subjects])

    def _key(self, region: int, participant: int) -> bytes:
        return trace_key(self._names.region(region).name, self._names.participant(region, participant))
