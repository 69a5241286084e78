"""Links on loopback: what is told and asked, and how it ends when one side goes away or gives up."""

import array
import asyncio
import sys
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hawser.cluster.transport import (
    AskFailed,
    AskTimeout,
    Body,
    LinkClosed,
    LinkSettings,
    Malformed,
    Request,
    Unreachable,
    dial,
    listen,
)
from hawser.cluster.transport.event_loop import new_event_loop
from hawser.cluster.transport.outgoing_requests import OutgoingRequests
from hawser.cluster.transport.send_queue import SendQueue
from tests.support.links import (
    BRISK,
    CLIENT,
    NODE,
    PATIENT,
    Recorder,
    Silent,
    linked,
    run,
    serving,
)

LONG_SECONDS = 50


def test_both_sides_tell_and_ask() -> None:
    async def scenario() -> None:
        there, here = Recorder(), Recorder()
        async with linked(there, mine=here) as (server, link):
            assert str(link) == f"node a at {server.address}"
            assert [link.tell(b"%d" % number) for number in range(1000)] == [True] * 1000
            assert await link.ask(b"question", LONG_SECONDS) == b"question"
            assert there.told_bodies == [b"%d" % number for number in range(1000)]
            (back,) = server.links
            assert back.peer == CLIENT
            assert await back.ask(b"and you?", LONG_SECONDS) == b"and you?"
            assert len(here.requests) == 1

    run(scenario())


def test_what_is_told_in_one_turn_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with linked(Recorder()) as (_, link):
            writes: list[int] = []
            write = SendQueue._write

            def counted(self: SendQueue, chunk: bytes) -> None:
                writes.append(len(chunk))
                write(self, chunk)

            monkeypatch.setattr(SendQueue, "_write", counted)
            for _ in range(500):
                link.tell(b"x" * 100)
            await link.ask(b"", LONG_SECONDS)
            assert writes[0] == 500 * 113 + 13

    run(scenario())


def test_answers_come_in_any_order() -> None:
    async def scenario() -> None:
        there = Silent()
        async with linked(there) as (_, link):
            asks = [asyncio.create_task(link.ask(b"%d" % number, LONG_SECONDS)) for number in range(10)]
            await there.until(lambda: len(there.requests) == 10)
            for request in reversed(there.requests):
                request.answer(b"answer to " + request.body)
                request.answer(b"a second answer is nothing")
            assert await asyncio.gather(*asks) == [b"answer to %d" % number for number in range(10)]

    run(scenario())


class Strange(Recorder):
    """Answers as its requests want it."""

    def answer(self, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        wish = bytes(request.body)
        if wish == b"later":
            return self.later()
        if wish == b"pieces":
            return (b"one ", bytearray(b"two "), memoryview(array.array("H", [0x2120])))
        if wish == b"decode":
            msgspec.msgpack.decode(b"\xc1")
        if wish == b"malformed later":
            return self.malformed()
        raise KeyError(wish)

    async def later(self) -> bytes:
        await asyncio.sleep(0)
        return b"later"

    async def malformed(self) -> bytes:
        await asyncio.sleep(0)
        raise Malformed("a request for the moon")


def test_ways_to_answer() -> None:
    async def scenario() -> None:
        async with linked(Strange()) as (_, link):
            assert await link.ask(b"later", LONG_SECONDS) == b"later"
            assert await link.ask(b"pieces", LONG_SECONDS) == b"one two  !"
            with pytest.raises(AskFailed, match="unexpected KeyError: b'what'"):
                await link.ask(b"what", LONG_SECONDS)
            assert link.is_open

    run(scenario())


@pytest.mark.parametrize(
    ("wish", "text"), [(b"decode", "malformed: MessagePack"), (b"malformed later", "moon")]
)
def test_a_malformed_request_closes_its_link_only(wish: bytes, text: str) -> None:
    async def scenario() -> None:
        async with linked(Strange()) as (server, link):
            witness = await dial(server.address, CLIENT, settings=PATIENT)
            with pytest.raises(LinkClosed, match=text):
                await link.ask(wish, LONG_SECONDS)
            assert await witness.ask(b"later", LONG_SECONDS) == b"later"
            assert server.counters.links_malformed == 1
            await witness.close()

    run(scenario())


def test_without_a_handler_requests_fail() -> None:
    async def scenario() -> None:
        async with linked(Recorder()) as (server, _):
            with pytest.raises(AskFailed, match="serves no requests"):
                await server.links[0].ask(b"hello?", LONG_SECONDS)

    run(scenario())


@pytest.mark.parametrize("size", [16 << 10, (16 << 10) + 1, 300_000, 20 << 20])
def test_long_bodies(size: int) -> None:
    async def scenario() -> None:
        async with linked(Recorder()) as (_, link):
            body = bytes(range(251)) * (size // 251 + 1)
            pieces = (body[: size // 3], memoryview(body)[size // 3 : size])
            assert await link.ask(pieces, LONG_SECONDS) == body[:size]
            assert await link.ask(bytearray(body[:size]), LONG_SECONDS) == body[:size]

    run(scenario())


def test_a_body_beyond_the_limit_is_refused_at_the_caller() -> None:
    async def scenario() -> None:
        async with linked(Recorder()) as (_, link):
            with pytest.raises(ValueError, match="too long: at most"):
                link.tell(bytes(66 << 20))
            with pytest.raises(ValueError, match="too long: at most"):
                await link.ask(bytes(66 << 20), LONG_SECONDS)
            assert await link.ask(b"still here", LONG_SECONDS) == b"still here"
            assert link.counters.asks_in_flight == 0

    run(scenario())


def test_thousands_of_asks_in_flight(record_property: Any) -> None:
    """More than the peer serves at a time: the rest waits here, in order, and all are answered."""
    settings = msgspec.structs.replace(PATIENT, most_requests=500)

    async def scenario() -> None:
        there = Silent()
        async with linked(there, settings) as (server, link):
            asks = [asyncio.create_task(link.ask(b"%d" % number, LONG_SECONDS)) for number in range(5000)]
            most = 0
            for done in range(0, 5000, 250):
                await there.until(lambda done=done: len(there.requests) >= min(done + 500, 5000))
                most = max(most, server.counters.requests_in_progress)
                for request in there.requests[done : done + 250]:
                    request.answer(request.body)
            assert await asyncio.gather(*asks) == [b"%d" % number for number in range(5000)]
            assert [bytes(request.body) for request in there.requests] == [b"%d" % n for n in range(5000)]
            assert most == 500
            assert link.counters.asks_in_flight == server.counters.requests_in_progress == 0
            record_property("asks", link.counters.asks)
            record_property("most in progress", most)

    run(scenario())


def test_an_ask_times_out_and_the_peer_hears_of_it() -> None:
    async def scenario() -> None:
        there = Silent()
        async with linked(there) as (_, link):
            heard = asyncio.Event()
            asking = asyncio.create_task(link.ask(b"", 0.05))
            patient = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await there.until(lambda: len(there.requests) == 2)
            there.requests[0].on_cancel = heard.set
            with pytest.raises(AskTimeout, match=r"no answer within 0\.05 s") as caught:
                await asking
            assert caught.value.was_sent
            await heard.wait()
            assert not there.requests[0].is_waiting
            there.requests[0].answer(b"too late")
            there.requests[1].answer(b"in time")
            assert await patient == b"in time"
            assert link.counters.asks_timed_out == 1

    run(scenario())


def test_an_answer_under_way_when_nobody_waits_any_more() -> None:
    async def scenario() -> None:
        there = Silent()
        async with linked(there) as (_, link):
            asking = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await there.until(lambda: there.requests)
            there.requests[0].answer(b"crosses the cancellation")
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            again = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await there.until(lambda: len(there.requests) == 2)
            there.requests[1].answer(b"fine")
            assert await again == b"fine"

    run(scenario())


def test_a_cancelled_ask_cancels_the_work_for_it() -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        class Working(Recorder):
            def answer(self, request: Request) -> Coroutine[Any, Any, Body]:
                return self.work()

            async def work(self) -> bytes:
                try:
                    await asyncio.get_running_loop().create_future()
                    return b"never"
                finally:
                    ended.set()

        there = Working()
        async with linked(there) as (server, link):
            asking = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await there.until(lambda: there.requests)
            asking.cancel()
            await ended.wait()
            assert server.counters.requests_in_progress == link.counters.asks_in_flight == 0
            assert link.is_open

    run(scenario())


def test_a_lost_link_ends_every_ask() -> None:
    settings = msgspec.structs.replace(PATIENT, most_requests=2)

    async def scenario() -> None:
        there, here = Silent(), Recorder()
        async with linked(there, settings, mine=here) as (server, link):
            asks = [asyncio.create_task(link.ask(b"", LONG_SECONDS)) for _ in range(5)]
            await there.until(lambda: len(there.requests) == 2)
            server.links[0].abort("pulled")
            ends = await asyncio.gather(*asks, return_exceptions=True)
            assert all(isinstance(end, LinkClosed) for end in ends)
            assert [getattr(end, "was_sent", None) for end in ends] == [True, True, False, False, False]
            with pytest.raises(LinkClosed) as caught:
                await link.ask(b"", LONG_SECONDS)
            assert not caught.value.was_sent
            assert not link.tell(b"") and link.counters.tells_dropped == 1
            with pytest.raises(LinkClosed):
                await link.drained()
            assert len(here.reasons) == 1 and "node a at" in here.reasons[0]
            assert link.counters.asks_in_flight == 0

    run(scenario())


def test_no_turn_in_time_is_certainly_not_sent() -> None:
    settings = msgspec.structs.replace(PATIENT, most_requests=1)

    async def scenario() -> None:
        there = Silent()
        async with linked(there, settings) as (_, link):
            first = asyncio.create_task(link.ask(b"first", LONG_SECONDS))
            await there.until(lambda: there.requests)
            with pytest.raises(AskTimeout, match="accepted no more requests") as caught:
                await link.ask(b"second", 0.02)
            assert not caught.value.was_sent
            cancelled = asyncio.create_task(link.ask(b"third", LONG_SECONDS))
            await asyncio.sleep(0)
            fourth = asyncio.create_task(link.ask(b"fourth", LONG_SECONDS))
            await asyncio.sleep(0)
            there.requests[0].answer(b"done")
            # The turn that the third is given must go to the fourth.
            await first
            cancelled.cancel()
            await there.until(lambda: there.requests[-1].body == b"fourth")
            there.requests[-1].answer(b"done too")
            assert await fourth == b"done too"

    run(scenario())


def test_waiting_for_a_turn_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that an ask may take is not given twice."""
    settings = msgspec.structs.replace(PATIENT, most_requests=1)

    async def scenario() -> None:
        there = Silent()
        async with linked(there, settings) as (_, link):
            given: list[float | None] = []
            begin = OutgoingRequests.begin

            def noted(self: OutgoingRequests, timeout_seconds: float | None) -> Any:
                given.append(timeout_seconds)
                return begin(self, timeout_seconds)

            monkeypatch.setattr(OutgoingRequests, "begin", noted)
            asks = [asyncio.create_task(link.ask(b"", LONG_SECONDS)) for _ in range(2)]
            started_at = link._loop.time()
            for place in range(2):
                await there.until(lambda place=place: len(there.requests) > place)
                while link._loop.time() == started_at:
                    await asyncio.sleep(0.001)
                there.requests[place].answer(b"")
            await asyncio.gather(*asks)
            assert given[0] == LONG_SECONDS
            assert given[1] is not None and given[1] < LONG_SECONDS

    run(scenario())


def test_a_graceful_close_delivers_what_was_sent() -> None:
    async def scenario() -> None:
        there = Recorder()
        async with linked(there) as (_, link):
            for number in range(200):
                assert link.tell(b"%d" % number * 10_000)
            await link.close("enough")
            assert not link.is_open
            await there.until(lambda: there.reasons)
            assert len(there.told_bodies) == 200
            assert there.reasons[0].endswith("closed the link: enough")
            await link.close("twice is once")

    run(scenario())


def test_a_server_that_closes_says_so() -> None:
    async def scenario() -> None:
        here = Recorder()
        async with linked(Silent(), mine=here) as (server, link):
            asking = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await asyncio.sleep(0)
            await server.close("maintenance")
            with pytest.raises(LinkClosed, match=r"node a at .* closed the link: maintenance"):
                await asking
            assert not server.links
            with pytest.raises(Unreachable, match=r"cannot be reached: .*\. Is the process there running"):
                await dial(server.address, CLIENT)

    run(scenario())


def test_handlers_that_fail_cost_no_more_than_they_must() -> None:
    class Clumsy(Recorder):
        def told(self, link: Any, body: bytes | bytearray) -> None:
            super().told(link, body)
            raise KeyError("told")

        def closed(self, link: Any, reason: str) -> None:
            super().closed(link, reason)
            raise KeyError("closed")

    async def scenario() -> None:
        there = Clumsy()
        async with linked(there) as (server, link):
            link.tell(b"one")
            link.tell(b"two")
            assert await link.ask(b"three", LONG_SECONDS) == b"three"
            assert there.told_bodies == [b"one", b"two"]
            await link.close()
            await there.until(lambda: there.reasons)
            assert not server.links

    run(scenario())


@pytest.mark.parametrize("address", ["[::1]:0", "localhost:0"])
def test_other_kinds_of_addresses(address: str) -> None:
    async def scenario() -> None:
        try:
            server = await listen(address, Recorder(), NODE, settings=PATIENT)
        except Unreachable as error:
            pytest.skip(f"no such interface here: {error}")
        link = await dial(server.address, CLIENT, settings=PATIENT)
        assert await link.ask(b"x", LONG_SECONDS) == b"x"
        await link.close()
        await server.close()

    run(scenario())


def test_a_port_that_is_taken() -> None:
    async def scenario() -> None:
        async with serving(Recorder()) as server:
            with pytest.raises(Unreachable, match=r"cannot listen at .* and the port free"):
                await listen(server.address, Recorder(), NODE)

    run(scenario())


def test_idle_links_live_on_pings() -> None:
    async def scenario() -> None:
        async with linked(Recorder(), BRISK, my_settings=BRISK) as (server, link):
            frames = link.counters.frames_in
            while link.counters.frames_in < frames + 30:
                await asyncio.sleep(BRISK.ping_seconds)
            assert link.is_open and server.links
            assert await link.ask(b"x", LONG_SECONDS) == b"x"

    run(scenario())


def test_the_loop_is_uvloop_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Planted(asyncio.SelectorEventLoop):
        pass

    stand_in = SimpleNamespace(new_event_loop=Planted, __spec__=object())
    monkeypatch.setitem(sys.modules, "uvloop", stand_in)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, Planted)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    loop = new_event_loop()
    loop.close()
    assert not isinstance(loop, Planted)


def test_settings_check_themselves() -> None:
    with pytest.raises(AssertionError):
        LinkSettings(ping_seconds=2, silence_seconds=1)
