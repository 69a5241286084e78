"""Queues on a cluster, from any thread."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from hawser.api.cluster.message import LentSample, Session, ahead_of, take_back, values_of
from hawser.api.cluster.publishing import batch_of, receipt_of
from hawser.api.cluster.topic import participants_of, partition_info
from hawser.api.info import Participant, QueueInfo, QueueOwner
from hawser.api.message import OVER, Disposition, Message, Messages, ValueLoop, Values
from hawser.api.queue import Consumer, Queue, check_prefetch
from hawser.api.sample import Sample
from hawser.api.subscription import check_count, check_timeout
from hawser.cluster.client.client import Client, Partition, record_of
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.queue.acknowledger import State
from hawser.cluster.client.queue.dead_letters import retry_dead_letters
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.queue.session import MOST_HELD
from hawser.cluster.wire import Looked
from hawser.errors import Closed, HawserError
from hawser.log.state.queue import DEAD_LETTERS
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = [
    "ClusterQueue",
    "QueueHolder",
    "ThreadSession",
    "consumers_of",
    "query_queue",
    "participants",
    "queue_info",
]

T = TypeVar("T")


class QueueHolder(Protocol):
    """What a queue needs of its bus."""

    _thread: LoopThread

    def release_queue(self, queue: "ClusterQueue[Any]") -> None: ...
    def _require_open(self) -> None: ...


class ClusterMessage(LentSample):
    """A message that this process holds."""

    __slots__ = ("_thread",)

    def __init__(self, thread: LoopThread, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._thread = thread

    def accept(self) -> None:
        self._say("accept")

    def release(self) -> None:
        self._say("release")

    def reject(self) -> None:
        self._say("reject")

    def _say(self, disposition: Disposition) -> None:
        self._check_free()
        self._settle(disposition)
        self._check_said(disposition)

    def _settle(self, disposition: Disposition) -> None:
        held_message, queue_session = self._held_message, self._queue_session
        if held_message.state is State.LOST:
            raise queue_session.fenced([held_message])
        if held_message.state not in (State.SETTLED, State.LOCKED):
            self._thread.call(queue_session.settle_one(held_message, queue_session.disposition(disposition)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A settlement in the block stays, and the error of the block is raised.
        if kind is None:
            self._settle("accept")
        else:
            with suppress(Exception):
                self._settle("release")


Message.register(ClusterMessage)


class ThreadSession:
    """A session of this process, for any thread."""

    def __init__(
        self, queue: QueueHandle, thread: LoopThread, prefetch: int = 0, for_transactions: bool = False
    ) -> None:
        self._thread = thread
        self.inner = thread.call(_new_session(queue, thread, prefetch, for_transactions))
        self.queue_session = self.inner.queue_session

    def get(self, count: int, timeout: float | None) -> list[Message]:
        check_timeout(timeout)
        return self._thread.call(self.inner.get(count, timeout))

    def get_one(self, timeout: float | None) -> Message | None:
        found = self.get(1, timeout)
        return found[0] if found else None

    def get_many(self, count: int, timeout: float | None) -> Messages:
        check_count(count, 1)
        return Messages(self.get(count, timeout), self.settle)

    def settle(self, messages: list[Message], disposition: Disposition) -> None:
        """Settle the messages that are still held, in one request."""
        held_message = [cast("ClusterMessage", each)._held_message for each in messages]
        self._thread.call(
            self.queue_session.settle(held_message, self.queue_session.disposition(disposition))
        )

    def give_back(self, messages: list[Message]) -> None:
        self._thread.call(self.inner.give_back(cast("list[ClusterMessage]", messages)))

    def check_may_close(self) -> None:
        """As that of its thread."""
        self._thread.check_may_close()

    def close(self) -> None:
        if self._thread.is_usable:
            self._thread.call(self.inner.close())


async def _new_session(
    queue: QueueHandle, thread: LoopThread, prefetch: int, for_transactions: bool
) -> Session:
    def make(*arguments: Any) -> ClusterMessage:
        return ClusterMessage(thread, queue_session, *arguments, queue.decode)

    session = Session(queue, make, prefetch, for_transactions)
    queue_session = session.queue_session
    return session


class _ClusterValueLoop(ValueLoop[T]):
    """A loop over the values of a consumer. A message that it drops is released."""

    __slots__ = ("_get", "_in_hand", "_said")

    def __init__(self, get: Callable[[], Message]) -> None:
        self._get = get
        self._in_hand: Message | None = None
        # The unfinished settlement of the current message.
        self._said: Disposition | None = None

    def __iter__(self) -> Self:
        with suppress(*OVER):
            self._settle(self._said or "release")
        return self

    def __next__(self) -> T:
        self.accept()
        message = self._get()
        try:
            value: T = message.value
        except Exception:
            with suppress(HawserError):
                message.release()
            raise
        self._in_hand = message
        return value

    def accept(self) -> None:
        self._settle("accept")

    def release(self) -> None:
        self._settle("release")

    def reject(self) -> None:
        self._settle("reject")

    def _settle(self, disposition: Disposition) -> None:
        if self._in_hand is not None:
            self._said = disposition
            try:
                getattr(self._in_hand, disposition)()
            except OVER:
                self._in_hand = self._said = None
                raise
            self._in_hand = self._said = None


class _ClusterLoop(Iterator[Message]):
    """A loop over a consumer."""

    __slots__ = ("_consumer", "_last")

    def __init__(self, consumer: "ClusterConsumer[Any]") -> None:
        self._consumer = consumer
        self._last: weakref.ref[ClusterMessage] | None = None

    def __next__(self) -> Message:
        return self._consumer._step(self)


class ClusterConsumer(Consumer[T]):
    """A consumer with its own session, which its loops share."""

    def __init__(self, name: str, session: ThreadSession) -> None:
        self.name = name
        self._session = session
        session.inner.belongs_to(self)
        self._last: weakref.ref[ClusterMessage] | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Message]:
        return _ClusterLoop(self)

    def __next__(self) -> Message:
        return self._step(self)

    def _step(self, loop: "_ClusterLoop | ClusterConsumer[Any]") -> Message:
        """Release the loop's current message, and get the next one."""
        last, loop._last = loop._last, None
        if last is not None:
            take_back(last())
        message = self._get()
        loop._last = weakref.ref(cast("ClusterMessage", message))
        return message

    def values(self) -> ValueLoop[T]:
        return _ClusterValueLoop(self._get)

    def _get(self) -> Message:
        try:
            found = [] if self._closed else self._session.get(1, None)
        except Closed:
            if self._closed or self._session.queue_session.is_closed:
                raise StopIteration from None
            raise
        if not found:
            raise StopIteration
        return found[0]

    def close(self) -> None:
        if not self._closed:
            self._session.check_may_close()
            self._closed = True
            self._session.close()


class ClusterQueue(Queue[T]):
    """A queue of a cluster, or its dead letters. Made by `Bus.queue`."""

    def __init__(
        self,
        bus: QueueHolder,
        queue: QueueHandle,
        codec: "Codec[T] | None",
        unused: dict[str, Any],
    ) -> None:
        self.name = queue.full_name
        self._bus = bus
        self._thread = bus._thread
        self._queue = queue
        self._codec = codec
        self._unused = unused
        # Never held during a call to the cluster. Reentrant: a signal handler may close the queue at any
        # time.
        self._lock = threading.RLock()
        # The session of plain gets, and the one of transactions.
        self._sessions: dict[bool, ThreadSession] = {}
        self._dead_letters: ClusterQueue[T] | None = None
        self._closed = False

    # Putting.

    def put(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        self._require_open()
        check_timeout(timeout)
        self._thread.check_may_wait()
        publisher = self._queue.publisher
        record = record_of(data if self._codec is None else self._codec.encode(data), key, headers)
        return receipt_of(publisher, record, self._queue.room_seconds(timeout))

    def put_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        self._require_open()
        check_timeout(timeout)
        return self._thread.call(self._queue.put(batch_of(items, keys, self._codec), timeout))

    # Getting.

    def get(self, timeout: float | None = None) -> Message | None:
        return self._session().get_one(timeout)

    def get_many(self, count: int, timeout: float | None = None) -> Messages:
        return self._session().get_many(count, timeout)

    def get_values(self, count: int, timeout: float | None = None) -> Values[T]:
        session = self._session()
        found = session.get_many(count, timeout)
        values, error = values_of(found)
        if error is None:
            return Values(values, found)
        session.give_back(found[max(1, len(values)) :])
        if not values:
            found[0].release()
            raise error
        return Values(values, Messages(found[: len(values)], session.settle))

    def consume(self, prefetch: int | None = None) -> Consumer[T]:
        self._require_open()
        check_prefetch(prefetch, MOST_HELD)
        ahead = ahead_of(self._queue, prefetch)
        return ClusterConsumer(self.name, ThreadSession(self._queue, self._thread, ahead))

    def _session(self, for_transactions: bool = False) -> ThreadSession:
        """The session of plain gets, or the one that transactions share."""
        self._require_open()
        session = self._sessions.get(for_transactions)
        if session is None:
            made = ThreadSession(self._queue, self._thread, 0, for_transactions)
            with self._lock:
                self._require_open()
                # Another thread has created it meanwhile: keep that one and close this.
                session = self._sessions.setdefault(for_transactions, made)
        return session

    # Queries.

    def peek(self, count: int) -> list[Sample]:
        self._require_open()
        check_count(count, 0)
        return cast("list[Sample]", self._thread.call(self._queue.peek(count)))

    def info(self) -> QueueInfo:
        self._require_open()
        return queue_info(self._queue, *self._thread.call(query_queue(self._queue)), self._unused)

    # Dead letters.

    def dead_letters(self, *, create: bool = True) -> Queue[T]:
        self._require_open()
        if self._queue.subqueue == DEAD_LETTERS:
            return self
        known = self._dead_letters
        if known is not None and known._queue.is_gone:
            known.close()
        if known is not None and not known._closed:
            return known
        dead_letters = self._thread.call(self._queue.dead_letters(create))
        with self._lock:
            self._require_open()
            # Another thread may have created it meanwhile.
            if self._dead_letters is None or self._dead_letters._closed:
                self._dead_letters = ClusterQueue(self._bus, dead_letters, self._codec, {})
            return self._dead_letters

    def retry_dead_letters(self, count: int | None = None) -> int:
        self._require_open()
        if count is not None:
            check_count(count, 0)
        return self._thread.call(retry_dead_letters(self._queue, count))

    # The queue itself.

    def forget(self, name: str) -> bool:
        self._require_open()
        return False

    def delete(self, force: bool = False) -> None:
        self._require_open()
        self._thread.call(self._queue.delete())
        self.close()

    def close(self) -> None:
        if self._thread.is_inherited:
            return
        with self._lock:
            if self._closed:
                return
            self._thread.check_may_close()
            self._closed = True
        try:
            if self._dead_letters is not None:
                self._dead_letters.close()
            if self._thread.is_usable:
                self._thread.call(self._queue.close())
        finally:
            self._bus.release_queue(self)

    def _require_open(self) -> None:
        self._bus._require_open()
        if self._closed:
            raise Closed(f"queue {self.name!r} was closed here; open it again with bus.queue()")


async def participants(client: Client) -> list[Participant]:
    """Members of all groups, and consumers of all queues."""
    deadline = client.deadline(None)
    looked, holders = await asyncio.gather(client.query_topics(deadline), client.query_holders(deadline))
    members = [each for name, partitions in looked.items() for each in participants_of(name, partitions)]
    return members + [each for name, held in holders.items() for each in consumers_of(name, held)]


async def query_queue(queue: QueueHandle) -> tuple[Looked, list[Partition]]:
    """The current state of a queue and its shard."""
    return await asyncio.gather(queue.query_contents(), queue.query())


def queue_info(
    queue: QueueHandle, looked: Looked, partitions: list[Partition], unused: dict[str, Any]
) -> QueueInfo:
    """A queue as users see it."""
    age = None if looked.oldest_ns is None else max(0.0, (time_ns() - looked.oldest_ns) / 1e9)
    return QueueInfo(
        name=queue.full_name,
        uuid=queue.entry.uuid,
        settings=dict(queue.entry.settings),
        unused=unused,
        ready=looked.count - looked.delivered,
        claimed=looked.delivered,
        dead=0 if queue.subqueue == DEAD_LETTERS else looked.dead_letters,
        oldest_age_seconds=age,
        head=looked.end - 1,
        owners=[
            QueueOwner(name=session.rpartition("#")[0], session=session, claimed=held)
            for session, held in sorted(looked.holders.items())
            if held
        ],
        participants=consumers_of(queue.full_name, looked.holders),
        used_bytes=looked.used_bytes,
        partitions=[partition_info(each) for each in partitions],
    )


def consumers_of(queue: str, holders: Mapping[str, int]) -> list[Participant]:
    """The sessions at a queue."""
    return [
        Participant(
            topic=queue,
            kind="consumer",
            name=session.rpartition("#")[0],
            pid=0,
            uid=0,
            incarnation=1,
            state="session",
            alive=True,
            started_ns=0,
            joined_ns=0,
            reliable="",
            cursor=0,
            count=0,
            missed=0,
            held=held,
            index=0,
        )
        for session, held in sorted(holders.items())
    ]
