"""Links that are sent anything at all: each ends as a closed link, or goes on; nothing else ever happens.

A conversation begins sound and is then changed: bits, bytes, lengths, frames doubled, dropped and cut, noise.
It is put into a link in pieces of random sizes. Nothing may be raised into the event loop or logged as an
error, no request may stay behind, and a closed link has told its handler once.
"""

import asyncio
import logging
import os
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from hawser.cluster.transport import Counters, Link, LinkSettings, Request, TransportError
from hawser.cluster.transport.frames import HEADER, FrameKind
from hawser.cluster.transport.handshake import Introduction, write_welcome
from hawser.cluster.transport.outgoing_requests import OutgoingRequests
from tests.support.links import CLIENT, NODE, Recorder, bare, frame, hello_frame, linked, run

Record = Callable[[str, object], None]

CONVERSATIONS = 4000
SOCKET_CONVERSATIONS = 300
MOST_FRAME_BYTES = 1 << 20
SETTINGS = LinkSettings(
    most_frame_bytes=MOST_FRAME_BYTES, most_requests=8, most_outgoing_bytes=4096, goodbye_seconds=50
)
WELCOME = frame(FrameKind.WELCOME, 0, write_welcome(Introduction(identity=NODE, most_requests=100), 1))
KINDS = [int(kind) for kind in FrameKind]


class Wire(asyncio.Transport):
    """A transport without a socket: counts what is written, and calls back as asyncio's does."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.written = 0
        self.is_reading_paused = False
        self._is_closing = False
        link.connection_made(self)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def put(self, data: bytes) -> int:
        """What the link takes of it in one go."""
        room = self.link.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        self.link.buffer_updated(count)
        return count


class Fickle(Recorder):
    """Answers some requests at once, some later, some never; asks ten by itself if it is told to."""

    def __init__(self, asks: bool = False) -> None:
        super().__init__()
        self.asks = asks
        self.asking: list[asyncio.Task[bytes | bytearray]] = []

    def opened(self, link: Link) -> None:
        super().opened(link)
        if self.asks:
            self.asking = [asyncio.create_task(link.ask(b"?", None)) for _ in range(10)]

    def answer(self, request: Request) -> Any:
        choice = len(request.body) % 4
        if choice == 0:
            return request.body
        return self.later(request.body) if choice == 1 else None

    async def later(self, body: bytes | bytearray) -> bytes | bytearray:
        await asyncio.sleep(0)
        return body


def sound(chance: random.Random, answers: bool = False) -> list[bytes]:
    """Frames that belong together: those of a dialer that asks, or of a listener that answers."""
    asking = (FrameKind.TELL, FrameKind.ASK, FrameKind.ASK, FrameKind.PING, FrameKind.CANCEL)
    answering = (FrameKind.TELL, FrameKind.ANSWER, FrameKind.ANSWER, FrameKind.FAILURE, FrameKind.PONG)
    frames = [WELCOME if answers else hello_frame()]
    for number in range(1, chance.randrange(2, 12)):
        body = chance.randbytes(chance.choice((0, 1, 2, 7, 100, 3000)))
        kind = chance.choice(answering if answers else asking)
        frames.append(frame(kind, 0 if kind is FrameKind.TELL else number, body))
    return frames


def changed(chance: random.Random, frames: list[bytes]) -> bytes:
    """The same, a few times damaged."""
    frames = list(frames)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(frames))
        target = bytearray(frames[place])
        damage = chance.randrange(8)
        if damage == 0:
            frames.insert(place, frames[chance.randrange(len(frames))])
        elif damage == 1 and len(frames) > 1:
            del frames[place]
        elif damage == 2:
            frames[place] = bytes(target[: chance.randrange(len(target))])
        elif damage == 3:
            length = chance.choice((0, 1, MOST_FRAME_BYTES, MOST_FRAME_BYTES + 1, (1 << 32) - 1))
            frames[place] = struct.pack("<I", length) + bytes(target[4:])
        elif damage == 4:
            kind, number = chance.choice([*KINDS, 0, 12, 255]), chance.choice((0, 1, 2, (1 << 64) - 1))
            frames[place] = frame(kind, number, bytes(target[HEADER.size :]))
        elif damage == 5 and target:
            target[chance.randrange(len(target))] ^= 1 << chance.randrange(8)
            frames[place] = bytes(target)
        elif damage == 6:
            frames.insert(place, frame(chance.choice(KINDS), chance.randrange(4), chance.randbytes(20)))
        else:
            frames.insert(place, chance.randbytes(chance.randrange(1, 60)))
        frames = [each for each in frames if each] or [b"\0"]
    return b"".join(frames)


class Errors(logging.Handler):
    """Collects what must not happen."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


async def converse(seed: int) -> tuple[str, str]:
    """One conversation: how it ended, and what was wrong."""
    chance = random.Random(seed)
    dials = seed % 2 == 1
    data = changed(chance, sound(chance, dials))
    handler, counters = Fickle(dials), Counters()
    link = Link(handler, lambda: NODE, SETTINGS, counters, dials="a:1" if dials else None)
    wire = Wire(link)
    try:
        while data and not wire.is_closing():
            if wire.is_reading_paused:
                for request in handler.requests:
                    request.answer(b"")
                await asyncio.sleep(0)
                continue
            count = wire.put(data[: chance.choice((1, 2, 13, 100, 5000))])
            data = data[count:]
            await asyncio.sleep(0)
    except Exception as error:
        return "raised", repr(error)
    ended = "closed" if link.reason else ("open" if link.is_open else "greeting")
    wire.close()
    for _ in range(4):
        await asyncio.sleep(0)
    wrong = ""
    if not all(
        task.done() and isinstance(task.exception(), TransportError | None) for task in handler.asking
    ):
        wrong = f"asks that end otherwise: {handler.asking}"
    elif len(handler.reasons) != len(handler.links):
        wrong = f"opened {len(handler.links)} times and closed {len(handler.reasons)} times"
    elif counters.requests_in_progress or counters.asks_in_flight or counters.links:
        wrong = f"left behind: {counters}"
    return ended, wrong


async def attack(seeds: range, seconds: float = 1e9) -> tuple[dict[str, int], list[str]]:
    """Counts of how conversations ended, and what was wrong, with its seed."""
    errors = Errors()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.found.append(str(context)))
    logger = logging.getLogger("hawser.cluster.transport")
    logger.addHandler(errors)
    ends: dict[str, int] = {}
    faults = []
    until = time.monotonic() + seconds
    try:
        for seed in seeds:
            end, wrong = await converse(seed)
            ends[end] = ends.get(end, 0) + 1
            if wrong or errors.found:
                faults.append(f"seed {seed}: {wrong} {errors.found}")
                errors.found.clear()
            if time.monotonic() > until:
                break
    finally:
        logger.removeHandler(errors)
    return ends, faults


def test_changed_conversations(record_property: Record) -> None:
    ends, faults = run(attack(range(CONVERSATIONS)))
    assert not faults, faults[:5]
    assert set(ends) == {"closed", "open", "greeting"}, "the attack reaches every way to end"
    for end, count in sorted(ends.items()):
        record_property(end, count)


@pytest.mark.soak
def test_changed_conversations_for_long(soak_seconds: float, record_property: Record) -> None:
    first = int.from_bytes(os.urandom(4)) << 20
    ends, faults = asyncio.run(attack(range(first, first + (1 << 40)), soak_seconds))
    assert not faults, faults[:5]
    record_property("conversations", sum(ends.values()))
    record_property("first seed", first)


def test_canary_an_answer_to_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a link that believes every answer was asked for."""

    def believing(self: OutgoingRequests, number: int, body: bytes) -> None:
        future, _, _ = self._pending.pop(number)
        self._counters.asks_in_flight -= 1
        future.set_result(body)

    monkeypatch.setattr(OutgoingRequests, "answered", believing)
    ends, faults = run(attack(range(CONVERSATIONS // 4)))
    assert ends["raised"] and "KeyError" in faults[0]


def test_canary_asks_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a link that forgets who waits for an answer."""
    monkeypatch.setattr(OutgoingRequests, "close", lambda self, reason: None)
    _, faults = run(attack(range(CONVERSATIONS // 10)))
    assert faults and "asks that end otherwise" in faults[0]


def test_canary_requests_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a link that forgets to end its requests."""
    monkeypatch.setattr(
        "hawser.cluster.transport.incoming_requests.IncomingRequests.close", lambda self: None
    )
    _, faults = run(attack(range(CONVERSATIONS // 10)))
    assert faults and "left behind" in faults[0]


def test_changed_conversations_over_sockets(record_property: Record) -> None:
    """The same over loopback, beside a link that must not notice; in the end it is the only one left."""

    async def scenario() -> int:
        errors = Errors()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.found.append(str(context)))
        logging.getLogger("hawser.cluster.transport").addHandler(errors)
        there = Fickle()
        async with linked(there, LinkSettings(goodbye_seconds=0.01)) as (server, witness):
            for seed in range(SOCKET_CONVERSATIONS):
                chance = random.Random(seed)
                async with bare(server) as (_, writer):
                    writer.write(changed(chance, sound(chance)))
                    if chance.random() < 0.5:
                        await writer.drain()
                        writer.write_eof()
                assert await witness.ask(b"four", 50) == b"four"
            while len(server.links) > 1 or server.counters.links > 1:
                await asyncio.sleep(0.01)
            assert server.links[0].peer == CLIENT
            logging.getLogger("hawser.cluster.transport").removeHandler(errors)
            assert not errors.found, errors.found[:3]
            return server.counters.links_malformed + server.counters.links_refused

    refused = run(scenario())
    assert refused > 0
    record_property("conversations", SOCKET_CONVERSATIONS)
    record_property("refused or malformed", refused)
