"""Makes links: listens for them, dials once, or keeps one open."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from random import SystemRandom
from typing import Final

from hawser.cluster.transport.address import Address
from hawser.cluster.transport.errors import Refused, TransportError, Unreachable
from hawser.cluster.transport.handshake import Identity
from hawser.cluster.transport.incoming_requests import Handler
from hawser.cluster.transport.link import Link
from hawser.cluster.transport.send_queue import Body
from hawser.cluster.transport.settings import DEFAULT_SETTINGS, Counters, LinkSettings

__all__ = ["Dialer", "Server", "dial", "listen"]

_log = logging.getLogger("hawser.cluster.transport")
# The global random generator belongs to the program, and a fork copies it.
_RANDOM: Final = SystemRandom()

_BACKLOG = 512


class Server:
    """Accepts links at an address. `identity` may be changed; later links present the new one."""

    def __init__(
        self, handler: Handler, identity: Identity, settings: LinkSettings, counters: Counters
    ) -> None:
        self.identity = identity
        self.counters = counters
        self.addresses: list[str] = []
        self._handler = handler
        self._settings = settings
        self._server: asyncio.Server | None = None
        self._is_closed = False
        self._links: set[Link] = set()

    @property
    def address(self) -> str:
        """The address, with the port that the system chose if it was 0."""
        return self.addresses[0]

    @property
    def links(self) -> list[Link]:
        """The open links."""
        return [link for link in self._links if link.is_open]

    async def start(self, address: Address, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._make_link, address.host, address.port, ssl=tls, backlog=_BACKLOG
            )
        except OSError as error:
            raise Unreachable(
                f"cannot listen at {address}: {error.strerror or error}. Is the address one of this machine, "
                "and the port free?"
            ) from error
        names = (listening.getsockname() for listening in self._server.sockets)
        self.addresses = [str(Address(name[0], name[1])) for name in names]

    async def close(self, reason: str = "the server closes") -> None:
        """Accepts no more links and closes the open ones; returns soon in any case."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(link.close(reason) for link in list(self._links)))

    def _make_link(self) -> Link:
        return Link(self._handler, self._introduce, self._settings, self.counters, among=self._links)

    def _introduce(self) -> Identity:
        # A connection may have been accepted just before the close.
        if self._is_closed:
            raise Refused("it is closing. Try again later, or at another address")
        return self.identity


async def listen(
    address: str,
    handler: Handler,
    identity: Identity,
    tls: ssl.SSLContext | None = None,
    *,
    settings: LinkSettings = DEFAULT_SETTINGS,
    counters: Counters | None = None,
) -> Server:
    """A server at `address`; Unreachable if the system refuses it."""
    server = Server(handler, identity, settings, counters or Counters())
    await server.start(Address.parse(address), tls)
    return server


async def dial(
    address: str,
    identity: Identity | Callable[[], Identity],
    handler: Handler | None = None,
    tls: ssl.SSLContext | None = None,
    *,
    settings: LinkSettings = DEFAULT_SETTINGS,
    counters: Counters | None = None,
) -> Link:
    """An open link to the listener at `address`; Unreachable or Refused if there is none."""
    place = Address.parse(address)
    introduce = identity if callable(identity) else lambda: identity
    link = Link(handler or Handler(), introduce, settings, counters or Counters(), dials=str(place))
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(settings.connect_seconds):
            await loop.create_connection(lambda: link, place.host, place.port, ssl=tls)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise Unreachable(_why_unreachable(place, error, settings)) from error
    try:
        await link.opening
    except asyncio.CancelledError:
        link.abort("not wanted any more")
        raise
    return link


def _why_unreachable(place: Address, error: Exception, settings: LinkSettings) -> str:
    if isinstance(error, ssl.SSLError):
        return (
            f"{place} cannot be trusted or does not speak TLS: {error}. Check the certificates of both sides"
        )
    if isinstance(error, TimeoutError):
        why = f"no connection within {settings.connect_seconds:g} s"
    else:
        why = str(getattr(error, "strerror", None) or error)
    return f"{place} cannot be reached: {why}. Is the process there running, and is the address right?"


class Dialer:
    """Keeps one link to `address` open: dials again, with growing pauses, whenever there is none.

    `link` is the open link, if there is one, else `trouble` says why not. The handler is told of links as
    they open and close. Start it in a running loop, and close it."""

    def __init__(
        self,
        address: str,
        identity: Identity | Callable[[], Identity],
        handler: Handler | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        settings: LinkSettings = DEFAULT_SETTINGS,
        counters: Counters | None = None,
    ) -> None:
        self.address = str(Address.parse(address))
        self.counters = counters or Counters()
        self.link: Link | None = None
        self.trouble = "not dialed yet"
        self.attempts = 0
        self._identity = identity
        self._handler = handler or Handler()
        self._tls = tls
        self._settings = settings
        self._is_up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to dial."""
        assert self._task is None, "started twice"
        self._task = asyncio.create_task(self._keep())

    def tell(self, body: Body) -> bool:
        """As Link.tell; the message is dropped if there is no link."""
        link = self.link
        if link is None:
            self.counters.tells_dropped += 1
            return False
        return link.tell(body)

    async def up(self, timeout_seconds: float | None = None) -> Link:
        """The open link, as soon as there is one; Unreachable, with the last error, if there is none in
        time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.link is None or not self.link.is_open:
                    self._is_up.clear()
                    await self._is_up.wait()
        except TimeoutError:
            raise Unreachable(f"no link within {timeout_seconds:g} s: {self.trouble}") from None
        return self.link

    def hurry(self) -> None:
        """Dials now, whatever the current pause: the peer may be reachable again."""
        self._hurry.set()

    async def close(self, reason: str = "closed on purpose", seconds: float | None = None) -> None:
        """Stops dialing, and closes the link as `Link.close` does."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        link, self.link = self.link, None
        if link is not None:
            await link.close(reason, seconds)

    async def _keep(self) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        pause_seconds = settings.backoff_least_seconds
        while True:
            self.attempts += 1
            self._hurry.clear()
            dialed_at = loop.time()
            self._note(await self._dial_and_stay())
            # A peer that accepts links and drops them at once is dialed with growing pauses, too.
            if self.link is not None and loop.time() - dialed_at > settings.backoff_most_seconds:
                pause_seconds = settings.backoff_least_seconds
            self.link = None
            await self._pause(pause_seconds)
            pause_seconds = min(2 * pause_seconds, settings.backoff_most_seconds)

    async def _dial_and_stay(self) -> str:
        """Return when there is no link, or no more; why."""
        try:
            link = await dial(
                self.address,
                self._identity,
                self._handler,
                self._tls,
                settings=self._settings,
                counters=self.counters,
            )
        except TransportError as error:
            return str(error)
        self.link, self.trouble = link, ""
        self._is_up.set()
        await link.wait_closed()
        return link.reason

    async def _pause(self, seconds: float) -> None:
        # Jitter: processes that lost the same peer must not all return at once.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * _RANDOM.uniform(0.5, 1.0)):
                await self._hurry.wait()

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.info("no link to %s: %s", self.address, trouble)
        self.trouble = trouble
