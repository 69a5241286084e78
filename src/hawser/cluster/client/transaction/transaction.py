"""Transactions of a client: the lanes that they run on, and how they commit and roll back.

    state         meaning                                       next
    open          takes operations                              committing, rolling back
    committing    the coordinator shard is asked to commit      committed, rolled back; unknown at a timeout
    rolling back  the participants are told to abort            rolled back
    committed     decided; the groups are at their positions    none
    rolled back   nothing of it remains                         none
    unknown       no shard answered in time                     committed or rolled back, by `resolve`

Promise: a transaction takes effect on all of its shards or on none, and `commit` reports which, or
OutcomeUnknown.

- A lane is an xid of this client, for one transaction after the other. One whose last outcome is unknown is
  never used again.
- A transaction on one shard is decided by that shard; one on several by one of them, the coordinator shard.
- If no answer to the commit comes in two thirds of the timeout, the client asks for the outcome; an undecided
  transaction is rolled back by that.
- Work in progress belongs to the client: the cancellation of a call neither undoes nor ends it.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final, Literal

from hawser.cluster.client.errors import Backoff
from hawser.cluster.client.loop_primitives import LoopEvent, SharedTimer
from hawser.cluster.client.queue.acknowledger import State as MessageState
from hawser.cluster.client.router import Router
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.cluster.client.subscribe.takers import Claim, Taken
from hawser.cluster.client.transaction.coordinators import boot_seconds
from hawser.cluster.client.transaction.operations import Move
from hawser.cluster.client.transaction.shard_pipeline import Leftover, ShardPipelines
from hawser.cluster.client.transaction.workspace import Held, Workspace
from hawser.errors import HawserError, OutcomeUnknown, TransactionAborted, UsageError
from hawser.log.state.results import Finished, Outcome, Result
from hawser.transaction.client import Progress, Request, Transaction
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.identity import LANE_FORMAT, TransactionId, Xid, owner_of

__all__ = ["Lanes", "OpenTransaction", "State"]

_log = logging.getLogger("hawser.cluster.client")

State = Literal["open", "committing", "rolling back", "committed", "rolled back", "unknown"]
# The part of a commit's timeout after which the client asks for the outcome.
_PATIENT_PART: Final = 2 / 3
_ASKING_PART: Final = 1 - _PATIENT_PART
# A late call waits at least so long for the groups of its transaction.
_FOLLOW_SECONDS: Final = 1.0


class Lane:
    """An xid of this client, and the number of its transactions so far."""

    def __init__(self) -> None:
        self.xid = Xid(LANE_FORMAT, secrets.token_bytes(16), b"")
        self.incarnation = 0

    def next(self) -> TransactionId:
        self.incarnation += 1
        return TransactionId(self.xid, self.incarnation)


class Lanes:
    """The lanes and open transactions of one client. `begin` may be called in any thread, even in a signal
    handler that has interrupted it: each step is atomic, and there is no lock."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.pipelines = ShardPipelines(router)
        self._owner = owner_of(router.run)
        self._idle: list[Lane] = []
        seconds = _PATIENT_PART * router.settings.timeout
        self.patience_timer: SharedTimer[OpenTransaction] = SharedTimer(
            router.loop, seconds, OpenTransaction.stop_waiting
        )
        self._open: set[OpenTransaction] = set()
        self.is_closed = False

    def begin(self, timeout_seconds: int) -> "OpenTransaction":
        """A new transaction, which is rolled back if it is not committed after `timeout_seconds`."""
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = Lane()
        inner = Transaction(lane.next(), self._owner, timeout_seconds)
        transaction = OpenTransaction(self, lane, inner)
        self._open.add(transaction)
        return transaction

    def end(self, transaction: "OpenTransaction", lane: Lane | None) -> None:
        """Note that a transaction is over. Its lane is reused unless it is None."""
        self._open.discard(transaction)
        if lane is not None:
            self._idle.append(lane)

    async def close(self) -> None:
        """Roll back open transactions, and wait for those that are committing."""
        self.is_closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    async def leave(self) -> None:
        """Stop sending: the shards end what is left of transactions when this client's session ends."""
        await self.pipelines.close()


class OpenTransaction(Workspace):
    __slots__ = (
        "_back", "_claims", "_ended", "_ends_since", "_following", "_got", "_is_asked_for", "_is_ending",
        "_lane", "_lanes", "_patience",
    )  # fmt: skip

    def __init__(self, lanes: Lanes, lane: Lane, transaction: Transaction) -> None:
        super().__init__(lanes.router, lanes.pipelines, transaction)
        self._lanes = lanes
        self._lane: Lane | None = lane
        self._is_ending = False
        self._ended = LoopEvent(self._loop)
        self._patience: asyncio.TimerHandle | None = None
        # The transaction's claims on groups.
        self._claims: dict[GroupMember, Claim] = {}
        # Whether `commit_for_certain` asks again if the outcome is unknown.
        self._is_asked_for = False
        self._following: set[asyncio.Task[None]] = set()
        # When the commit began, by `boot_seconds`.
        self._ends_since = inf
        # Messages received for it, and their pending releases.
        self._got: Sequence[Held] = ()
        self._back: list[asyncio.Future[None]] = []

    @property
    def state(self) -> State:
        inner = self.inner
        if inner.outcome is not None:
            return "committed" if inner.outcome is Outcome.COMMITTED else "rolled back"
        if self._ended.is_set():
            return "unknown" if self.doubts else "rolled back"
        if inner.progress is Progress.ROLLING_BACK:
            return "rolling back"
        return "committing" if self._is_ending else "open"

    def check_open(self) -> None:
        if self._is_ending:
            raise UsageError(
                f"transaction {self.inner.id} has ended: it is {self.state}. Begin another one with "
                "bus.transaction()"
            )

    def commit_offsets(self, member: GroupMember, taken: Taken) -> None:
        """Move the group behind the samples taken when the transaction commits. Even if it can only be rolled
        back, the member follows its end."""
        self.check_open()
        moves = member.claim(taken, self._claims.setdefault(member, Claim()))
        self.check()
        member.check(taken)
        for partition, command in moves:
            self._add(member.topic, member.shard(partition), Move(command))

    # Ending.

    async def commit(self, got: Sequence[Held] = ()) -> None:
        """Return when it is committed. TransactionAborted if it is not; OutcomeUnknown or InDoubt if no shard
        answers. Received messages that are not accepted are released."""
        deadline = self._deadline()
        self._take_over()
        self.check_open()
        self._begin_ending(got)
        try:
            self._begin_commit()
        except Exception as error:
            # An unforeseen failure: the caller must still learn the outcome.
            self._fail(error)
            if self.inner.progress is Progress.COMMITTING:
                self._ask()
        if self.inner.progress is Progress.OPEN:
            aborted = self.aborted()
            await self._roll_back()
            raise aborted
        await self._outcome(deadline)

    def _begin_commit(self) -> None:
        """Send the commit. If the transaction is open afterwards, it has failed."""
        self._forget_soon()
        self._ends_since = boot_seconds()
        last = [request for shard in self._buffers for request in self._numbered(shard)]
        if self.has_failed:
            return
        requests = self.inner.commit(last, self.router.leader_link)
        if self.inner.coordinator:
            self._go_alone_to(self.inner.coordinator)
        self._carry(requests)
        if self.inner.progress is Progress.OVER:
            self._finish()
        else:
            self._lanes.patience_timer.set(self)

    def _go_alone_to(self, coordinator: str) -> None:
        """Use a pipeline of its own to the coordinator shard, which answers once the participants have: other
        transactions must not wait for that. Unacknowledged operations go along with the decision."""
        shared = self._pipelines[coordinator]
        shared.leave(self)
        self._pipelines[coordinator] = self._client_pipelines.apart(shared)

    def _begin_ending(self, got: Sequence[Held]) -> None:
        """From here on the group members take samples without waiting for the end."""
        self._is_ending = True
        self._got = got
        for member, claim in self._claims.items():
            claim.received = member.received

    async def rollback(self, got: Sequence[Held] = ()) -> None:
        """Return when nothing of it is left and the received messages are released, or after a few seconds:
        the shards then roll it back by themselves. Changes nothing once the transaction is over."""
        self._take_over()
        if not self._is_ending:
            self._begin_ending(got)
            await self._roll_back()

    def _deadline(self) -> float:
        return self._loop.time() + self._settings.timeout

    async def _roll_back(self) -> None:
        deadline = self._deadline()
        self._begin_rollback()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patient_seconds):
                await self._ended.wait()
                await self._returned()
        await self._followed(deadline)

    @property
    def _patient_seconds(self) -> float:
        """How long a call waits for work that continues without it."""
        return min(2 * self._settings.attempt_seconds, self._settings.timeout)

    async def _returned(self) -> None:
        if self._back:
            await asyncio.wait(self._back, timeout=self._patient_seconds)

    def _begin_rollback(self) -> None:
        requests = self.inner.rollback()
        self._buffers.clear()
        self._let_go(is_committed=False)
        self._begin_following()
        self._carry(requests)
        self._wait(self._settings.timeout)

    async def resolve(self) -> bool:
        """Whether it is committed. An unknown outcome is asked for, which rolls an undecided transaction
        back. OutcomeUnknown or InDoubt if no shard answers."""
        if not self._is_ending:
            raise UsageError(f"transaction {self.inner.id} is open; commit it, or roll it back")
        if self.state == "unknown":
            self._ended.clear()
            self._ask()
        try:
            await self._outcome(self._deadline())
        except TransactionAborted:
            return False
        return True

    async def commit_for_certain(self, got: Sequence[Held] = ()) -> None:
        """As `commit`, but ask again for an unknown outcome until the transaction's own timeout is over.
        OutcomeUnknown after that, or once the client is closed."""
        self._is_asked_for = True
        try:
            await self.commit(got)
        except OutcomeUnknown as error:
            await self._ask_until_known(error)
        finally:
            self._is_asked_for = False
            if self._ended.is_set() and not self._lanes.is_closed:
                self._begin_following()

    async def _ask_until_known(self, unknown: OutcomeUnknown) -> None:
        backoff = Backoff(self._settings)
        deadline = self._loop.time() + self.inner.timeout_seconds
        while self._loop.time() < deadline and not (self._lanes.is_closed or self._is_too_late):
            try:
                await self.resolve()
                return await self._outcome(self._deadline())
            except OutcomeUnknown as error:
                unknown = error
            await asyncio.sleep(backoff.next())
        raise unknown

    async def close(self) -> None:
        """End it: roll it back unless it was committed."""
        await self.rollback()
        if self.inner.progress is Progress.ROLLING_BACK:
            self._finish()
        await self._ended.wait()
        await self._followed(self._loop.time())

    def abandon(self) -> None:
        """Roll it back if it is open and the loop still runs. May be called in any thread at any time."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._take_over()
        if not self._is_ending:
            self._is_ending = True
            self._begin_rollback()

    async def _outcome(self, deadline: float) -> None:
        await self._ended.wait()
        # The outcome may have arrived after an earlier call gave up.
        self._begin_following()
        await self._followed(deadline)
        error = self._error()
        if error is not None:
            if self.state == "rolled back":
                await self._returned()
            raise error

    def _error(self) -> HawserError | None:
        if self.state == "unknown" and self._is_too_late:
            return OutcomeUnknown(
                f"transaction {self.inner.id} was to be committed, and the shards have forgotten its "
                "outcome; look for its effects before you run it again"
            )
        if self.state != "rolled back":
            return self.inner.error()
        if self._failure is not None:
            return self.aborted()
        if self.inner.outcome is None:
            trouble = "; ".join({each.trouble for each in self._pipelines.values()})
            return TransactionAborted(
                f"transaction {self.inner.id} was not committed, because no shard could be reached "
                f"({trouble}). It may be run again"
            )
        return self.inner.error()

    # Answers; see `Sender`.

    def heard(self, request: Request, result: Result) -> None:
        if self._ended.is_set():
            return
        following = self._hear(request, result)
        self._query()
        if self._ended.is_set():
            # For the participants that the coordinator does not notify.
            self._leave_behind(following)
        elif following and self._is_too_late:
            self._finish()
        else:
            self._carry(following)

    def unanswered(self, shard: str) -> list[Request]:
        if self._is_too_late:
            self._loop.call_soon(self._finish)
            return []
        return super().unanswered(shard)

    @property
    def _is_too_late(self) -> bool:
        """Whether shards may have forgotten the outcome, so that a repeated request could take effect
        again."""
        return boot_seconds() - self._ends_since >= KEEP_SECONDS

    def lost(self, shard: str, error: HawserError) -> None:
        progress = self.inner.progress
        if progress is Progress.OPEN:
            self._fail(error)
        elif progress is Progress.COMMITTING:
            self._fail(error)
            self._ask()
        elif progress is Progress.ROLLING_BACK and not self.doubts:
            # A lost shard has nothing to roll back.
            for request in self.inner.again(shard):
                self.inner.hear(request, Finished(Outcome.ROLLED_BACK))
            self._query()
        elif progress in (Progress.ROLLING_BACK, Progress.RESOLVING):
            self._finish()

    def _query(self) -> None:
        """End it if it is over; set the timer if it can no longer be committed."""
        inner = self.inner
        if inner.progress is Progress.OVER:
            self._finish()
        elif inner.progress is Progress.ROLLING_BACK and self._patience is None:
            self._wait(self._settings.timeout)
        elif inner.progress is Progress.RESOLVING and self._patience is None:
            self._wait(_ASKING_PART * self._settings.timeout)

    def stop_waiting(self) -> None:
        """Ask for the outcome of a commit that takes too long."""
        if self.inner.progress is Progress.COMMITTING:
            self._ask()

    def _wait(self, seconds: float) -> None:
        """Set the timer that ends the waiting."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None
        if self.inner.progress is Progress.OVER:
            self._finish()
        else:
            self._patience = self._loop.call_later(seconds, self._finish)

    def _ask(self) -> None:
        """Ask for the outcome, which rolls an undecided transaction back."""
        if self._is_too_late:
            self._finish()
            return
        requests = self.inner.resolve()
        self._wait(_ASKING_PART * self._settings.timeout)
        self._carry(requests)

    def _finish(self) -> None:
        """End the waiting: it is over, or its time is."""
        if self._ended.is_set():
            return
        self._lanes.patience_timer.forget(self)
        if self._patience is not None:
            self._patience.cancel()
        is_committed = self.inner.outcome is Outcome.COMMITTED
        self._ended.set()
        self._stop()
        self._leave_behind(self.inner.left())
        self._let_go(is_committed)
        self._begin_following()
        # A lane whose last outcome is unknown is never used again.
        lane, self._lane = self._lane, None
        self._lanes.end(self, lane if self.inner.outcome is not None else None)

    def _let_go(self, is_committed: bool) -> None:
        """Settle the accepted messages, or lose them, and release the received ones."""
        state = MessageState.SETTLED if is_committed else MessageState.LOST
        for message in self._locked:
            message.state = state
        if is_committed:
            locking, self._locking = self._locking, {}
            for message, queue_session in locking.items():
                queue_session.locked((message,))
                message.state = state
        got, self._got = self._got, ()
        self._back += self._give_back(got)
        self._sent.clear()

    def _leave_behind(self, requests: Sequence[Request]) -> None:
        """Send these although no call waits for them: staged operations block other work."""
        if requests:
            self._carry(requests, Leftover(requests, self._loop.time() + self.inner.timeout_seconds))

    # Groups.

    def _begin_following(self) -> None:
        """Have the group members follow the outcome. If it stays unknown they go back to the group's
        positions: of two transactions that move a group from one position at most one commits."""
        if self._claims and not (self._is_asked_for and self.state == "unknown"):
            claims, self._claims = self._claims, {}
            is_committed = self.state == "committed"
            for member, claim in claims.items():
                task = member.moved(claim) if is_committed else member.go_back(claim)
                if task is not None:
                    self._following.add(task)
                    task.add_done_callback(self._has_followed)

    def _has_followed(self, task: "asyncio.Task[None]") -> None:
        self._following.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.warning("a group does not follow transaction %s: %s", self.inner.id, error)

    async def _followed(self, deadline: float) -> None:
        """Return when the group members have followed, at the latest after the deadline or `_FOLLOW_SECONDS`;
        they go on by themselves."""
        if self._following:
            left = max(_FOLLOW_SECONDS, deadline - self._loop.time())
            await asyncio.wait(self._following, timeout=left)
