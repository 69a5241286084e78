"""XA calls of a client. To the resource manager, which is the cluster, this client is one session.

The work of the session in a branch (`OpenBranch`) has one of these association states:

    state       on                                          next
    none        start                                       OPEN
    OPEN        an end begins                               ENDING, or SUSPENDING for a suspension
    ENDING      its answer                                  OVER
                the end certainly had no effect             the state before it
                a suspension begins                         SUSPENDING
    SUSPENDING  its answer: suspended, or "illegal state"   SUSPENDED
                any other answer                            OVER
                the suspension certainly had no effect      the state before it
    SUSPENDED   start with join or resume                   OPEN
    any         an answer: the branch is prepared or over   OVER

Promise: a call takes effect at most once, and an end covers every operation of its work.

- A call is an entry at the xid's coordinator shard. It has a name of its own, and is sent until it is
  answered; a caller that repeats an unanswered call repeats its name.
- The work between `start` and `end` is staged on the shards that it touches; `end` tells the coordinator
  which those are. Operations are accepted in OPEN alone. An unanswered end leaves the work in ENDING or
  SUSPENDING.
- A call names a *use* of the xid, its incarnation: the one that this session started, joined, prepared or
  recovered, until that is over; otherwise the latest, which it queries. If an unanswered call is followed by
  a new use of the xid by others, the outcome is unknown until `recover` or another start.
- "Illegal state" says that the session does not work in the branch: in SUSPENDING the suspension had taken
  effect, in ENDING the end had. Starts and ends of the same work take turns.
- Each join or resumption makes the session a new *worker* of the branch, because the coordinator has what the
  old one staged. An end names its worker, so a late one ends nothing that began since. An unanswered start is
  repeated before the next start or end of its xid, which must know its worker.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff
from hawser.cluster.client.router import Router
from hawser.cluster.client.transaction.coordinators import CoordinatorShards
from hawser.cluster.client.transaction.shard_pipeline import ShardPipelines
from hawser.cluster.client.transaction.workspace import Handed, Workspace
from hawser.errors import Full, HawserError, OutcomeUnknown, Unavailable, UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Answered, Outcome, Reason, Rejected, decode_result
from hawser.transaction.client import Transaction
from hawser.transaction.commands import CoordinatorCall
from hawser.transaction.coordinator.record import state_of
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    LANE_FORMAT,
    MAX_TIMEOUT_SECONDS,
    NO_WORKER,
    TransactionId,
    Xid,
    owner_of,
)
from hawser.transaction.xa.table import RECOVERABLE, Call, Code, State

__all__ = ["OpenBranch", "Resource"]

_OWN_FORMATS: Final = (LANE_FORMAT, APPLICATION_FORMAT)
# "Illegal state" says that the coordinator knows of no work of this session, unless it is suspended.
_ENDED: Final = (Code.OK, Code.RB_ROLLBACK, Code.RB_TIMEOUT, Code.ILLEGAL_STATE)
_STARTS: Final = (Call.START, Call.START_JOIN)
_ENDS: Final = (Call.END, Call.END_FAIL, Call.END_SUSPEND)
_ANY_START: Final = (*_STARTS, Call.START_RESUME)
# After one of these the session means the same use of the xid.
_MEANT: Final = (*_STARTS, Call.START_RESUME, Call.PREPARE)
_COMPLETIONS: Final = (Call.COMMIT, Call.COMMIT_ONE_PHASE, Call.ROLLBACK, Call.FORGET)
_OVER: Final = (Code.OK, Code.RB_ROLLBACK, Code.RB_TIMEOUT)
# After these answers to any call no session works in the branch.
_GONE: Final = (
    Code.READONLY,
    Code.NOT_FOUND,
    Code.RB_ROLLBACK,
    Code.RB_TIMEOUT,
    Code.HEUR_COM,
    Code.HEUR_RB,
    Code.HEUR_MIX,
)
_MOST_USES: Final = 65_536


T = TypeVar("T")


class Association(Enum):
    """The state of this session's work in a branch; the module's table has the transitions."""

    OPEN = "open"
    ENDING = "ending"
    SUSPENDING = "being suspended"
    SUSPENDED = "suspended"
    OVER = "over"


_ENDING: Final = (Association.ENDING, Association.SUSPENDING)
_MAYBE_SUSPENDED: Final = (Association.SUSPENDING, Association.SUSPENDED)


class OpenBranch(Workspace):
    """The work of this session in a branch."""

    def __init__(self, router: Router, pipelines: ShardPipelines, transaction: Transaction) -> None:
        super().__init__(router, pipelines, transaction)
        self.association = Association.OPEN
        self._takes_last = False
        # Operations that were handed over too late, until their thread asks.
        self._late: list[Handed] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes operations."""
        return self.association is Association.OPEN

    @property
    def is_over(self) -> bool:
        """Whether its work has ended."""
        return self.association is Association.OVER

    @property
    def is_suspended(self) -> bool:
        return self.association is Association.SUSPENDED

    def check_open(self) -> None:
        if not self.is_open:
            raise self.over()

    def over(self) -> UsageError:
        """The error for an operation in another state than OPEN."""
        xid = self.inner.id.xid
        if self.association in _ENDING:
            return UsageError(
                f"the work in branch {xid} is being ended, or its end was not answered; call xa.end() again"
            )
        how = "suspended; resume it" if self.is_suspended else "ended; start another"
        return UsageError(f"the work in branch {xid} is {how} with xa.start()")

    def lost(self, shard: str, error: HawserError) -> None:
        self._fail(error)

    async def stage(self, call: Call) -> None:
        """Begin an end: take no more operations, and return when all are staged or something has failed. A
        cancellation undoes that."""
        before = self.association
        is_suspension = call is Call.END_SUSPEND or before is Association.SUSPENDING
        self._begin_ending(Association.SUSPENDING if is_suspension else Association.ENDING)
        self.send_waiting()
        try:
            await self._until(lambda: self.inner.is_staged or self.is_over)
        except BaseException:
            self.stand_back(before)
            raise

    def _begin_ending(self, association: Association) -> None:
        """Take the operations handed over so far, if the work is open, and none from here on.

        A thread that hands over reads `ends`, checks that the work is open, hands over, and reads `ends`
        again. If `ends` has not changed, what it handed over is taken here; otherwise the thread asks.
        """
        self._takes_last = self.is_open
        self.association = association
        self.ends += 1
        self._take_over()
        self._takes_last = False

    def _take_over(self) -> None:
        if self.is_open or self._takes_last:
            super()._take_over()
            return
        self._is_called = False
        while self._handed:
            self._late.append(self._handed.popleft())

    def _check_taking(self) -> None:
        if not (self.is_open or self._takes_last):
            raise self.over()
        if self.has_failed:
            raise self.aborted()

    async def require_taken(self, handed: Handed) -> None:
        self._take_over()
        for place, late in enumerate(self._late):
            if late is handed:
                del self._late[place]
                raise self.over()

    def stand_back(self, before: Association) -> None:
        """Return to the state before an end that had no effect."""
        if not self.is_over:
            self.association = before

    def end(self) -> None:
        """End the work. The coordinator settles its messages from here on; messages whose lock was never
        acknowledged are released."""
        self.association = Association.OVER
        self.ends += 1
        self._stop()
        self._give_back()


class Resource:
    """The XA session of one client. Lives in its event loop."""

    def __init__(self, router: Router, coordinators: CoordinatorShards, pipelines: ShardPipelines) -> None:
        self._router = router
        self._coordinators = coordinators
        self._pipelines = pipelines
        # The branches that this session works in, or has suspended.
        self._branches: dict[Xid, OpenBranch] = {}
        # By xid: the use that calls of this session mean; bounded, the least recently used go first.
        self._uses: dict[Xid, int] = {}
        # The highest incarnation in the answers of each coordinator shard.
        self._heard: dict[str, int] = {}
        self._turns: WeakValueDictionary[Xid, asyncio.Lock] = WeakValueDictionary()
        # The unanswered start of each xid, and its unanswered other call.
        self._starts: dict[Xid, CoordinatorCall] = {}
        self._unanswered: dict[Xid, CoordinatorCall] = {}

    def branch(self, xid: Xid) -> OpenBranch | None:
        return self._branches.get(xid)

    @property
    def working(self) -> Xid | None:
        """The branch that this session works in now, if any."""
        return next((xid for xid, branch in self._branches.items() if not branch.is_suspended), None)

    async def state(self, transaction: TransactionId) -> State:
        """The state of the branch as this session sees it; incarnation 0 means the latest use of the xid."""
        xid, incarnation = transaction
        deadline = self._router.loop.time() + self._router.settings.attempt_seconds
        coordinator = await self._coordinators.of(xid, deadline)
        query = wire.TransactionLook(coordinator, (*xid,), incarnation)
        answer = await self._query(query, f"looking at branch {xid}", deadline)
        for record in answer.records:
            branch = self._branches.get(xid)
            if record.state != State.ELSEWHERE or branch is None:
                return State(record.state)
            return State.SUSPENDED if branch.is_suspended else State.ASSOCIATED
        # Presumed-abort outcomes have incarnation 0.
        outcome = answer.outcome if answer.incarnation else None
        return State.UNKNOWN if outcome is None else state_of(Outcome(outcome))

    async def start(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """Start, join or resume: the answer, and the work that has begun or been resumed."""
        async with self._turn(xid):
            named = self._starts.get(xid)
            answer = await self._start_again(xid, named) if named is not None else None
            if answer is None or named is None or named.call != call:
                answer = await self.call(xid, call)
            return self._started(xid, answer)

    def _turn(self, xid: Xid) -> asyncio.Lock:
        """The lock that a start or end of this xid holds."""
        turn = self._turns.get(xid)
        if turn is None:
            turn = self._turns[xid] = asyncio.Lock()
        return turn

    async def _start_again(self, xid: Xid, named: CoordinatorCall) -> Answered | None:
        """Repeat an unanswered start, and note the work that it has begun; None if it was refused, so that a
        new one is needed."""
        deadline = self._router.loop.time() + self._router.settings.timeout
        coordinator = await self._coordinators.of(xid, deadline)
        call = Call(named.call)
        result = await self._ask(xid, coordinator, named, _what(call, xid), deadline)
        if isinstance(result, Rejected):
            return None
        self._learn(xid, call, result, coordinator)
        self._started(xid, result)
        return result

    def _started(self, xid: Xid, answer: Answered) -> tuple[Answered, OpenBranch | None]:
        """Note the answer to a start: if it is OK, the work has begun or goes on."""
        if answer.code != Code.OK:
            return answer, None
        branch = self._branches.get(xid)
        transaction = TransactionId(xid, answer.incarnation)
        if branch is None or (branch.inner.id, branch.inner.worker) != (transaction, answer.worker):
            owner = owner_of(self._router.run)
            # The coordinator bounds its time, which may change later; the branch has no other bound.
            inner = Transaction(transaction, owner, MAX_TIMEOUT_SECONDS, answer.worker)
            if branch is not None:
                # The work of an earlier use, or of an earlier worker.
                branch.end()
            branch = self._branches[xid] = OpenBranch(self._router, self._pipelines, inner)
        branch.association = Association.OPEN
        return answer, branch

    async def end(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """End or suspend: the answer, and the work if this call ended it. Work that has failed ends as
        failed."""
        if call is Call.END_FAIL_SUSPEND:
            return await self.call(xid, call), None
        branch = self._branches.get(xid)
        async with self._turn(xid):
            named = self._starts.get(xid)
            if named is not None:
                await self._start_again(xid, named)
                branch = self._branches.get(xid)
            if branch is None:
                # This session has no work there: the coordinator knows the state.
                return await self.call(xid, call, worker=NO_WORKER), None
            if self._branches.get(xid) is branch and not branch.is_suspended:
                return await self._end(xid, call, branch), branch
            # It is suspended, or another call has ended it.
            inner = branch.inner
            answer = await self.call(xid, call, 0, inner.counts, inner.id.incarnation, inner.worker)
            self._ended(xid, call, branch, answer)
        return answer, None

    async def _end(self, xid: Xid, call: Call, branch: OpenBranch) -> Answered:
        before = branch.association
        await branch.stage(call)
        if branch.has_failed:
            call = Call.END_FAIL
        inner = branch.inner
        try:
            answer = await self.call(xid, call, 0, inner.counts, inner.id.incarnation, inner.worker)
        except HawserError as error:
            if error.outcome == "none":
                # This end had no effect; an earlier one may have had.
                branch.stand_back(before)
            raise
        self._ended(xid, call, branch, answer)
        return answer

    def _ended(self, xid: Xid, call: Call, branch: OpenBranch, answer: Answered) -> None:
        """Note the answer to an end."""
        if branch.is_over:
            return
        is_suspended = call is Call.END_SUSPEND and answer.code == Code.OK
        if answer.code == Code.ILLEGAL_STATE:
            is_suspended = branch.association in _MAYBE_SUSPENDED
        if is_suspended:
            branch.association = Association.SUSPENDED
        elif answer.code in _ENDED:
            self._drop(xid, branch)

    def _drop(self, xid: Xid, branch: OpenBranch) -> None:
        """End the work in a branch, and forget it."""
        branch.end()
        if self._branches.get(xid) is branch:
            del self._branches[xid]

    async def call(
        self,
        xid: Xid,
        call: Call,
        seconds: int = 0,
        participants: Sequence[tuple[str, int]] = (),
        incarnation: int = 0,
        worker: int = 0,
    ) -> Answered:
        """Make a call about a use of the xid: `incarnation`, or the one that this session means."""
        deadline = self._router.loop.time() + self._router.settings.timeout
        coordinator = await self._coordinators.of(xid, deadline)
        what = _what(call, xid)
        backoff = Backoff(self._router.settings)
        while True:
            meant = incarnation or await self._find(xid, call, coordinator, what, deadline)
            new = CoordinatorCall(
                (*xid, meant), call, self._router.run, b"", seconds, tuple(participants), worker
            )
            result = await self._ask(xid, coordinator, self._named(xid, new), what, deadline)
            if isinstance(result, Answered):
                self._learn(xid, call, result, coordinator)
                return result
            if result.reason is not Reason.OLD_INCARNATION:
                raise Full(f"{what}: {result.text}")
            # Other sessions have used the xid since, or so many that the coordinator cannot tell.
            self._heard[coordinator] = result.current
            if self._router.loop.time() >= deadline:
                raise Unavailable(f"{what}: other sessions keep beginning and ending branches; call it again")
            await asyncio.sleep(backoff.next())

    async def _ask(
        self, xid: Xid, coordinator: str, named: CoordinatorCall, what: str, deadline: float
    ) -> Answered | Rejected:
        """Send a call until the coordinator has answered it for good."""
        entry = wire.Labelled(Kind.HOME_CALL, encode_command(named))
        backoff = Backoff(self._router.settings)
        while True:
            answer = await self._router.ask_leader(
                wire.HOMES, coordinator, wire.Transact(coordinator, (entry,)), what, deadline
            )
            assert isinstance(answer, wire.Transacted), answer
            result = decode_result(answer.results[0])
            if not isinstance(result, Answered) or result.code != Code.PENDING:
                break
            if self._router.loop.time() >= deadline:
                raise OutcomeUnknown(f"{what}: the shards have not voted yet; call it again")
            await asyncio.sleep(backoff.next())
        kept = self._kept(named)
        if kept.get(xid) is named:
            del kept[xid]
        assert isinstance(result, Answered | Rejected), result
        return result

    def _named(self, xid: Xid, new: CoordinatorCall) -> CoordinatorCall:
        """The call under the name of its unanswered predecessor, or a new name. Queries need none."""
        if new.call == Call.GET_TIMEOUT:
            return new
        kept = self._kept(new)
        named = kept.get(xid)
        if named is None or replace(named, request=b"") != new:
            named = replace(new, request=secrets.token_bytes(16))
            _put(kept, xid, named)
        return named

    def _kept(self, call: CoordinatorCall) -> dict[Xid, CoordinatorCall]:
        """The unanswered calls of its kind."""
        return self._starts if call.call in _ANY_START else self._unanswered

    async def _find(self, xid: Xid, call: Call, coordinator: str, what: str, deadline: float) -> int:
        """The use of the xid that the call means, as its incarnation; 0 if there is none.

        A START names no use of its own: it repeats the number of its unanswered predecessor, or names the
        highest one in this coordinator shard's answers. A START_JOIN means the latest use, which is queried;
        any other call means the one in `_uses`, or else the latest. After an unanswered call the latest one
        is queried, too: if it is a newer use, it is unknown whether the unanswered call took effect, and
        OutcomeUnknown is raised."""
        unanswered, started = self._unanswered.get(xid), self._starts.get(xid)
        if started is not None and started.call != Call.START:
            started = None
        if call in _STARTS:
            self._uses.pop(xid, None)
        if call is Call.START:
            return started.xid[-1] if started is not None else self._heard.get(coordinator, 0)
        if call is Call.START_JOIN or started is not None:
            unanswered = None
        meant = self._uses.get(xid) or (unanswered.xid[-1] if unanswered is not None else 0)
        if meant and unanswered is None:
            return meant
        if meant:
            # Kept in case another call is answered first.
            _put(self._uses, xid, meant)
        answer = await self._query(wire.TransactionLook(coordinator, xid), what, deadline)
        if meant and answer.incarnation > meant:
            raise OutcomeUnknown(
                f"{what}: the call before it was not answered, and the xid has been used again since. Call "
                "xa.recover(): it lists the prepared branches, and later calls mean those"
            )
        return meant or answer.incarnation

    def _learn(self, xid: Xid, call: Call, answer: Answered, coordinator: str) -> None:
        """Note which use the session means from here on, and end the work in a branch that is over."""
        self._heard[coordinator] = max(self._heard.get(coordinator, 0), answer.incarnation)
        is_over = call in _COMPLETIONS and answer.code in _OVER
        if is_over or answer.code in (Code.READONLY, Code.NOT_FOUND):
            self._uses.pop(xid, None)
        elif call in _MEANT and answer.code == Code.OK:
            _put(self._uses, xid, answer.incarnation)
        branch = self._branches.get(xid)
        if branch is not None and _is_over(call, answer, branch.inner.id.incarnation):
            self._drop(xid, branch)

    async def recover(self) -> list[Xid]:
        """The branches that are prepared, or heuristically completed and not forgotten. The session means
        these uses from here on, unless it works in a later one."""
        deadline = self._router.loop.time() + self._router.settings.timeout
        coordinators = await self._coordinators.all(deadline)
        queries = (
            self._query(wire.TransactionLook(coordinator), "recovering branches", deadline)
            for coordinator in coordinators
        )
        seen = [record for each in await asyncio.gather(*queries) for record in each.records]
        found = {Xid(*each.xid): each.incarnation for each in seen if State(each.state) in RECOVERABLE}
        found = {xid: use for xid, use in found.items() if xid.format not in _OWN_FORMATS}
        for xid, call in self._unanswered.items():
            _put(self._uses, xid, max(call.xid[-1], self._uses.get(xid, 0)))
        self._unanswered.clear()
        for xid, use in found.items():
            _put(self._uses, xid, max(use, self._uses.get(xid, 0)))
        return sorted(found)

    async def _query(self, query: wire.TransactionLook, what: str, deadline: float) -> wire.TransactionsSeen:
        answer = await self._router.ask_leader(wire.HOMES, query.shard, query, what, deadline)
        assert isinstance(answer, wire.TransactionsSeen), answer
        return answer

    async def close(self) -> None:
        """End all work as failed: it can only be rolled back."""
        for xid, branch in list(self._branches.items()):
            if not branch.is_suspended:
                with suppress(HawserError):
                    await self.end(xid, Call.END_FAIL)
            branch.end()
            self._branches.pop(xid, None)


def _what(call: Call, xid: Xid) -> str:
    return f"{call.name.lower().replace('_', ' ')} of branch {xid}"


def _is_over(call: Call, answer: Answered, incarnation: int) -> bool:
    """Whether this answer says that no session works in this use of the xid. `_ended` handles ends."""
    if call in _ENDS or answer.incarnation != incarnation:
        return False
    is_done = call in (Call.PREPARE, *_COMPLETIONS) and answer.code == Code.OK
    # The value of this answer is the branch's outcome, if it has one.
    is_decided = answer.code == Code.ILLEGAL_STATE and answer.value > 0
    return answer.code in _GONE or is_done or is_decided


def _put(kept: dict[Xid, T], xid: Xid, value: T) -> None:
    """Insert as the newest; drop the oldest beyond the bound."""
    kept.pop(xid, None)
    kept[xid] = value
    if len(kept) > _MOST_USES:
        del kept[next(iter(kept))]
