"""A Redis list over a Unix socket: RPUSH and BLPOP with one message per call, without persistence.

A popped message is lost if its consumer dies. The server does not limit producers, so the list may grow to
the length of the stream.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hawser.bench.cluster.servers import Process, wait_until
from hawser.bench.contest import Crowd, Stream
from hawser.bench.processes import Gate, now_ns

# The place where scripts/install_redis.sh installs it in a checkout.
_UNPACKED = Path(__file__).resolve().parents[3] / "build" / "redis"


def program() -> str | None:
    """The path of the server; None if it is not installed."""
    return shutil.which("redis-server") or shutil.which("redis-server", path=str(_UNPACKED))


def why_not() -> str | None:
    """The missing program or package; None if there is none."""
    if program() is None:
        return "redis-server is not installed; run scripts/install_redis.sh of a checkout"
    return None if importlib.util.find_spec("redis") is not None else "redis-py is not installed"


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """A server for this measurement; yields the path of its socket."""
    found = program()
    assert found is not None
    path = directory / "socket"
    settings = {"port": "0", "unixsocket": str(path), "save": "", "appendonly": "no", "dir": str(directory)}
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    process = Process([found, *words], directory / "redis.log")
    try:
        wait_until(path.exists, [process], "redis-server")
        yield str(path)
    finally:
        process.kill()


Place = tuple[str, str]


def _client(place: Place) -> Any:
    library: Any = importlib.import_module("redis")
    return library.Redis(unix_socket_path=place[0])


def get(place: Place, stream: Stream, gate: Gate) -> None:
    with _client(place) as client:
        pop, name, last = client.blpop, place[1], b""
        gate.start()
        for _ in range(stream.count):
            last = pop(name)[1]
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def put(place: Place, stream: Stream, gate: Gate) -> None:
    with _client(place) as client:
        push, name, message = client.rpush, place[1], stream.message()
        gate.start()
        started = now_ns()
        for _ in range(stream.count - 1):
            push(name, message)
        push(name, stream.last_message())
        gate.finish(started)


def get_batches(place: Place, stream: Stream, gate: Gate) -> None:
    """Poll without a pause, because no Redis call waits for one message and takes many."""
    with _client(place) as client:
        pop, name, batch, remaining, last = client.lpop, place[1], stream.batch, stream.count, b""
        gate.start()
        while remaining:
            messages = pop(name, batch)
            if messages:
                remaining -= len(messages)
                last = messages[-1]
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def put_batches(place: Place, stream: Stream, gate: Gate) -> None:
    with _client(place) as client:
        push, name, batch = client.rpush, place[1], [stream.message()] * stream.batch
        gate.start()
        started = now_ns()
        for _ in range(stream.count // stream.batch - 1):
            push(name, *batch)
        push(name, *batch[:-1], stream.last_message())
        gate.finish(started)


def get_in_crowd(place: Place, crowd: Crowd, gate: Gate) -> None:
    with _client(place) as client:
        pop, name, last, count = client.blpop, place[1], crowd.last_message(), 0
        gate.start()
        while pop(name)[1] != last:
            count += 1
        gate.finish((now_ns(), count))


def put_in_crowd(place: Place, crowd: Crowd, gate: Gate) -> None:
    with _client(place) as client:
        push, name, message = client.rpush, place[1], crowd.message()
        gate.start()
        started = now_ns()
        for _ in range(crowd.count):
            push(name, message)
        push(name, crowd.last_message())
        gate.finish(started)
