"""Requests to a node: `ask` sends one, and `checked` validates its answer before any other code uses it."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec

from hawser.cluster.client.answer_checks import check_answer
from hawser.cluster.transport import VERSIONS, Link, Malformed, TransportError
from hawser.cluster.wire import Answer, Request, decode_answer

__all__ = ["ask", "checked", "gather_bounded"]

T = TypeVar("T")
# The concurrency of a call about every topic.
_MOST_AT_A_TIME: Final = 64


async def ask(link: Link, body: bytes, timeout_seconds: float) -> Answer:
    """The answer to an encoded request. TransportError if there is none, or if it cannot be decoded."""
    data = await link.ask(body, timeout_seconds)
    try:
        return decode_answer(data)
    except msgspec.DecodeError as error:
        raise _protocol_error(link, f"an answer that cannot be read ({error})") from error


def checked(link: Link, request: Request | type[Request], answer: Answer) -> Answer:
    """The answer, after a check that a sound node may give it to this request, or to one of this type.
    Otherwise TransportError, as for a lost answer: the request may have taken effect. The link is closed
    then, so that the request is sent to another node."""
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
    """As `asyncio.gather` with `return_exceptions`, with a bounded number running at a time."""
    turns = asyncio.Semaphore(_MOST_AT_A_TIME)

    async def in_turn(work: Coroutine[Any, Any, T]) -> T:
        async with turns:
            return await work

    try:
        return await asyncio.gather(*map(in_turn, works), return_exceptions=True)
    finally:
        # A cancelled call has coroutines that never started.
        for work in works:
            work.close()
