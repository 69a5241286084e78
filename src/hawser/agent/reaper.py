"""The reaper of a domain: recovers dead participants, removes what they left, reads totals.

In this module a topic is a topic or a queue.

A scan watches a region without opening it: a watcher holds no lock and keeps nothing alive. Topics can
therefore be deleted, created again and forgotten as without an agent, and a stopped process never blocks a
scan. A scan takes time bounded by the size of the region. Only the removal of an ephemeral topic's leftover
may wait, for a stopped process that removes the same name; callers run it in a thread.

    not watched -> watched      the file exists and is an intact region
    watched     -> not watched  the region was removed, replaced or damaged
    any         -> postponed    a stopped process is recovering or removing the region; skipped for a moment

The reaper keeps no record of live processes: each scan asks the kernel, and the locks decide. An extra scan
is harmless, and an agent that is killed leaves nothing to clean up.
"""

import logging
import os
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from hawser.errors import Closed, HawserError, NotFound
from hawser.memory import Domain, Region
from hawser.memory.trace_ring import trace_of

__all__ = ["Reaper", "RegionStats"]

_log = logging.getLogger("hawser.agent")

# A topic that another process is recovering or removing is not scanned on events for this time, because the
# scan itself causes events.
_POSTPONE_SECONDS: Final = 0.1


class RegionStats(NamedTuple):
    """Figures of one region: Region.state and Region.totals, the count of trace records that were not
    written, and for a queue Region.queue_state."""

    kind: str
    topic: str
    state: dict[str, Any]
    publishers: dict[str, int]
    subscribers: dict[str, int]


class Reaper:
    """The reaper of one domain. `recovered` counts the participants that it recovered; `leftovers` are
    abandoned ephemeral topics; `problem` is the reason why the domain cannot be scanned."""

    def __init__(self, domain: Domain) -> None:
        self.recovered = 0
        self.scans = 0
        self.leftovers: set[str] = set()
        self.problem: str | None = "the domain is not scanned yet"
        self._domain = domain
        self._watched: dict[str, Region] = {}
        # Sizes of the files. Access beyond the end of a truncated file would kill this process with SIGBUS.
        self._sizes: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        # Trace records of each that were not written, as of the last scan.
        self._untraced: dict[str, int] = {}
        # Topics that a stopped process is recovering or removing, and the end of their pause.
        self._postponed: dict[str, float] = {}

    @property
    def topics(self) -> list[str]:
        """The watched topics."""
        return sorted(self._watched)

    def scan(self) -> None:
        """Scan every topic, and close those that are gone."""
        try:
            topics = self._domain.names()
        except (HawserError, OSError) as error:
            self._report_problem(str(error))
            topics = []
        else:
            self.problem = None
        refused, self._refused, self._postponed = self._refused, {}, {}
        for topic in self._watched.keys() - set(topics):
            self._close(topic)
        for topic in topics:
            self._scan_one(topic, refused.get(topic))

    def scan_one(self, topic: str) -> None:
        """Scan one topic, unless it is postponed. A refused topic waits for the next scan of the domain."""
        if topic not in self._refused and self._postponed.get(topic, 0.0) <= time.monotonic():
            self._postponed.pop(topic, None)
            self._scan_one(topic, None)

    def remove_leftover(self, topic: str) -> None:
        """Remove an ephemeral topic, as its last participant would have, unless it is in use again. May wait
        for seconds."""
        try:
            region = self._domain.open(topic)
            region.close()
            if region.closed:
                _log.info("removed %r: it is ephemeral and its participants are dead", topic)
        except (NotFound, Closed):
            pass
        except HawserError as error:
            _log.warning("%r is ephemeral and cannot be removed: %s", topic, error)

    def traced_with_payloads(self) -> set[str]:
        """The watched topics that are traced with payloads."""
        return {topic for topic, region in self._intact() if trace_of(region) == "payload"}

    def stats(self) -> Iterator[RegionStats]:
        """The figures of every watched topic."""
        for topic, region in self._intact():
            try:
                state = region.state() | {"untraced": region.tracing[2]}
                if region.kind == "queue":
                    state |= region.queue_state()
                yield RegionStats(region.kind, topic, state, *region.totals())
            except HawserError:
                # The region was removed or damaged since the last scan; the next scan reports it.
                continue

    def _intact(self) -> list[tuple[str, Region]]:
        """The watched topics whose files have the size of the last scan."""
        return [each for each in sorted(self._watched.items()) if self._size(each[0]) == self._sizes[each[0]]]

    def _scan_one(self, topic: str, known: str | None) -> None:
        self.scans += 1
        try:
            # Twice, because the topic may have been created again.
            for _ in range(2):
                if self._sizes.get(topic) != (size := self._size(topic)):
                    self._close(topic)
                region = self._watched.get(topic) or self._domain.watch(topic)
                if region is None:
                    if os.path.lexists(self._domain.path_of(topic)):
                        self._postpone(topic)
                    return
                self._watched[topic], self._sizes[topic] = region, size
                if not region.closed and self._scan_region(topic, region):
                    return
                self._close(topic)
        except HawserError as error:
            self._close(topic)
            self._refused[topic] = str(error)
            if str(error) != known:
                _log.warning("%r is left out: %s", topic, error)

    def _scan_region(self, topic: str, region: Region) -> bool:
        """Recover the dead of the region; False if the region was removed."""
        try:
            dead, used = region.glance()
            if dead:
                self._recover(topic, region)
        except Closed:
            return False
        untraced = region.tracing[2]
        if untraced > self._untraced.setdefault(topic, 0):
            _log.warning(
                "%s %r: %d trace records were not written; the trace ring was removed or is unusable",
                region.kind,
                topic,
                untraced - self._untraced[topic],
            )
        self._untraced[topic] = untraced
        if not used and region.settings()["ephemeral"]:
            self.leftovers.add(topic)
        return True

    def _recover(self, topic: str, region: Region) -> None:
        for each in region.recover():
            if not each["complete"]:
                self._postpone(topic)
                _log.debug("another process recovers %s %r of %r", each["kind"], each["name"], topic)
                continue
            self.recovered += 1
            _log.info(
                "recovered %s %r (pid %d) of %s %r: returned %d slots, %d samples and %d messages",
                each["kind"],
                each["name"],
                each["pid"],
                region.kind,
                topic,
                each["slots"],
                each["references"],
                each.get("claims", 0),
            )

    def _size(self, topic: str) -> int:
        """The size of the topic's file; -1 if there is none."""
        try:
            return os.lstat(self._domain.path_of(topic)).st_size
        except OSError:
            return -1

    def _postpone(self, topic: str) -> None:
        self._postponed[topic] = time.monotonic() + _POSTPONE_SECONDS

    def _close(self, topic: str) -> None:
        self._watched.pop(topic, None)
        self._sizes.pop(topic, None)
        self._untraced.pop(topic, None)
        self.leftovers.discard(topic)

    def _report_problem(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("the domain cannot be scanned: %s", problem)
        self.problem = problem
