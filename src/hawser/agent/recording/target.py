"""The partition or queue that a recorder publishes to. It is found again after any failure of the cluster."""

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from hawser.cluster.client.admin.catalog import Settings
from hawser.cluster.client.client import Client
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.publish.partitioner import partition_of
from hawser.cluster.client.publish.stamped import AppendResult, ProducerState, StampedPartition
from hawser.cluster.client.settings import ClientSettings
from hawser.errors import Closed, Full, HawserError, NotFound, SettingsMismatch, UsageError
from hawser.record.batch import Batch

__all__ = ["Kind", "Replaced", "Stopped", "Target"]

_log = logging.getLogger("hawser.agent")

Result = TypeVar("Result")
Kind = Literal["topic", "queue"]

# Timeout of one attempt.
_CALL_SECONDS: Final = 3.0
_PATIENCE: Final = ClientSettings(timeout=_CALL_SECONDS, connect_timeout=_CALL_SECONDS)
_PAUSE_LEAST_SECONDS: Final = 0.05
_PAUSE_MOST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.1
_FULL_SECONDS: Final = 0.1


class Stopped(Exception):
    """The recorder is stopping."""


class Replaced(Exception):
    """The topic may have been deleted and created again; ask for the standing again."""


class Target:
    """A queue, or the partition of a topic that the producer's id selects; created if it does not exist.
    Every call waits until the cluster answers, without a time limit, and raises Stopped once `stop` is set.
    SettingsMismatch if the target is of the other kind, or has other settings or another schema."""

    def __init__(
        self,
        addresses: list[str],
        topic: str,
        kind: Kind,
        settings: Settings,
        schema: str | None,
        producer: bytes,
        stop: threading.Event,
    ) -> None:
        self._addresses = addresses
        self._topic = topic
        self._kind = kind
        self._settings = settings
        self._schema = schema
        self._producer = producer
        self._stop = stop
        self._client: Client | None = None
        self._partition: StampedPartition | None = None
        self._thread = LoopThread(f"recorder-{topic}")
        self.problem: str | None = "not connected yet"
        """The error of the last attempt; None if it was answered."""
        self._is_reported = False

    @property
    def name(self) -> str:
        """As people know it."""
        return f"{self._kind} {self._topic}"

    @property
    def uuid(self) -> str:
        """Of the topic of the last `producer_state`."""
        return "" if self._partition is None else self._partition.uuid

    def producer_state(self) -> ProducerState:
        """The last batch of the producer in the cluster, and the start of the partition. Opens the topic if
        needed."""
        while True:
            try:
                return self._retry(self._find_standing)
            except Replaced:
                self._pause(_PAUSE_LEAST_SECONDS)

    def publish(self, batch: Batch, follows: int) -> AppendResult | None:
        """As `StampedPartition.publish`. Replaced if the topic is not that of the last `producer_state`."""
        partition = self._partition
        if partition is None:
            raise Replaced
        return self._retry(lambda: partition.publish(batch, _CALL_SECONDS, follows))

    def close(self) -> None:
        try:
            self._disconnect()
        finally:
            self._thread.stop()

    def _disconnect(self) -> None:
        client, self._client, self._partition = self._client, None, None
        if client is not None:
            self._thread.call(client.close())

    async def _find_standing(self) -> ProducerState:
        if self._partition is None:
            self._partition = await self._open()
        return await self._partition.producer_state(self._producer, _CALL_SECONDS)

    async def _open(self) -> StampedPartition:
        if self._client is None:
            client = Client(self._addresses, self._producer.decode(), _PATIENCE)
            await client.start()
            self._client = client
        topic = await self._open_topic(self._client)
        return StampedPartition(topic, partition_of(self._producer, topic.partitions))

    async def _open_topic(self, client: Client) -> Handle:
        opening = client.open if self._kind == "topic" else client.open_queue
        try:
            topic = await opening(self._topic, self._settings, False, None)
        except NotFound:
            return await opening(self._topic, {**self._settings, "schema": self._schema}, True, None)
        except UsageError as error:
            raise SettingsMismatch(f"{error}; a {self._kind} is recorded into a {self._kind}") from error
        schema = topic.entry.settings.get("schema")
        if schema and self._schema and schema != self._schema:
            raise SettingsMismatch(
                f"{self._kind} {self._topic!r} of the cluster has the schema {schema!r}, and the recorded "
                f"{self._kind} has {self._schema!r}; record it into another {self._kind}"
            )
        return topic

    def _retry(self, begin: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run the coroutine of `begin`, and again after each temporary error, until it has a result."""
        pause = _PAUSE_LEAST_SECONDS
        while True:
            try:
                result = self._wait(begin())
            except SettingsMismatch:
                raise
            except Closed as error:
                self._report(error)
                self._partition = None
                raise Replaced from error
            except Full as error:
                # The queue answers; its consumers make room.
                self._report(error)
                self._pause(_FULL_SECONDS)
                continue
            except HawserError as error:
                self._report(error)
            else:
                self._report(None)
                return result
            self._pause(pause)
            if pause == _PAUSE_MOST_SECONDS:
                # The addresses may belong to another cluster by now, so connect again.
                self._disconnect()
                raise Replaced
            pause = min(2 * pause, _PAUSE_MOST_SECONDS)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._thread.loop)
        while not concurrent.futures.wait([future], _LOOK_SECONDS).done:
            if self._stop.is_set():
                future.cancel()
                raise Stopped
        return future.result()

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise Stopped

    def _report(self, error: HawserError | None) -> None:
        self.problem = None if error is None else str(error)
        if (self.problem is not None) == self._is_reported:
            return
        self._is_reported = not self._is_reported
        if self._is_reported:
            _log.warning("recording to %s waits: %s", self._topic, self.problem)
        else:
            _log.info("recording to %s resumes", self._topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
