"""`hawser agent`: what happens in a domain is looked after as it happens.

The kernel tells which file something happened to (news.py), and that topic is looked at (lookout.py), at once
and a few times more while the news may have been early. Besides, everything is looked at once in a while: for
topics of a new directory, and in case news was lost. Recorders have threads of their own (recorders.py).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from hawser.agent.directory_watch import DirectoryNews
from hawser.agent.metrics import topic_metrics
from hawser.agent.reaper import Lookout
from hawser.agent.recorder_threads import Recorders, Recording
from hawser.cluster.background import Background
from hawser.cluster.health import Metric
from hawser.memory import Domain
from hawser.memory.names import topic_name_of

__all__ = ["AgentDaemon", "topic_metrics"]

_log = logging.getLogger("hawser.agent")

# After news: the locks of the dead may go a moment after it. Each look is so much later than the one before.
_LATER_SECONDS: Final = (0.002, 0.02, 0.1, 0.5)
# The same topic is not looked at more often than this, however much happens to it.
_PAUSE_SECONDS: Final = 0.002
_RECORDERS_SECONDS: Final = 20.0
_EVERYTHING: Final = ""
# How the kernel calls what was opened before it had a name: a topic in the hands of its creator.
_UNNAMED: Final = "#"


class AgentDaemon:
    """The agent of one domain. With a long `look_seconds` it relies on news alone. `payloads` makes the
    recorder of a topic that is found to be traced with payloads; without it those are left alone."""

    def __init__(
        self,
        name: str,
        url: str,
        recordings: list[Recording],
        *,
        look_seconds: float,
        payloads: Callable[[str], Recording] | None = None,
    ) -> None:
        self._name = name
        self._domain = Domain.of_url(url)
        self._lookout = Lookout(self._domain)
        self._recordings = recordings
        self._recorders = Recorders()
        self._recorded = {recording.status().topic for recording in recordings}
        self._targets = {recording.status().target for recording in recordings}
        self._payloads = payloads
        self._look_seconds = look_seconds
        self._news: DirectoryNews | None = None
        self._no_news: str | None = None
        self._heard = 0
        self._chases: dict[str, asyncio.TimerHandle] = {}
        self._looked_at: dict[str, float] = {}
        self._removing: set[str] = set()
        self._background = Background()
        self._stopping = False

    async def start(self) -> str:
        """Returns when the domain was looked through once; recorders connect when they can."""
        try:
            self._news = DirectoryNews()
        except OSError as error:
            _log.warning(
                "the kernel gives no news (inotify: %s): deaths are noticed by looking every %g s; raise "
                "fs.inotify.max_user_instances",
                error.strerror,
                self._look_seconds,
            )
        else:
            asyncio.get_running_loop().add_reader(self._news.fileno(), self._hear)
        self._look_around()
        self._background.start(self._keep_looking())
        for recording in self._recordings:
            self._recorders.start(recording)
        return f"{self._name} {self._domain.url}"

    async def stop(self) -> None:
        self._stopping = True
        self._background.cancel()
        for handle in self._chases.values():
            handle.cancel()
        if self._news is not None:
            asyncio.get_running_loop().remove_reader(self._news.fileno())
            self._news.close()
        if not await asyncio.to_thread(self._recorders.stop, _RECORDERS_SECONDS):
            _log.warning("a recorder did not end within %g s; the next one goes on", _RECORDERS_SECONDS)

    def why_not_ready(self) -> str | None:
        if self._stopping:
            return "stopping"
        return self._lookout.problem or self._recorders.why_not_ready()

    def metrics(self) -> Iterable[Metric]:
        text = "Dead participants that this agent recovered."
        yield Metric("hawser_agent_recovered_total", text, self._lookout.recovered)
        yield Metric("hawser_agent_looks_total", "Looks at topics.", self._lookout.looks)
        yield Metric("hawser_agent_news_total", "Times that the kernel had news.", self._heard)
        yield Metric("hawser_agent_topics", "Topics that are watched.", len(self._lookout.topics))
        for figures in self._lookout.figures():
            yield from topic_metrics(figures)
        yield from self._recorders.metrics()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                self._look_around()
            except Exception:
                # Whatever it is, the next look may go well; an agent that stopped looking would be silent.
                _log.exception("a look at the domain failed")

    def _look_around(self) -> None:
        try:
            # Before the look: what happens after it is news.
            if self._news is not None and self._news.follow(self._domain.directory):
                _log.info("following %s", self._domain.directory)
            self._no_news = None
        except OSError as error:
            if error.strerror != self._no_news:
                _log.warning(
                    "the kernel gives no news of %s (inotify: %s): deaths are noticed by looking every %g s; "
                    "if it has no watch left, raise fs.inotify.max_user_watches",
                    self._domain.directory,
                    error.strerror,
                    self._look_seconds,
                )
            self._no_news = error.strerror
        self._lookout.look_around()
        if self._payloads is not None:
            for topic in self._lookout.traced_with_payloads() - self._recorded:
                self._recorded.add(topic)
                if topic in self._targets:
                    _log.warning("%r is not recorded with payloads: something else is recorded to it", topic)
                else:
                    self._recorders.start(self._payloads(topic))
        self._remove_leftovers()

    def _hear(self) -> None:
        assert self._news is not None
        files, overflow = self._news.read()
        self._heard += 1
        if overflow:
            _log.warning("the kernel had more news than it could keep; looking at everything")
        if overflow or any(file.startswith(_UNNAMED) for file in files):
            self._chase(_EVERYTHING)
            return
        for topic in filter(None, map(topic_name_of, files)):
            self._chase(topic)

    def _chase(self, topic: str) -> None:
        """Look at it now, or as soon as it may be looked at again, and then some more."""
        if (handle := self._chases.pop(topic, None)) is not None:
            handle.cancel()
        loop = asyncio.get_running_loop()
        wait_seconds = self._looked_at.get(topic, 0.0) + _PAUSE_SECONDS - loop.time()
        if wait_seconds <= 0:
            self._look(topic, 0)
        else:
            self._chases[topic] = loop.call_later(wait_seconds, self._look, topic, 0)

    def _look(self, topic: str, times: int) -> None:
        loop = asyncio.get_running_loop()
        self._looked_at[topic] = loop.time()
        if times < len(_LATER_SECONDS):
            self._chases[topic] = loop.call_later(_LATER_SECONDS[times], self._look, topic, times + 1)
        else:
            del self._chases[topic], self._looked_at[topic]
        if topic == _EVERYTHING:
            self._lookout.look_around()
        else:
            self._lookout.look_at(topic)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for topic in self._lookout.leftovers - self._removing:
            self._removing.add(topic)
            self._background.start(self._remove(topic))

    async def _remove(self, topic: str) -> None:
        try:
            await asyncio.to_thread(self._lookout.remove_leftover, topic)
        finally:
            self._removing.discard(topic)
            self._lookout.leftovers.discard(topic)
