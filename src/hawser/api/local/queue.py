"""Queues on one host."""

import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from hawser.api.info import KeptPosition, QueueInfo, QueueOwner
from hawser.api.local.consuming import LocalConsumer, end_waits, settle_all
from hawser.api.local.dead_letters import DeadLetters
from hawser.api.local.publishing import LocalPublishing
from hawser.api.local.topic import is_removed, participants_of
from hawser.api.message import Message, Messages, Values
from hawser.api.queue import Queue, check_prefetch
from hawser.api.sample import Sample
from hawser.api.subscription import check_count
from hawser.errors import Closed, UsageError
from hawser.memory import Consumer as NativeConsumer
from hawser.memory import Domain, Region
from hawser.memory import Publisher as NativePublisher
from hawser.memory.settings import readable
from hawser.memory.trace_ring import trace_of
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = ["LocalQueue", "Owner", "some"]

T = TypeVar("T")


class Owner(Protocol):
    """What a queue needs of its bus."""

    name: str
    _domain: Domain

    def release(self, user: "LocalQueue[Any]") -> None: ...
    def _require_open(self) -> None: ...
    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> "LocalQueue[Any]": ...


class _Producing(LocalPublishing[T]):
    """The producing half of a queue: it joins with the first message, as a publisher does."""

    def __init__(self, queue: "LocalQueue[T]", codec: "Codec[T] | None") -> None:
        self.name = queue.name
        self._queue = queue
        self._codec = codec

    def _native(self) -> NativePublisher:
        return self._queue._producer()


class LocalQueue(Queue[T]):
    """A queue in shared memory. Made by `Bus.queue`."""

    def __init__(
        self, bus: Owner, region: Region, schema: Any, codec: "Codec[T] | None", unused: dict[str, Any]
    ) -> None:
        self.name = region.name
        self._bus = bus
        self._region = region
        self._codec = codec
        self._unused = unused
        # As that of a topic.
        self._lock = threading.RLock()
        self._producing = _Producing(self, codec)
        self._schema = schema
        self._dead_letters = DeadLetters(bus, region)
        self._own_producer: NativePublisher | None = None
        self._own_consumer: NativeConsumer | None = None
        # Weak: a consumer without references closes itself.
        self._joined: weakref.WeakSet[LocalConsumer[T]] = weakref.WeakSet()
        self._closed = False

    def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        return self._producing.publish(data, key=key, headers=headers, timeout=timeout)

    def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        return some(self._producing.publish_many(items, keys=keys, timeout=timeout))

    def get(self, timeout: float | None = None) -> Message | None:
        return cast("Message | None", self._consumer().claim(timeout))

    def get_many(self, count: int, timeout: float | None = None) -> Messages:
        check_count(count, 1)
        consumer = self._consumer()
        messages = Messages((), self._settle)
        consumer.claim_many(count, timeout, messages)
        return messages

    def get_values(self, count: int, timeout: float | None = None) -> Values[T]:
        check_count(count, 1)
        values: Values[T] = Values.__new__(Values)
        values._held = self._consumer().claim_values(count, values, timeout)
        return values

    def consume(self, prefetch: int | None = None) -> LocalConsumer[T]:
        self._require_open()
        check_prefetch(prefetch, int(self._region.settings()["max_held"]))
        consumer: LocalConsumer[T] = LocalConsumer(self.name, self._join(), prefetch or 0)
        with self._lock:
            self._joined.add(consumer)
            if not self._closed:
                return consumer
        consumer.close()  # the queue was closed meanwhile
        raise self._closed_here()

    def peek(self, count: int) -> list[Sample]:
        self._require_open()
        return cast("list[Sample]", self._region.peek(check_count(count, 0), self._decode))

    def info(self) -> QueueInfo:
        self._require_open()
        region = self._region
        state = {**region.state(), **region.queue_state()}
        oldest_ns = state["oldest_ns"]
        facts: dict[str, Any] = {
            **state,
            "name": self.name,
            "path": region.path,
            "uuid": region.uuid,
            "settings": {**readable(region.settings()), "trace": trace_of(region)},
            "unused": self._unused,
            "dead": state["dying"] + state["moving"] + self._dead_letters.count(),
            "owners": [
                QueueOwner(name=name, pid=pid, claimed=claimed) for name, pid, _, claimed in state["owners"]
            ],
            "oldest_age_seconds": max(0.0, (time.time_ns() - oldest_ns) / 1e9) if oldest_ns else None,
            "configured_bytes": state["file_bytes"],
            "participants": participants_of(region),
            "records": [msgspec.convert(record, KeptPosition) for record in region.records()],
        }
        return msgspec.convert(facts, QueueInfo)

    def dead_letters(self, *, create: bool = True) -> "LocalQueue[T]":
        self._require_open()
        if self._dead_letters.stay:
            return self
        if create:
            self._dead_letters.open()
        return self._bus._queue(self._dead_letters.name, self._schema, False, {})

    def retry_dead_letters(self, count: int | None = None) -> int:
        self._require_open()
        if count is not None:
            check_count(count, 0)
        return self._dead_letters.retry(self._producer(), count)

    @property
    def holds_dead_letters(self) -> bool:
        """Whether it holds dead letters, which cannot become dead letters again."""
        return self._dead_letters.stay

    def forget(self, name: str) -> bool:
        self._require_open()
        return self._region.forget(name)

    def delete(self, force: bool = False) -> None:
        self._require_open()
        if not is_removed(self._region, force):
            users = sorted({f"{each.name} (pid {each.pid})" for each in participants_of(self._region)})
            raise UsageError(
                f"queue {self.name!r} is in use by {', '.join(users) or 'a process that only has it open'}; "
                "close it there, or delete it with force=True"
            )
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            joined = list(self._joined)
        for consumer in joined:
            consumer.close()
        self._end()
        self._bus.release(self)

    def _end(self) -> None:
        """Close the own participants."""
        with self._lock:
            for name in ("put", "get"):
                vars(self).pop(name, None)
            own = [each for each in (self._own_consumer, self._own_producer) if each is not None]
            self._own_consumer = self._own_producer = None
        for participant in own:
            end_waits(participant)
            participant.close()

    def _producer(self) -> NativePublisher:
        joined = self._own_producer
        if joined is not None:
            return joined
        with self._lock:
            self._require_open()
            own = self._own_producer
            if own is None:
                own = self._own_producer = self._region.publisher(self._bus.name)
                if self._codec is None:
                    # The native call in the place of the method: a message then costs no Python frame.
                    vars(self)["put"] = own.publish
                self._check_joined(own)
            return own

    def _consumer(self) -> NativeConsumer:
        joined = self._own_consumer
        if joined is not None:
            return joined
        with self._lock:
            self._require_open()
            own = self._own_consumer
            if own is None:
                own = self._join()
                self._settle = settle_all(own)
                vars(self)["get"] = own.claim
                self._own_consumer = own
                self._check_joined(own)
            return own

    def _check_joined(self, own: NativePublisher | NativeConsumer) -> None:
        """Closed if a signal handler has closed the queue during the join; closes the participant, too."""
        if self._closed:
            self._end()
            own.close()
            raise self._closed_here()

    def reserve(self) -> NativeConsumer:
        """Become the queue's only consumer, even after a crash, until `forget`; for a recorder.
        UsageError while there are others, or if the queue is reserved by another name."""
        with self._lock:
            self._require_open()
            return self._join(reserve=True)

    def _join(self, reserve: bool = False) -> NativeConsumer:
        dying = self._dead_letters.bury
        return self._region.consumer(self._bus.name, decode=self._decode, dying=dying, reserve=reserve)

    @property
    def _decode(self) -> Any:
        return None if self._codec is None else self._codec.decode

    def _require_open(self) -> None:
        if self._closed:
            raise self._closed_here()
        self._bus._require_open()

    def _closed_here(self) -> Closed:
        return Closed(f"queue {self.name!r} was closed here; open it again with bus.queue()")


def some(receipts: list[Receipt]) -> Receipt:
    """The receipt of a batch; UsageError if there was nothing in it."""
    (receipt,) = receipts
    if not receipt.count:
        raise UsageError("a batch has at least one message; there is nothing to put")
    return receipt
