"""The XA interface on a cluster: the calls and their errors, in an event loop and from any thread."""

from typing import Any, Final

from hawser.api.cluster.transaction import ClusterWork
from hawser.api.subscription import is_count
from hawser.api.transaction import Work
from hawser.api.xa import XA, Vote, XAError
from hawser.cluster.client.thread import LoopThread
from hawser.cluster.client.xa import OpenBranch, Resource
from hawser.errors import UsageError
from hawser.log.state.results import Answered, Outcome
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, Xid
from hawser.transaction.xa import Call, Code

__all__ = ["ClusterXA", "XACalls"]

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
    Code.ILLEGAL_STATE: "it cannot be done in the state that the branch, or this session, is in",
    Code.COMMAND_INVALID: "it makes no sense for this branch",
    Code.NOT_ALLOWED: "the xid is in use, or the flags contradict each other",
    Code.INVALID_ARGUMENT: "a time-out is at most 3600 seconds",
    Code.RB_ROLLBACK: "the branch is rolled back",
    Code.RB_TIMEOUT: "the branch was not prepared in time, and is rolled back",
    Code.HEUR_COM: "a person has committed the branch; forget() ends that",
    Code.HEUR_RB: "a person has rolled the branch back; forget() ends that",
    Code.HEUR_MIX: "a person has decided, and not alike everywhere; forget() ends that",
}
# A person has done what was asked for.
_APPLIED: Final = (
    (Call.COMMIT, Code.HEUR_COM),
    (Call.COMMIT_ONE_PHASE, Code.HEUR_COM),
    (Call.ROLLBACK, Code.HEUR_RB),
)
# Answers whose value is how the branch ended.
_TELLING: Final = (Code.ILLEGAL_STATE, Code.RB_ROLLBACK, Code.RB_TIMEOUT)


def _check_xid(xid: Any) -> Xid:
    if not isinstance(xid, Xid):
        raise UsageError(f"{xid!r} is no hawser.xa.Xid(format, global_id, branch_id)")
    xid.check()
    if xid.format in (LANE_FORMAT, APPLICATION_FORMAT):
        raise UsageError(f"format {xid.format} of {xid} is Hawser's own; a coordinator has another one")
    return xid


def _check(answer: Answered, xid: Xid, call: Call, why: str = "") -> Answered:
    """XAError unless it is done."""
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
        answer, branch = await self._resource.start(_check_xid(xid), call)
        _check(answer, xid, call)
        assert branch is not None
        return branch

    async def end(self, xid: Xid, suspend: bool, fail: bool) -> None:
        call = _ENDS[bool(fail), bool(suspend)]
        answer, branch = await self._resource.end(_check_xid(xid), call)
        failed = branch is not None and branch.has_failed
        _check(answer, xid, call, str(branch.aborted()) if branch is not None and failed else "")

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
        if not is_count(seconds) or seconds >= 1 << 63:
            raise UsageError(f"seconds={seconds!r} is not a whole number from 0 on")
        await self._call(xid, Call.SET_TIMEOUT, seconds)

    async def get_timeout(self, xid: Xid) -> int:
        return (await self._call(xid, Call.GET_TIMEOUT)).value

    async def _call(self, xid: Xid, call: Call, seconds: int = 0) -> Answered:
        return _check(await self._resource.call(_check_xid(xid), call, seconds), xid, call)


class ClusterXA(XA):
    """Of one bus, for any thread."""

    def __init__(self, thread: LoopThread, resource: Resource) -> None:
        self._thread = thread
        self._calls = XACalls(resource)
        self._works: dict[Xid, ClusterWork] = {}

    def start(self, xid: Xid, *, join: bool = False, resume: bool = False) -> Work:
        branch = self._thread.call(self._calls.start(xid, join, resume))
        work = self._works[xid] = ClusterWork(self._thread, branch)
        return work

    def end(self, xid: Xid, *, suspend: bool = False, fail: bool = False) -> None:
        work = self._works.pop(xid, None)
        if work is not None:
            work.end()
        self._thread.call(self._calls.end(xid, suspend, fail))

    def prepare(self, xid: Xid) -> Vote:
        return self._thread.call(self._calls.prepare(xid))

    def commit(self, xid: Xid, *, one_phase: bool = False) -> None:
        self._thread.call(self._calls.commit(xid, one_phase))

    def rollback(self, xid: Xid) -> None:
        self._thread.call(self._calls.rollback(xid))

    def recover(self) -> list[Xid]:
        return self._thread.call(self._calls.recover())

    def forget(self, xid: Xid) -> None:
        self._thread.call(self._calls.forget(xid))

    def set_timeout(self, xid: Xid, seconds: int) -> None:
        self._thread.call(self._calls.set_timeout(xid, seconds))

    def get_timeout(self, xid: Xid) -> int:
        return self._thread.call(self._calls.get_timeout(xid))
