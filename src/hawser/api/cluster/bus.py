"""The bus on a cluster: the client in an event loop of its own, in a thread."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from hawser.api.bus import Bus, codec_of
from hawser.api.cluster.queue import ClusterQueue, participants
from hawser.api.cluster.topic import ClusterTopic
from hawser.api.cluster.transaction import ClusterTransaction, check_transaction_timeout, run_transaction
from hawser.api.cluster.xa import ClusterXA
from hawser.api.info import DomainFile, Participant, Recovered
from hawser.api.transaction import Transaction
from hawser.cluster.client.admin.catalog import check_queue_settings, check_settings
from hawser.cluster.client.client import Client, addresses_of
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.settings import ClientSettings
from hawser.errors import Closed, UsageError
from hawser.memory.names import check_topic_name

__all__ = ["ClusterBus", "settings_of"]

T = TypeVar("T")


class ClusterBus(Bus):
    """A connection to a cluster."""

    def __init__(self, url: str, *, name: str | None = None, **options: Any) -> None:
        super().__init__(name)
        self._addresses = addresses_of(url)
        settings = settings_of(options)
        self._lock = threading.RLock()
        self._topics: dict[tuple[str, Any], ClusterTopic[Any]] = {}
        self._queues: dict[tuple[str, Any], ClusterQueue[Any]] = {}
        self._xa: ClusterXA | None = None
        self._thread = LoopThread(f"hawser-{self.name}")
        try:
            self._client = self._thread.call(_started(self._thread, self._addresses, self.name, settings))
        except BaseException:
            self._thread.stop()
            raise
        self._opened()

    @property
    def url(self) -> str:
        return "hawser://" + ",".join(self._addresses)

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> ClusterTopic[Any]:
        check_topic_name(name)
        self._require_open()
        codec = codec_of(schema)
        given, unused = check_settings(settings, codec)
        decode = None if codec is None else codec.decode
        opened = self._thread.call(self._client.open(name, given, create, decode))
        with self._lock:
            self._require_open()
            known = self._topics.get((name, schema))
            if known is not None and known._topic.entry.uuid == opened.entry.uuid:
                known._unused.update(unused)
                return known
            topic: ClusterTopic[Any] = ClusterTopic(self, opened, codec, unused)
            self._topics[name, schema] = topic
            return topic

    def topics(self) -> list[str]:
        self._require_open()
        return self._thread.call(self._client.topics())

    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> ClusterQueue[Any]:
        check_topic_name(name)
        self._require_open()
        codec = codec_of(schema)
        given, unused = check_queue_settings(settings, codec)
        decode = None if codec is None else codec.decode
        opened = self._thread.call(self._client.open_queue(name, given, create, decode))
        with self._lock:
            self._require_open()
            known = self._queues.get((name, schema))
            if known is not None and known._queue.entry.uuid == opened.entry.uuid:
                known._unused.update(unused)
                return known
            queue: ClusterQueue[Any] = ClusterQueue(self, opened, codec, unused)
            self._queues[name, schema] = queue
            return queue

    def queues(self) -> list[str]:
        self._require_open()
        return self._thread.call(self._client.queues())

    def transaction(self, timeout: float | None = None) -> ClusterTransaction:
        return self._transaction(timeout, is_for_certain=False)

    def _transaction(self, timeout: float | None, is_for_certain: bool) -> ClusterTransaction:
        self._require_open()
        work = self._client.lanes.begin(check_transaction_timeout(timeout))
        return ClusterTransaction(self._thread, work, is_for_certain)

    def run_transaction(
        self, fn: Callable[[Transaction], T], retries: int = 5, *, timeout: float | None = None
    ) -> T:
        return run_transaction(lambda: self._transaction(timeout, is_for_certain=True), fn, retries)

    @property
    def xa(self) -> ClusterXA:
        self._require_open()
        with self._lock:
            if self._xa is None:
                self._xa = ClusterXA(self._thread, self._client.resource)
            return self._xa

    def files(self) -> list[DomainFile]:
        self._require_open()
        return []

    def participants(self) -> list[Participant]:
        self._require_open()
        return self._thread.call(participants(self._client))

    def recover(self) -> list[Recovered]:
        self._require_open()
        return []

    def close(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            self._thread.check_may_close()
            self._closed = True
        try:
            self._thread.call(self._client.close())
        finally:
            # If it was interrupted, the other call may not have begun.
            with suppress(Closed):
                self._thread.post(self._client.end)
            self._thread.stop()

    def release_topic(self, topic: ClusterTopic[Any]) -> None:
        """Called by a topic that was closed."""
        with self._lock:
            self._topics = {key: each for key, each in self._topics.items() if each is not topic}

    def release_queue(self, queue: ClusterQueue[Any]) -> None:
        """Called by a queue that was closed."""
        with self._lock:
            self._queues = {key: each for key, each in self._queues.items() if each is not queue}


def settings_of(options: dict[str, Any]) -> ClientSettings:
    """The options of `connect`, checked; UsageError for unknown ones."""
    known = ClientSettings.__struct_fields__
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UsageError(
            f"connect has no option {', '.join(map(repr, unknown))} for a cluster; it has name, "
            f"{', '.join(known)}"
        )
    try:
        return msgspec.convert(options, ClientSettings, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"connect has an invalid option: {error}") from error


async def _started(thread: LoopThread, addresses: list[str], name: str, settings: ClientSettings) -> Client:
    client = Client(addresses, name, settings)
    client.router.post = thread.post
    await client.start()
    return client
