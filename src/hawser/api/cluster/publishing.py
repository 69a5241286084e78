"""Publishing to a cluster from any thread."""

import weakref
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from hawser.api.publishing import Publisher, Publishing
from hawser.api.subscription import check_count
from hawser.cluster.client.client import TopicHandle, record_of, records_of
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.errors import Closed, UsageError
from hawser.record.payload import as_payloads
from hawser.record.record import Receipt, Record
from hawser.record.rows import Rows

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = [
    "ClusterLoan",
    "ClusterPublisher",
    "ClusterPublishing",
    "batch_of",
    "check_exclusive",
    "loan_is_over",
    "receipt_of",
]

T = TypeVar("T")


def batch_of(items: Iterable[Any], keys: Iterable[bytes | None] | None, codec: "Codec[Any] | None") -> Rows:
    """The messages of a batch."""
    return records_of(as_payloads(items, None if codec is None else codec.encode), keys)


def _new_future() -> "Future[Receipt]":
    """A future that cannot be cancelled, because its message is being sent."""
    future: Future[Receipt] = Future()
    future.set_running_or_notify_cancel()
    return future


def receipt_of(partitioner: Partitioner, record: Record, seconds: float) -> Receipt:
    """Publish a message and wait for its receipt. If this is interrupted, an unsent message is dropped."""
    future = _new_future()
    try:
        partitioner.hand_over([record], future, seconds)
        return future.result()
    except BaseException:
        if not future.done():
            partitioner.withdraw(future)
        raise


def check_exclusive(exclusive: bool) -> None:
    """UsageError for an exclusive publisher."""
    if exclusive:
        raise UsageError("a publisher cannot be exclusive on a cluster; leave exclusive out")


class ClusterPublishing(Publishing[T]):
    """The publishing half of the API, over the producers of a topic."""

    _codec: "Codec[T] | None"
    _topic: TopicHandle
    _thread: LoopThread

    @abstractmethod
    def _producers(self) -> Partitioner:
        """The publisher's partitioner; Closed or UsageError if it must not publish."""

    def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        self._thread.check_may_wait()
        return receipt_of(*self._to_hand_over(data, key, headers, timeout))

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "Future[Receipt]":
        partitioner, record, seconds = self._to_hand_over(data, key, headers, None)
        future = _new_future()
        partitioner.hand_over([record], future, seconds)
        return future

    def _to_hand_over(
        self, data: T, key: bytes | None, headers: Mapping[str, bytes] | None, timeout: float | None
    ) -> tuple[Partitioner, Record, float]:
        """The partitioner, the record and its timeout."""
        partitioner = self._producers()
        record = record_of(data if self._codec is None else self._codec.encode(data), key, headers)
        return partitioner, record, self._topic.client.seconds(timeout)

    def flush(self) -> None:
        self._thread.call(self._producers().flush())

    def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        partitioner = self._producers()
        records = batch_of(items, keys, self._codec)
        return self._thread.call(self._topic.publish_many(partitioner, records, timeout))

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Any:
        self._producers()
        check_count(nbytes, 0, "nbytes")
        return ClusterLoan(self, memoryview(bytearray(nbytes)), (key, headers, timeout))

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Any:
        from hawser.record.payload import array_layout

        self._producers()
        sizes, element, _ = array_layout(shape, dtype)
        import numpy

        return ClusterLoan(self, numpy.zeros(sizes, element), (key, headers, timeout))

    def _publish_payload(
        self, data: Any, key: bytes | None, headers: Mapping[str, bytes] | None, timeout: float | None
    ) -> Receipt:
        """Publish bytes that are already encoded by the schema."""
        self._thread.check_may_wait()
        seconds = self._topic.client.seconds(timeout)
        return receipt_of(self._producers(), record_of(data, key, headers), seconds)


def loan_is_over() -> UsageError:
    """The error for a second block of one loan."""
    return UsageError("this loan is over; take a new one for each message")


class ClusterLoan:
    """A buffer to write into, or an array: `with topic.loan(n) as buffer`. Leaving the block publishes it; an
    exception drops it."""

    def __init__(self, publishing: ClusterPublishing[Any], buffer: Any, options: tuple[Any, ...]) -> None:
        self.nbytes: int = buffer.nbytes
        self.receipt: Receipt | None = None
        self._publishing = publishing
        self._buffer = buffer
        self._options = options
        self._is_taken = False

    def __enter__(self) -> Any:
        if self._is_taken:
            raise loan_is_over()
        self._is_taken = True
        return self._buffer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.receipt = self._publishing._publish_payload(self._buffer, *self._options)


class ClusterPublisher(ClusterPublishing[T], Publisher[T]):
    """A publisher with producers of its own."""

    def __init__(self, parent: ClusterPublishing[T], partitioner: Partitioner) -> None:
        self.name = parent.name
        self._parent = parent
        self._codec = parent._codec
        self._topic = parent._topic
        self._thread = parent._thread
        self._own = partitioner
        self._closed = False
        # A publisher without references flushes and closes itself.
        self._abandon = weakref.finalize(self, parent._topic.abandon, partitioner)
        self._abandon.atexit = False

    @property
    def incarnation(self) -> int:
        return self._own.incarnation

    def close(self) -> None:
        if not self._closed:
            self._thread.check_may_close()
            self._closed = True
            if self._thread.is_usable:
                self._thread.call(self._topic.release(self._own))

    def _producers(self) -> Partitioner:
        self._parent._producers()
        if self._closed:
            raise Closed(f"this publisher of {self.name!r} is closed; create another one")
        return self._own
