"""Ways to carry messages between two processes, measured side by side: python bench/transport.py

Each way has a server in a process of its own and a client here, on loopback, with asyncio's loop and with
uvloop's. Measured are 100-byte messages a second, sent 64 at a time without waiting; the round trip of one
(median); and megabytes a second in messages of 1 MiB. The ways take turns, round by round; printed are
medians over the rounds as JSON lines, with the lowest and highest round and the ratio to the first way.
grpc.aio and uvloop take part if they can be imported; to bring them without installing them:

    pip install --target DIRECTORY grpcio uvloop && PYTHONPATH=DIRECTORY python bench/transport.py
"""

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, cast

from hawser.cluster.transport import Handler, Identity, Link, PeerRole, Request, dial, listen

SMALL: Final = b"x" * 100
LARGE: Final = b"x" * (1 << 20)
TURN: Final = 64
HEADER: Final = struct.Struct("<IB")
ONE_WAY: Final = 0
ECHO: Final = 1
HOST: Final = "127.0.0.1"
# Servers that a loop would not keep by itself.
KEPT: Final[list[object]] = []


class Client(Protocol):
    """What a way must be able to do: send many messages and hear that all have come; ask once; end."""

    async def stream(self, body: bytes, count: int, turn: int) -> None: ...
    async def ask(self, body: bytes) -> None: ...
    async def close(self) -> None: ...


# Framed asyncio streams.


class StreamsClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def stream(self, body: bytes, count: int, turn: int) -> None:
        for number in range(count):
            self.writer.write(HEADER.pack(len(body), ONE_WAY) + body)
            if number % turn == turn - 1:
                await self.writer.drain()
        await self.ask(b"")

    async def ask(self, body: bytes) -> None:
        self.writer.write(HEADER.pack(len(body), ECHO) + body)
        length, _ = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        await self.reader.readexactly(length)

    async def close(self) -> None:
        self.writer.close()


async def serve_streams() -> int:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                length, kind = HEADER.unpack(await reader.readexactly(HEADER.size))
                body = await reader.readexactly(length)
                if kind == ECHO:
                    writer.write(HEADER.pack(length, ECHO) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    KEPT.append(server)
    return int(server.sockets[0].getsockname()[1])


async def connect_streams(port: int) -> Client:
    return StreamsClient(*await asyncio.open_connection(HOST, port))


# A bare asyncio.Protocol with the same frames.


class Framed(asyncio.Protocol):
    """Both sides: the server echoes what asks for it, the client waits for the echo."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.rest = b""
        self.echoed = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        data = self.rest + data if self.rest else data
        start = 0
        while len(data) - start >= HEADER.size:
            length, kind = HEADER.unpack_from(data, start)
            end = start + HEADER.size + length
            if end > len(data):
                break
            self.take(kind, data[start + HEADER.size : end])
            start = end
        self.rest = data[start:]

    def take(self, kind: int, body: bytes) -> None:
        if kind == ECHO:
            self.transport.write(HEADER.pack(len(body), ECHO) + body)


class FramedClient(Framed):
    def take(self, kind: int, body: bytes) -> None:
        self.echoed.set()

    async def stream(self, body: bytes, count: int, turn: int) -> None:
        for _ in range(count // turn):
            self.transport.write(b"".join([HEADER.pack(len(body), ONE_WAY) + body for _ in range(turn)]))
            await self.writable.wait()
        await self.ask(b"")

    async def ask(self, body: bytes) -> None:
        self.echoed.clear()
        self.transport.write(HEADER.pack(len(body), ECHO) + body)
        await self.echoed.wait()

    async def close(self) -> None:
        self.transport.close()


async def serve_protocol() -> int:
    server = await asyncio.get_running_loop().create_server(Framed, HOST, 0)
    KEPT.append(server)
    return int(server.sockets[0].getsockname()[1])


async def connect_protocol(port: int) -> Client:
    _, client = await asyncio.get_running_loop().create_connection(FramedClient, HOST, port)
    return client


# Hawser's links.


class Echo(Handler):
    def asked(self, link: Link, request: Request) -> bytes | bytearray:
        return request.body


class LinkClient:
    def __init__(self, link: Link) -> None:
        self.link = link

    async def stream(self, body: bytes, count: int, turn: int) -> None:
        for _ in range(count // turn):
            for _ in range(turn):
                if not self.link.tell(body):
                    await self.link.drained()
                    assert self.link.tell(body)
            await asyncio.sleep(0)
        await self.ask(b"")

    async def ask(self, body: bytes) -> None:
        await self.link.ask(body, 60)

    async def close(self) -> None:
        await self.link.close()


async def serve_link() -> int:
    server = await listen(f"{HOST}:0", Echo(), Identity(role=PeerRole.NODE, name="server", run="1"))
    KEPT.append(server)
    return int(server.address.rpartition(":")[2])


async def connect_link(port: int) -> Client:
    return LinkClient(await dial(f"{HOST}:{port}", Identity(role=PeerRole.CLIENT, name="client", run="1")))


# grpc.aio, without protobuf: bytes in, bytes out.


class GrpcClient:
    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.streaming = channel.stream_unary("/bench/stream")
        self.call = channel.stream_stream("/bench/echo")()

    async def stream(self, body: bytes, count: int, turn: int) -> None:
        call = self.streaming()
        for _ in range(count):
            await call.write(body)
        await call.done_writing()
        await call

    async def ask(self, body: bytes) -> None:
        await self.call.write(body)
        await self.call.read()

    async def close(self) -> None:
        await self.channel.close()


def grpc_options() -> list[tuple[str, int]]:
    return [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def serve_grpc() -> int:
    grpc = importlib.import_module("grpc")

    async def stream(requests: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in requests:
            pass
        return b""

    async def echo(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    server = grpc.aio.server(options=grpc_options())
    handlers = {
        "stream": grpc.stream_unary_rpc_method_handler(stream),
        "echo": grpc.stream_stream_rpc_method_handler(echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    KEPT.append(server)
    return int(port)


async def connect_grpc(port: int) -> Client:
    grpc = importlib.import_module("grpc")
    return GrpcClient(grpc.aio.insecure_channel(f"{HOST}:{port}", options=grpc_options()))


WAYS: Final[dict[str, tuple[Callable[[], Awaitable[int]], Callable[[int], Awaitable[Client]]]]] = {
    "streams": (serve_streams, connect_streams),
    "protocol": (serve_protocol, connect_protocol),
    "link": (serve_link, connect_link),
    "grpc.aio": (serve_grpc, connect_grpc),
}


def run(main: Callable[[], Coroutine[Any, Any, Any]], loop: str) -> Any:
    """Run it in a loop of that kind."""
    factory = None
    if loop == "uvloop":
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


async def serve(way: str) -> None:
    print(await WAYS[way][0](), flush=True)
    await asyncio.Event().wait()


async def measure(way: str, port: int, scale: float) -> dict[str, float]:
    """One round of one way."""
    client = await WAYS[way][1](port)
    await client.ask(SMALL)
    small = max(TURN, int(20_000 * scale) // TURN * TURN)
    started = time.perf_counter()
    await client.stream(SMALL, small, TURN)
    messages = small / (time.perf_counter() - started)
    trips = []
    for _ in range(max(10, int(1000 * scale))):
        started = time.perf_counter()
        await client.ask(SMALL)
        trips.append(time.perf_counter() - started)
    large = max(4, int(100 * scale) // 4 * 4)
    started = time.perf_counter()
    await client.stream(LARGE, large, 4)
    megabytes = large * len(LARGE) / 1e6 / (time.perf_counter() - started)
    await client.close()
    return {
        "messages_per_second": messages,
        "round_trip_microseconds": statistics.median(trips) * 1e6,
        "megabytes_per_second": megabytes,
    }


def contestants() -> list[tuple[str, str]]:
    """Every way with every loop that is there; a line for each that is not."""
    found = {name: importlib.util.find_spec(name) is not None for name in ("grpc", "uvloop")}
    for name, is_there in found.items():
        if not is_there:
            print(f"left out: {name} is not installed; the first lines of {sys.argv[0]} say how to bring it")
    ways = [way for way in WAYS if way != "grpc.aio" or found["grpc"]]
    loops = ["asyncio", "uvloop"] if found["uvloop"] else ["asyncio"]
    return [(way, loop) for loop in loops for way in ways]


def contest(rounds: int, scale: float) -> list[dict[str, Any]]:
    """Medians over the rounds, one line for each way and loop."""
    sides = contestants()
    servers = {}
    for way, loop in sides:
        command = [sys.executable, __file__, "--serve", way, "--loop", loop]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        servers[way, loop] = (server, int(server.stdout.readline()))
    results: dict[tuple[str, str], list[dict[str, float]]] = {side: [] for side in sides}
    try:
        for _ in range(rounds):
            for way, loop in sides:
                round_of_one = partial(measure, way, servers[way, loop][1], scale)
                results[way, loop].append(run(round_of_one, loop))
    finally:
        for server, _ in servers.values():
            server.kill()
            server.communicate()
    lines: list[dict[str, Any]] = []
    for (way, loop), measured in results.items():
        line: dict[str, Any] = {"way": way, "loop": loop}
        for name in measured[0]:
            figures = [each[name] for each in measured]
            line[name] = round(statistics.median(figures))
            line[name.partition("_")[0] + "_range"] = [round(min(figures)), round(max(figures))]
            first = lines[0][name] if lines else line[name]
            line[name.partition("_")[0] + "_ratio"] = round(line[name] / first, 2)
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Ways to carry messages, side by side.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the work of a round")
    parser.add_argument("--serve", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--loop", default="asyncio", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run(partial(serve, options.serve), options.loop)
        return
    for line in contest(options.rounds, options.scale):
        print(json.dumps(line))
    print(json.dumps({"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
