"""Calls of the XA interface whose answer is lost: made again, each is the same call."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.api.cluster.xa import _check
from hawser.cluster import wire
from hawser.cluster.client.router import Router
from hawser.log.state.results import Answered
from hawser.transaction.xa.table import Call, Code
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster
from tests.support.processes import until


class Lossy:
    """Loses the answer to the next call, once it was made; or the call."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self.is_armed = False
        self.loses_requests = False

    async def ask_leader(self, router: Router, name: str, shard: str, request: Any, *rest: Any) -> Any:
        is_lost = self.is_armed and isinstance(request, wire.Transact)
        self.is_armed = self.is_armed and not is_lost
        if is_lost and self.loses_requests:
            raise hawser.OutcomeUnknown("the call was lost")
        answer = await self._ask(router, name, shard, request, *rest)
        if is_lost:
            raise hawser.OutcomeUnknown("the answer was lost")
        return answer


_numbers = itertools.count()


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


def _use(bus: Any, xid: Xid, topic: Any, value: bytes) -> None:
    """It is prepared."""
    bus.xa.start(xid).publish(topic, value)
    bus.xa.end(xid)
    assert bus.xa.prepare(xid) == "ok"


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_call_is_about_the_use_that_is_meant_also_when_another_session_has_used_the_xid_again(
    cluster: RunningCluster, lossy: Lossy, verb: str
) -> None:
    """What was done to the use before, and nobody has heard of, is no answer."""
    manager: Any = cluster.connect("manager")
    worker: Any = cluster.connect("worker")
    topic, xid = worker.topic(f"meant by a {verb}"), Xid(7, f"meant by a {verb}".encode(), b"")
    complete = getattr(manager.xa, verb)

    def use_and_lose(value: bytes) -> None:
        _use(worker, xid, topic, value)
        lossy.is_armed = True
        with pytest.raises(hawser.OutcomeUnknown, match="was lost"):
            complete(xid)

    use_and_lose(b"1")
    assert manager.xa.recover() == []
    _use(worker, xid, topic, b"2")
    # Whoever looked for branches may be another than who makes the call again.
    with pytest.raises(XAError, match="not-found"):
        complete(xid)
    assert worker.xa.recover() == [xid]
    complete(xid)
    assert worker.xa.recover() == []
    use_and_lose(b"3")
    complete(xid)
    use_and_lose(b"4")
    _use(worker, xid, topic, b"5")
    # The one before may be meant, or this one.
    for _ in range(2):
        with pytest.raises(hawser.OutcomeUnknown, match="used again since"):
            complete(xid)
    assert worker.xa.recover() == manager.xa.recover() == [xid]
    complete(xid)
    assert worker.xa.recover() == []
    committed = [b"1", b"2", b"3", b"4", b"5"] if verb == "commit" else []
    assert [bytes(each) for each in topic.read_oldest(9).samples] == committed


def test_a_session_that_worked_in_an_earlier_use_does_not_end_the_next(cluster: RunningCluster) -> None:
    first: Any = cluster.connect("first")
    second: Any = cluster.connect("second")
    topic, xid = first.topic("earlier use"), Xid(7, b"earlier use", b"")
    _use(first, xid, topic, b"1")
    second.xa.commit(xid)
    _use(second, xid, second.topic("earlier use"), b"2")
    with pytest.raises(XAError, match="not-found"):
        first.xa.commit(xid)
    assert second.xa.recover() == [xid]
    # It was told that what it took part in is over, and may end what there is.
    first.xa.rollback(xid)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"1"]


@pytest.mark.parametrize("meanwhile", ["get_timeout", "set_timeout"])
def test_another_call_that_is_answered_has_no_other_use_meant(
    cluster: RunningCluster, lossy: Lossy, meanwhile: str
) -> None:
    """Between a call that nobody has answered and the same call again."""
    manager: Any = cluster.connect("manager")
    worker: Any = cluster.connect("worker")
    topic, xid = worker.topic(meanwhile), Xid(7, meanwhile.encode(), b"")
    _use(worker, xid, topic, b"1")
    lossy.loses_requests = lossy.is_armed = True
    with pytest.raises(hawser.OutcomeUnknown, match="was lost"):
        manager.xa.commit(xid)
    with suppress(XAError):
        manager.xa.get_timeout(xid) if meanwhile == "get_timeout" else manager.xa.set_timeout(xid, 60)
    worker.xa.rollback(xid)
    _use(worker, xid, topic, b"2")
    with pytest.raises(hawser.HawserError, match=r"used again since|not-found"):
        manager.xa.commit(xid)
    assert worker.xa.recover() == [xid]
    worker.xa.rollback(xid)
    assert topic.read_oldest(9).samples == []


def test_what_is_recovered_is_meant_also_by_a_session_that_had_to_do_with_an_earlier_use(
    cluster: RunningCluster,
) -> None:
    first: Any = cluster.connect("first")
    second: Any = cluster.connect("second")
    topic, xid = second.topic("suspended"), Xid(7, b"suspended", b"")
    first.xa.start(xid)
    first.xa.end(xid, suspend=True)
    second.xa.set_timeout(xid, 1)
    until(lambda: _rolled_back(second, xid), "the end of its time")
    _use(second, xid, topic, b"1")
    assert first.xa.recover() == [xid]
    second.xa.commit(xid)
    _use(second, xid, topic, b"2")
    with pytest.raises(XAError, match="not-found"):
        first.xa.commit(xid)
    assert first.xa.recover() == [xid]
    first.xa.commit(xid)
    assert second.xa.recover() == []


def _rolled_back(bus: Any, xid: Xid) -> bool:
    try:
        bus.xa.rollback(xid)
    except XAError as error:
        return "rb-timeout" in str(error)
    return True


def test_work_that_was_ended_by_others_lets_go_of_its_messages(cluster: RunningCluster) -> None:
    bus: Any = cluster.connect("session")
    other: Any = cluster.connect("other")
    queue, xid = bus.queue("let go of"), Xid(7, b"let go of", b"")
    queue.put(b"message")
    work = bus.xa.start(xid)
    message = work.get(queue, 10)
    bus.xa.set_timeout(xid, 1)
    until(lambda: _rolled_back(other, xid), "the end of its time")
    bus.xa.start(xid)
    until(lambda: queue.info().ready == 1, "the message is ready")
    with pytest.raises(hawser.UsageError, match="ended; start another"):
        work.publish(bus.topic("let go of t"), b"late")
    assert bytes(message) == b"message"
    bus.xa.end(xid)
    bus.xa.rollback(xid)


@pytest.mark.parametrize("verb", ["rollback", "commit", "prepare", "join"])
def test_work_in_a_branch_that_is_over_gives_its_messages_back(
    connect: Callable[..., Any], verb: str
) -> None:
    """As soon as a call says that it is over, also if nobody ends the work."""
    worker, other = connect(name="worker"), connect(name="other")
    name = f"over by a {verb} {next(_numbers)}"
    queue, xid = worker.queue(name), Xid(7, name.encode(), b"")
    queue.put(b"message")
    work = worker.xa.start(xid)
    message = work.get(queue, 10)
    worker.xa.set_timeout(xid, 1)
    until(lambda: _code(lambda: other.xa.prepare(xid)) == "rb-timeout", "the end of its time")
    calls: dict[str, Callable[[], Any]] = {
        "rollback": lambda: worker.xa.rollback(xid),
        "commit": lambda: worker.xa.commit(xid),
        "prepare": lambda: worker.xa.prepare(xid),
        "join": lambda: worker.xa.start(xid, join=True),
    }
    assert _code(calls[verb]) == "rb-timeout"
    again = other.queue(name).get(30)
    assert again.delivery_count == 2 and bytes(message) == b"message"
    again.accept()
    with pytest.raises(hawser.UsageError, match="ended; start another"):
        work.get(queue, 0)
    with pytest.raises(hawser.UsageError, match="ended; start another"):
        work.publish(queue, b"late")


def _code(call: Callable[[], Any]) -> str:
    try:
        call()
    except XAError as error:
        return error.code
    return "ok"


def test_two_ends_at_once(cluster: RunningCluster) -> None:
    """One of them ends it; the other one is told so."""
    bus: Any = cluster.connect("session")
    xid = Xid(7, b"two ends", b"")
    bus.xa.start(xid)

    def end(_: int) -> str:
        try:
            bus.xa.end(xid)
        except XAError as error:
            return error.code
        return "ok"

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(end, range(2))) <= {"ok", "illegal-state", "not-found"}

    async def at_once() -> list[Any]:
        async with aio.connect(cluster.url) as bus:
            await bus.xa.start(xid)
            return list(await asyncio.gather(bus.xa.end(xid), bus.xa.end(xid), return_exceptions=True))

    bus.xa.rollback(xid)
    assert all(found is None or isinstance(found, XAError) for found in asyncio.run(at_once()))


def test_a_start_that_nobody_has_answered_is_the_same_also_behind_a_recovery(
    cluster: RunningCluster, lossy: Lossy
) -> None:
    bus: Any = cluster.connect("session")
    topic, xid = bus.topic("started again"), Xid(7, b"started again", b"")
    lossy.is_armed = True
    with pytest.raises(hawser.OutcomeUnknown, match="was lost"):
        bus.xa.start(xid)
    assert bus.xa.recover() == []
    bus.xa.start(xid).publish(topic, b"1")
    bus.xa.end(xid)
    bus.xa.commit(xid, one_phase=True)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"1"]


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


@pytest.mark.parametrize("flag", ["resume", "join"])
@pytest.mark.parametrize("is_kept", [True, False])
def test_a_suspension_that_was_not_heard_of_loses_nothing_of_what_follows(
    cluster: RunningCluster, lossy: Lossy, flag: str, is_kept: bool
) -> None:
    """The session goes on as another worker, whether it has the work of the old one or not."""
    bus: Any = cluster.connect("session")
    name = f"{flag} {is_kept}"
    topic, xid = bus.topic(name, partitions=1), Xid(7, name.encode(), b"")
    work = bus.xa.start(xid)
    work.publish(topic, b"before")
    lossy.is_armed = True
    with pytest.raises(hawser.OutcomeUnknown, match="was lost"):
        bus.xa.end(xid, suspend=True)
    with pytest.raises(hawser.UsageError, match=r"call xa\.end\(\) again"):
        work.publish(topic, b"meanwhile")
    with pytest.raises(XAError, match="this session has suspended it; resume it"):
        bus.xa.end(xid)
    if not is_kept:
        bus._client.resource._branches.pop(xid).end()
    bus.xa.start(xid, **{flag: True}).publish(topic, b"behind")
    bus.xa.end(xid)
    assert bus.xa.prepare(xid) == "ok"
    bus.xa.commit(xid)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"before", b"behind"]


def test_what_is_published_while_the_work_ends_is_committed_or_refused(cluster: RunningCluster) -> None:
    """By another task, at every moment of the end."""

    async def work() -> None:
        async with aio.connect(cluster.url) as bus:
            topic = bus.topic("while it ends", partitions=1)
            published: list[bytes] = []
            for pause in range(12):
                xid = Xid(7, b"while it ends %d" % pause, b"")
                branch = await bus.xa.start(xid)
                await branch.publish(topic, b"%d before" % pause)
                published.append(b"%d before" % pause)
                end = asyncio.create_task(bus.xa.end(xid))
                for _ in range(pause):
                    await asyncio.sleep(0)
                with suppress(hawser.UsageError):
                    while not end.done():
                        value = b"%d at %d" % (pause, len(published))
                        await branch.publish(topic, value)
                        published.append(value)
                        await asyncio.sleep(0)
                await end
                assert await bus.xa.prepare(xid) == "ok"
                await bus.xa.commit(xid)
            found = (await topic.read_oldest(10_000)).samples
            assert [bytes(each) for each in found] == published

    asyncio.run(work())


def test_what_a_suspended_branch_refused_takes_no_room_of_what_it_accepts_later(
    cluster: RunningCluster,
) -> None:
    """Neither does the refusal of one thread keep another waiting."""
    bus: Any = cluster.connect("session")
    topic, xid = bus.topic("refused"), Xid(7, b"refused", b"")
    work = bus.xa.start(xid)
    bus.xa.end(xid, suspend=True)
    room = bus._client.settings.queue_bytes
    for _ in range(3):
        with pytest.raises(hawser.UsageError, match="suspended"):
            work.publish_many(topic, [bytes(room // 8)] * 8)
    bus.xa.start(xid, resume=True).publish(topic, b"accepted")
    bus.xa.end(xid)
    bus.xa.commit(xid, one_phase=True)
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"accepted"]


def test_resumed_work_has_an_object_of_its_own_and_the_other_takes_nothing(
    connect: Callable[..., Any],
) -> None:
    bus = connect()
    name = f"an object of its own {next(_numbers)}"
    queue, xid = bus.queue(name), Xid(7, name.encode(), b"")
    queue.put(b"message")
    work = bus.xa.start(xid)
    bus.xa.end(xid, suspend=True)
    resumed = bus.xa.start(xid, resume=True)
    with pytest.raises(hawser.UsageError, match="ended; start another"):
        work.get(queue, 0)
    assert bytes(resumed.get(queue, 30)) == b"message"
    bus.xa.end(xid)
    again = queue.get(30)
    assert again.delivery_count == 2
    again.accept()
    bus.xa.rollback(xid)


def test_an_end_is_about_the_work_that_there_was_when_it_was_called(cluster: RunningCluster) -> None:
    """Not about work that another task has begun since."""

    async def work() -> list[bytes]:
        async with aio.connect(cluster.url) as bus:
            topic = bus.topic("two ends and a start", partitions=1)
            for number in range(8):
                xid = Xid(7, b"two ends and a start %d" % number, b"")
                await (await bus.xa.start(xid)).publish(topic, b"first")
                ends = [asyncio.create_task(bus.xa.end(xid)) for _ in range(2)]
                await ends[0]
                for _ in range(number):
                    await asyncio.sleep(0)
                branch = await bus.xa.start(xid, join=True)
                await asyncio.gather(*ends, return_exceptions=True)
                await branch.publish(topic, b"second")
                await bus.xa.end(xid)
                await bus.xa.commit(xid, one_phase=True)
            return [bytes(each) for each in (await topic.read_oldest(99)).samples]

    assert asyncio.run(work()) == [b"first", b"second"] * 8


CALLS: list[tuple[str, dict[str, bool]]] = [
    ("start", {}),
    ("end", {"suspend": True}),
    ("start", {"resume": True}),
    ("end", {}),
    ("start", {"join": True}),
    ("end", {}),
    ("prepare", {}),
    ("commit", {}),
]


@pytest.mark.parametrize("steps", range(0, 24, 3))
def test_every_call_may_be_cancelled_anywhere_and_made_again(cluster: RunningCluster, steps: int) -> None:
    """What was published is committed, once. An answer that was lost may have been ok."""

    async def work() -> None:
        async with aio.connect(cluster.url, name=f"cancels {steps}") as bus:
            topic = bus.topic(f"cancelled {steps}", partitions=1)
            published: list[bytes] = []
            for shift in range(3):
                xid = Xid(7, b"cancelled %d" % shift, b"%d" % steps)
                for number, (verb, flags) in enumerate(CALLS):
                    call = asyncio.create_task(getattr(bus.xa, verb)(xid, **flags))
                    for _ in range(steps + shift):
                        await asyncio.sleep(0)
                    call.cancel()
                    try:
                        found = await call
                    except asyncio.CancelledError:
                        found = await getattr(bus.xa, verb)(xid, **flags)
                    if verb == "start":
                        published.append(b"%d at %d" % (shift, number))
                        await found.publish(topic, published[-1])
            assert [bytes(each) for each in (await topic.read_oldest(99)).samples] == published
            assert await bus.xa.recover() == []

    asyncio.run(work())
