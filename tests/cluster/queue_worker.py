"""A client process that puts, consumes, buries or lies, and notes everything.

    python -m tests.cluster.queue_worker put|consume|aio|bury|lie URL NAME FILE

It goes on until its standard input ends. Every value names its producer and a number, so none comes twice;
those that end in "poison" nobody accepts. They become dead letters, which have to be buried, that is accepted
as such: they count against what the queue may hold, and would fill it for good. A note is written before
something is asked for and after it was answered, so what a killed process had asked for is known.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.client import addresses_of
from hawser.cluster.transport import Identity, Link, PeerRole, TransportError, dial
from hawser.log.queue.claims import NO_TOKEN
from tests.cluster.worker import PATIENT, Until
from tests.support.lines import Lines

__all__ = ["MAX_DELIVERIES", "POISON", "QUEUE", "SESSION_SECONDS", "Notes", "accept_all", "is_poison", "main"]

QUEUE: Final = "attacked-queue"
POISON: Final = "poison"
MAX_DELIVERIES: Final = 3
SESSION_SECONDS: Final = 1.5
_ROOM_SECONDS: Final = 2.0
_MOST_TOGETHER: Final = 8
_ANSWER_SECONDS: Final = 2.0


class Notes:
    """A line for each event."""

    def __init__(self, file: str | Path) -> None:
        self._lines = Lines(file)

    def write(self, deed: str, state: str, values: Iterable[str], **more: Any) -> None:
        for value in values:
            self._lines.write(msgspec.json.encode({"deed": deed, "state": state, "value": value, **more}))


def _connect(url: str, name: str) -> hawser.Bus:
    return hawser.connect(url, name=name, session_seconds=SESSION_SECONDS, **PATIENT)


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
                _note_failure(notes, "put", "refused", some, error)
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
            fine = [each for each in messages if not is_poison(each)]
            if random.random() < 0.5:
                accept_all(notes, hawser.Messages(fine, messages._settle))
            else:
                for message in fine:
                    _accept_or_release(notes, message, random)
            for message in filter(is_poison, messages):
                if random.random() < 0.5:
                    _release(notes, message)
                else:
                    with suppress(hawser.HawserError):
                        message.reject()


def _accept_or_release(notes: Notes, message: hawser.Message, random: Random) -> None:
    if random.random() < 0.9:
        notes.write("accept", "begin", [_text(message)])
        _accept(notes, message, "accept")
    else:
        _release(notes, message)


def _release(notes: Notes, message: hawser.Message) -> None:
    with suppress(hawser.HawserError):
        message.release()
        notes.write("release", "ok", [_text(message)], count=message.delivery_count)


def bury(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Accept the dead letters, some together."""
    with _connect(url, name) as bus:
        dead_letters: Any = bus.queue(QUEUE, create=False).dead_letters()
        while goes_on:
            accept_all(notes, dead_letters.get_many(_MOST_TOGETHER, timeout=0.2), "bury")


def accept_all(notes: Notes, messages: hawser.Messages, deed: str = "accept") -> None:
    """All together; then each is asked what became of it."""
    notes.write(deed, "begin", map(_text, messages))
    with suppress(hawser.HawserError):
        messages.accept()
    for message in messages:
        _accept(notes, message, deed)


def _accept(notes: Notes, message: hawser.Message, deed: str) -> None:
    try:
        message.accept()
    except hawser.HawserError as error:
        _note_failure(notes, deed, "fenced", [_text(message)], error)
    else:
        notes.write(deed, "ok", [_text(message)])


def _note_failure(
    notes: Notes, deed: str, state: str, values: Iterable[str], error: hawser.HawserError
) -> None:
    """It is in this state if nothing was done."""
    notes.write(deed, state if error.outcome == "none" else "unknown", values, error=str(error)[:300])


def _note_got(notes: Notes, messages: Iterable[Any]) -> None:
    for each in messages:
        notes.write("get", "ok", [_text(each)], count=each.delivery_count, again=each.redelivered)


def _text(message: Any) -> str:
    return bytes(message).decode()


def is_poison(message: Any) -> bool:
    return _text(message).endswith(POISON)


def in_a_loop(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Iterate with what is got ahead, and put, in one event loop."""
    asyncio.run(_in_a_loop(url, name, notes, goes_on))


async def _in_a_loop(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    async with aio.connect(url, name=name, session_seconds=SESSION_SECONDS, **PATIENT) as bus:
        queue: aio.AsyncQueue[Any] = bus.queue(QUEUE, create=False)
        consuming = asyncio.create_task(_consume_in_a_loop(queue, notes))
        values = _Values(name)
        while goes_on:
            some = [values.next() for _ in range(4)]
            notes.write("put", "begin", some)
            await asyncio.gather(*(_put_in_a_loop(queue, notes, each) for each in some))
        consuming.cancel()
        with suppress(asyncio.CancelledError):
            await consuming


async def _put_in_a_loop(queue: aio.AsyncQueue[Any], notes: Notes, value: str) -> None:
    try:
        await queue.put(value.encode(), timeout=_ROOM_SECONDS)
    except hawser.HawserError as error:
        _note_failure(notes, "put", "refused", [value], error)
    else:
        notes.write("put", "ok", [value])


async def _consume_in_a_loop(queue: aio.AsyncQueue[Any], notes: Notes) -> None:
    async with queue.consume(prefetch=_MOST_TOGETHER) as consumer:
        async for message in consumer:
            _note_got(notes, [message])
            if is_poison(message):
                continue
            notes.write("accept", "begin", [_text(message)])
            try:
                await message.accept()
            except hawser.HawserError as error:
                _note_failure(notes, "accept", "fenced", [_text(message)], error)
            else:
                notes.write("accept", "ok", [_text(message)])


def lie(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    """Accept messages that others hold, or nobody: under names that hold none, and under what is shown of
    those who hold some."""
    asyncio.run(_lie(url, name, notes, goes_on))


async def _lie(url: str, name: str, notes: Notes, goes_on: Until) -> None:
    random, links = Random(name), 0
    while goes_on:
        try:
            with hawser.connect(url, name=name, **PATIENT) as bus:
                info = await asyncio.to_thread(bus.queue(QUEUE, create=False).info)
        except hawser.Unavailable:
            continue
        place, shown = info.partitions[0], [each.session for each in info.owners]
        for address in addresses_of(url):
            links += 1
            run = f"{name}.{links}"
            with suppress(TransportError):
                link = await dial(address, Identity(role=PeerRole.CLIENT, name=name, run=run))
                lies = await _lies(link, place.shard, place.epoch, run, random)
                for lied, session in product(lies, (f"{run}.nothing", *shown)):
                    request = wire.QueueSettle(place.shard, 0, session, 1, 1, (lied,))
                    is_believed = isinstance(await _asked(link, request), wire.Executed)
                    notes.write("lie", "believed" if is_believed else "refused", [f"{lied} at {address}"])
                await link.close()


async def _lies(link: Link, shard: str, epoch: int, session: str, random: Random) -> list[wire.TokenRun]:
    """Tokens of any time, and some that were lent just now, if it is the leader that is lied to: a message
    that is got and given back unseen tells how far the numbers are."""
    lies = [(random.randint(max(0, epoch - 2), epoch), random.randint(1, 2000), random.randint(1, 50))]
    get = wire.QueueGet(shard, 0, session, 1, NO_TOKEN, 1, 1000, SESSION_SECONDS)
    answer = await _asked(link, get)
    await _asked(link, msgspec.structs.replace(get, request=2, most=0, is_last=True))
    if isinstance(answer, wire.Delivered) and answer.delivery_batches:
        token = answer.delivery_batches[0].token
        lies += [(token.epoch, max(0, token.number - random.randint(1, _MOST_TOGETHER)), 1) for _ in range(4)]
    return lies


async def _asked(link: Link, request: wire.QueueGet | wire.QueueSettle) -> wire.Answer:
    return wire.decode_answer(await link.ask(wire.encode(request), _ANSWER_SECONDS))


_ROLES: Final[dict[str, Callable[[str, str, Notes, Until], None]]] = {
    "put": put,
    "consume": consume,
    "aio": in_a_loop,
    "bury": bury,
    "lie": lie,
}


def main() -> None:
    role, url, name, file = sys.argv[1:]
    _ROLES[role](url, name, Notes(file), Until())


if __name__ == "__main__":
    main()
