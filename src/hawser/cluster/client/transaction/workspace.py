"""The workspace of a transaction: stages publishes, accepts and group positions until the transaction ends.

    operation    meaning                                      next
    handed over  it waits for the event loop                  buffered
    buffered     it waits for others to share its request     sent: at 256 KiB, after 20 ms, or at the end
    sent         its shard has not acknowledged it            staged, refused
    staged       its shard holds it until the outcome         none
    refused      the transaction can only be rolled back      none

Promise: no call waits for a shard; a refusal shows in the next call or at the end, as TransactionAborted.

An accepted message belongs to the transaction: neither its session nor any other settles it. It is settled
when the transaction commits. Otherwise it is delivered again, to any consumer, and the session has lost it.
"""

import asyncio
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from hawser.cluster.client.handles import Handle
from hawser.cluster.client.loop_primitives import LoopEvent
from hawser.cluster.client.publish.batch import size_of
from hawser.cluster.client.publish.partitioner import compression_of, split_records
from hawser.cluster.client.queue.acknowledger import HeldMessage, State
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.queue.session import QueueSession
from hawser.cluster.client.router import Router
from hawser.cluster.client.transaction.operations import Accept, Operation, OperationBuffer, Put
from hawser.cluster.client.transaction.shard_pipeline import Sender, ShardPipeline, ShardPipelines
from hawser.errors import (
    Closed,
    HawserError,
    NotFound,
    SettingsMismatch,
    TransactionAborted,
    Unavailable,
    UsageError,
)
from hawser.log.entry import Kind
from hawser.log.state.results import Prepared, Reason, Rejected, Result, Staged
from hawser.record.batch import Compression
from hawser.record.rows import Records
from hawser.transaction.client import Request, Transaction

__all__ = ["Handed", "Held", "Workspace", "check_held"]

# A buffer of this size is sent at once.
_ENOUGH_BYTES: Final = 256 << 10
# The results that acknowledge an operation.
_STAGED: Final = (Staged, Prepared)
# Errors that a second run of the transaction would meet, too.
_LASTING: Final = (UsageError, Closed, NotFound, SettingsMismatch)

# A message and the session that received it.
Held = tuple[QueueSession, HeldMessage]
# A step for the event loop, and its arguments.
Handed = tuple[Callable[..., None], tuple[Any, ...]]


class Workspace(ABC):
    """Lives in the event loop. One thread at a time may call `hand_over`, `begin` and the properties."""

    # Slots: a dictionary of so many attributes for each transaction costs time.
    __slots__ = (
        "doubts", "inner", "router", "_begun_bytes", "_buffers", "_changed", "_client_pipelines",
        "_done_bytes", "_failure", "_handed", "_is_called", "_is_due", "_keyless", "_kept", "_locked",
        "_locking", "_loop", "_pipelines", "_sent", "_settings",
    )  # fmt: skip

    # How often another thread has begun to end it.
    ends = 0

    def __init__(self, router: Router, pipelines: ShardPipelines, transaction: Transaction) -> None:
        self.inner = transaction
        self.router = router
        self.doubts = 0
        self._client_pipelines = pipelines
        self._settings = router.settings
        self._loop = router.loop
        self._failure: Exception | None = None
        self._buffers: dict[str, OperationBuffer] = {}
        self._pipelines: dict[str, ShardPipeline] = {}
        self._is_due = False
        self._changed = LoopEvent(self._loop)
        # The partition for messages without a key, by topic.
        self._keyless: dict[str, int] = {}
        # Accepted messages: those that their leader has not locked yet, and those that it has.
        self._locking: dict[HeldMessage, QueueSession] = {}
        self._locked: set[HeldMessage] = set()
        # Sent operations that are not acknowledged, by shard and number.
        self._sent: dict[tuple[str, int], Operation] = {}
        # Keeps the consumers of the messages alive: a dropped consumer closes its session.
        self._kept: list[object] = []
        self._handed: deque[Handed] = deque()
        self._is_called = False
        # The caller's thread writes the first, the event loop the second.
        self._begun_bytes = self._done_bytes = 0

    # Handing over.

    def hand_over(self, step: Callable[..., None], *arguments: Any) -> Handed:
        """Run `step` in the event loop, in order. Steps that arrive before the loop's turn share one
        wake-up."""
        handed = step, arguments
        self._handed.append(handed)
        if not self._is_called:
            self._is_called = True
            self.router.post(self._take_over)
        return handed

    async def require_taken(self, handed: Handed) -> None:  # noqa: B027
        """UsageError if an end that another thread has begun came before this was handed over."""

    def _take_over(self) -> None:
        # First, so that a step handed over from here on wakes the loop again.
        self._is_called = False
        while self._handed:
            self._attempt(*self._handed.popleft())

    def do(self, step: Callable[..., None], *arguments: Any) -> None:
        """As `hand_over`, but at once, in the event loop. TransactionAborted if the step fails."""
        self._attempt(step, arguments)
        self.check()

    def _attempt(self, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            step(*arguments)
        except Exception as error:
            # Any failure: the other operations must not be committed without this one.
            self._fail(error)

    @property
    def has_to_wait(self) -> bool:
        """Whether so much is unacknowledged that the caller should wait for `room`."""
        return self._begun_bytes - self._done_bytes > self._settings.queue_bytes

    async def room(self) -> None:
        """Return when there is room for more."""
        self._take_over()
        self.send_waiting()
        await self._until(lambda: not self.has_to_wait)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition is true or the transaction has failed; a timeout is a failure."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                while not condition() and not self.has_failed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            trouble = "; ".join(sorted({each.trouble for each in self._pipelines.values()}))
            seconds = self._settings.timeout
            self._fail(Unavailable(f"its operations were not acknowledged within {seconds:g} s ({trouble})"))

    # Operations.

    @abstractmethod
    def check_open(self) -> None:
        """UsageError once it has ended."""

    def check(self) -> None:
        """As `check_open`; TransactionAborted if it can only be rolled back."""
        self.check_open()
        if self.has_failed:
            raise self.aborted()

    def _check_taking(self) -> None:
        """As `check`, in the event loop: what was handed over before an end is taken as it begins."""
        self.check()

    @property
    def has_failed(self) -> bool:
        """Whether it can only be rolled back."""
        return self._failure is not None or self.inner.refused is not None

    def aborted(self) -> TransactionAborted:
        """Why it can only be rolled back."""
        failure, refused = self._failure, self.inner.refused
        why = self.inner.why_refused
        if failure is not None:
            why = str(failure) if isinstance(failure, HawserError) else f"{failure!r}; report it"
        error = TransactionAborted(f"transaction {self.inner.id} is rolled back: {why}")
        error.__cause__ = failure
        lasts = refused is not None and refused.reason is Reason.BAD_PAYLOAD
        is_known = failure is None or isinstance(failure, HawserError)
        error.retryable = is_known and not lasts and not isinstance(failure, _LASTING)
        return error

    def begin(self, records: Records) -> None:
        """Count these as unacknowledged; to be called before `publish`, in the caller's thread."""
        self._begun_bytes += size_of(records)

    def publish(self, target: Handle, records: Records) -> None:
        """Publish to a topic, or put into a queue."""
        self._check_taking()
        if isinstance(target, QueueHandle):
            self._add(target.name, target.shard(0), Put(Kind.QUEUE_PUT, Compression.NONE, records))
            return
        compression = compression_of(target.name, target.entry)
        parts = split_records(records, target.partitions, self._keyless_of(target))
        for partition, part in parts.items():
            self._add(target.name, target.shard(partition), Put(Kind.BATCH, compression, part))

    def _keyless_of(self, target: Handle) -> int:
        """The partition for messages without a key: one for all, so that the transaction has few shards."""
        if target.partitions == 1:
            return 0
        keyless = self._keyless.get(target.name)
        if keyless is None:
            keyless = self._keyless[target.name] = secrets.randbelow(target.partitions)
        return keyless

    def accept(self, held: Sequence[Held], kept: object) -> None:
        """Accept messages; those that this transaction has accepted before stay as they are."""
        self._check_taking()
        new = [each for each in held if each[1] not in self._locking and each[1] not in self._locked]
        lost = [each for each in new if each[1].state is State.LOST]
        if lost:
            self._fail(lost[0][0].fenced([held_message for _, held_message in lost]))
            raise self.aborted()
        check_held(new, is_certain=True)
        self._kept.append(kept)
        for queue_session, held_message in dict.fromkeys(new):
            queue_session.lock((held_message,))
            self._locking[held_message] = queue_session
            self._add(queue_session.queue, queue_session.shard, Accept(queue_session, (held_message,)))

    def _add(self, name: str, shard: str, operation: Operation) -> None:
        buffer = self._buffers.get(shard)
        if buffer is None:
            buffer = self._buffers[shard] = OperationBuffer(
                self._settings.batch_bytes, self._settings.batch_records
            )
            self._pipelines[shard] = self._client_pipelines.to(name, shard)
        buffer.add(operation)
        if buffer.nbytes >= _ENOUGH_BYTES:
            self._send(shard)
        elif not self._is_due:
            self._is_due = True
            self._client_pipelines.soon.set(self)

    def _fail(self, error: Exception) -> None:
        """From here on the transaction can only be rolled back."""
        self._failure = self._failure or error
        self._changed.set()

    # Sending.

    def send_waiting(self) -> None:
        """Send every buffer."""
        self._forget_soon()
        for shard in self._buffers:
            self._send(shard)

    def _forget_soon(self) -> None:
        if self._is_due:
            self._is_due = False
            self._client_pipelines.soon.forget(self)

    def _send(self, shard: str) -> None:
        requests = self._numbered(shard)
        if requests:
            self._pipelines[shard].carry(self, requests)

    def _numbered(self, shard: str) -> list[Request]:
        """The requests for a shard's buffer; none once the transaction can only be rolled back."""
        requests: list[Request] = []
        for operation in self._buffers[shard].clear():
            if self.has_failed:
                break
            try:
                request = self.inner.operation(shard, operation.kind, operation.payload())
            except Exception as error:
                self._fail(error)
                break
            self._sent[shard, request.number] = operation
            requests.append(request)
        return requests

    def unanswered(self, shard: str) -> list[Request]:
        """See `Sender`."""
        return self.inner.again(shard)

    def heard(self, request: Request, result: Result) -> None:
        """See `Sender`."""
        self._carry(self._hear(request, result))

    def _hear(self, request: Request, result: Result) -> list[Request]:
        """Note a result; the requests that follow from it."""
        if request.number and isinstance(result, _STAGED):
            self._staged(self._sent.pop((request.shard, request.number), None))
        elif isinstance(result, Rejected) and result.reason is Reason.NOT_HELD:
            operation = self._sent.get((request.shard, request.number))
            if isinstance(operation, Accept):
                self._fail(operation.queue_session.fenced(operation.messages))
        self._changed.set()
        return self.inner.hear(request, result)

    def _staged(self, operation: Operation | None) -> None:
        if isinstance(operation, Accept):
            operation.queue_session.locked(operation.messages)
            for message in operation.messages:
                del self._locking[message]
                self._locked.add(message)
        elif isinstance(operation, Put):
            self._done_bytes += operation.nbytes

    def _carry(self, requests: Sequence[Request], sender: Sender | None = None) -> None:
        """Send requests for this transaction, or for another sender."""
        ways: dict[str, list[Request]] = {}
        for request in requests:
            ways.setdefault(request.shard, []).append(request)
        for shard, those in ways.items():
            self._pipelines[shard].carry(sender or self, those)

    @abstractmethod
    def lost(self, shard: str, error: HawserError) -> None:
        """See `Sender`."""

    # The end.

    def _stop(self) -> None:
        """Send nothing more, and receive no more results."""
        self._forget_soon()
        for pipeline in self._pipelines.values():
            pipeline.leave(self)
        # Callers stop waiting for room, too.
        self._done_bytes = self._begun_bytes
        self._changed.set()

    def _give_back(self, got: Iterable[Held] = ()) -> "list[asyncio.Future[None]]":
        """Release the messages that are not locked yet, and those of `got` that are still held; the futures
        are done when that is."""
        locking, self._locking = self._locking, {}
        back: dict[QueueSession, tuple[list[HeldMessage], list[HeldMessage]]] = {}
        for message, queue_session in locking.items():
            back.setdefault(queue_session, ([], []))[0].append(message)
        for queue_session, message in got:
            if message.state is State.HELD:
                back.setdefault(queue_session, ([], []))[1].append(message)
        self._kept.clear()
        return [queue_session.unlock(*messages) for queue_session, messages in back.items()]


def check_held(held: Sequence[Held], is_certain: bool = False) -> None:
    """UsageError if one of these messages cannot be accepted in a transaction. Outside the event loop it is
    not certain which transaction has a message, or whether it is lost; `is_certain` is True inside."""
    for queue_session, held_message in held:
        state = held_message.state
        if state is State.HELD or (state in (State.LOCKED, State.LOST) and not is_certain):
            continue
        locked = "is accepted in another transaction"
        what = locked if state is State.LOCKED else "is already settled, or being settled"
        which = f"message {held_message.offset} of queue {queue_session.queue!r}"
        raise UsageError(f"{which} {what}; a message can be settled only once")
