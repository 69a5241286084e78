"""Requests to a node and its answers, as every part of the client asks."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from hawser.cluster.transport import Link, TransportError
from hawser.cluster.wire import Answer, decode_answer

__all__ = ["ask", "gathered"]

T = TypeVar("T")
# A call about every topic asks for so many at a time.
_MOST_AT_A_TIME: Final = 64


async def ask(link: Link, body: bytes, timeout_seconds: float) -> Answer:
    """The answer of whoever is there. One that cannot be read, of a newer node perhaps, is a TransportError
    like one that was lost: the request may have taken effect."""
    data = await link.ask(body, timeout_seconds)
    try:
        return decode_answer(data)
    except msgspec.DecodeError as error:
        raise TransportError(
            f"the answer of {link.address} cannot be read ({error}); is it newer than this client?",
            was_sent=True,
        ) from error


async def gathered(works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """What each of these comes to, in their order; a bounded number run at a time."""
    turns = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def in_turn(work: Coroutine[Any, Any, T]) -> T:
        async with turns:
            return await work

    try:
        return await asyncio.gather(*map(in_turn, works), return_exceptions=True)
    finally:
        # A cancelled call has some that never had their turn.
        for work in works:
            work.close()
