"""The standard library: multiprocessing.Queue and multiprocessing.Pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hawser.bench.contest import Crowd, RoundTrip, Stream
from hawser.bench.processes import CONTEXT, Gate, now_ns

QUEUED = 16_384


def share_queue(_: Path) -> Any:
    return CONTEXT.Queue(QUEUED)


def share_pipe(_: Path) -> Any:
    return CONTEXT.Pipe()


def receive_from_queue(shared: Any, stream: Stream, gate: Gate) -> None:
    take, last = shared.get, b""
    gate.start()
    for _ in range(stream.count):
        last = take()
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def send_to_queue(shared: Any, stream: Stream, gate: Gate) -> None:
    put, message = shared.put, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        put(message)
    put(stream.last_message())
    gate.finish(started)


def receive_lists_from_queue(shared: Any, stream: Stream, gate: Gate) -> None:
    """One pickled list of messages per batch."""
    take, batch = shared.get, [b""]
    gate.start()
    for _ in range(stream.count // stream.batch):
        batch = take()
    finished = now_ns()
    stream.check(batch[-1])
    gate.finish(finished)


def send_lists_to_queue(shared: Any, stream: Stream, gate: Gate) -> None:
    # pickle writes an object once, so every message is an object of its own.
    batch = [bytes(bytearray(stream.message())) for _ in range(stream.batch)]
    put = shared.put
    gate.start()
    started = now_ns()
    for _ in range(stream.count // stream.batch - 1):
        put(batch)
    put([*batch[:-1], stream.last_message()])
    gate.finish(started)


def get_in_crowd(shared: Any, crowd: Crowd, gate: Gate) -> None:
    take, last, count = shared.get, crowd.last_message(), 0
    gate.start()
    while take() != last:
        count += 1
    gate.finish((now_ns(), count))


def put_in_crowd(shared: Any, crowd: Crowd, gate: Gate) -> None:
    put, message = shared.put, crowd.message()
    gate.start()
    started = now_ns()
    for _ in range(crowd.count):
        put(message)
    put(crowd.last_message())
    gate.finish(started)


def receive_from_pipe(shared: Any, stream: Stream, gate: Gate) -> None:
    take, last = shared[0].recv_bytes, b""
    gate.start()
    for _ in range(stream.count):
        last = take()
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def send_to_pipe(shared: Any, stream: Stream, gate: Gate) -> None:
    put, message = shared[1].send_bytes, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        put(message)
    put(stream.last_message())
    gate.finish(started)


def echo_on_pipe(shared: Any, trip: RoundTrip, gate: Gate) -> None:
    pipe = shared[0]
    gate.start()
    for _ in range(trip.rounds * trip.blocks):
        pipe.send_bytes(pipe.recv_bytes())
    gate.finish()


def ask_on_pipe(shared: Any, trip: RoundTrip, gate: Gate) -> None:
    pipe, message = shared[1], b"m" * trip.size
    gate.start()
    blocks = []
    for _ in range(trip.blocks):
        started = now_ns()
        for _ in range(trip.rounds):
            pipe.send_bytes(message)
            pipe.recv_bytes()
        blocks.append((now_ns() - started) / trip.rounds)
    gate.finish(blocks)
