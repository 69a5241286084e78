"""Looking after the topics of a domain: the dead are recovered, what they left is removed, totals are read.

Topics are watched, not opened: a watcher holds no lock and keeps nothing alive, so that topics are deleted,
made anew and forgotten as if there were no agent, and a process that is stopped, wherever it stands, holds up
no look. A look takes time bounded by the size of the region. Only removing the leftover of an ephemeral topic
may wait, for a process that stands still while removing the same name; callers do it beside.

Nothing here remembers who was alive: each look asks the kernel, and recovery decides by the locks. So a look
too many is harmless, and an agent that is killed leaves nothing to clean up.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple

from hawser.errors import Closed, HawserError, NotFound
from hawser.memory import Domain, Region

__all__ = ["Figures", "Lookout"]

_log = logging.getLogger("hawser.agent")


class Figures(NamedTuple):
    """Of one topic: what Region.state and Region.totals say."""

    topic: str
    state: dict[str, int]
    publishers: dict[str, int]
    subscribers: dict[str, int]


class Lookout:
    """One domain's. `recovered` counts the dead that it recovered itself; `leftovers` are ephemeral topics
    that it found abandoned; `problem` is why the domain cannot be looked through."""

    def __init__(self, domain: Domain) -> None:
        self.recovered = 0
        self.looks = 0
        self.leftovers: set[str] = set()
        self.problem: str | None = "the domain was not looked through yet"
        self._domain = domain
        self._watched: dict[str, Region] = {}
        self._refused: dict[str, str] = {}

    @property
    def topics(self) -> list[str]:
        """Those that are watched."""
        return sorted(self._watched)

    def look_around(self) -> None:
        """At every topic there is; those that are gone are let go of."""
        try:
            topics = self._domain.topics()
        except (HawserError, OSError) as error:
            self._complain(str(error))
            topics = []
        else:
            self.problem = None
        refused, self._refused = self._refused, {}
        for topic in self._watched.keys() - set(topics):
            self._let_go(topic)
        for topic in topics:
            self._look(topic, refused.get(topic))

    def look_at(self, topic: str) -> None:
        """At one topic; one that was refused has to wait for the next look at all."""
        if topic not in self._refused:
            self._look(topic, None)

    def remove_leftover(self, topic: str) -> None:
        """What the last one out would have done, unless somebody uses it again. May wait for seconds."""
        try:
            self._domain.open(topic).close()
            _log.info("ephemeral topic %r: everybody is dead, removed", topic)
        except (NotFound, Closed):
            pass
        except HawserError as error:
            _log.warning("ephemeral topic %r cannot be removed: %s", topic, error)

    def figures(self) -> Iterator[Figures]:
        """Of every topic that is watched."""
        for topic, region in sorted(self._watched.items()):
            try:
                yield Figures(topic, region.state(), *region.totals())
            except HawserError:
                # Removed or damaged since the last look; the next one says so.
                continue

    def _look(self, topic: str, known: str | None) -> None:
        self.looks += 1
        try:
            # Twice: the topic may have been made anew.
            for _ in range(2):
                region = self._watched.get(topic) or self._domain.watch(topic)
                if region is None:
                    return
                self._watched[topic] = region
                if not region.closed and self._attend(topic, region):
                    return
                self._let_go(topic)
        except HawserError as error:
            self._let_go(topic)
            self._refused[topic] = str(error)
            if str(error) != known:
                _log.warning("topic %r is left out: %s", topic, error)

    def _attend(self, topic: str, region: Region) -> bool:
        """False: it was removed."""
        try:
            dead, used = region.glance()
            if dead:
                self._recover(topic, region)
        except Closed:
            return False
        if not used and region.settings()["ephemeral"]:
            self.leftovers.add(topic)
        return True

    def _recover(self, topic: str, region: Region) -> None:
        for each in region.recover():
            if not each["complete"]:
                _log.debug(
                    "%s %r of topic %r is being recovered by another", each["kind"], each["name"], topic
                )
                continue
            self.recovered += 1
            _log.info(
                "recovered %s %r (pid %d) of topic %r: %d slots and %d samples given back",
                each["kind"],
                each["name"],
                each["pid"],
                topic,
                each["slots"],
                each["references"],
            )

    def _let_go(self, topic: str) -> None:
        self._watched.pop(topic, None)
        self.leftovers.discard(topic)

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            _log.error("the domain cannot be looked through: %s", problem)
        self.problem = problem
