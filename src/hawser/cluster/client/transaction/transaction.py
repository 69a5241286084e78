"""Transactions of a client: lanes to run them on, and how one ends.

A lane is an xid that this client has to itself, for one transaction after the other. A transaction on one
shard is committed there; one on several by one of them. Whoever commits is told what became of it: when no
answer comes, the client has it rolled back unless it is committed by then, and hears which. If nobody answers
that either, the outcome is unknown; it may be asked for again, and the lane is never used again.

What goes on, goes on by itself: a call that is cancelled has neither undone nor ended it.
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
# Of the time that a commit may take, the part after which the client stops waiting and asks.
_PATIENT_PART: Final = 2 / 3
_ASKING_PART: Final = 1 - _PATIENT_PART
# A call that ends late waits at least so long for the groups of its transaction.
_FOLLOW_SECONDS: Final = 1.0


class Lane:
    """An xid, and how often it was used."""

    def __init__(self) -> None:
        self.xid = Xid(LANE_FORMAT, secrets.token_bytes(16), b"")
        self.incarnation = 0

    def next(self) -> TransactionId:
        self.incarnation += 1
        return TransactionId(self.xid, self.incarnation)


class Lanes:
    """Of one client. `begin` may be called in any thread, also in a signal handler that has interrupted it:
    each step is atomic, and there is no lock."""

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
        """A transaction of its own, which may stay uncommitted for so long."""
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = Lane()
        inner = Transaction(lane.next(), self._owner, timeout_seconds)
        transaction = OpenTransaction(self, lane, inner)
        self._open.add(transaction)
        return transaction

    def end(self, transaction: "OpenTransaction", lane: Lane | None) -> None:
        """It is over; without a lane, that is not to be used again."""
        self._open.discard(transaction)
        if lane is not None:
            self._idle.append(lane)

    async def close(self) -> None:
        """Roll back what is open; what is being committed ends before."""
        self.is_closed = True
        await asyncio.gather(*(each.close() for each in list(self._open)))

    async def leave(self) -> None:
        """Nothing more is sent: what is left of those that nobody waits for ends with this client."""
        await self.pipelines.close()


class OpenTransaction(Workspace):
    """A transaction of this client."""

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
        # Whether somebody asks on if the outcome is unknown.
        self._is_asked_for = False
        self._following: set[asyncio.Task[None]] = set()
        # When it was to be committed.
        self._ends_since = inf
        # What was got for it, and what goes back to its place.
        self._got: Sequence[Held] = ()
        self._back: list[asyncio.Future[None]] = []

    @property
    def state(self) -> State:
        """How far it is."""
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
                f"transaction {self.inner.id} has ended, it is {self.state}; begin another one with "
                "bus.transaction()"
            )

    def commit_offsets(self, member: GroupMember, taken: Taken) -> None:
        """The group goes on behind what was taken, if this is committed. If it can only be rolled back, the
        member follows that all the same."""
        self.check_open()
        moves = member.claim(taken, self._claims.setdefault(member, Claim()))
        self.check()
        member.check(taken)
        for partition, command in moves:
            self._add(member.topic, member.shard(partition), Move(command))

    # Ending.

    async def commit(self, got: Sequence[Held] = ()) -> None:
        """Return when it is committed; TransactionAborted if it is not, and OutcomeUnknown, or InDoubt, if
        nobody says. What was got and not accepted goes back to its place."""
        deadline = self._deadline()
        self._take_over()
        self.check_open()
        self._begin_ending(got)
        try:
            self._begin_commit()
        except Exception as error:
            # Nobody foresaw it; but whoever waits hears what became of this.
            self._fail(error)
            if self.inner.progress is Progress.COMMITTING:
                self._ask()
        if self.inner.progress is Progress.OPEN:
            aborted = self.aborted()
            await self._roll_back()
            raise aborted
        await self._outcome(deadline)

    def _begin_commit(self) -> None:
        """If it stays open, it has failed."""
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
        """It answers when others have heard: nobody else is to wait for that. What it has not acknowledged
        goes with the decision."""
        shared = self._pipelines[coordinator]
        shared.leave(self)
        self._pipelines[coordinator] = self._client_pipelines.apart(shared)

    def _begin_ending(self, got: Sequence[Held]) -> None:
        """What is taken from here on is taken without waiting for the end."""
        self._is_ending = True
        self._got = got
        for member, claim in self._claims.items():
            claim.received = member.received

    async def rollback(self, got: Sequence[Held] = ()) -> None:
        """Return when nothing of it is left, and what was got is back in its place; or cannot be reached, and
        goes by itself. Once it is over this changes nothing."""
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
        """How long a call waits for what goes on without it as well."""
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
        """Whether it is committed; if that is not known it is asked for, and what is not is rolled back by
        that. OutcomeUnknown, or InDoubt, if nobody says."""
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
        """As `commit`; but an outcome that is unknown is asked for again, until it is known, for as long as
        the transaction might have lasted. OutcomeUnknown after that, or once the client is closed."""
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
        """End it, whatever it takes: what nobody has committed is rolled back."""
        await self.rollback()
        if self.inner.progress is Progress.ROLLING_BACK:
            self._finish()
        await self._ended.wait()
        await self._followed(self._loop.time())

    def abandon(self) -> None:
        """From any thread, at any time: roll it back, if it is open and there is still a loop to do so."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._abandon)

    def _abandon(self) -> None:
        self._take_over()
        if not self._is_ending:
            self._is_ending = True
            self._begin_rollback()

    async def _outcome(self, deadline: float) -> None:
        await self._ended.wait()
        # What was in doubt when nobody waited any longer may be known by now.
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
                f"transaction {self.inner.id} was to be committed, and nobody remembers any more whether it "
                "was; look for its effects before it is run again"
            )
        if self.state != "rolled back":
            return self.inner.error()
        if self._failure is not None:
            return self.aborted()
        if self.inner.outcome is None:
            trouble = "; ".join({each.trouble for each in self._pipelines.values()})
            return TransactionAborted(
                f"transaction {self.inner.id} was not committed, because nobody could be asked to "
                f"({trouble}). It may be run again"
            )
        return self.inner.error()

    # What is heard.

    def heard(self, request: Request, result: Result) -> None:
        if self._ended.is_set():
            return
        following = self._hear(request, result)
        self._query()
        if self._ended.is_set():
            # For those whom home does not tell.
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
        """Whether shards may have forgotten how this ended, so that to ask again could do it again."""
        return boot_seconds() - self._ends_since >= KEEP_SECONDS

    def lost(self, shard: str, error: HawserError) -> None:
        progress = self.inner.progress
        if progress is Progress.OPEN:
            self._fail(error)
        elif progress is Progress.COMMITTING:
            self._fail(error)
            self._ask()
        elif progress is Progress.ROLLING_BACK and not self.doubts:
            # Where nothing is, nothing is to be rolled back.
            for request in self.inner.again(shard):
                self.inner.hear(request, Finished(Outcome.ROLLED_BACK))
            self._query()
        elif progress in (Progress.ROLLING_BACK, Progress.RESOLVING):
            self._finish()

    def _query(self) -> None:
        """End it if it is over, or as soon as it is known that it cannot be committed."""
        inner = self.inner
        if inner.progress is Progress.OVER:
            self._finish()
        elif inner.progress is Progress.ROLLING_BACK and self._patience is None:
            self._wait(self._settings.timeout)
        elif inner.progress is Progress.RESOLVING and self._patience is None:
            self._wait(_ASKING_PART * self._settings.timeout)

    def stop_waiting(self) -> None:
        """The commit takes too long: ask what becomes of it."""
        if self.inner.progress is Progress.COMMITTING:
            self._ask()

    def _wait(self, seconds: float) -> None:
        """Nobody waits for longer than that."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None
        if self.inner.progress is Progress.OVER:
            self._finish()
        else:
            self._patience = self._loop.call_later(seconds, self._finish)

    def _ask(self) -> None:
        """Have it rolled back, unless it is committed."""
        if self._is_too_late:
            self._finish()
            return
        requests = self.inner.resolve()
        self._wait(_ASKING_PART * self._settings.timeout)
        self._carry(requests)

    def _finish(self) -> None:
        """It is over, or nobody waits for it any longer."""
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
        # Never again a lane of which it is not known how its last transaction ended.
        lane, self._lane = self._lane, None
        self._lanes.end(self, lane if self.inner.outcome is not None else None)

    def _let_go(self, is_committed: bool) -> None:
        """Say what became of the messages."""
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
        """Have these sent though nobody waits: what was staged is not to keep others waiting."""
        if requests:
            self._carry(requests, Leftover(requests, self._loop.time() + self.inner.timeout_seconds))

    # Groups.

    def _begin_following(self) -> None:
        """Groups follow what became of it. If that stays unknown they go back: where they are is where they
        go on, and of two that move one from there only one is committed."""
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
        """Return when the groups have followed; after the deadline, and at least a little, they do so by
        themselves."""
        if self._following:
            left = max(_FOLLOW_SECONDS, deadline - self._loop.time())
            await asyncio.wait(self._following, timeout=left)
