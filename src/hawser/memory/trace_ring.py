"""The trace ring of a domain, switching of tracing, and the names for the numbers in trace records.

The ring is one file beside the topics, created when tracing is first switched on. A word in a topic's header
says whether it is traced; participants follow it at their next operation.
"""

import os
import time
from typing import Final, NamedTuple, TypeVar

from hawser.errors import HawserError, NotFound, UsageError
from hawser.memory._native import Region, TraceRing
from hawser.memory.domain import TRACE_NAME, Domain
from hawser.memory.settings import TRACE_LEVELS
from hawser.record.trace import region_number

__all__ = ["TraceNames", "Traced", "lead_to", "make_ring", "open_ring", "switch", "trace_of"]

K = TypeVar("K")
V = TypeVar("V")

_RECORDS_VARIABLE: Final = "HAWSER_TRACE_RECORDS"
_DEFAULT_RECORDS: Final = 65_536
_LEAST_RECORDS: Final = 16
_MOST_RECORDS: Final = 1 << 24
# The most participants, and the most regions, whose names a reader keeps.
_MOST_REMEMBERED: Final = 100_000
_AGAIN_SECONDS: Final = 0.2


def trace_of(region: Region) -> str | None:
    """The present trace setting of a region."""
    return TRACE_LEVELS[region.tracing[1]]


def switch(domain: Domain, region: Region, level: int) -> None:
    """Set the trace level of a region of this domain; 0 switches tracing off. Creates the ring if needed."""
    if level == 0:
        region.trace(None)
    else:
        region.trace(make_ring(domain), level)


def open_ring(domain: Domain) -> TraceRing:
    """The domain's ring; NotFound if tracing was never switched on."""
    domain.check()
    ring = TraceRing.open(str(domain.directory / TRACE_NAME))
    if ring is None:
        raise NotFound(
            f"nothing is traced in {domain.directory}; switch tracing on with `hawser topic trace --on`"
        )
    return ring


def make_ring(domain: Domain) -> TraceRing:
    """The domain's ring, created if needed with the number of records in HAWSER_TRACE_RECORDS. A new ring
    replaces one that was removed."""
    domain.check()
    path = str(domain.directory / TRACE_NAME)
    ring = TraceRing.open(path)
    if ring is None:
        ring = TraceRing.create(path, _chosen_records(), domain.is_shared())
        lead_to(domain, ring)
    return ring


def lead_to(domain: Domain, ring: TraceRing) -> None:
    """Direct all traced regions to this ring, because records in a removed ring would never be read."""
    for name in domain.names():
        try:
            region = domain.watch(name)
            if region is None:
                continue
            identity, level, _ = region.tracing
            if level and identity != ring.identity:
                region.trace(ring, level, only_from=level)
        except HawserError:
            # Deleted, damaged or inaccessible: its users report that.
            continue


def _chosen_records() -> int:
    text = os.environ.get(_RECORDS_VARIABLE)
    if not text:
        return _DEFAULT_RECORDS
    if not text.isdecimal() or not _LEAST_RECORDS <= int(text) <= _MOST_RECORDS:
        raise UsageError(
            f"{_RECORDS_VARIABLE}={text!r} is not a whole number from {_LEAST_RECORDS} to {_MOST_RECORDS}"
        )
    return int(text)


class Traced(NamedTuple):
    """The kind ("topic" or "queue") and name of a region; both empty if unknown."""

    kind: str
    name: str


_UNKNOWN: Final = Traced("", "")


class TraceNames:
    """Names for the numbers in trace records. Names stay known after their region is gone; regions are opened
    only for a lookup, so none is kept alive."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._regions: dict[int, Traced] = {0: _UNKNOWN}
        self._participants: dict[tuple[int, int], str] = {}
        # The time before which a failed lookup of regions is not repeated.
        self._again = 0.0

    def region(self, number: int) -> Traced:
        """The kind and name of the region with this number."""
        if number not in self._regions and time.monotonic() >= self._again:
            if self._learn():
                # The record exists, so a region that is not found was removed.
                _remember(self._regions, number, self._regions.get(number, _UNKNOWN))
            else:
                self._again = time.monotonic() + _AGAIN_SECONDS
        return self._regions.get(number, _UNKNOWN)

    def participant(self, region: int, owner: int) -> str:
        """The name of the participant with this owner word; "" if it is unknown, or left and was replaced
        before it was looked up."""
        found = self._participants.get((region, owner))
        if found is not None:
            return found
        name = self.region(region).name
        if not owner or not name:
            return ""
        try:
            seen = self._domain.watch(name)
        except HawserError:
            # Its users report the error, which may be temporary.
            return ""
        is_there = seen is not None and region_number(seen.uuid) == region
        found = seen.participant_name(owner) if seen is not None and is_there else ""
        return _remember(self._participants, (region, owner), found)

    def _learn(self) -> bool:
        """Read the labels of all regions; False if one could not be read."""
        complete = True
        try:
            for name in self._domain.names():
                try:
                    label = self._domain.label_of(name)
                except OSError:
                    complete = False
                else:
                    if label is not None and label.kind is not None:
                        _remember(self._regions, label.number, Traced(label.kind, name))
        except HawserError:
            return False
        return complete


def _remember(known: dict[K, V], key: K, value: V) -> V:
    known[key] = value
    if len(known) > _MOST_REMEMBERED:
        del known[next(iter(known))]
    return value
