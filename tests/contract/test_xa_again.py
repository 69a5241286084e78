"""Calls of the XA interface whose answer is lost: made again, each is the same call."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hawser
from hawser.api.cluster.xa import _check
from hawser.cluster import wire
from hawser.cluster.client.routing import Router
from hawser.log.state.results import Answered
from hawser.transaction.xa import Call, Code
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster


class Lossy:
    """Loses the answer to the next call, once it was made."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self.is_armed = False

    async def ask_leader(self, router: Router, name: str, shard: str, request: Any, *rest: Any) -> Any:
        answer = await self._ask(router, name, shard, request, *rest)
        if self.is_armed and isinstance(request, wire.Transact):
            self.is_armed = False
            raise hawser.OutcomeUnknown("the answer was lost")
        return answer


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    lossy = Lossy(Router.ask_leader)
    monkeypatch.setattr(Router, "ask_leader", lambda *given: lossy.ask_leader(*given))
    yield lossy


def test_a_call_whose_answer_was_lost_is_made_again(cluster: RunningCluster, lossy: Lossy) -> None:
    bus: Any = cluster.connect("session")
    topic, xid = bus.topic("made again"), Xid(7, b"made again", b"")

    def again(call: Callable[..., Any], **flags: Any) -> Any:
        lossy.is_armed = True
        with pytest.raises(hawser.OutcomeUnknown, match="was lost"):
            call(xid, **flags)
        return call(xid, **flags)

    for phases in (1, 2):
        again(bus.xa.start).publish(topic, b"%d" % phases)
        again(bus.xa.end)
        assert bus._client.resource.branch(xid) is None
        if phases == 2:
            assert again(bus.xa.prepare) == "ok"
        again(bus.xa.commit, one_phase=phases == 1)
    # Of the use before, and of no other, is what a call that was not made again got.
    lossy.is_armed = True
    with pytest.raises(hawser.OutcomeUnknown):
        bus.xa.commit(xid)
    bus.xa.start(xid).publish(topic, b"3")
    bus.xa.end(xid)
    bus.xa.prepare(xid)
    bus.xa.commit(xid)
    assert bus.xa.recover() == []
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"1", b"2", b"3"]


def test_work_that_home_knows_nothing_of_is_over(cluster: RunningCluster) -> None:
    bus: Any = cluster.connect("session")
    other: Any = cluster.connect("other")
    xid = Xid(7, b"gone", b"")
    bus.xa.start(xid)
    command = bus._client.resource.call(xid, Call.END)
    bus._thread.call(command)
    with pytest.raises(XAError, match="illegal-state"):
        bus.xa.end(xid)
    assert bus._client.resource.branch(xid) is None
    other.xa.rollback(xid)


@pytest.mark.parametrize("code", set(Code) - {Code.OK, Code.READONLY, Code.PENDING})
def test_every_answer_has_words(code: Code) -> None:
    with pytest.raises(XAError, match=code.word) as raised:
        _check(Answered(code), Xid(7, b"x", b""), Call.COMMIT)
    assert raised.value.outcome == ("applied" if code is Code.HEUR_COM else "none")
