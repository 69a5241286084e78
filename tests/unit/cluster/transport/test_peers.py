"""Peers that are slow, greedy, dead, strange or hostile: each costs its own link and nobody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from hawser.cluster.transport import (
    Identity,
    Link,
    LinkSettings,
    PeerRole,
    Refused,
    Unreachable,
    dial,
)
from hawser.cluster.transport.frames import HEADER, MAX_HELLO_BYTES, FrameKind
from hawser.cluster.transport.handshake import Introduction, write_hello, write_welcome
from tests.support.links import (
    BRISK,
    CLIENT,
    NODE,
    PATIENT,
    Recorder,
    Silent,
    bare,
    frame,
    greeted,
    hello_frame,
    linked,
    read_frame,
    run,
    serving,
)

LONG_SECONDS = 50
SMALL_QUEUE = msgspec.structs.replace(PATIENT, most_outgoing_bytes=1 << 20)


class Generous(Recorder):
    """Answers every request with 100 kB."""

    def answer(self, request: Any) -> bytes:
        return bytes(100_000)


def test_frames_byte_by_byte() -> None:
    async def scenario() -> None:
        there = Recorder()
        async with serving(there) as server, bare(server) as (reader, writer):
            for byte in hello_frame() + frame(FrameKind.TELL, 0, b"slow") + frame(FrameKind.ASK, 1, b"echo"):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert (await read_frame(reader))[0] is FrameKind.WELCOME
            assert await read_frame(reader) == (FrameKind.ANSWER, 1, b"echo")
            assert there.told_bodies == [b"slow"]

    run(scenario())


GREEDY_ASKS = 400


async def most_kept_for_a_greedy_peer(asks: int) -> tuple[int, int]:
    """It asks for 100 kB again and again and reads nothing, while another link is served: the most bytes that
    were kept for it, and how many of its requests were served. Then it reads and must get everything."""
    there = Generous()
    async with linked(there, SMALL_QUEUE) as (server, witness), bare(server) as (reader, writer):
        await greeted(reader, writer)
        greedy = there.links[-1]
        for number in range(1, asks + 1):
            writer.write(frame(FrameKind.ASK, number, b"more"))
        await there.until(lambda: there.requests)
        most = 0
        for _ in range(50):
            assert len(await witness.ask(b"", LONG_SECONDS)) == 100_000
            most = max(most, greedy.queued_bytes)
        served = len(there.requests) - 50
        for number in range(1, asks + 1):
            assert await read_frame(reader) == (FrameKind.ANSWER, number, bytes(100_000))
        return most, served


def test_a_peer_that_does_not_read_is_held_and_costs_little(record_property: Any) -> None:
    most, served = run(most_kept_for_a_greedy_peer(GREEDY_ASKS))
    assert (1 << 20) < most < (1 << 20) + 200_000
    assert served < GREEDY_ASKS
    record_property("bytes kept at most", most)
    record_property("requests served before it was held", served)


def test_canary_a_link_that_never_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "_must_hold", lambda self: False)
    most, served = run(most_kept_for_a_greedy_peer(GREEDY_ASKS))
    assert most > 10 << 20 and served == GREEDY_ASKS


def test_messages_for_a_peer_that_does_not_read_are_dropped(record_property: Any) -> None:
    async def scenario() -> None:
        there = Recorder()
        async with serving(there, SMALL_QUEUE) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            (link,) = server.links
            sent = 0
            while link.tell(b"%08d" % sent + bytes(10_000)):
                sent += 1
                await asyncio.sleep(0)
            assert link.is_overfull and server.counters.tells_dropped == 1
            assert link.queued_bytes <= (1 << 20) + 10_100
            drained = asyncio.create_task(link.drained())
            for number in range(sent):
                assert (await read_frame(reader))[2][:8] == b"%08d" % number
            await drained
            assert link.tell(b"again")
            assert (await read_frame(reader))[2] == b"again"
            record_property("told before the first was dropped", sent)

    run(scenario())


def test_asks_wait_while_the_queue_is_over_full() -> None:
    async def scenario() -> None:
        async with linked(Recorder(), my_settings=SMALL_QUEUE) as (_, link):
            assert link.tell(bytes(2 << 20))
            assert link.is_overfull and not link.tell(b"dropped")
            assert await link.ask(b"waits", LONG_SECONDS) == b"waits"

    run(scenario())


def test_a_peer_that_asks_too_much_is_not_read(record_property: Any) -> None:
    settings = msgspec.structs.replace(BRISK, most_requests=10)

    async def scenario() -> None:
        there = Silent()
        async with serving(there, settings) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            for number in range(1, 1001):
                writer.write(frame(FrameKind.ASK, number, b"x"))
            # Its sign of life says that it holds this peer back; it does not take the silence amiss.
            for _ in range(15):
                assert await read_frame(reader) == (FrameKind.PONG, 0, b"")
            assert len(there.requests) == 11
            for place in range(1000):
                await there.until(lambda place=place: len(there.requests) > place)
                there.requests[place].answer(b"y")
            numbers: set[int] = set()
            while len(numbers) < 1000:
                kind, number, _ = await read_frame(reader)
                if kind is FrameKind.ANSWER:
                    numbers.add(number)
            assert server.counters.requests == 1000
            record_property("asked", 1000)
            record_property("in progress at most", 11)

    run(scenario())


def test_a_dead_peer_is_noticed() -> None:
    async def scenario() -> None:
        there = Recorder()
        async with serving(there, BRISK) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            assert (await read_frame(reader))[0] is FrameKind.PING
            await there.until(lambda: there.reasons)
            assert "silent for 0.2 s" in there.reasons[0]
            assert server.counters.links_silent == 1

    run(scenario())


def test_a_dead_peer_that_is_held_is_noticed() -> None:
    """It has asked for more than it reads, then nothing moves any more."""
    settings = msgspec.structs.replace(BRISK, most_outgoing_bytes=1 << 20)

    async def scenario() -> None:
        there = Generous()
        async with serving(there, settings) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            for number in range(1, 1001):
                writer.write(frame(FrameKind.ASK, number, b"more"))
            await there.until(lambda: there.reasons)
            assert "silent" in there.reasons[0]
            assert server.counters.requests_in_progress == 0

    run(scenario())


def test_a_peer_that_only_pings_and_does_not_read(record_property: Any) -> None:
    async def scenario() -> None:
        async with serving(Recorder(), SMALL_QUEUE) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            (link,) = server.links
            most = sent = 0
            while server.counters.bytes_in < 30 << 20:
                writer.write(frame(FrameKind.PING, 0, b"") * 5000)
                sent += 5000
                await writer.drain()
                most = max(most, link.queued_bytes)
            assert (1 << 20) < most < (1 << 20) + 1000
            record_property("pings", sent)
            record_property("bytes kept at most", most)

    run(scenario())


def test_a_peer_that_takes_long_to_read_lives() -> None:
    """It says nothing for longer than is allowed, but what it is sent moves on."""

    async def scenario() -> None:
        there = Recorder()
        async with serving(there, BRISK) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            (link,) = server.links
            assert link.tell(bytes(60 << 20))
            loop = asyncio.get_running_loop()
            last_tick = loop.time() + 2 * BRISK.silence_seconds
            taken = 0
            while taken < HEADER.size + (60 << 20):
                data = await reader.read(1 << 20)
                assert data, there.reasons
                taken += len(data)
                if loop.time() < last_tick:
                    await asyncio.sleep(BRISK.ping_seconds / 2)
            await there.until(lambda: there.reasons)

    run(scenario())


def test_a_connection_that_says_nothing() -> None:
    async def scenario() -> None:
        async with serving(Recorder(), BRISK) as server, bare(server) as (reader, _):
            kind, _, body = await read_frame(reader)
            assert kind is FrameKind.REFUSAL and b"no greeting within 0.2 s" in body
            assert await reader.read() == b""

    run(scenario())


def test_dialing_what_says_nothing() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            gone.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable, match="sends nothing: no greeting within"):
            await dial(f"127.0.0.1:{port}", CLIENT, settings=BRISK)
        await gone.wait()
        server.close()

    run(scenario())


async def dial_what_answers(answer: bytes) -> None:
    """Dial somebody who answers any hello with these bytes."""

    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(answer)
        assert (await read_frame(reader))[0] is FrameKind.GOODBYE
        writer.close()
        gone.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        link = await dial(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", CLIENT, settings=PATIENT)
        await link.close()
    finally:
        await gone.wait()
        server.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", r"not answer as a node of Hawser: a frame of 1347703880 bytes"),
        (frame(FrameKind.TELL, 0, b""), "where a greeting belongs"),
        (frame(FrameKind.WELCOME, 0, b"SMTP ready"), "does not speak the protocol of Hawser"),
        (
            frame(FrameKind.WELCOME, 0, write_welcome(Introduction(identity=NODE, most_requests=1), 9)),
            "version 9 of the protocol, which was not offered",
        ),
    ],
    ids=["HTTP", "no greeting", "SMTP", "newer"],
)
def test_dialing_what_is_no_node(answer: bytes, text: str) -> None:
    with pytest.raises(Unreachable, match=text):
        run(dial_what_answers(answer))


class Choosy(Recorder):
    def admit(self, peer: Identity) -> str | None:
        return None if peer.role is PeerRole.NODE else f"{peer} is not on the list"


def test_refused_by_the_handler() -> None:
    async def scenario() -> None:
        there = Choosy()
        async with serving(there) as server:
            with pytest.raises(Refused, match=r"127.0.0.1:\d+ refuses: client shop is not on the list"):
                await dial(server.address, CLIENT, settings=PATIENT)
            assert not there.links and not there.reasons
            assert server.counters.links_refused == 1

    run(scenario())


def test_refused_for_its_cluster() -> None:
    async def scenario() -> None:
        async with serving(Recorder()) as server:
            stranger = msgspec.structs.replace(CLIENT, cluster="red")
            with pytest.raises(
                Refused, match="node a belongs to cluster blue and client shop to cluster red"
            ):
                await dial(server.address, stranger, settings=PATIENT)
            # A server that learns its cluster later shows it from then on.
            server.identity = msgspec.structs.replace(NODE, cluster="red")
            link = await dial(server.address, stranger, settings=PATIENT)
            assert link.peer is not None and link.peer.cluster == "red"
            await link.close()

    run(scenario())


def test_refused_for_its_version() -> None:
    async def scenario() -> None:
        async with serving(Recorder()) as server, bare(server) as (reader, writer):
            body = write_hello(Introduction(identity=CLIENT, most_requests=1), (7, 9))
            writer.write(frame(FrameKind.HELLO, 0, body + b" and words of the future"))
            kind, _, refusal = await read_frame(reader)
            assert kind is FrameKind.REFUSAL
            assert b"this side speaks version 1 of the protocol and the other versions 7 to 9" in refusal
            assert await reader.read() == b""

    run(scenario())


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50),
        HEADER.pack(MAX_HELLO_BYTES + 1, FrameKind.HELLO, 0),
        frame(FrameKind.TELL, 0, b"no hello first"),
        frame(FrameKind.HELLO, 0, b""),
        frame(FrameKind.HELLO, 0, write_hello(Introduction(identity=CLIENT, most_requests=1))[:-3]),
    ],
)
def test_garbage_instead_of_a_hello(garbage: bytes) -> None:
    async def scenario() -> None:
        there = Recorder()
        async with serving(there) as server, bare(server) as (reader, writer):
            writer.write(garbage)
            kind, _, text = await read_frame(reader)
            assert kind is FrameKind.REFUSAL and b"malformed" in text
            assert not there.links and server.counters.links_malformed == 1

    run(scenario())


@pytest.mark.parametrize(
    ("garbage", "text"),
    [
        (HEADER.pack((1 << 32) - 1, FrameKind.TELL, 0), b"a frame of 4294967295 bytes"),
        (frame(99, 0, b""), b"kind 99"),
        (frame(0, 0, b""), b"kind 0"),
        (hello_frame(), b"kind 1,"),
        (frame(FrameKind.ANSWER, 1, b"unasked"), b"never sent"),
        (frame(FrameKind.FAILURE, 0, b"unasked"), b"never sent"),
        (frame(FrameKind.ASK, 0, b"without a number"), b"the number 0"),
        (frame(FrameKind.ASK, 5, b"hold") * 2, b"a second request with the number 5"),
    ],
)
def test_garbage_after_a_hello(garbage: bytes, text: bytes) -> None:
    """The peer hears why although it goes on sending, and the link beside it does not notice."""

    async def scenario() -> None:
        there = Silent()
        async with linked(there) as (server, witness), bare(server) as (reader, writer):
            await greeted(reader, writer)
            writer.write(frame(FrameKind.TELL, 0, b"sound") + garbage + bytes(1 << 20))
            kind, _, reason = await read_frame(reader)
            assert kind is FrameKind.GOODBYE and text in reason
            assert there.told_bodies == [b"sound"]
            assert server.counters.links_malformed == 1
            assert witness.tell(b"unmoved")
            await there.until(lambda: there.told_bodies[-1] == b"unmoved")
            assert not [request for request in there.requests if request.is_waiting]

    run(scenario())


def test_a_cancellation_of_nothing_is_nothing() -> None:
    async def scenario() -> None:
        async with serving(Recorder()) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            writer.write(frame(FrameKind.CANCEL, 77, b"") + frame(FrameKind.PING, 0, b""))
            assert (await read_frame(reader))[0] is FrameKind.PONG

    run(scenario())


def test_a_peer_that_leaves_in_the_middle_of_a_frame() -> None:
    async def scenario() -> None:
        there = Recorder()
        async with serving(there) as server:
            async with bare(server) as (reader, writer):
                await greeted(reader, writer)
                writer.write(frame(FrameKind.TELL, 0, bytes(1 << 20))[:-1])
                await writer.drain()
            await there.until(lambda: there.reasons)
            assert not there.told_bodies and not server.links

    run(scenario())


def test_a_peer_that_ends_its_side_only() -> None:
    """Half a connection is none."""

    async def scenario() -> None:
        there = Silent()
        async with serving(there) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            writer.write(frame(FrameKind.ASK, 1, b""))
            writer.write_eof()
            await there.until(lambda: there.reasons)
            assert await reader.read() == b""
            assert not there.requests[0].is_waiting

    run(scenario())


@pytest.mark.parametrize(("goodbye_seconds", "seconds"), [(0.05, None), (0.05, 60.0), (60.0, 0.05)])
def test_closing_a_link_to_a_peer_that_does_not_read(goodbye_seconds: float, seconds: float | None) -> None:
    settings = LinkSettings(goodbye_seconds=goodbye_seconds)

    async def scenario() -> None:
        there = Recorder()
        async with serving(there, settings) as server, bare(server) as (reader, writer):
            await greeted(reader, writer)
            (link,) = server.links
            while link.tell(bytes(100_000)):
                await asyncio.sleep(0)
            async with asyncio.timeout(20):
                await link.close(seconds=seconds)
            assert there.reasons and not server.links

    run(scenario())
