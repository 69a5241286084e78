"""The requests of a peer that are not answered yet.

A handler answers with bytes at once, with a coroutine that returns them, or later through the Request, from
anywhere in the loop. A request ends exactly once; later answers are ignored.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import TYPE_CHECKING, Any, Protocol

from hawser.cluster.transport.errors import Malformed
from hawser.cluster.transport.frames import FrameKind
from hawser.cluster.transport.handshake import Identity, shortened
from hawser.cluster.transport.send_queue import Body, SendQueue
from hawser.cluster.transport.settings import Counters

if TYPE_CHECKING:
    from hawser.cluster.transport.link import Link

__all__ = ["Handler", "IncomingRequests", "Request"]

_log = logging.getLogger("hawser.cluster.transport")


class Request:
    """One request. The handler may set `on_cancel`, which is called if the peer cancels the request or
    disconnects."""

    __slots__ = ("body", "number", "on_cancel", "task", "work", "_incoming_requests")

    def __init__(self, requests: "IncomingRequests", number: int, body: bytes | bytearray) -> None:
        self.body = body
        self.number = number
        self.on_cancel: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.work: Coroutine[Any, Any, Body] | None = None
        self._incoming_requests = requests

    @property
    def is_waiting(self) -> bool:
        """Whether the peer still waits for the answer."""
        return self._incoming_requests.is_waiting(self)

    def answer(self, body: Body) -> None:
        """Ends the request with an answer, which is never dropped."""
        self._incoming_requests.end(self, FrameKind.ANSWER, body)

    def fail(self, text: str) -> None:
        """Ends the request with AskFailed at the peer."""
        self._incoming_requests.end(self, FrameKind.FAILURE, shortened(text))


class Owner(Protocol):
    """The link."""

    def request_ended(self) -> None: ...
    def close_malformed(self, error: Exception) -> None: ...


class IncomingRequests:
    """The requests of one link, by number."""

    __slots__ = ("_owner", "_send_queue", "_counters", "_waiting")

    def __init__(self, owner: Owner, send_queue: SendQueue, counters: Counters) -> None:
        self._owner = owner
        self._send_queue = send_queue
        self._counters = counters
        self._waiting: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, number: int, body: bytes | bytearray) -> Request:
        if number in self._waiting or not number:
            raise Malformed(f"a second request with the number {number}")
        request = self._waiting[number] = Request(self, number, body)
        self._counters.requests += 1
        self._counters.requests_in_progress += 1
        return request

    def run(self, request: Request, work: Coroutine[Any, Any, Body]) -> None:
        """Answers with the result of the coroutine."""
        request.work = work
        request.task = asyncio.create_task(self._work(request, work))

    def is_waiting(self, request: Request) -> bool:
        return self._waiting.get(request.number) is request

    def end(self, request: Request, kind: FrameKind, body: Body) -> None:
        if self._forget(request):
            try:
                self._send_queue.put(kind, request.number, body)
            except ValueError as error:
                # Too large for a frame: the peer has to learn of it.
                _log.error("an answer cannot be sent: %s", error)
                self._send_queue.put(FrameKind.FAILURE, request.number, shortened(str(error)))
            self._owner.request_ended()

    def failed(self, request: Request, error: Exception) -> None:
        """A handler raised an unexpected error."""
        _log.error("a request failed unexpectedly", exc_info=error)
        request.fail(f"unexpected {type(error).__name__}: {error}. The log of the peer has more")

    def cancel(self, number: int) -> None:
        """The peer cancelled the request."""
        request = self._waiting.get(number)
        if request is not None:
            self._cancel(request)
            self._owner.request_ended()

    def close(self) -> None:
        """The link is closed."""
        for request in list(self._waiting.values()):
            self._cancel(request)

    def _cancel(self, request: Request) -> None:
        self._forget(request)
        if request.task is not None and request.work is not None:
            request.task.cancel()
            # A task that never started does not close its coroutine.
            if getcoroutinestate(request.work) == CORO_CREATED:
                request.work.close()
        if request.on_cancel is not None:
            try:
                request.on_cancel()
            except Exception:
                _log.exception("the handler of a cancelled request failed")

    def _forget(self, request: Request) -> bool:
        if self._waiting.get(request.number) is not request:
            return False
        del self._waiting[request.number]
        self._counters.requests_in_progress -= 1
        return True

    async def _work(self, request: Request, work: Coroutine[Any, Any, Body]) -> None:
        try:
            request.answer(await work)
        except asyncio.CancelledError:
            request.fail("the peer dropped the request: it is shutting down, or failed")
            raise
        except Malformed as error:
            self._owner.close_malformed(error)
        except Exception as error:
            self.failed(request, error)


class Handler:
    """How a process handles its links; subclasses override these methods.

    They are called in the event loop, one at a time, and must not block. A Malformed, or an error of a
    msgspec decoder, out of `told` or `asked` closes the link and tells the peer why; out of a coroutine only
    a Malformed does. Any other error is logged and affects that message only."""

    def admit(self, peer: Identity) -> str | None:
        """Why the listener refuses this peer, as a text for the peer's user; None admits it."""
        return None

    def opened(self, link: "Link") -> None:
        """Both sides have introduced themselves."""

    def told(self, link: "Link", body: bytes | bytearray) -> None:
        """A message without an answer."""

    def asked(self, link: "Link", request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        """A request. Returns the answer, or a coroutine that does, or None to call `request.answer` later."""
        request.fail("this peer serves no requests")
        return None

    def closed(self, link: "Link", reason: str) -> None:
        """Called once for each link that was opened."""
