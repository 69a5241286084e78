"""Requests to a node and its answers, as every part of the client asks.

What `ask` returns goes through `checked` before anything else looks at it.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from hawser.cluster.client.answer_checks import check_answer
from hawser.cluster.transport import VERSIONS, Link, Malformed, TransportError
from hawser.cluster.wire import Answer, Request, decode_answer

__all__ = ["ask", "checked", "gather_bounded"]

T = TypeVar("T")
# A call about every topic asks for so many at a time.
_MOST_AT_A_TIME: Final = 64


async def ask(link: Link, body: bytes, timeout_seconds: float) -> Answer:
    """The answer of any node. One that cannot be read is a TransportError, as in `checked`."""
    data = await link.ask(body, timeout_seconds)
    try:
        return decode_answer(data)
    except msgspec.DecodeError as error:
        raise _protocol_error(link, f"an answer that cannot be read ({error})") from error


def checked(link: Link, request: Request | type[Request], answer: Answer) -> Answer:
    """The answer to this request, or to one of this type. If no sound node gives it, a TransportError: the
    request may have taken effect, as if the answer were lost. The link is closed then, so that the request is
    sent elsewhere."""
    try:
        check_answer(request, answer)
    except Malformed as error:
        what = f"a {type(answer).__name__} as the answer to a {_name(request)}: {error}"
        raise _protocol_error(link, what) from error
    return answer


def _name(request: Request | type[Request]) -> str:
    return (request if isinstance(request, type) else type(request)).__name__


def _protocol_error(link: Link, what: str) -> TransportError:
    lowest, highest = VERSIONS
    error = TransportError(
        f"{link} sent {what}. It speaks version {link.version} of the protocol, and this "
        f"client {lowest} to {highest}; do both have the same version of Hawser?",
        was_sent=True,
    )
    link.close_malformed(error)
    return error


async def gather_bounded(works: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
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
