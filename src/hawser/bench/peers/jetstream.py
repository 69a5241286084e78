"""NATS JetStream with three replicas and a sync of every write, which needs server 2.10 or newer.

An older server, such as Debian's 2.9, acknowledges writes that a power failure can lose, so it is not
measured.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from hawser.bench.cluster.loads import VALUE, Load, one_at_a_time_async, rate_in_flight
from hawser.bench.cluster.servers import Process, first_words, free_ports, place_on_disk, wait_until
from hawser.bench.processes import Gate

SYNCS_FROM = (2, 10)
_SUBJECT = "measured"
_MOST_PENDING = 4096
# A server that has not joined the cluster does not answer; a later request succeeds.
_ANSWER_SECONDS = 5.0

_CONFIGURATION = """
server_name: s{number}
listen: 127.0.0.1:{client}
jetstream {{ store_dir: "{directory}", sync_interval: always }}
cluster {{ name: bench, listen: 127.0.0.1:{peer}, routes: [{routes}] }}
"""


def program() -> str | None:
    """The path of the server; None if it is not installed."""
    return shutil.which("nats-server")


def version_of(text: str) -> tuple[int, int]:
    """The version in the output of `nats-server --version`; (0, 0) if there is none."""
    found = re.search(r"v(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def why_not() -> str | None:
    """The reason why it is not measured; None if it is."""
    found = program()
    if found is None:
        return "nats-server is not on the PATH"
    version = first_words(found)
    if version_of(version) < SYNCS_FROM:
        return f"{version} cannot sync every write; 2.10 or later can"
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed"
    return None


@contextmanager
def nats_servers() -> Iterator[str]:
    """Three servers that replicate streams; yields their addresses, separated by commas."""
    found = program()
    assert found is not None
    ports = free_ports(6)
    routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports[3:])
    addresses = ",".join(f"nats://127.0.0.1:{port}" for port in ports[:3])
    with place_on_disk() as directory:
        servers = []
        for number in range(3):
            file = directory / f"{number}.conf"
            text = _CONFIGURATION.format(
                number=number,
                client=ports[number],
                peer=ports[3 + number],
                routes=routes,
                directory=directory / str(number),
            )
            file.write_text(text, encoding="utf-8")
            servers.append(Process([found, "--config", str(file)], directory / f"{number}.log"))
        try:
            wait_until(lambda: asyncio.run(_takes_writes(addresses)), servers, "nats-server")
            yield addresses
        finally:
            for server in servers:
                server.kill()


async def _takes_writes(addresses: str) -> bool:
    nats: Any = importlib.import_module("nats")
    try:
        async with _stream(addresses) as stream:
            await stream.publish(_SUBJECT, VALUE)
    except (nats.errors.Error, OSError, TimeoutError):
        return False
    return True


@asynccontextmanager
async def _stream(addresses: str) -> AsyncIterator[Any]:
    """A function that publishes to a new stream with three replicas, through its leader."""
    nats: Any = importlib.import_module("nats")
    options = {"allow_reconnect": False, "connect_timeout": 2, "error_cb": _ignore}
    connection = await nats.connect(addresses.split(","), **options)
    try:
        manager = connection.jetstream(timeout=_ANSWER_SECONDS)
        info = await manager.add_stream(name=_SUBJECT, subjects=[_SUBJECT], num_replicas=3)
        place = int(info.cluster.leader.removeprefix("s"))
        leading = await nats.connect(addresses.split(",")[place], **options)
        try:
            yield leading.jetstream(timeout=_ANSWER_SECONDS, publish_async_max_pending=_MOST_PENDING)
        finally:
            await leading.close()
            await manager.delete_stream(_SUBJECT)
    finally:
        await connection.close()


async def _ignore(_: Exception) -> None:
    """Ignore background errors, because a failing call raises itself."""


def publish_one_at_a_time(addresses: str, load: Load, gate: Gate) -> None:
    """The nanoseconds of each publish."""

    async def measure() -> None:
        async with _stream(addresses) as stream:
            await stream.publish(_SUBJECT, VALUE)
            gate.start()
            gate.finish(await one_at_a_time_async(lambda _: stream.publish(_SUBJECT, VALUE), load))

    asyncio.run(measure())


def publish_in_flight(addresses: str, load: Load, gate: Gate) -> None:
    """Publishes acknowledged per second."""

    async def measure() -> None:
        async with _stream(addresses) as stream:

            async def publish(_: int) -> None:
                await (await stream.publish_async(_SUBJECT, VALUE))

            await publish(0)
            gate.start()
            gate.finish(await rate_in_flight(publish, load))

    asyncio.run(measure())
