"""Looking after the topics and queues of a domain: the dead are recovered, what they left is removed, totals
are read. Below, a topic is either: nothing here depends on which.

Topics are watched, not opened: a watcher holds no lock and keeps nothing alive, so that topics are deleted,
made anew and forgotten as if there were no agent, and a process that is stopped, wherever it stands, holds up
no look. A look takes time bounded by the size of the region. Only removing the leftover of an ephemeral topic
may wait, for a process that stands still while removing the same name; callers do it beside.

Nothing here remembers who was alive: each look asks the kernel, and recovery decides by the locks. So a look
too many is harmless, and an agent that is killed leaves nothing to clean up.
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

# So long news of a topic that only others can go on with is not looked into: looking made it.
_POSTPONE_SECONDS: Final = 0.1


class RegionStats(NamedTuple):
    """Of one topic: what Region.state and Region.totals say, and how many trace records of it could not be
    written; of one queue, also Region.queue_state."""

    kind: str
    topic: str
    state: dict[str, Any]
    publishers: dict[str, int]
    subscribers: dict[str, int]


class Reaper:
    """One domain's. `recovered` counts the dead that it recovered itself; `leftovers` are ephemeral topics
    that it found abandoned; `problem` is why the domain cannot be looked through."""

    def __init__(self, domain: Domain) -> None:
        self.recovered = 0
        self.scans = 0
        self.leftovers: set[str] = set()
        self.problem: str | None = "the domain was not looked through yet"
        self._domain = domain
        self._watched: dict[str, Region] = {}
        # Of their files. To look at a part of one that is cut off would end us, and every other duty with us.
        self._sizes: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        # How many trace records of each could not be written, when it was looked at last.
        self._untraced: dict[str, int] = {}
        # Topics that somebody stands still in the middle of recovering or removing, and until when.
        self._postponed: dict[str, float] = {}

    @property
    def topics(self) -> list[str]:
        """Those that are watched."""
        return sorted(self._watched)

    def scan(self) -> None:
        """At every topic there is; those that are gone are let go of."""
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
        """At one topic; one that was refused has to wait for the next look at all, one that is held up for a
        moment."""
        if topic not in self._refused and self._postponed.get(topic, 0.0) <= time.monotonic():
            self._postponed.pop(topic, None)
            self._scan_one(topic, None)

    def remove_leftover(self, topic: str) -> None:
        """What the last one out would have done, unless somebody uses it again. May wait for seconds."""
        try:
            region = self._domain.open(topic)
            region.close()
            if region.closed:
                _log.info("%r is ephemeral: everybody is dead, removed", topic)
        except (NotFound, Closed):
            pass
        except HawserError as error:
            _log.warning("%r is ephemeral and cannot be removed: %s", topic, error)

    def traced_with_payloads(self) -> set[str]:
        """Of those that are watched."""
        return {topic for topic, region in self._intact() if trace_of(region) == "payload"}

    def stats(self) -> Iterator[RegionStats]:
        """Of every topic that is watched."""
        for topic, region in self._intact():
            try:
                state = region.state() | {"untraced": region.tracing[2]}
                if region.kind == "queue":
                    state |= region.queue_state()
                yield RegionStats(region.kind, topic, state, *region.totals())
            except HawserError:
                # Removed or damaged since the last look; the next one says so.
                continue

    def _intact(self) -> list[tuple[str, Region]]:
        """Those that are as large as they were when they were looked at."""
        return [each for each in sorted(self._watched.items()) if self._size(each[0]) == self._sizes[each[0]]]

    def _scan_one(self, topic: str, known: str | None) -> None:
        self.scans += 1
        try:
            # Twice: the topic may have been made anew.
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
        """False: it was removed."""
        try:
            dead, used = region.glance()
            if dead:
                self._recover(topic, region)
        except Closed:
            return False
        untraced = region.tracing[2]
        if untraced > self._untraced.setdefault(topic, 0):
            _log.warning(
                "%s %r: %d trace records could not be written; the trace ring was removed, or cannot be used",
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
                _log.debug("%s %r of %r is being recovered by another", each["kind"], each["name"], topic)
                continue
            self.recovered += 1
            _log.info(
                "recovered %s %r (pid %d) of %s %r: %d slots, %d samples and %d messages given back",
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
        """Of its file; -1 if there is none."""
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
            _log.error("the domain cannot be looked through: %s", problem)
        self.problem = problem
