"""The daemon of `hawser agent`: scans the regions of a domain on kernel events and at intervals.

A kernel event names the file of a region (directory_watch.py). The reaper scans that region (reaper.py) at
once, and a few times more, because the event may arrive before the locks of a dead process are released. A
scan of the whole domain at intervals finds a new directory and covers lost events. Recorders run in threads
of their own (recorder_threads.py).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from hawser.agent.directory_watch import DirectoryWatch
from hawser.agent.metrics import topic_metrics
from hawser.agent.reaper import Reaper
from hawser.agent.recorder_threads import RecorderThreads, RunnableRecorder
from hawser.cluster.background import Background
from hawser.cluster.health import Metric
from hawser.memory import Domain
from hawser.memory.names import topic_name_of

__all__ = ["AgentDaemon", "topic_metrics"]

_log = logging.getLogger("hawser.agent")

# Delays of the scans after an event, each after the one before: the locks of a dead process may be released
# shortly after the event.
_RESCAN_SECONDS: Final = (0.002, 0.02, 0.1, 0.5)
# Minimum time between two scans of the same region.
_PAUSE_SECONDS: Final = 0.002
_RECORDERS_SECONDS: Final = 20.0
_EVERYTHING: Final = ""
# The kernel's name of a file that was opened without a name: a region that is still held by its creator.
_UNNAMED: Final = "#"


class AgentDaemon:
    """The agent of one domain. With a long `look_seconds` it relies on kernel events alone. `payloads`
    creates the recorder of a topic that is traced with payloads; without it such topics are not recorded."""

    def __init__(
        self,
        name: str,
        url: str,
        recordings: list[RunnableRecorder],
        *,
        look_seconds: float,
        payloads: Callable[[str], RunnableRecorder] | None = None,
    ) -> None:
        self._name = name
        self._domain = Domain.of_url(url)
        self._reaper = Reaper(self._domain)
        self._recordings = recordings
        self._recorders = RecorderThreads()
        self._recorded = {recording.status().topic for recording in recordings}
        self._targets = {recording.status().target for recording in recordings}
        self._payloads = payloads
        self._look_seconds = look_seconds
        self._watch: DirectoryWatch | None = None
        self._watch_error: str | None = None
        self._event_reads = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._last_scans: dict[str, float] = {}
        self._removing: set[str] = set()
        self._background = Background()
        self._stopping = False

    async def start(self) -> str:
        """Return after the first scan of the domain. Recorders connect in the background."""
        try:
            self._watch = DirectoryWatch()
        except OSError as error:
            _log.warning(
                "no kernel events (inotify: %s): dead processes are found by a scan every %g s; raise "
                "fs.inotify.max_user_instances",
                error.strerror,
                self._look_seconds,
            )
        else:
            asyncio.get_running_loop().add_reader(self._watch.fileno(), self._read_events)
        self._scan_domain()
        self._background.start(self._scan_periodically())
        for recording in self._recordings:
            self._recorders.start(recording)
        return f"{self._name} {self._domain.url}"

    async def stop(self) -> None:
        self._stopping = True
        self._background.cancel()
        for handle in self._timers.values():
            handle.cancel()
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
        if not await asyncio.to_thread(self._recorders.stop, _RECORDERS_SECONDS):
            _log.warning("a recorder did not stop within %g s; its successor will resume", _RECORDERS_SECONDS)

    def why_not_ready(self) -> str | None:
        if self._stopping:
            return "stopping"
        return self._reaper.problem or self._recorders.why_not_ready()

    def metrics(self) -> Iterable[Metric]:
        text = "Dead participants that this agent recovered."
        yield Metric("hawser_agent_recovered_total", text, self._reaper.recovered)
        yield Metric("hawser_agent_looks_total", "Scans of topics and queues.", self._reaper.scans)
        yield Metric("hawser_agent_news_total", "Reads of kernel events.", self._event_reads)
        yield Metric("hawser_agent_topics", "Topics and queues that are watched.", len(self._reaper.topics))
        for stats in self._reaper.stats():
            yield from topic_metrics(stats)
        yield from self._recorders.metrics()

    async def _scan_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                self._scan_domain()
            except Exception:
                # The agent continues after any error, because the next scan may succeed.
                _log.exception("a scan of the domain failed")

    def _scan_domain(self) -> None:
        try:
            # Follow before the scan, so that later changes cause events.
            if self._watch is not None and self._watch.follow(self._domain.directory):
                _log.info("following %s", self._domain.directory)
            self._watch_error = None
        except OSError as error:
            if error.strerror != self._watch_error:
                _log.warning(
                    "no kernel events of %s (inotify: %s): dead processes are found by a scan every %g s; "
                    "if no watches are left, raise fs.inotify.max_user_watches",
                    self._domain.directory,
                    error.strerror,
                    self._look_seconds,
                )
            self._watch_error = error.strerror
        self._reaper.scan()
        if self._payloads is not None:
            for topic in self._reaper.traced_with_payloads() - self._recorded:
                self._recorded.add(topic)
                if topic in self._targets:
                    _log.warning(
                        "%r is not recorded with payloads: it is the target of another recorder", topic
                    )
                else:
                    self._recorders.start(self._payloads(topic))
        self._remove_leftovers()

    def _read_events(self) -> None:
        assert self._watch is not None
        files, overflow = self._watch.read()
        self._event_reads += 1
        if overflow:
            _log.warning("the kernel lost events; scanning the whole domain")
        if overflow or any(file.startswith(_UNNAMED) for file in files):
            self._schedule_scan(_EVERYTHING)
            return
        for topic in filter(None, map(topic_name_of, files)):
            self._schedule_scan(topic)

    def _schedule_scan(self, topic: str) -> None:
        """Scan the region now, or after the minimum pause, and then at the delays of _RESCAN_SECONDS."""
        if (handle := self._timers.pop(topic, None)) is not None:
            handle.cancel()
        loop = asyncio.get_running_loop()
        wait_seconds = self._last_scans.get(topic, 0.0) + _PAUSE_SECONDS - loop.time()
        if wait_seconds <= 0:
            self._scan_one(topic, 0)
        else:
            self._timers[topic] = loop.call_later(wait_seconds, self._scan_one, topic, 0)

    def _scan_one(self, topic: str, times: int) -> None:
        loop = asyncio.get_running_loop()
        self._last_scans[topic] = loop.time()
        if times < len(_RESCAN_SECONDS):
            self._timers[topic] = loop.call_later(_RESCAN_SECONDS[times], self._scan_one, topic, times + 1)
        else:
            del self._timers[topic], self._last_scans[topic]
        if topic == _EVERYTHING:
            self._reaper.scan()
        else:
            self._reaper.scan_one(topic)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for topic in self._reaper.leftovers - self._removing:
            self._removing.add(topic)
            self._background.start(self._remove(topic))

    async def _remove(self, topic: str) -> None:
        try:
            await asyncio.to_thread(self._reaper.remove_leftover, topic)
        finally:
            self._removing.discard(topic)
            self._reaper.leftovers.discard(topic)
