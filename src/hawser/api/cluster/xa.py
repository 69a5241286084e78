"""The XA interface on a cluster: the calls and their errors, in an event loop and from any thread."""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from hawser.api.cluster.transaction import ClusterWork
from hawser.api.subscription import check_count
from hawser.api.transaction import Work
from hawser.api.xa import XA, Vote, XAError
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.transaction.xa import OpenBranch, Resource
from hawser.errors import HawserError, UsageError
from hawser.log.state.results import Answered, Outcome
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, TransactionId, Xid
from hawser.transaction.xa.table import Call, Code, State

__all__ = ["ClusterXA", "XACalls", "check_xid"]

Result = TypeVar("Result")

# (join, resume) and (fail, suspend).
_STARTS: Final = {
    (False, False): Call.START,
    (True, False): Call.START_JOIN,
    (False, True): Call.START_RESUME,
    (True, True): Call.START_JOIN_RESUME,
}
_ENDS: Final = {
    (False, False): Call.END,
    (True, False): Call.END_FAIL,
    (False, True): Call.END_SUSPEND,
    (True, True): Call.END_FAIL_SUSPEND,
}
_TEXTS: Final = {
    Code.NOT_FOUND: "there is no such branch, or not any more",
    Code.ILLEGAL_STATE: "it cannot be done as things are",
    Code.COMMAND_INVALID: "it makes no sense as things are",
    Code.NOT_ALLOWED: "the xid is in use, or the flags contradict each other",
    Code.INVALID_ARGUMENT: "a time-out is at most 3600 seconds",
    Code.RB_ROLLBACK: "the branch is rolled back",
    Code.RB_TIMEOUT: "the branch was not prepared in time, and is rolled back",
    Code.HEUR_COM: "a person has committed the branch; forget() ends that",
    Code.HEUR_RB: "a person has rolled the branch back; forget() ends that",
    Code.HEUR_MIX: "a person has decided, and not alike everywhere; forget() ends that",
}
# The cause and the remedy, by the state of the branch.
_SITUATIONS: Final = {
    State.UNKNOWN: "there is no such branch, or not any more; start() begins one",
    State.ASSOCIATED: "this session works in it; end it first",
    State.ELSEWHERE: "other sessions work in it, or have suspended that; they have to end it first",
    State.SUSPENDED: "this session has suspended it; resume it with start(resume=True), then end it",
    State.ENDED: "no session works in it; prepare it, commit it in one phase, roll it back, or join it",
    State.PREPARING: "its shards are asked to prepare; call prepare() until it is answered, or roll it back",
    State.COMMITTING: "it is being committed; call commit(one_phase=True) until it is answered",
    State.PREPARED: "it is prepared; commit it, or roll it back",
    State.COMMITTED: "it is committed; the xid may be used again",
    State.ROLLED_BACK: "it is rolled back; the xid may be used again",
    State.HEURISTIC_COMMIT: "a person has committed it; forget() ends that",
    State.HEURISTIC_ROLLBACK: "a person has rolled it back; forget() ends that",
    **dict.fromkeys(
        (State.FAILED, State.FAILED_ASSOCIATED, State.FAILED_SUSPENDED), "it can only be rolled back; do that"
    ),
    **dict.fromkeys(
        (State.TIMED_OUT, State.TIMED_OUT_ASSOCIATED, State.TIMED_OUT_SUSPENDED),
        "it was not prepared in time; roll it back",
    ),
}
assert _SITUATIONS.keys() == set(State)
_CONTRADICTIONS: Final = {
    Call.START_JOIN_RESUME: "to join and to resume exclude each other",
    Call.END_FAIL_SUSPEND: "to suspend and to fail exclude each other",
}
_BY_STATE: Final = (Code.ILLEGAL_STATE, Code.COMMAND_INVALID, Code.NOT_ALLOWED)
# An administrator has already decided what was asked for.
_APPLIED: Final = (
    (Call.COMMIT, Code.HEUR_COM),
    (Call.COMMIT_ONE_PHASE, Code.HEUR_COM),
    (Call.ROLLBACK, Code.HEUR_RB),
)
# Answers whose value is the outcome of the branch.
_TELLING: Final = (Code.ILLEGAL_STATE, Code.RB_ROLLBACK, Code.RB_TIMEOUT)


def check_xid(xid: Any) -> Xid:
    """The xid; UsageError if a coordinator cannot use it."""
    if not isinstance(xid, Xid):
        raise UsageError(f"{xid!r} is not a hawser.xa.Xid(format, global_id, branch_id)")
    xid.check()
    if xid.format in (LANE_FORMAT, APPLICATION_FORMAT):
        raise UsageError(f"format {xid.format} of {xid} is reserved for Hawser; use another one")
    return xid


def _check(answer: Answered, xid: Xid, call: Call, why: str = "") -> Answered:
    """XAError unless the answer is ok."""
    code = Code(answer.code)
    if code in (Code.OK, Code.READONLY):
        return answer
    what = f"{call.name.lower().replace('_', ' ')} of branch {xid}"
    text = f"{what}: {code.word}: {_TEXTS[code]}"
    if code in _TELLING and answer.value in frozenset(Outcome):
        why = why or Outcome(answer.value).text
    raise XAError(f"{text} ({why})" if why else text, code.word, (call, code) in _APPLIED)


class XACalls:
    """The calls, in the event loop."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    async def start(self, xid: Xid, join: bool, resume: bool) -> OpenBranch:
        call = _STARTS[bool(join), bool(resume)]
        answer, branch = await self._resource.start(check_xid(xid), call)
        await self._check(answer, xid, call)
        assert branch is not None
        return branch

    async def end(self, xid: Xid, suspend: bool, fail: bool) -> None:
        call = _ENDS[bool(fail), bool(suspend)]
        answer, branch = await self._resource.end(check_xid(xid), call)
        failed = branch is not None and branch.has_failed
        await self._check(answer, xid, call, str(branch.aborted()) if branch is not None and failed else "")

    async def prepare(self, xid: Xid) -> Vote:
        answer = await self._call(xid, Call.PREPARE)
        return "readonly" if answer.code == Code.READONLY else "ok"

    async def commit(self, xid: Xid, one_phase: bool) -> None:
        await self._call(xid, Call.COMMIT_ONE_PHASE if one_phase else Call.COMMIT)

    async def rollback(self, xid: Xid) -> None:
        await self._call(xid, Call.ROLLBACK)

    async def recover(self) -> list[Xid]:
        return await self._resource.recover()

    async def forget(self, xid: Xid) -> None:
        await self._call(xid, Call.FORGET)

    async def set_timeout(self, xid: Xid, seconds: int) -> None:
        check_count(seconds, 0, "seconds")
        await self._call(xid, Call.SET_TIMEOUT, seconds)

    async def get_timeout(self, xid: Xid) -> int:
        return (await self._call(xid, Call.GET_TIMEOUT)).value

    async def _call(self, xid: Xid, call: Call, seconds: int = 0) -> Answered:
        return await self._check(await self._resource.call(check_xid(xid), call, seconds), xid, call)

    async def _check(self, answer: Answered, xid: Xid, call: Call, why: str = "") -> Answered:
        if answer.code in _BY_STATE and not why:
            why = await self._situation(answer, xid, call)
        return _check(answer, xid, call, why)

    async def _situation(self, answer: Answered, xid: Xid, call: Call) -> str:
        """Why the call is refused, by the branch's current state; empty if no shard answers."""
        if call in _CONTRADICTIONS:
            return _CONTRADICTIONS[call]
        working = self._resource.working
        is_start = call in _STARTS.values()
        if is_start and answer.code == Code.ILLEGAL_STATE and working not in (None, xid):
            return f"this session works in branch {working}; end or suspend that first"
        if is_start and answer.code == Code.ILLEGAL_STATE and not answer.incarnation:
            return (
                "this session works in another branch, maybe by a start that was not answered; end that first"
            )
        with suppress(HawserError):
            return _SITUATIONS[await self._resource.state(TransactionId(xid, answer.incarnation))]
        return ""


class _ClusterBranch(ClusterWork):
    """The work of this session in a branch."""

    _work: OpenBranch

    def finish(self) -> None:
        """End the work: give back messages that were got and not accepted."""
        with self._lock:
            self._is_ended = True
        self._release()

    @property
    def is_open(self) -> bool:
        """Whether it may be worked in."""
        return self._work.is_open

    @property
    def is_over(self) -> bool:
        """Whether this work is over."""
        return self._work.is_over

    def _over(self) -> UsageError:
        return self._work.over()


class ClusterXA(XA):
    """The XA session of one bus, for any thread."""

    def __init__(self, thread: LoopThread, resource: Resource) -> None:
        self._thread = thread
        self._calls = XACalls(resource)
        self._works: dict[Xid, _ClusterBranch] = {}

    def start(self, xid: Xid, join: bool = False, resume: bool = False) -> Work:
        branch = self._call(self._calls.start(xid, join, resume))
        work = self._works[xid] = _ClusterBranch(self._thread, branch)
        return work

    def end(self, xid: Xid, suspend: bool = False, fail: bool = False) -> None:
        work = self._works.get(check_xid(xid))
        try:
            self._thread.call(self._calls.end(xid, suspend, fail))
        finally:
            if work is not None and not work.is_open:
                work.finish()
                self._leave(xid, work)

    def _call(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run the call and return its result. If it ends the work of this session, the messages are given
        back."""
        try:
            return self._thread.call(call)
        finally:
            for xid, work in list(self._works.items()):
                if work.is_over:
                    work.finish()
                    self._leave(xid, work)

    def _leave(self, xid: Xid, work: _ClusterBranch) -> None:
        if self._works.get(xid) is work:
            del self._works[xid]

    def prepare(self, xid: Xid) -> Vote:
        return self._call(self._calls.prepare(xid))

    def commit(self, xid: Xid, one_phase: bool = False) -> None:
        self._call(self._calls.commit(xid, one_phase))

    def rollback(self, xid: Xid) -> None:
        self._call(self._calls.rollback(xid))

    def recover(self) -> list[Xid]:
        return self._thread.call(self._calls.recover())

    def forget(self, xid: Xid) -> None:
        self._call(self._calls.forget(xid))

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self._call(self._calls.set_timeout(xid, seconds))

    def get_timeout(self, xid: Xid) -> int:
        return self._call(self._calls.get_timeout(xid))
