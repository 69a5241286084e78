"""pyzmq over a Unix socket: PUSH and PULL without losses at a high-water mark, one socket per side."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from hawser.bench.contest import Crowd, RoundTrip, Stream
from hawser.bench.processes import Gate, now_ns

QUEUED = 16_384
QUIET_MILLISECONDS = 500


def _socket(kind: str, shared: str, name: str, *, bind: bool) -> Any:
    library: Any = importlib.import_module("zmq")
    socket = library.Context.instance().socket(getattr(library, kind))
    socket.set_hwm(QUEUED)
    socket.linger = 0
    address = f"ipc://{shared}/{name}"
    (socket.bind if bind else socket.connect)(address)
    return socket


def receive(shared: str, stream: Stream, gate: Gate) -> None:
    take = _socket("PULL", shared, "stream", bind=True).recv
    last = b""
    gate.start()
    for _ in range(stream.count):
        last = take()
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def send(shared: str, stream: Stream, gate: Gate) -> None:
    push, message = _socket("PUSH", shared, "stream", bind=False).send, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        push(message)
    push(stream.last_message())
    gate.finish(started)


def receive_batches(shared: str, stream: Stream, gate: Gate) -> None:
    """A multipart message for each batch."""
    take = _socket("PULL", shared, "stream", bind=True).recv_multipart
    batch = [b""]
    gate.start()
    for _ in range(stream.count // stream.batch):
        batch = take()
    finished = now_ns()
    stream.check(batch[-1])
    gate.finish(finished)


def send_batches(shared: str, stream: Stream, gate: Gate) -> None:
    push = _socket("PUSH", shared, "stream", bind=False).send_multipart
    batch = [stream.message()] * stream.batch
    gate.start()
    started = now_ns()
    for _ in range(stream.count // stream.batch - 1):
        push(batch)
    push([*batch[:-1], stream.last_message()])
    gate.finish(started)


def get_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    """Receive on a socket of its own until no message arrives for a time, which is not counted. Producers
    send to all consumers in turn, so no message is the last of all."""
    library: Any = importlib.import_module("zmq")
    socket = _socket("PULL", shared, f"consumer-{os.getpid()}", bind=True)
    take, last, count = socket.recv, crowd.last_message(), 0
    gate.start()
    count += take() != last
    socket.rcvtimeo = QUIET_MILLISECONDS
    try:
        while True:
            count += take() != last
    except library.Again:
        gate.finish((now_ns() - QUIET_MILLISECONDS * 1_000_000, count))


def put_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    """A producer that is connected to every consumer and sends to them in turn."""
    library: Any = importlib.import_module("zmq")
    socket = library.Context.instance().socket(library.PUSH)
    socket.set_hwm(QUEUED)
    for path in Path(shared).glob("consumer-*"):
        socket.connect(f"ipc://{path}")
    push, message = socket.send, crowd.message()
    gate.start()
    started = now_ns()
    for _ in range(crowd.count):
        push(message)
    push(crowd.last_message())
    gate.finish(started)


def echo(shared: str, trip: RoundTrip, gate: Gate) -> None:
    socket = _socket("PAIR", shared, "trip", bind=True)
    gate.start()
    for _ in range(trip.rounds * trip.blocks):
        socket.send(socket.recv())
    gate.finish()


def ask(shared: str, trip: RoundTrip, gate: Gate) -> None:
    socket = _socket("PAIR", shared, "trip", bind=False)
    message = b"m" * trip.size
    gate.start()
    blocks = []
    for _ in range(trip.blocks):
        started = now_ns()
        for _ in range(trip.rounds):
            socket.send(message)
            socket.recv()
        blocks.append((now_ns() - started) / trip.rounds)
    gate.finish(blocks)
