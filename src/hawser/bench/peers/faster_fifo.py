"""faster-fifo: a ring in shared memory for many producers and consumers, with one lock.

Messages are bytes, without the pickling that it does by default.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from hawser.bench.contest import Crowd, Stream
from hawser.bench.processes import Gate, now_ns

QUEUED_BYTES = 4 << 20
# The default timeout of a get is ten seconds.
_SECONDS = 60.0


def as_it_is(message: Any) -> Any:
    return message


def share(_: Path) -> Any:
    library: Any = importlib.import_module("faster_fifo")
    return library.Queue(max_size_bytes=QUEUED_BYTES, loads=bytes, dumps=as_it_is)


def get(shared: Any, stream: Stream, gate: Gate) -> None:
    get, last = shared.get, b""
    gate.start()
    for _ in range(stream.count):
        last = get(timeout=_SECONDS)
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def put(shared: Any, stream: Stream, gate: Gate) -> None:
    put, message = shared.put, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        put(message, timeout=_SECONDS)
    put(stream.last_message(), timeout=_SECONDS)
    gate.finish(started)


def get_batches(shared: Any, stream: Stream, gate: Gate) -> None:
    get_many, batch, remaining, last = shared.get_many, stream.batch, stream.count, b""
    gate.start()
    while remaining:
        messages = get_many(timeout=_SECONDS, max_messages_to_get=batch)
        remaining -= len(messages)
        last = messages[-1]
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def put_batches(shared: Any, stream: Stream, gate: Gate) -> None:
    put_many, batch = shared.put_many, [stream.message()] * stream.batch
    gate.start()
    started = now_ns()
    for _ in range(stream.count // stream.batch - 1):
        put_many(batch, timeout=_SECONDS)
    put_many([*batch[:-1], stream.last_message()], timeout=_SECONDS)
    gate.finish(started)


def get_in_crowd(shared: Any, crowd: Crowd, gate: Gate) -> None:
    get, last, count = shared.get, crowd.last_message(), 0
    gate.start()
    while get(timeout=_SECONDS) != last:
        count += 1
    gate.finish((now_ns(), count))


def put_in_crowd(shared: Any, crowd: Crowd, gate: Gate) -> None:
    put, message = shared.put, crowd.message()
    gate.start()
    started = now_ns()
    for _ in range(crowd.count):
        put(message, timeout=_SECONDS)
    put(crowd.last_message(), timeout=_SECONDS)
    gate.finish(started)
