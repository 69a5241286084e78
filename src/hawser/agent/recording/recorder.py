"""A recorder keeps a topic, a queue or the trace of a host recorded in a cluster.

    waiting for topic   -> recording            the region exists and can be read
    recording           -> waiting for cluster  the target does not answer; the recorder retries
    waiting for cluster -> recording            the target answers
    any                 -> waiting for topic    the region was deleted
    any                 -> failed               a permanent error, such as other settings of the target

Each sample is in the cluster once and in order, or within a recorded gap, even if the region, the cluster or
the recorder fails.
"""

import logging
import threading
from typing import Final, Literal

import msgspec

from hawser.agent.recording.queue_source import QueueSource
from hawser.agent.recording.source import Source
from hawser.agent.recording.stream import Counts, QueueStream, Stream
from hawser.agent.recording.target import Kind, Stopped, Target
from hawser.agent.recording.topic_source import TopicSource, TracedTopicSource
from hawser.agent.recording.trace_source import TraceSource
from hawser.cluster.client.admin.catalog import Settings, check_settings
from hawser.cluster.client.client import addresses_of
from hawser.errors import Closed, HawserError, NotFound, SettingsMismatch, UsageError
from hawser.memory import Domain
from hawser.memory.domain import TRACE_NAME
from hawser.memory.names import check_bus_name, check_topic_name, group_record
from hawser.memory.trace_ring import TraceNames
from hawser.record.recording import recorder_id

__all__ = ["PayloadRecorder", "Recorder", "RecorderStatus", "TraceRecorder"]

_log = logging.getLogger("hawser.agent")

State = Literal["waiting for topic", "waiting for cluster", "recording", "failed"]

# Interval of the search for the topic.
_LOOK_SECONDS: Final = 0.2


class RecorderStatus(msgspec.Struct, kw_only=True):
    """The progress of a recorder. `recorded`, `gaps` and `lost` count samples, gap records and the samples in
    those gaps since the start. `position` is the offset of the last sample in the cluster, `lag` the number
    of newer samples. `error` is the reason why it waits or failed; it retries an existing topic that it
    cannot read."""

    topic: str
    target: str
    state: State
    recorded: int = 0
    gaps: int = 0
    lost: int = 0
    position: int = 0
    lag: int = 0
    error: str | None = None


class Recorder:
    """Records the topic or queue `topic` of a domain into `target` of the cluster `to`. The target is of the
    same kind, has the same name by default, and is created with these settings if it does not exist. A name
    records a topic once at a time; recorders with other names have positions of their own. A queue has one
    recorder. `max_lag` is the number of samples that publishers of a topic may be ahead of a dead recorder;
    without it they wait. UsageError for invalid arguments."""

    def __init__(
        self,
        domain_url: str,
        topic: str,
        to: str,
        *,
        name: str,
        target: str | None = None,
        partitions: int | None = None,
        replication: int | None = None,
        max_lag: int | None = None,
    ) -> None:
        Domain.of_url(domain_url)
        check_topic_name(topic)
        check_bus_name(name)
        group_record(name)
        if max_lag is not None and max_lag < 1:
            raise UsageError(f"max_lag={max_lag} is below 1; leave it out to make publishers wait")
        self._domain = domain_url
        self._topic = topic
        self._name = name
        self._target = check_topic_name(topic if target is None else target)
        self._addresses = addresses_of(to)
        asked = {"partitions": partitions, "replication": replication}
        self._settings, _ = check_settings(
            {setting: value for setting, value in asked.items() if value is not None}, None
        )
        self._max_lag = max_lag
        self._counts = Counts()
        self._kind: Kind = "topic"
        # The region that is recorded now; None while there is none.
        self._now: tuple[Source, Target, Stream] | None = None
        self._position = 0
        self._error: str | None = None
        self._has_failed = False

    def run(self, stop: threading.Event) -> None:
        """Record until `stop` is set. Waits for a missing topic or cluster and retries temporary errors;
        HawserError for a permanent error, such as a target with other settings."""
        try:
            while not stop.is_set():
                self._record_region(stop)
                stop.wait(_LOOK_SECONDS)
        except Stopped:
            return
        except HawserError as error:
            self._has_failed, self._error = True, str(error)
            raise

    def status(self) -> RecorderStatus:
        """The current status; may be called from any thread."""
        state: State = "failed" if self._has_failed else "waiting for topic"
        now, error, position, lag = self._now, self._error, self._position, 0
        if now is not None:
            source, target, stream = now
            error, position = target.problem, stream.position - 1
            state = "recording" if error is None else "waiting for cluster"
            lag = max(0, source.head - position)
        return RecorderStatus(
            topic=self._topic,
            target=self._target,
            state=state,
            recorded=self._counts.recorded,
            gaps=self._counts.gaps,
            lost=self._counts.lost,
            position=position,
            lag=lag,
            error=error,
        )

    def _record_region(self, stop: threading.Event) -> None:
        """Record the region until it is deleted or cannot be read, or `stop` is set."""
        try:
            source = self._open()
        except HawserError as error:
            self._note(error)
            return
        producer = recorder_id(self._name, source.uuid)
        given = self._settings if self._kind == "topic" else _without_partitions(self._settings)
        settings = (self._target, self._kind, given, source.schema)
        with source, Target(self._addresses, *settings, producer, stop) as target:
            stream_kind = QueueStream if self._kind == "queue" else Stream
            stream = stream_kind(source, target, self._name, self._counts)
            self._now = source, target, stream
            recorded = self._counts.recorded
            try:
                stream.record(stop)
            except SettingsMismatch:
                raise
            except HawserError as error:
                if self._counts.recorded > recorded:
                    # The earlier error is resolved.
                    self._error = None
                self._note(error)
            finally:
                self._position = stream.position - 1
                self._now = None

    def _open(self) -> Source:
        """Open the region; HawserError if it does not exist or cannot be recorded."""
        found = Domain.of_url(self._domain).kind_of(self._topic)
        self._kind = "queue" if found == "queue" else "topic"
        if self._kind == "queue":
            return QueueSource(self._domain, self._topic, self._name)
        return TopicSource(self._domain, self._topic, self._name, self._max_lag)

    def _note(self, error: HawserError) -> None:
        # The recorder waits for a missing topic, and for another recorder of this name to end.
        self._has_failed = not isinstance(error, NotFound | Closed | UsageError)
        if str(error) != self._error:
            level = logging.ERROR if self._has_failed else logging.INFO
            _log.log(level, "%s %s is not recorded: %s", self._kind, self._topic, error)
        self._error = str(error)


def _without_partitions(settings: Settings) -> Settings:
    """The settings without partitions, for a queue."""
    return {name: value for name, value in settings.items() if name != "partitions"}


class TraceRecorder(Recorder):
    """Records the trace ring of a domain into the topic `target` of the cluster `to`, and waits for a missing
    ring."""

    def __init__(self, domain_url: str, target: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, TRACE_NAME, to, name=name, target=target)
        # Names outlive the ring, so the recorder holds them.
        self._names = TraceNames(Domain.of_url(domain_url))

    def _open(self) -> Source:
        return TraceSource(self._domain, self._names)


class PayloadRecorder(Recorder):
    """Records a topic of a domain into the topic of its name in the cluster `to`, while it is traced with
    payloads. Publishers do not wait for it: samples that are overwritten before it reads them become a
    gap."""

    def __init__(self, domain_url: str, topic: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, topic, to, name=name)

    def _open(self) -> Source:
        return TracedTopicSource(self._domain, self._topic, self._name)
