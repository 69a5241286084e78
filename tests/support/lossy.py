"""Requests of this process that are lost, late, or done without an answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.transport import Link, TransportError

__all__ = ["LossyNetwork"]

Wanted = Callable[[Any], bool]


def _none(request: Any) -> bool:
    return False


class LossyNetwork:
    """Between clients and nodes of this process. A function tells which requests it is about."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.loses: Wanted = _none
        self.delays: Wanted = _none
        self.delay_seconds = 0.0
        # The first of these, or all, are done, and `meanwhile` as well, before the answer is lost.
        self.loses_answer: Wanted = _none
        self.loses_all_answers = False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        ask = Link.ask

        async def lossy(link: Link, body: Any, timeout_seconds: float | None) -> bytes | bytearray:
            request = wire.decode_request(bytes(body))
            if self.delays(request):
                await asyncio.sleep(self.delay_seconds)
            if self.loses(request):
                await asyncio.sleep(0.05)
                raise TransportError("the request was lost", was_sent=False)
            answer = await ask(link, body, timeout_seconds)
            if self.loses_answer(request):
                if not self.loses_all_answers:
                    self.loses_answer = _none
                if self.meanwhile is not None:
                    await self.meanwhile()
                raise TransportError("the answer was lost", was_sent=True)
            return answer

        patch.setattr(Link, "ask", lossy)

    def lose(self, kind: type, since: int = 0) -> None:
        """Those of this kind; with `since` those that are about an offset from there on."""
        self.loses = lambda request: isinstance(request, kind) and getattr(request, "offset", since) >= since

    def heal(self) -> None:
        self.loses = self.delays = self.loses_answer = _none
