"""A recorder: keeps a topic or queue of a host recorded, whatever becomes of it, the cluster and itself."""

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

# How often it looks whether its topic is there.
_LOOK_SECONDS: Final = 0.2


class RecorderStatus(msgspec.Struct, kw_only=True):
    """How far a recorder is. `recorded`, `gaps` and `lost` count samples, gap records and the samples that
    those stand for, since it was started; `position` is the offset of the last sample that is in the cluster;
    `lag` is how many were published since. `error` says what it waits for, or why it failed: for good, or to
    read a topic that is there, which it tries again."""

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
    """Records `topic` of a domain, which may be a queue, into `target` of the cluster `to`: of the same kind,
    of the same name if none is given, created with these settings if there is none. One `name` records it
    once at a time; another name is another recorder, with a record of its own, but a queue has only one.
    `max_lag` is how many samples publishers of a topic may be ahead of it while it is dead; without one they
    wait. UsageError for arguments that cannot be right."""

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
        # Of the region that is recorded now; None while there is none.
        self._now: tuple[Source, Target, Stream] | None = None
        self._position = 0
        self._error: str | None = None
        self._has_failed = False

    def run(self, stop: threading.Event) -> None:
        """Record until `stop` is set, then return soon. Waits for a topic or a cluster that is not there, and
        for whatever else may pass; HawserError for what cannot, such as a target with other settings."""
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
        """How it is now; from any thread."""
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
        """Until the region is deleted, or cannot be read, or `stop` is set."""
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
                    # What was in the way before is not any more.
                    self._error = None
                self._note(error)
            finally:
                self._position = stream.position - 1
                self._now = None

    def _open(self) -> Source:
        """What there is to record now; HawserError if there is nothing, or it cannot be recorded."""
        found = Domain.of_url(self._domain).kind_of(self._topic)
        self._kind = "queue" if found == "queue" else "topic"
        if self._kind == "queue":
            return QueueSource(self._domain, self._topic, self._name)
        return TopicSource(self._domain, self._topic, self._name, self._max_lag)

    def _note(self, error: HawserError) -> None:
        # A topic that is not there, or that another recorder of this name is at, is waited for.
        self._has_failed = not isinstance(error, NotFound | Closed | UsageError)
        if str(error) != self._error:
            level = logging.ERROR if self._has_failed else logging.INFO
            _log.log(level, "%s %s is not recorded: %s", self._kind, self._topic, error)
        self._error = str(error)


def _without_partitions(settings: Settings) -> Settings:
    """Of a queue, which is one."""
    return {name: value for name, value in settings.items() if name != "partitions"}


class TraceRecorder(Recorder):
    """Records the trace ring of a domain into the topic `target` of the cluster `to`, as a Recorder records a
    topic; it waits for a ring that is not there."""

    def __init__(self, domain_url: str, target: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, TRACE_NAME, to, name=name, target=target)
        # Here, not with the ring: names outlive it.
        self._names = TraceNames(Domain.of_url(domain_url))

    def _open(self) -> Source:
        return TraceSource(self._domain, self._names)


class PayloadRecorder(Recorder):
    """Records a topic of a domain into the one of its name of the cluster `to`, while it is traced with
    payloads. Nobody waits for it: what is overwritten before it comes is a gap."""

    def __init__(self, domain_url: str, topic: str, to: str, *, name: str) -> None:
        super().__init__(domain_url, topic, to, name=name)

    def _open(self) -> Source:
        return TracedTopicSource(self._domain, self._topic, self._name)
