"""The idempotent producer of one partition: each message is written exactly once, in order.

    a message is  when                                          next
    queued        it waits for a batch                          in flight; failed at its deadline
    in flight     in a stamped batch that is not acknowledged   written; failed; in flight again
    written       the shard has acknowledged its batch          none
    failed        its caller has an error                       none

Promise: a receipt, an error with outcome "none", or OutcomeUnknown if the message may have been written.

- Messages that wait when a batch may be sent share it. Several batches may be in flight. The shard accepts
  only the next sequence, so batches are written in the order of their sequences or not at all.
- When a batch is lost or refused, no new one is sent. Once no request is open, every unacknowledged batch is
  sent again in order, with its stamp, to the current leader; a batch that was written before gets its first
  receipt. So a batch is in doubt only if its time ends without an answer.
- A message whose caller has gone is dropped while it waits, and from a batch that certainly was not written.
- A batch that timed out, or was refused for good, leaves its sequence unused. Batches before it continue;
  batches behind it cannot be written under their sequences. Once none is left before it, the incarnation
  ends: the next one begins at sequence 1 with the batches that certainly were not written, and fences the old
  incarnation. The same happens if the shard lacks an acknowledged batch, as after a restored backup.
"""

import asyncio
import logging
from collections import deque
from math import inf
from typing import ClassVar, Final

from hawser.cluster.client.errors import Backoff, given_up, refused
from hawser.cluster.client.publish.batch import InFlightBatch, Item, fail
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import Link, TransportError
from hawser.cluster.wire import Answer, Executed, Failed, Publish, QueuePut
from hawser.errors import Closed, Fenced, Full, HawserError, OutcomeUnknown, UsageError
from hawser.log.state.producers import RECEIPTS
from hawser.log.state.results import Accepted, Reason, Rejected, Repeated, decode_result
from hawser.record.batch import Batch, Compression
from hawser.record.record import Receipt, Stamp
from hawser.record.rows import Rows

__all__ = ["PartitionProducer"]

_log = logging.getLogger("hawser.cluster.client")

# Messages whose deadlines differ by more do not share a batch: one must not wait or fail with the other.
_SAME_TIME_SECONDS: Final = 1.0


class PartitionProducer:
    """Lives in the event loop; its items may have futures of threads."""

    request: ClassVar[type[Publish] | type[QueuePut]] = Publish
    how_to_see: ClassVar = "Check the topic"

    def __init__(
        self,
        router: Router,
        topic: str,
        partition: int,
        shard: str,
        producer_id: bytes,
        compression: Compression,
    ) -> None:
        self._router = router
        self._settings = router.settings
        assert self._settings.in_flight <= RECEIPTS
        self._topic = topic
        self._partition = partition
        self._shard = shard
        self._id = producer_id
        self._compression = compression
        self._incarnation = 1
        self._sequence = 0
        self._queue: deque[Item] = deque()
        self._queued_bytes = 0
        self._in_flight: list[InFlightBatch] = []
        self._open_requests = 0
        self._is_due = self._is_dropping = False
        self.sent_batches = 0
        self._trouble: str | Failed = "the partition has no leader"
        self._has_failed = False
        self._is_sent_elsewhere = False
        # The first sequence that stays unused, and the first that certainly was not written.
        self._first_skipped = self._first_unwritten = inf
        self._fenced: HawserError | None = None
        self._loop = asyncio.get_running_loop()
        self._recovery: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        # Kept here because the handle of some event loops has no `when()`.
        self._timer_deadline = inf

    @property
    def incarnation(self) -> int:
        return self._incarnation

    @property
    def is_idle(self) -> bool:
        """Whether every message is written or failed."""
        return not self._queue and not self._in_flight

    def submit(self, item: Item) -> None:
        """Publish an item as soon as possible; its future gets the result."""
        if self._fenced is not None:
            fail(item, self._fenced)
        elif self._is_overfull:
            fail(
                item,
                Full(
                    f"{self._queued_bytes} bytes wait to be published to {self._name}; wait for receipts, "
                    "or flush(), before publishing more"
                ),
            )
        else:
            self._queue.append(item)
            self._queued_bytes += item.nbytes
            if not self._is_due:
                self._send_what_waits()
            if self._queue and item.deadline < self._timer_deadline:
                self._set_timer(item.deadline)

    @property
    def _is_overfull(self) -> bool:
        """Whether so much waits that further items are refused."""
        return self._queued_bytes > self._settings.queue_bytes

    def drop_cancelled(self) -> None:
        """Drop cancelled messages that wait, soon: in one pass for all that are cancelled together."""
        if self._queue and not self._is_dropping:
            self._is_dropping = True
            self._loop.call_soon(self._drop_cancelled)

    def _drop_cancelled(self) -> None:
        self._is_dropping = False
        self._queue = deque(item for item in self._queue if not item.is_cancelled)
        self._queued_bytes = sum(item.nbytes for item in self._queue)
        self._changed.set()

    async def flush(self) -> None:
        """Return when every submitted message is written or failed, later ones included."""
        while not self.is_idle:
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Fail all messages, now and from here on: OutcomeUnknown for those that may be written."""
        if self._timer is not None:
            self._timer.cancel()
        if self._open_requests:
            for sent in self._in_flight:
                sent.doubt = True
        self._fence(Closed(f"the publisher of {self._name} was closed"))

    async def close(self) -> None:
        """As `end`; return when no request is open."""
        self.end()
        tasks = [*self._tasks, *([self._recovery] if self._recovery is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _name(self) -> str:
        return f"topic {self._topic!r}, partition {self._partition}"

    @property
    def _what(self) -> str:
        return f"publishing to {self._name}"

    @property
    def _reason(self) -> str:
        return self._trouble if isinstance(self._trouble, str) else self._trouble.text

    # Sending.

    def _send_soon(self) -> None:
        """Send after the callers that were just answered have run, so that their next messages share the
        batch."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._send_due)

    def _send_due(self) -> None:
        self._is_due = False
        self._send_what_waits()

    def _send_what_waits(self) -> None:
        while self._queue and self._recovery is None and self._may_send():
            link = self._router.leader_link(self._shard)
            if link is None:
                self._recover()
                break
            sent = self._next_batch()
            if sent is not None:
                self._in_flight.append(sent)
                self._send(sent, link)
                self.sent_batches += 1

    def _may_send(self) -> bool:
        """Whether a batch may go out: a full one while fewer than `in_flight` are, a smaller one only alone.
        A batch costs the shard about the same whatever its size."""
        if self._open_requests == 0:
            return True
        settings = self._settings
        return self._open_requests < settings.in_flight and self._queued_bytes >= settings.batch_bytes

    def _next_batch(self, is_alone: bool = False) -> InFlightBatch | None:
        """A batch of waiting items, or of the next one alone; None if all were cancelled or it is invalid."""
        items, count, nbytes = list[Item](), 0, 0
        settings, queue = self._settings, self._queue
        while queue:
            item = queue[0]
            if item.was_cancelled_here:
                self._queued_bytes -= item.nbytes
            elif items and (
                is_alone
                or nbytes + item.nbytes > settings.batch_bytes
                or count + len(item.records) > settings.batch_records
                or abs(item.deadline - items[0].deadline) > _SAME_TIME_SECONDS
            ):
                break
            else:
                items.append(item)
                count += len(item.records)
                nbytes += item.nbytes
            queue.popleft()
        self._queued_bytes -= nbytes
        if not items:
            self._changed.set()
            return None
        stamp = Stamp(self._id, self._incarnation, self._sequence + 1)
        try:
            records = Rows.joined([item.records for item in items])
            batch = Batch.of(records, stamp, self._compression)
            sent = InFlightBatch(items, batch, self._shard, self.request)
        except UsageError as error:
            if len(items) > 1:
                # Each item may be valid without the others.
                queue.extendleft(reversed(items))
                self._queued_bytes += nbytes
                return self._next_batch(is_alone=True)
            fail(items[0], error)
            self._changed.set()
            return None
        self._sequence += 1
        return sent

    def _send(self, sent: InFlightBatch, link: Link) -> None:
        sent.oldest = self._in_flight[0].sequence
        self._open_requests += 1
        task = self._loop.create_task(self._request(sent, link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(self, sent: InFlightBatch, link: Link) -> None:
        try:
            seconds = max(0.001, min(sent.deadline - self._loop.time(), self._settings.attempt_seconds))
            answer = await ask(link, sent.body, seconds)
            self._on_answer(sent, checked(link, sent.request, answer))
        except asyncio.CancelledError:
            sent.doubt = True
            raise
        except TransportError as error:
            sent.doubt = sent.doubt or error.was_sent
            self._failed(str(error))
        except Exception as error:
            # The callers must learn a result, whatever the answer was.
            _log.exception("the answer for %s cannot be handled", self._name)
            sent.doubt = True
            self._failed(repr(error))
        finally:
            self._open_requests -= 1
            self._changed.set()
        self._send_soon()

    # Results.

    def _on_answer(self, sent: InFlightBatch, answer: Answer) -> None:
        if sent not in self._in_flight:
            # It failed when the producer was fenced.
            return
        if isinstance(answer, Executed):
            self._on_result(sent, decode_result(answer.result))
        else:
            assert isinstance(answer, Failed), answer
            self._on_refusal(sent, answer)

    def _on_result(self, sent: InFlightBatch, result: object) -> None:
        if isinstance(result, Accepted | Repeated):
            self._complete(sent, result.first_offset)
            return
        assert isinstance(result, Rejected), result
        if result.reason is Reason.GAP:
            if result.current < sent.oldest:
                self._went_back(sent.oldest)
            self._failed(result.text)
        elif result.reason is Reason.UNKNOWN_PRODUCER:
            # The shard has forgotten the producer, so no batch of this incarnation can be repeated.
            self._skip_sequence(0, is_missing=False)
            self._failed(result.text)
        elif result.reason is Reason.FENCED:
            self._fence(Fenced(f"{self._name}: {result.text}"))
        else:
            error: HawserError = OutcomeUnknown(f"{self._name}: {result.text}")
            if not self._is_in_doubt(sent):
                error.outcome = result.outcome
            self._fail_for_good(sent, error)

    def _went_back(self, oldest: int) -> None:
        """Handle a shard that lacks acknowledged batches: it has nothing from `oldest` on either."""
        _log.warning(
            "%s: acknowledged messages are gone, as after a restored backup; publishing continues",
            self._name,
        )
        self._skip_sequence(oldest, is_missing=True)

    def _complete(self, sent: InFlightBatch, first_offset: int) -> None:
        self._in_flight.remove(sent)
        place = first_offset
        for item in sent.items:
            count = len(item.records)
            future = item.future
            if not future.done():
                future.set_result(Receipt(self._topic, self._partition, place, count, "majority"))
            place += count

    def _on_refusal(self, sent: InFlightBatch, failed: Failed) -> None:
        if failed.retryable:
            sent.doubt = sent.doubt or failed.outcome == "unknown"
            self._is_sent_elsewhere = self._router.note(self._shard, failed) or self._is_sent_elsewhere
            self._failed(failed)
        else:
            self._fail_for_good(sent, refused(failed, self._what, self._is_in_doubt(sent)))

    def _fail_for_good(self, sent: InFlightBatch, error: HawserError) -> None:
        """Fail a batch that will never be written."""
        self._in_flight.remove(sent)
        for item in sent.items:
            fail(item, error)
        self._skip_sequence(sent.sequence, is_missing=error.outcome == "none")
        self._failed(str(error))

    def _skip_sequence(self, sequence: int, is_missing: bool) -> None:
        self._first_skipped = min(self._first_skipped, sequence)
        if is_missing:
            self._first_unwritten = min(self._first_unwritten, sequence)

    def _is_in_doubt(self, sent: InFlightBatch) -> bool:
        """Whether the batch may have been written."""
        return sent.doubt and sent.sequence < self._first_unwritten

    def _fence(self, error: HawserError) -> None:
        """End the producer with an error for all messages, now and later."""
        self._fenced = error
        for sent in self._in_flight:
            for item in sent.items:
                fail(
                    item,
                    self._unknown(item, f"its answer was lost, then: {error}")
                    if self._is_in_doubt(sent)
                    else error,
                )
        self._in_flight.clear()
        self._drop_queue(error)

    def _drop_queue(self, error: HawserError) -> None:
        for item in self._queue:
            fail(item, error)
        self._queue.clear()
        self._queued_bytes = 0
        self._changed.set()

    # Recovery.

    def _failed(self, trouble: str | Failed) -> None:
        self._trouble = trouble
        self._recover()

    def _recover(self) -> None:
        self._has_failed = True
        if self._recovery is None and self._fenced is None:
            self._recovery = self._loop.create_task(self._send_again())
            self._recovery.add_done_callback(self._recovered)

    def _recovered(self, recovery: asyncio.Task[None]) -> None:
        self._recovery = None
        self._changed.set()
        error = None if recovery.cancelled() else recovery.exception()
        if error is not None:
            _log.error("sending again to %s failed", self._name, exc_info=error)
            self._fence(
                HawserError(
                    f"the publisher of {self._name} has failed: {error!r}; report it, and create another one"
                )
            )
        if self._fenced is None:
            self._send_what_waits()

    async def _send_again(self) -> None:
        """Send unacknowledged batches until each is written or failed; return when there is a leader."""
        backoff = Backoff(self._settings)
        while True:
            await self._until_no_request_is_open()
            if self._fenced is not None or not (self._has_failed or self._first_skipped < inf):
                return
            self._expire()
            self._leave_cancelled()
            if self._first_skipped < inf and not self._sendable():
                self._renew()
            if self.is_idle:
                return
            if not self._is_sent_elsewhere:
                # A batch whose deadline comes first fails then.
                due = min((each.deadline for each in self._in_flight), default=inf)
                await asyncio.sleep(min(backoff.next(), max(0.0, due - self._loop.time())))
                await self._router.refresh(self._topic, due)
                self._check_topic()
            self._is_sent_elsewhere = False
            link = self._router.leader_link(self._shard)
            if link is None:
                self._recover()
                continue
            if not self._in_flight:
                return
            self._has_failed = False
            for sent in self._sendable():
                self._send(sent, link)

    def _sendable(self) -> list[InFlightBatch]:
        """The batches without an unused sequence before them."""
        return [sent for sent in self._in_flight if sent.sequence < self._first_skipped]

    async def _until_no_request_is_open(self) -> None:
        while self._open_requests:
            self._changed.clear()
            await self._changed.wait()

    def _check_topic(self) -> None:
        try:
            self._router.check_topic(self._topic, self._shard)
        except Closed as error:
            self._fence(error)

    def _expire(self) -> None:
        """Fail everything whose deadline is over."""
        now = self._loop.time()
        for sent in [each for each in self._in_flight if each.deadline <= now]:
            self._in_flight.remove(sent)
            self._give_up(sent, self._reason)
            self._skip_sequence(sent.sequence, is_missing=not self._is_in_doubt(sent))
        self._expire_queue()

    def _leave_cancelled(self) -> None:
        """Drop cancelled messages from batches that certainly were not written."""
        for sent in [each for each in self._in_flight if not self._is_in_doubt(each)]:
            left = [item for item in sent.items if not item.is_cancelled]
            if not left:
                self._in_flight.remove(sent)
                self._skip_sequence(sent.sequence, is_missing=True)
            elif len(left) < len(sent.items):
                sent.items[:] = left
                records = Rows.joined([item.records for item in left])
                sent.stamped(Batch.of(records, sent.batch.stamp, self._compression), self._shard)

    def _expire_queue(self) -> None:
        now = self._loop.time()
        for item in [each for each in self._queue if each.deadline <= now]:
            self._queue.remove(item)
            self._queued_bytes -= item.nbytes
            fail(item, given_up(self._what, self._seconds_of(item), self._trouble, False))
        self._changed.set()
        if self._queue:
            self._set_timer(min(item.deadline for item in self._queue))

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_deadline = deadline
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_deadline = None, inf
        self._expire_queue()

    def _give_up(self, sent: InFlightBatch, text: str) -> None:
        """Fail a batch whose deadline is over."""
        for item in sent.items:
            if self._is_in_doubt(sent):
                fail(
                    item, self._unknown(item, f"no answer came within {self._seconds_of(item):g} s ({text})")
                )
            else:
                fail(item, given_up(self._what, self._seconds_of(item), self._trouble, False))

    def _seconds_of(self, item: Item) -> float:
        """The timeout to name in an error."""
        return item.seconds

    def _unknown(self, item: Item, why: str) -> HawserError:
        return OutcomeUnknown(
            f"publishing {len(item.records)} messages to {self._name} is perhaps done: {why}. "
            f"{self.how_to_see} before publishing them again"
        )

    def _renew(self) -> None:
        """Begin a new incarnation with the batches that certainly were not written."""
        assert not self._open_requests
        # The outcome of the others could be learned only by sending the failed batch before them, which could
        # then be written long after its time.
        for sent in [each for each in self._in_flight if self._is_in_doubt(each)]:
            self._in_flight.remove(sent)
            for item in sent.items:
                why = f"its answer was lost, and one before it was given up ({self._reason})"
                fail(item, self._unknown(item, why))
        self._first_skipped = self._first_unwritten = inf
        self._incarnation += 1
        self._sequence = 0
        for sent in self._in_flight:
            sent.doubt = False
            self._sequence += 1
            stamp = Stamp(self._id, self._incarnation, self._sequence)
            sent.stamped(sent.batch.stamped(stamp), self._shard)
