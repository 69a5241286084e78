"""The trace ring of a domain as its recorder takes it: what is there in blocks, what is lost as gaps.

Offsets are the positions of the ring, from 1 on. Nobody waits for the recorder, so it can be overtaken: then
the oldest records are lost, as they are if it comes late. Taking changes nothing: what is not recorded yet is
taken again by the next one.
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
    """All that the ring still has, and all that comes. NotFound if there is no ring."""

    schema = None

    def __init__(self, domain: str, names: TraceNames) -> None:
        opened = Domain.of_url(domain)
        self._ring = open_ring(opened)
        # Who made it may have been killed before all followed.
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
        """The next records, with the names of topic and participant as their keys, or a gap instead of those
        that are lost. Closed if there is another ring in the place of this one."""
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
                raise Closed("the trace ring was removed; another one is recorded once there is one")
            if time.monotonic() >= deadline:
                return None
            time.sleep(_LOOK_SECONDS)

    def take_again(self, first: int, last: int) -> Block | Gap | None:
        start, data = self._ring.read(first - 1, min(_BLOCK_RECORDS, last - first + 1))
        data = data[: max(0, last - start) * RECORD_BYTES]
        return self._block(start, data) if data else None

    def commit(self) -> None:
        """Nobody waits to hear it, and the next run asks the cluster."""
        self.mark = self._position

    def close(self) -> None:
        """There is nothing to let go of."""

    def _block(self, first: int, data: bytes) -> Block:
        subjects = trace_subjects(data)
        known = {subject: self._key(*subject) for subject in set(subjects)}
        ends = array("i", range(0, len(data) + 1, RECORD_BYTES)).tobytes()
        return Block(first + 1, trace_times(data), ends, data, None, [known[subject] for subject in subjects])

    def _key(self, region: int, participant: int) -> bytes:
        return trace_key(self._names.region(region).name, self._names.participant(region, participant))
