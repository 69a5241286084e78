"""What a process does with its links: to be derived from."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from hawser.cluster.transport.hello import Identity
from hawser.cluster.transport.outgoing import Body
from hawser.cluster.transport.requests import Request

if TYPE_CHECKING:
    from hawser.cluster.transport.link import Link

__all__ = ["Handler"]


class Handler:
    """Called in the event loop, one call at a time. Nothing here may block.

    A Malformed, or what a decoder of msgspec raises, out of `told` or `asked` closes the link and tells the
    peer why; out of a coroutine only a Malformed does. Any other error is logged and costs that message only.
    """

    def admit(self, peer: Identity) -> str | None:
        """Why this peer is not wanted, as a text for whoever runs it; None lets it in. Asked by the side that
        listens."""
        return None

    def opened(self, link: "Link") -> None:
        """Both sides have said who they are."""

    def told(self, link: "Link", body: bytes | bytearray) -> None:
        """A message that nobody waits on."""

    def asked(self, link: "Link", request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        """A request. Return the answer, or a coroutine that does, or None and call `request.answer` later."""
        request.fail("this peer serves no requests")
        return None

    def closed(self, link: "Link", reason: str) -> None:
        """Called once for each link that was opened."""
