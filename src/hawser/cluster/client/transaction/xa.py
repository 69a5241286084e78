"""Calls of the XA interface, as a client makes them: this client is a session of the cluster as a resource.

A call is an entry at the home of its xid, sent under a name of its own until it is answered. The work between
`start` and `end` is staged on the shards that it touches; `end` says at home which those are.

A call names the use of the xid that it is about: the one that this session has started, joined, prepared or
found by `recover`, until it is over; otherwise it asks which is the latest, and names that. A call that is
made again because nobody has answered it is the same call. If others have used the xid anew since, nobody can
tell which use is meant: that is an unknown outcome, until `recover` or another start says what there is.

The work of this session in a branch (`OpenBranch`) is in one of these states:

    start --> OPEN --end begins--> ENDING --answered: suspended--> SUSPENDED --start: join or resume--> OPEN
                                   ENDING --answered: anything else--> OVER
                                   ENDING --certainly not made--> OPEN
              OPEN or ENDING --suspension begins--> SUSPENDING, which is as ENDING
              any --an answer says that the branch is prepared or over--> OVER

An end that was not answered leaves the work in ENDING or SUSPENDING. Operations are accepted in OPEN alone,
so what an end names is all there is. A refusal ("illegal state") says that this session does not work in the
branch: in SUSPENDING the suspension took effect, and the work is SUSPENDED; in ENDING it is OVER. Ends and
starts of the same work take turns.

Whenever a session joins a branch, or resumes its work, it becomes a new worker; home has what
the old one staged. So a worker is numbered from 1 once, and an end names the worker that ends: one that comes
late ends nothing that was begun since. A start that was not answered is asked again before the next start or
end of the same xid, which have to know its worker.
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
# In an illegal state home knows of no work of this session, unless it is suspended.
_ENDED: Final = (Code.OK, Code.RB_ROLLBACK, Code.RB_TIMEOUT, Code.ILLEGAL_STATE)
_STARTS: Final = (Call.START, Call.START_JOIN)
_ENDS: Final = (Call.END, Call.END_FAIL, Call.END_SUSPEND)
_ANY_START: Final = (*_STARTS, Call.START_RESUME)
# Whoever has made one of these goes on with the same use.
_MEANT: Final = (*_STARTS, Call.START_RESUME, Call.PREPARE)
_COMPLETIONS: Final = (Call.COMMIT, Call.COMMIT_ONE_PHASE, Call.ROLLBACK, Call.FORGET)
_OVER: Final = (Code.OK, Code.RB_ROLLBACK, Code.RB_TIMEOUT)
# After these answers no session works in the branch, whatever the call was.
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
    """Of the work of this session in a branch."""

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
        # What was handed over too late, until the thread that did so is told.
        self._late: list[Handed] = []

    @property
    def is_open(self) -> bool:
        """Whether it takes operations."""
        return self.association is Association.OPEN

    @property
    def is_over(self) -> bool:
        """Whether nothing is done in it any more."""
        return self.association is Association.OVER

    @property
    def is_suspended(self) -> bool:
        """Whether it waits to be resumed."""
        return self.association is Association.SUSPENDED

    def check_open(self) -> None:
        if not self.is_open:
            raise self.over()

    def over(self) -> UsageError:
        """The error for an operation that it does not take."""
        xid = self.inner.id.xid
        if self.association in _ENDING:
            return UsageError(
                f"the work in branch {xid} is being ended, or nobody has answered that; call xa.end() again"
            )
        how = "suspended; resume it" if self.is_suspended else "ended; start another"
        return UsageError(f"the work in branch {xid} is {how} with xa.start()")

    def lost(self, shard: str, error: HawserError) -> None:
        self._fail(error)

    async def stage(self, call: Call) -> None:
        """Take no more operations, because of this end; return when all are staged, or something has failed.
        If this is cancelled nothing has happened."""
        before = self.association
        is_suspension = call is Call.END_SUSPEND or before is Association.SUSPENDING
        self._begin_ending(Association.SUSPENDING if is_suspension else Association.ENDING)
        self.send_waiting()
        try:
            await self._until(lambda: self.inner.is_staged or self.is_over, "to take what was published")
        except BaseException:
            self.stand_back(before)
            raise

    def _begin_ending(self, association: Association) -> None:
        """Take what was handed over before, if the work is open, and nothing from here on.

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
        """The end was not made."""
        if not self.is_over:
            self.association = before

    def end(self) -> None:
        """Nothing more is done in it here. Its messages are the coordinator's business from here on, but for
        those that it never got, as far as is known: they are given back."""
        self.association = Association.OVER
        self.ends += 1
        self._stop()
        self._give_back()


class Resource:
    """Of one client, in its event loop."""

    def __init__(self, router: Router, coordinators: CoordinatorShards, pipelines: ShardPipelines) -> None:
        self._router = router
        self._coordinators = coordinators
        self._pipelines = pipelines
        # Those that this session works in, or has suspended.
        self._branches: dict[Xid, OpenBranch] = {}
        # The use of each that this session means; the ones that it has not heard of for longest make room.
        self._uses: dict[Xid, int] = {}
        # The highest incarnation that each home has told of.
        self._heard: dict[str, int] = {}
        self._turns: WeakValueDictionary[Xid, asyncio.Lock] = WeakValueDictionary()
        # The last start for each, and the last other call, if it was not answered.
        self._starts: dict[Xid, CoordinatorCall] = {}
        self._unanswered: dict[Xid, CoordinatorCall] = {}

    def branch(self, xid: Xid) -> OpenBranch | None:
        """What this session works in under that name."""
        return self._branches.get(xid)

    @property
    def working(self) -> Xid | None:
        """The branch that this session works in, if it does."""
        return next((xid for xid, branch in self._branches.items() if not branch.is_suspended), None)

    async def state(self, transaction: TransactionId) -> State:
        """How this session finds the branch now; that of incarnation 0 is the latest use of the xid."""
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
        # What is only presumed has no incarnation.
        outcome = answer.outcome if answer.incarnation else None
        return State.UNKNOWN if outcome is None else state_of(Outcome(outcome))

    async def start(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """What the call got, and the work that it has begun or resumed."""
        async with self._turn(xid):
            named = self._starts.get(xid)
            answer = await self._start_again(xid, named) if named is not None else None
            if answer is None or named is None or named.call != call:
                answer = await self.call(xid, call)
            return self._started(xid, answer)

    def _turn(self, xid: Xid) -> asyncio.Lock:
        """Held by the start or the end that is under way."""
        turn = self._turns.get(xid)
        if turn is None:
            turn = self._turns[xid] = asyncio.Lock()
        return turn

    async def _start_again(self, xid: Xid, named: CoordinatorCall) -> Answered | None:
        """What a start got that was not answered, with the work that it has begun; None if it began none
        and is to be made anew."""
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
        if answer.code != Code.OK:
            return answer, None
        branch = self._branches.get(xid)
        transaction = TransactionId(xid, answer.incarnation)
        if branch is None or (branch.inner.id, branch.inner.worker) != (transaction, answer.worker):
            owner = owner_of(self._router.run)
            # Home counts its time, which may be told otherwise later; a branch has no other bound.
            inner = Transaction(transaction, owner, MAX_TIMEOUT_SECONDS, answer.worker)
            if branch is not None:
                # Of a use that others have ended, or of a worker that was.
                branch.end()
            branch = self._branches[xid] = OpenBranch(self._router, self._pipelines, inner)
        branch.association = Association.OPEN
        return answer, branch

    async def end(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """What the call got; if something of the work has failed, it was ended as failed."""
        if call is Call.END_FAIL_SUSPEND:
            return await self.call(xid, call), None
        branch = self._branches.get(xid)
        async with self._turn(xid):
            named = self._starts.get(xid)
            if named is not None:
                await self._start_again(xid, named)
                branch = self._branches.get(xid)
            if branch is None:
                # There is nothing to end; home says how things are.
                return await self.call(xid, call, worker=NO_WORKER), None
            if self._branches.get(xid) is branch and not branch.is_suspended:
                return await self._end(xid, call, branch), branch
            # It is suspended, or another end came before.
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
                # This one was not made; one before it may have been.
                branch.stand_back(before)
            raise
        self._ended(xid, call, branch, answer)
        return answer

    def _ended(self, xid: Xid, call: Call, branch: OpenBranch, answer: Answered) -> None:
        """The end was answered."""
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
        """Its work is over."""
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
        """What a call gets, about the use that is named, or else the one that is meant."""
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
            # Others have used the xid, or so many xids that home cannot tell.
            self._heard[coordinator] = result.current
            if self._router.loop.time() >= deadline:
                raise Unavailable(f"{what}: others begin and end branches all the time; call it again")
            await asyncio.sleep(backoff.next())

    async def _ask(
        self, xid: Xid, coordinator: str, named: CoordinatorCall, what: str, deadline: float
    ) -> Answered | Rejected:
        """What home says, as soon as it can."""
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
        """Under the name that it has, or a new one. Whoever only looks needs none."""
        if new.call == Call.GET_TIMEOUT:
            return new
        kept = self._kept(new)
        named = kept.get(xid)
        if named is None or replace(named, request=b"") != new:
            named = replace(new, request=secrets.token_bytes(16))
            _put(kept, xid, named)
        return named

    def _kept(self, call: CoordinatorCall) -> dict[Xid, CoordinatorCall]:
        """Where it is, until it is answered."""
        return self._starts if call.call in _ANY_START else self._unanswered

    async def _find(self, xid: Xid, call: Call, coordinator: str, what: str, deadline: float) -> int:
        """Which use the call is about, or 0 if there is none; of a start, behind which it is."""
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
            # Also when another call is answered first.
            _put(self._uses, xid, meant)
        answer = await self._query(wire.TransactionLook(coordinator, xid), what, deadline)
        if meant and answer.incarnation > meant:
            raise OutcomeUnknown(
                f"{what}: nobody has answered the call before it, and the xid has been used again since; "
                "xa.recover() says what is prepared, and from then on calls are about that"
            )
        return meant or answer.incarnation

    def _learn(self, xid: Xid, call: Call, answer: Answered, coordinator: str) -> None:
        """Which use is meant from here on, and whether there is still work in it."""
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
        """Branches that are prepared, or that a person has decided and nobody has forgotten. These uses are
        meant from here on, unless this session works in a later one."""
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
        """What this session works in can only be rolled back."""
        for xid, branch in list(self._branches.items()):
            if not branch.is_suspended:
                with suppress(HawserError):
                    await self.end(xid, Call.END_FAIL)
            branch.end()
            self._branches.pop(xid, None)


def _what(call: Call, xid: Xid) -> str:
    return f"{call.name.lower().replace('_', ' ')} of branch {xid}"


def _is_over(call: Call, answer: Answered, incarnation: int) -> bool:
    """Whether no session works in this use of the xid any more, by this answer. An end speaks for itself."""
    if call in _ENDS or answer.incarnation != incarnation:
        return False
    is_done = call in (Call.PREPARE, *_COMPLETIONS) and answer.code == Code.OK
    # As its value this answer has how the branch ended, if it has.
    is_decided = answer.code == Code.ILLEGAL_STATE and answer.value > 0
    return answer.code in _GONE or is_done or is_decided


def _put(kept: dict[Xid, T], xid: Xid, value: T) -> None:
    """As the last; the first makes room."""
    kept.pop(xid, None)
    kept[xid] = value
    if len(kept) > _MOST_USES:
        del kept[next(iter(kept))]
