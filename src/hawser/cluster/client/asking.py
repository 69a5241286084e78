"""Requests to a node and its answers, as every part of the client asks."""

import msgspec

from hawser.cluster.transport import Link, TransportError
from hawser.cluster.wire import Answer, decode_answer

__all__ = ["ask"]


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
