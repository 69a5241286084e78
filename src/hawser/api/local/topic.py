"""Topics on one host."""

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from hawser.api.info import KeptPosition, Participant, ReadResult, TopicInfo
from hawser.api.local.publishing import LocalPublisher, LocalPublishing
from hawser.api.local.subscription import LocalSubscription, SubscribeOptions, join
from hawser.api.subscription import Reliable, Start, check_count
from hawser.api.topic import Topic
from hawser.errors import Closed, HawserError, UsageError
from hawser.memory import Publisher as NativePublisher
from hawser.memory import Region
from hawser.memory.settings import readable
from hawser.memory.trace_ring import trace_of
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from concurrent.futures import Future

    from hawser.record.schema import Codec

__all__ = ["LocalTopic", "Owner", "is_removed", "participants_of"]

T = TypeVar("T")


class Owner(Protocol):
    """What a topic needs of its bus."""

    name: str
    named: bool

    def release(self, user: "LocalTopic[Any]") -> None: ...


class LocalTopic(LocalPublishing[T], Topic[T]):
    """A topic in shared memory. Made by `Bus.topic`."""

    def __init__(self, bus: Owner, region: Region, codec: "Codec[T] | None", unused: dict[str, Any]) -> None:
        self.name = region.name
        self._bus = bus
        self._region = region
        self._codec = codec
        self._unused = unused
        # Reentrant: a signal handler may close the topic at any time. So a participant is kept first, and
        # then closed if the topic was closed meanwhile.
        self._lock = threading.RLock()
        self._own_publisher: NativePublisher | None = None
        # Weak: a participant without references closes itself.
        self._joined: weakref.WeakSet[LocalPublisher[T] | LocalSubscription[T]] = weakref.WeakSet()
        self._closed = False

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "Future[Receipt]":
        from concurrent.futures import Future

        future: Future[Receipt] = Future()
        try:
            future.set_result(self.publish(data, key=key, headers=headers, timeout=0))
        except HawserError as error:
            future.set_exception(error)
        return future

    def flush(self) -> None:
        self._require_open()

    def publisher(self, *, exclusive: bool = False) -> LocalPublisher[T]:
        self._require_open()
        native = self._region.publisher(self._bus.name, exclusive=exclusive)
        publisher = LocalPublisher(self.name, native, self._codec)
        self._keep(publisher)
        return publisher

    def subscribe(
        self,
        *,
        history: int = 0,
        start: Start = None,
        group: str | None = None,
        reliable: Reliable = False,
        resume: bool = False,
        max_held: int | None = None,
        max_lag: int | None = None,
    ) -> LocalSubscription[T]:
        self._require_open()
        options = SubscribeOptions(history, start, group, reliable, resume, max_held, max_lag)
        native = join(self._region, self._bus.name, self._bus.named, options, self._codec)
        subscription: LocalSubscription[T] = LocalSubscription(self.name, native)
        self._keep(subscription)
        return subscription

    def read_oldest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        self._require_open()
        return self._read(self._region.read_oldest, count, after, partition)

    def read_newest(self, count: int, after: int = 0, *, partition: int = 0) -> ReadResult:
        self._require_open()
        return self._read(self._region.read_newest, count, after, partition)

    def _read(
        self, read: Callable[..., tuple[list[Any], int, int]], count: int, after: int, partition: int
    ) -> ReadResult:
        if partition != 0:
            raise UsageError(f"partition={partition!r}: on one host there is partition 0 only")
        check_count(count, 0)
        check_count(after, 0, "after")
        return ReadResult(*read(count, after, None if self._codec is None else self._codec.decode))

    def info(self) -> TopicInfo:
        self._require_open()
        region = self._region
        state = region.state()
        facts: dict[str, Any] = {
            **state,
            "name": self.name,
            "path": region.path,
            "uuid": region.uuid,
            "settings": {**readable(region.settings()), "trace": trace_of(region)},
            "unused": self._unused,
            "configured_bytes": state["file_bytes"],
            "participants": participants_of(region),
            "records": [msgspec.convert(record, KeptPosition) for record in region.records()],
        }
        return msgspec.convert(facts, TopicInfo)

    def forget(self, name: str) -> bool:
        self._require_open()
        return self._region.forget(name)

    def delete(self, force: bool = False) -> None:
        self._require_open()
        if not is_removed(self._region, force):
            users = sorted({f"{each.name} (pid {each.pid})" for each in participants_of(self._region)})
            raise UsageError(
                f"topic {self.name!r} is in use by {', '.join(users) or 'a process that only has it open'}; "
                "close it there, or delete it with force=True"
            )
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            own = self._end()
            joined = list(self._joined)
        for each in joined:
            each.close()
        if own is not None:
            own.close()
        self._bus.release(self)

    def _end(self) -> NativePublisher | None:
        """Stop publishing through the topic's own participant, and return it."""
        for name in ("publish", "loan"):
            vars(self).pop(name, None)
        own, self._own_publisher = self._own_publisher, None
        return own

    def _keep(self, participant: LocalPublisher[T] | LocalSubscription[T]) -> None:
        """Close a participant together with the topic. If another thread has closed the topic meanwhile, it
        is closed at once, and Closed is raised."""
        with self._lock:
            self._joined.add(participant)
            if not self._closed:
                return
        participant.close()
        raise self._closed_here()

    def _native(self) -> NativePublisher:
        with self._lock:
            self._require_open()
            own = self._own_publisher
            if own is None:
                own = self._own_publisher = self._region.publisher(self._bus.name)
                self._use(own)
                if self._closed:
                    self._end()
                    own.close()
                    raise self._closed_here()
            return own

    def _require_open(self) -> None:
        if self._closed:
            raise self._closed_here()

    def _closed_here(self) -> Closed:
        return Closed(f"topic {self.name!r} was closed here; open it again with bus.topic()")


def is_removed(region: Region, force: bool) -> bool:
    """Remove it, unless others have it open or removed it before. True if it is gone."""
    try:
        return region.remove(force) or region.closed
    except Closed:
        return True


def participants_of(region: Region) -> list[Participant]:
    """The participants of one topic or queue."""
    return [msgspec.convert({**each, "topic": region.name}, Participant) for each in region.participants()]
