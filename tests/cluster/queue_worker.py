"""A client process that puts, consumes or lies, and notes everything.

    python -m tests.cluster.queue_worker put|consume|aio|lie URL NAME FILE

It goes on until its standard input ends. Every value names its producer and a number, so none comes twice;
those that end in "poison" nobody accepts. A note is written before something is asked for and after it was
answered, so what a killed process had asked for is known.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.client import addresses_of
from hawser.cluster.transport import Identity, PeerRole, TransportError, dial
from tests.cluster.worker import Until

__all__ = ["MAX_DELIVERIES", "POISON", "QUEUE", "SESSION_SECONDS", "Notes", "main"]

QUEUE: Final = "attacked-queue"
POISON: Final = "poison"
MAX_DELIVERIES: Final = 3
SESSION_SECONDS: Final = 1.5
_PATIENCE_SECONDS: Final = 30.0
_ROOM_SECONDS: Final = 2.0
_MOST_TOGETHER: Final = 8


class Notes:
    """A line for each event, on disk before anything else happens."""

    def __init__(self, file: str) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, deed: str, state: str, values: Iterable[str], **more: Any) -> None:
        for value in values:
            line = msgspec.json.encode({"deed": deed, "state": state, "value": value, **more})
            os.write(self._descriptor, line + b"\n")


def _connect(url: str, name: str) -> hawser.Bus:
    return hawser.connect(url, name=name, timeout=_PATIENCE_SECONDS, session_seconds=SESSION_SECONDS)


class _Values:
    """New ones, of which some are poison."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._number = 0

    def next(self) -> str:
        self._number += 1
        return f"{self._name}.{self._number}.{POISON if self._number % 20 == 0 else 'fine'}"


def put(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Put one message or some together, one request after the other."""
    random, values = Random(name), _Values(name)
    with _connect(url, name) as bus:
        queue: Any = bus.queue(QUEUE, create=False)
        while goes_on:
            some = [values.next() for _ in range(random.choice((1, 1, 3, _MOST_TOGETHER)))]
            notes.write("put", "begin", some)
            try:
                if len(some) == 1:
                    queue.put(some[0].encode(), timeout=_ROOM_SECONDS)
                else:
                    queue.put_many([each.encode() for each in some], timeout=_ROOM_SECONDS)
            except hawser.HawserError as error:
                notes.write("put", "refused" if error.outcome == "none" else "unknown", some)
            else:
                notes.write("put", "ok", some)


def consume(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Get some, and accept most of them, one by one or together."""
    random = Random(name)
    with _connect(url, name) as bus:
        queue: Any = bus.queue(QUEUE, create=False)
        while goes_on:
            messages = queue.get_many(random.randint(1, _MOST_TOGETHER), timeout=0.2)
            _note_got(notes, messages)
            fine = [each for each in messages if not _is_poison(each)]
            together = random.random() < 0.5
            if together:
                notes.write("accept", "begin", map(_text, fine))
                with suppress(hawser.HawserError):
                    hawser.Messages(fine, messages._settle).accept()
            for message in messages:
                if _is_poison(message):
                    with suppress(hawser.HawserError):
                        random.choice((message.release, message.reject))()
                elif together or random.random() < 0.9:
                    _accept(notes, message, together)
                else:
                    with suppress(hawser.HawserError):
                        message.release()


def _accept(notes: Notes, message: hawser.Message, begun: bool) -> None:
    if not begun:
        notes.write("accept", "begin", [_text(message)])
    try:
        message.accept()
    except hawser.HawserError as error:
        notes.write("accept", "fenced" if error.outcome == "none" else "unknown", [_text(message)])
    else:
        notes.write("accept", "ok", [_text(message)])


def _note_got(notes: Notes, messages: Iterable[Any]) -> None:
    for each in messages:
        notes.write("get", "ok", [_text(each)], count=each.delivery_count, again=each.redelivered)


def _text(message: Any) -> str:
    return bytes(message).decode()


def _is_poison(message: Any) -> bool:
    return _text(message).endswith(POISON)


def in_a_loop(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Iterate with what is got ahead, and put, in one event loop."""
    asyncio.run(_in_a_loop(url, name, notes, goes_on))


async def _in_a_loop(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    settings = {"timeout": _PATIENCE_SECONDS, "session_seconds": SESSION_SECONDS}
    async with aio.connect(url, name=name, **settings) as bus:
        queue: aio.AsyncQueue[Any] = bus.queue(QUEUE, create=False)
        consuming = asyncio.create_task(_consume_in_a_loop(queue, notes))
        values = _Values(name)
        while goes_on:
            some = [values.next() for _ in range(4)]
            notes.write("put", "begin", some)
            await asyncio.gather(*(_put_in_a_loop(queue, notes, each) for each in some))
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)


async def _put_in_a_loop(queue: aio.AsyncQueue[Any], notes: Notes, value: str) -> None:
    try:
        await queue.put(value.encode(), timeout=_ROOM_SECONDS)
    except hawser.HawserError as error:
        notes.write("put", "refused" if error.outcome == "none" else "unknown", [value])
    else:
        notes.write("put", "ok", [value])


async def _consume_in_a_loop(queue: aio.AsyncQueue[Any], notes: Notes) -> None:
    async with queue.consume(prefetch=_MOST_TOGETHER) as consumer:
        async for message in consumer:
            _note_got(notes, [message])
            if _is_poison(message):
                continue
            notes.write("accept", "begin", [_text(message)])
            try:
                await message.accept()
            except hawser.HawserError as error:
                notes.write("accept", "fenced" if error.outcome == "none" else "unknown", [_text(message)])
            else:
                notes.write("accept", "ok", [_text(message)])


def lie(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Accept messages that others hold, or nobody, as nobody, or under their names."""
    asyncio.run(_lie(url, name, notes, goes_on))


async def _lie(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    random = Random(name)
    number = 0
    while goes_on:
        with hawser.connect(url, name=name) as bus:
            info = await asyncio.to_thread(bus.queue(QUEUE, create=False).info)
        shard, epoch = info.partitions[0].shard, info.partitions[0].epoch
        for address in addresses_of(url):
            number += 1
            first = random.randint(1, 2000)
            runs = ((random.randint(max(0, epoch - 2), epoch), first, random.randint(1, 50)),)
            request = wire.QueueSettle(shard, 0, f"{name}{number}", 1, 1, runs)
            with suppress(TransportError):
                link = await dial(address, Identity(role=PeerRole.CLIENT, name=name, run=f"{name}{number}"))
                answer = wire.decode_answer(await link.ask(wire.encode(request), 2.0))
                await link.close()
                state = "believed" if isinstance(answer, wire.Executed) else "refused"
                notes.write("lie", state, [f"{runs} at {address}"])


_ROLES: Final[dict[str, Callable[[str, str, Notes, Until], None]]] = {
    "put": put,
    "consume": consume,
    "aio": in_a_loop,
    "lie": lie,
}


def main() -> None:
    role, url, name, file = sys.argv[1:]
    _ROLES[role](url, name, Notes(file), Until())


if __name__ == "__main__":
    main()
