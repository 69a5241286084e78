"""Work in a transaction: what is published and accepted, until it is known what becomes of it.

Nothing waits. Operations are kept for each shard and go out when there are enough of them, soon after the
first, or with what ends the transaction. What is refused shows in the next call, or at the end; from then on
the transaction can only be rolled back.

A message that is accepted belongs to the transaction from then on: neither the session that got it nor
anybody else settles it. When the transaction is committed it is done. Otherwise it is delivered again, to
whoever comes; the session has lost it.
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

# What waits for a shard goes out when there is so much of it, at the latest.
_ENOUGH_BYTES: Final = 256 << 10
# What says of an operation that it is there.
_STAGED: Final = (Staged, Prepared)
# To run it again would fail in the same way.
_LASTING: Final = (UsageError, Closed, NotFound, SettingsMismatch)

# A message, and the session that was lent it.
Held = tuple[QueueSession, HeldMessage]
# A step for the event loop, and its arguments.
Handed = tuple[Callable[..., None], tuple[Any, ...]]


class Workspace(ABC):
    """Everything happens in the event loop, but for `hand_over`, which belongs to any one thread at a time,
    and what it may be asked before."""

    # So many attributes would be kept in a dictionary for each transaction, made anew and slower to look at.
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
        # Where messages without a key go, for each topic.
        self._keyless: dict[str, int] = {}
        # Messages that were accepted: whose leader has not said so yet, and the others.
        self._locking: dict[HeldMessage, QueueSession] = {}
        self._locked: set[HeldMessage] = set()
        # What was sent, by shard and number.
        self._sent: dict[tuple[str, int], Operation] = {}
        # Sessions live as long as somebody has a message of theirs.
        self._kept: list[object] = []
        self._handed: deque[Handed] = deque()
        self._is_called = False
        # One is written by whoever works, the other by the event loop.
        self._begun_bytes = self._done_bytes = 0

    # Handing over.

    def hand_over(self, step: Callable[..., None], *arguments: Any) -> Handed:
        """Do this in the event loop, in order; those that come before the loop has its turn cost one call."""
        handed = step, arguments
        self._handed.append(handed)
        if not self._is_called:
            self._is_called = True
            self.router.post(self._take_over)
        return handed

    async def require_taken(self, handed: Handed) -> None:  # noqa: B027
        """UsageError if an end that another thread has begun came before this was handed over."""

    def _take_over(self) -> None:
        # Before looking: what is handed over from here on calls again.
        self._is_called = False
        while self._handed:
            self._attempt(*self._handed.popleft())

    def do(self, step: Callable[..., None], *arguments: Any) -> None:
        """As `hand_over`, in the event loop: at once. TransactionAborted if it cannot be done."""
        self._attempt(step, arguments)
        self.check()

    def _attempt(self, step: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            step(*arguments)
        except Exception as error:
            # Whatever it is: the others are not to be committed without this one.
            self._fail(error)

    @property
    def has_to_wait(self) -> bool:
        """Whether so much is on its way that whoever works should wait for `room`."""
        return self._begun_bytes - self._done_bytes > self._settings.queue_bytes

    async def room(self) -> None:
        """Return when there is room for more."""
        self._take_over()
        self.send_waiting()
        await self._until(lambda: not self.has_to_wait, "to take what was published")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when this is true, or something has failed; that is what it is after too long."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                while not condition() and not self.has_failed:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._fail(Unavailable(f"nobody was there {what} within {self._settings.timeout:g} s"))

    # Working.

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
        """These are about to be published, and on their way from here on. Before `publish`, in the thread of
        whoever works."""
        self._begun_bytes += size_of(records)

    def publish(self, target: Handle, records: Records) -> None:
        """To a topic or a queue."""
        self._check_taking()
        if isinstance(target, QueueHandle):
            self._add(target.name, target.shard(0), Put(Kind.QUEUE_PUT, Compression.NONE, records))
            return
        compression = compression_of(target.name, target.entry)
        parts = split_records(records, target.partitions, self._keyless_of(target))
        for partition, part in parts.items():
            self._add(target.name, target.shard(partition), Put(Kind.BATCH, compression, part))

    def _keyless_of(self, target: Handle) -> int:
        """The partition of a topic for messages without a key: few partitions are few shards."""
        if target.partitions == 1:
            return 0
        keyless = self._keyless.get(target.name)
        if keyless is None:
            keyless = self._keyless[target.name] = secrets.randbelow(target.partitions)
        return keyless

    def accept(self, held: Sequence[Held], kept: object) -> None:
        """These messages; those that this transaction has already stay as they are."""
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
        """It can only be rolled back."""
        self._failure = self._failure or error
        self._changed.set()

    # Sending.

    def send_waiting(self) -> None:
        """Send what waits for any shard."""
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
        """What waits for a shard, as it is sent; nothing once the transaction can only be rolled back."""
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
        """As `Sender` has it."""
        return self.inner.again(shard)

    def heard(self, request: Request, result: Result) -> None:
        """As `Sender` has it."""
        self._carry(self._hear(request, result))

    def _hear(self, request: Request, result: Result) -> list[Request]:
        """What to send because of that."""
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
        """For this, or for another."""
        ways: dict[str, list[Request]] = {}
        for request in requests:
            ways.setdefault(request.shard, []).append(request)
        for shard, those in ways.items():
            self._pipelines[shard].carry(sender or self, those)

    @abstractmethod
    def lost(self, shard: str, error: HawserError) -> None:
        """As `Sender` has it."""

    # The end.

    def _stop(self) -> None:
        """Nothing is sent, or heard of, from here on."""
        self._forget_soon()
        for pipeline in self._pipelines.values():
            pipeline.leave(self)
        # Callers no longer wait for room, either.
        self._done_bytes = self._begun_bytes
        self._changed.set()

    def _give_back(self, got: Iterable[Held] = ()) -> "list[asyncio.Future[None]]":
        """Release what was to be locked, and those of what was got that are still held; done when that is."""
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
    """UsageError if one of these messages cannot be accepted in a transaction. Before the event loop has its
    turn it is not certain which transaction has one, or whether one is lost."""
    for queue_session, held_message in held:
        state = held_message.state
        if state is State.HELD or (state in (State.LOCKED, State.LOST) and not is_certain):
            continue
        locked = "was accepted in another transaction"
        what = locked if state is State.LOCKED else "is settled, or is being settled, by itself"
        which = f"message {held_message.offset} of queue {queue_session.queue!r}"
        raise UsageError(f"{which} {what}; what becomes of a message is said once")
