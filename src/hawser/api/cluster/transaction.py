"""Transactions on a cluster, from any thread.

Operations are handed over to the event loop without waiting for it; only the end of the transaction waits.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import SystemRandom
from types import TracebackType
from typing import Any, Final, TypeVar

from hawser.api.cluster.message import LentSample
from hawser.api.cluster.publishing import batch_of
from hawser.api.cluster.queue import ClusterQueue, ThreadSession
from hawser.api.cluster.subscription import ClusterSubscription, member_of
from hawser.api.cluster.topic import ClusterTopic
from hawser.api.message import Message, Messages
from hawser.api.queue import Queue
from hawser.api.subscription import Subscription
from hawser.api.topic import Topic
from hawser.api.transaction import Transaction, TransactionState, Work
from hawser.cluster.client.client import record_of
from hawser.cluster.client.handles import Handle
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.router import Router
from hawser.cluster.client.transaction.transaction import OpenTransaction
from hawser.cluster.client.transaction.workspace import Held, Workspace, check_held
from hawser.errors import HawserError, UsageError
from hawser.record.rows import Records
from hawser.transaction.identity import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS

__all__ = [
    "ClusterTransaction",
    "ClusterWork",
    "Replay",
    "check_transaction_timeout",
    "foreign",
    "held_of",
    "run_transaction",
]

Result = TypeVar("Result")

_LEAST_PAUSE_SECONDS: Final = 0.01
_MOST_PAUSE_SECONDS: Final = 1.0
_RANDOM: Final = SystemRandom()
# The states in which no shard was asked to commit.
_UNDONE: Final = ("open", "rolling back", "rolled back")


def check_transaction_timeout(timeout: Any) -> int:
    """The bound on a transaction in whole seconds; None and 0 are the default. UsageError for invalid
    ones."""
    if timeout is None or timeout == 0:
        return DEFAULT_TIMEOUT_SECONDS
    if not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT_SECONDS:
        raise UsageError(
            f"timeout={timeout!r} is not a number of seconds above 0, at most {MAX_TIMEOUT_SECONDS}, or None "
            f"for {DEFAULT_TIMEOUT_SECONDS}"
        )
    return max(1, -int(-timeout // 1))


def foreign(what: object) -> UsageError:
    """The error for an object of another bus than the transaction's."""
    return UsageError(
        f"{what!r} does not belong to the bus of this transaction; it works with topics, queues and "
        "subscriptions that its own bus has opened"
    )


def held_of(messages: Any, router: Router) -> tuple[list[Held], list[LentSample]]:
    """The messages to accept; UsageError if a transaction of this client cannot accept one."""
    found = list(messages) if isinstance(messages, list | tuple) else [messages]
    for message in found:
        if not isinstance(message, LentSample):
            raise UsageError(
                f"{message!r} cannot be accepted in a transaction; messages of queues on its cluster can"
            )
        if message._queue_session.router is not router:
            raise UsageError(
                f"message {message.offset} was received by another bus; a transaction accepts messages of "
                "its own bus"
            )
    return lent(found), found


def lent(messages: Iterable[LentSample]) -> list[Held]:
    """The client's sessions and held messages of these."""
    return [(message._queue_session, message._held_message) for message in messages]


class ClusterWork(Work):
    """Work in a transaction of this process."""

    def __init__(self, thread: LoopThread, work: Workspace) -> None:
        self._thread = thread
        self._work = work
        # Operations are handed over before the end or refused. Reentrant: a signal handler may do so, too.
        self._lock = threading.RLock()
        self._is_ended = False
        self._got: list[LentSample] = []

    @property
    def id(self) -> str:
        return str(self._work.inner.id)

    def publish(
        self,
        target: Topic[Any] | Queue[Any],
        data: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        opened, codec = self._target(target)
        self._publish(opened, [record_of(data if codec is None else codec.encode(data), key, headers)])

    def publish_many(
        self,
        target: Topic[Any] | Queue[Any],
        items: Iterable[Any],
        *,
        keys: Iterable[bytes | None] | None = None,
    ) -> None:
        opened, codec = self._target(target)
        records = batch_of(items, keys, codec)
        if not records:
            raise UsageError("a batch has at least one message; there is nothing to publish")
        self._publish(opened, records)

    def _target(self, target: Any) -> tuple[Handle, Any]:
        """The handle to publish to, and the codec of its values."""
        if isinstance(target, ClusterTopic):
            target._require_open()
            self._check_own(target.name, target._thread)
            return target._topic, target._codec
        if isinstance(target, ClusterQueue):
            target._require_open()
            self._check_own(target.name, target._thread)
            # Dead letters take no new messages.
            _ = target._queue.publisher
            return target._queue, target._codec
        raise foreign(target)

    def _check_own(self, name: str, thread: LoopThread) -> None:
        if thread is not self._thread:
            raise foreign(name)

    def _publish(self, target: Handle, records: Records) -> None:
        self._thread.check()
        with self._lock:
            ends = self._work.ends
            self._check_working()
            # Count only operations that were handed over: one that is refused here never arrives.
            self._work.begin(records)
            self._hand_over(ends, self._work.publish, target, records)
        if self._work.has_to_wait:
            self._thread.call(self._work.room())

    def _do(self, step: Callable[..., None], *arguments: Any) -> None:
        self._thread.check()
        with self._lock:
            ends = self._work.ends
            self._check_working()
            self._hand_over(ends, step, *arguments)

    def _hand_over(self, ends: int, step: Callable[..., None], *arguments: Any) -> None:
        """Hand over what was checked after `ends` was read; UsageError if it came too late."""
        handed = self._work.hand_over(step, *arguments)
        if self._work.ends != ends:
            self._thread.call(self._work.require_taken(handed))

    def _check_working(self) -> None:
        """UsageError once it has ended, TransactionAborted if it can only be rolled back."""
        if self._is_ended:
            raise self._over()
        self._work.check()

    def _over(self) -> UsageError:
        return UsageError(f"the work in transaction {self.id} has ended; begin another one")

    def get(self, queue: Queue[Any], timeout: float | None = None) -> Message | None:
        found = self._session(queue).get_one(timeout)
        if found is not None:
            self._keep([found])
        return found

    def get_many(self, queue: Queue[Any], count: int, timeout: float | None = None) -> Messages:
        found = self._session(queue).get_many(count, timeout)
        self._keep(found)
        return found

    def _session(self, queue: Any) -> ThreadSession:
        if not isinstance(queue, ClusterQueue):
            raise foreign(queue)
        self._check_own(queue.name, queue._thread)
        with self._lock:
            self._check_working()
        return queue._session(for_transactions=True)

    def _keep(self, messages: Sequence[Any]) -> None:
        """Release these messages at the end, unless they are settled before."""
        with self._lock:
            if not self._is_ended:
                self._got += messages
                return
        for message in messages:
            message._queue_session.take_back(message._held_message)
        raise self._over()

    def accept(self, messages: Message | Sequence[Message]) -> None:
        held, kept = held_of(messages, self._work.router)
        check_held(held)
        self._do(self._work.accept, held, kept)

    def _release(self) -> None:
        """Give back messages that were received after the end."""
        got, self._got = self._got, []
        for message in got:
            message._queue_session.take_back(message._held_message)


class ClusterTransaction(ClusterWork, Transaction):
    """A transaction of this process. Made by `Bus.transaction`."""

    _work: OpenTransaction

    def __init__(self, thread: LoopThread, work: OpenTransaction, is_for_certain: bool = False) -> None:
        super().__init__(thread, work)
        self._is_for_certain = is_for_certain
        # The call that ends it.
        self._ended_by: object = None

    def __del__(self) -> None:
        # A transaction without references is rolled back.
        if not self._is_ended:
            self._work.abandon()

    @property
    def state(self) -> TransactionState:
        return self._work.state

    def _over(self) -> UsageError:
        return UsageError(
            f"transaction {self.id} has ended: it is {self.state}. Begin another one with bus.transaction()"
        )

    def commit_offsets(self, subscription: Subscription[Any]) -> None:
        if not isinstance(subscription, ClusterSubscription):
            raise foreign(subscription)
        self._check_own(subscription.name, subscription._thread)
        member = member_of(subscription._consumer)
        self._thread.check()
        taken = member.taken(threading.current_thread())
        with self._lock:
            if self._is_ended:
                self._thread.loop.call_soon_threadsafe(member.give_back, taken)
                raise self._over()
            # Even if it can only be rolled back: the subscription follows its end.
            self._work.hand_over(self._work.commit_offsets, member, taken)
            self._work.check()
        # The transaction has claimed the message, so that it is taken again if this error ends the block.
        member.raise_kept_error()

    def commit(self) -> None:
        self._thread.check_may_wait()
        with self._ending() as is_first:
            if not is_first:
                raise self._over()
            commit = self._work.commit_for_certain if self._is_for_certain else self._work.commit
            self._wait_for(commit(lent(self._got)))

    @contextmanager
    def _ending(self) -> Iterator[bool]:
        """Whether the block ends the transaction, or another call has ended it. From here on nothing is
        handed over. If the block is interrupted before the end has begun, the transaction is rolled back."""
        call = object()
        try:
            with self._lock:
                if not self._is_ended:
                    self._ended_by, self._is_ended = call, True
            yield self._ended_by is call
        except BaseException:
            if self._ended_by is call:
                self._work.abandon()
            raise
        finally:
            if self._ended_by is call:
                self._got = []

    def resolve(self) -> bool:
        if self.state in ("committed", "rolled back"):
            return self.state == "committed"
        return self._wait_for(self._work.resolve())

    def _wait_for(self, end: Coroutine[Any, Any, Result]) -> Result:
        return self._thread.call(
            end,
            f"the bus was closed before the outcome of transaction {self.id} was known; check "
            f"`hawser tx show {self.id}` before you run it again",
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
        elif not self._is_ended:
            self.commit()

    def rollback(self) -> None:
        with self._ending() as is_first:
            if is_first and self._thread.is_usable:
                self._thread.call(self._work.rollback(lent(self._got)))


class Replay:
    """When a transaction is run again: after growing pauses, up to so many times."""

    def __init__(self, retries: Any) -> None:
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            raise UsageError(f"retries={retries!r} is not a whole number from 0 on")
        self._left = retries
        self._bound = _LEAST_PAUSE_SECONDS

    def pause_seconds(self, error: HawserError, state: TransactionState) -> float:
        """The pause before the next run. Raises the error if there is no next run: it would fail again, may
        have had an effect, came after a commit, or was the last."""
        if not error.retryable or error.outcome != "none" or state not in _UNDONE or not self._left:
            raise error
        self._left -= 1
        pause = _RANDOM.uniform(self._bound / 2, self._bound)
        self._bound = min(2 * self._bound, _MOST_PAUSE_SECONDS)
        return pause


def run_transaction(
    begin: Callable[[], ClusterTransaction], fn: Callable[[Transaction], Result], retries: int
) -> Result:
    """As `Bus.run_transaction`, with transactions whose commit is for certain."""
    replay = Replay(retries)
    while True:
        transaction = begin()
        try:
            with transaction:
                return fn(transaction)
        except HawserError as error:
            pause_seconds = replay.pause_seconds(error, transaction.state)
        time.sleep(pause_seconds)
