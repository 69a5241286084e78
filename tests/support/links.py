"""Two ends of a link on loopback, a handler that writes down what it hears, and bare sockets to annoy it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hawser.cluster.transport import (
    Body,
    Handler,
    Identity,
    Link,
    LinkSettings,
    PeerRole,
    Request,
    Server,
    dial,
    listen,
)
from hawser.cluster.transport.frames import HEADER, FrameKind
from hawser.cluster.transport.handshake import Introduction, write_hello

R = TypeVar("R")

LOOPBACK = "127.0.0.1:0"
LIMIT_SECONDS = 120
NODE = Identity(role=PeerRole.NODE, name="a", run="a#1", cluster="blue")
CLIENT = Identity(role=PeerRole.CLIENT, name="shop", run="shop#1")
# Time passes for these links only when a test wants it to.
PATIENT = LinkSettings(ping_seconds=50, silence_seconds=100, connect_seconds=50)
# Signs of life come quickly, deadlines do not matter to what is asserted.
BRISK = LinkSettings(ping_seconds=0.02, silence_seconds=0.2, connect_seconds=0.2, goodbye_seconds=0.2)


def run(work: Coroutine[Any, Any, R]) -> R:
    """Run it in a loop of its own; a test that hangs fails."""

    async def limited() -> R:
        async with asyncio.timeout(LIMIT_SECONDS):
            return await work

    return asyncio.run(limited())


class Recorder(Handler):
    """Echoes requests, unless told otherwise, and writes down what it hears."""

    def __init__(self) -> None:
        self.told_bodies: list[bytes] = []
        self.requests: list[Request] = []
        self.links: list[Link] = []
        self.reasons: list[str] = []
        self._changed = asyncio.Event()

    async def until(self, condition: Any) -> None:
        """Return when `condition()` holds; looked at whenever something was heard."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def opened(self, link: Link) -> None:
        self.links.append(link)
        self._changed.set()

    def told(self, link: Link, body: bytes | bytearray) -> None:
        self.told_bodies.append(bytes(body))
        self._changed.set()

    def asked(self, link: Link, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        self.requests.append(request)
        self._changed.set()
        return self.answer(request)

    def answer(self, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        return request.body

    def closed(self, link: Link, reason: str) -> None:
        self.reasons.append(reason)
        self._changed.set()


class Silent(Recorder):
    """Answers no request by itself."""

    def answer(self, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        return None


@asynccontextmanager
async def serving(handler: Handler, settings: LinkSettings = PATIENT) -> AsyncIterator[Server]:
    server = await listen(LOOPBACK, handler, NODE, settings=settings)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def linked(
    handler: Handler,
    settings: LinkSettings = PATIENT,
    *,
    mine: Handler | None = None,
    my_settings: LinkSettings = PATIENT,
) -> AsyncIterator[tuple[Server, Link]]:
    """A server with `handler`, and an open link to it with the handler `mine`."""
    async with serving(handler, settings) as server:
        link = await dial(server.address, CLIENT, mine, settings=my_settings)
        try:
            yield server, link
        finally:
            await link.close()


def frame(kind: int, number: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), kind, number) + body


def hello_frame(identity: Identity = CLIENT) -> bytes:
    return frame(FrameKind.HELLO, 0, write_hello(Introduction(identity=identity, most_requests=100)))


@asynccontextmanager
async def bare(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server, without a link on this side."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_frame(reader: asyncio.StreamReader) -> tuple[FrameKind, int, bytes]:
    length, kind, number = HEADER.unpack(await reader.readexactly(HEADER.size))
    return FrameKind(kind), number, await reader.readexactly(length)


async def greeted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say hello and hear the welcome."""
    writer.write(hello_frame())
    assert (await read_frame(reader))[0] is FrameKind.WELCOME
