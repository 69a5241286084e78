"""Putting into a queue: as publishing to a topic, with waits for room.

A put that finds no room waits in the client, in order, and is retried for as long as its caller said; so do
the puts behind it. That time bounds the wait for room alone: the wait for the outcome, or for a node that
answers, is bounded by the connection's timeout. One batch is in flight at a time, so that no put overtakes
one that waits.
"""

import asyncio
from typing import Any, ClassVar, Final

from hawser.cluster.client.errors import Backoff, given_up
from hawser.cluster.client.publish.batch import InFlightBatch, Item, fail
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from hawser.cluster.client.publish.partitioner import Partitioner
from hawser.cluster.client.router import Router
from hawser.cluster.wire import Code, Failed, QueuePut, TopicEntry
from hawser.errors import Closed
from hawser.log.state.results import Reason, Rejected
from hawser.record.rows import Records

__all__ = ["UNLIMITED_SECONDS", "QueuePublisher"]

# The longest wait; timers cannot be infinite.
UNLIMITED_SECONDS: Final = 366 * 86_400.0


class _QueueItem(Item):
    """Messages that wait for room until `room_deadline` once the queue is known to be full."""

    __slots__ = ("room_deadline",)

    def __init__(self, records: Records, future: Any, seconds: float, now: float, answer: float) -> None:
        super().__init__(records, future, seconds, now)
        self.room_deadline = now + seconds
        self.deadline = now + answer


class _QueueProducer(PartitionProducer):
    request: ClassVar = QueuePut
    how_to_see: ClassVar = "Check the queue"

    # Whether the queue's last answer was that it has no room.
    _is_full = False
    _backoff: Backoff | None = None
    # Set while the producer waits for room; new items queue behind the others.
    _pause: asyncio.TimerHandle | None = None
    # Whether the handle is being closed, so that puts must end soon.
    _is_flushing = False

    @property
    def _name(self) -> str:
        return f"queue {self._topic!r}"

    @property
    def _what(self) -> str:
        return f"putting into {self._name}"

    @property
    def _is_overfull(self) -> bool:
        # Every caller waits for its put, so the callers bound what waits here.
        return False

    def submit(self, item: Item) -> None:
        assert isinstance(item, _QueueItem)
        if not self._queue:
            self._end_pause()
        if self._pause is not None:
            item.deadline = item.room_deadline
        if self._pause is not None and not item.seconds:
            fail(item, given_up(self._what, item.seconds, self._trouble, False))
        else:
            super().submit(item)

    def _may_send(self) -> bool:
        return not self._open_requests and not self._in_flight and self._pause is None

    def _next_batch(self, is_alone: bool = False) -> InFlightBatch | None:
        sent = super()._next_batch(is_alone)
        if sent is not None:
            self._wait_for_answer(sent)
        return sent

    def _wait_for_answer(self, sent: InFlightBatch) -> None:
        """From here on the put waits for its outcome, not for room."""
        sent.deadline = self._loop.time() + self._settings.timeout
        for item in sent.items:
            item.deadline = sent.deadline

    def _seconds_of(self, item: Item) -> float:
        assert isinstance(item, _QueueItem)
        return item.seconds if item.deadline == item.room_deadline else self._settings.timeout

    def _on_result(self, sent: InFlightBatch, result: object) -> None:
        if isinstance(result, Rejected) and result.reason is Reason.QUEUE_FULL:
            self._has_no_room(sent, Failed(Code.QUEUE_FULL, result.text, True))
        else:
            self._backoff, self._is_full = None, False
            super()._on_result(sent, result)

    def _has_no_room(self, sent: InFlightBatch, full: Failed) -> None:
        if self._is_in_doubt(sent):
            # The message may be written, now or later: ask until that is known. Because a node answers, the
            # time for asking begins anew while the put may wait for room.
            if not self._is_flushing and all(self._may_wait(item) for item in sent.items):
                self._wait_for_answer(sent)
            self._failed(full)
        else:
            # Certainly not written: its sequence is unused, and its messages may join other batches.
            self._in_flight.remove(sent)
            self._sequence -= 1
            left = [item for item in sent.items if not item.is_cancelled]
            self._queue.extendleft(reversed(left))
            self._queued_bytes += sum(item.nbytes for item in left)
            self._changed.set()
        self._trouble, self._is_full = full, True
        self._wait_for_room()
        if self._queue and not self._in_flight:
            self._begin_pause()

    def _may_wait(self, item: Item) -> bool:
        assert isinstance(item, _QueueItem)
        return item.room_deadline > self._loop.time()

    def _wait_for_room(self) -> None:
        """From here on each put waits for room for as long as its caller said."""
        for item in self._queue:
            assert isinstance(item, _QueueItem)
            item.deadline = item.room_deadline
        self._expire_queue()

    def _recover(self) -> None:
        if self._is_full:
            # Whether there is room is not known: each put waits for an answer.
            self._trouble, self._is_full = "the queue has no leader", False
            self._end_pause()
            for item in self._queue:
                item.deadline = self._loop.time() + self._settings.timeout
            if self._queue:
                self._set_timer(self._queue[0].deadline)
        super()._recover()

    def _begin_pause(self) -> None:
        if self._backoff is None:
            self._backoff = Backoff(self._settings)
        self._pause = self._loop.call_later(self._backoff.next(), self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._send_soon()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    async def flush(self) -> None:
        """As `PartitionProducer.flush`, but puts that wait for room fail, because that may take for ever."""
        self._is_flushing = True
        try:
            while not self.is_idle:
                if self._pause is not None:
                    self._drop_queue(Closed(f"{self._name} was closed in this client while it had no room"))
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._is_flushing = False

    def end(self) -> None:
        self._end_pause()
        super().end()


class QueuePublisher(Partitioner):
    """The publisher of a queue."""

    producer: ClassVar = _QueueProducer

    def __init__(self, router: Router, queue: str, entry: TopicEntry, name: str) -> None:
        super().__init__(router, queue, entry, name)
        self._answer_seconds = router.settings.timeout

    def submit(self, records: Records, future: Any, seconds: float, partition: int | None = None) -> None:
        """Put messages together; the future gets their receipt. They wait up to `seconds` for room."""
        item = _QueueItem(records, future, seconds, self._loop.time(), self._answer_seconds)
        self._producers[0].submit(item)
