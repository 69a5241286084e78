"""iceoryx2 in its lossless mode: without overflow, and with a publisher that retries until delivery.

Samples are copied with memmove and string_at, the cheapest copies that its Python binding permits.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from hawser.bench.contest import RoundTrip, Stream
from hawser.bench.processes import Gate, now_ns

QUEUED = 1024


class _Service:
    """One publish-subscribe service of byte slices."""

    def __init__(self, shared: str, name: str, queued: int) -> None:
        self._library: Any = importlib.import_module("iceoryx2")
        self._library.set_log_level(self._library.LogLevel.Error)
        self._node = self._library.NodeBuilder.new().create(self._library.ServiceType.Ipc)
        service_name = self._library.ServiceName.new(f"{shared}/{name}")
        self._service = (
            self._node.service_builder(service_name)
            .publish_subscribe(self._library.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(queued)
            .subscriber_max_borrowed_samples(2)
            .history_size(0)
            .open_or_create()
        )

    def publisher(self, size: int) -> Any:
        builder = self._service.publisher_builder().initial_max_slice_len(size)
        return builder.backpressure_strategy(self._library.BackpressureStrategy.RetryUntilDelivered).create()

    def subscriber(self) -> Any:
        return self._service.subscriber_builder().create()


def _send(publisher: Any, message: bytes) -> None:
    """Copy and send a message, and retry until a subscriber received it. A new subscriber connects with its
    first receive."""
    delivered = 0
    while not delivered:
        sample = publisher.loan_slice_uninit(len(message))
        ctypes.memmove(sample.payload_ptr, message, len(message))
        delivered = sample.assume_init().send()


def _queued(stream: Stream) -> int:
    return stream.queued or QUEUED


def receive(shared: str, stream: Stream, gate: Gate) -> None:
    subscriber = _Service(shared, "stream", _queued(stream)).subscriber()
    take, copy, size = subscriber.receive, ctypes.string_at, stream.size
    last = b""
    gate.start()
    for _ in range(stream.count):
        sample = take()
        while sample is None:
            sample = take()
        last = copy(sample.payload_ptr, size)
    finished = now_ns()
    stream.check(last)
    gate.finish(finished)


def send(shared: str, stream: Stream, gate: Gate) -> None:
    publisher = _Service(shared, "stream", _queued(stream)).publisher(stream.size)
    loan, copy, size, message = publisher.loan_slice_uninit, ctypes.memmove, stream.size, stream.message()
    gate.start()
    started = now_ns()
    for _ in range(stream.count - 1):
        delivered = 0
        while not delivered:
            sample = loan(size)
            copy(sample.payload_ptr, message, size)
            delivered = sample.assume_init().send()
    _send(publisher, stream.last_message())
    gate.finish(started)


def receive_loans(shared: str, stream: Stream, gate: Gate) -> None:
    """Receive each sample without a copy."""
    subscriber = _Service(shared, "stream", _queued(stream)).subscriber()
    take = subscriber.receive
    gate.start()
    for _ in range(stream.warm + stream.count):
        sample = take()
        while sample is None:
            sample = take()
    finished = now_ns()
    stream.check(ctypes.string_at(sample.payload_ptr, stream.size))
    gate.finish(finished)


def send_loans(shared: str, stream: Stream, gate: Gate) -> None:
    """Send each loan without a copy."""
    publisher = _Service(shared, "stream", _queued(stream)).publisher(stream.size)
    loan, size = publisher.loan_slice_uninit, stream.size
    gate.start()
    for _ in range(stream.warm):
        _send(publisher, stream.message())
    started = now_ns()
    for _ in range(stream.count - 1):
        while not loan(size).assume_init().send():
            pass
    _send(publisher, stream.last_message())
    gate.finish(started)


def _exchange(publisher: Any, take: Any, message: bytes) -> None:
    _send(publisher, message)
    _await(take, len(message))


def _await(take: Any, size: int) -> bytes:
    sample = take()
    while sample is None:
        sample = take()
    return ctypes.string_at(sample.payload_ptr, size)


def echo(shared: str, trip: RoundTrip, gate: Gate) -> None:
    take = _Service(shared, "ask", QUEUED).subscriber().receive
    publisher = _Service(shared, "answer", QUEUED).publisher(trip.size)
    loan, copy_in, copy_out, size = publisher.loan_slice_uninit, ctypes.memmove, ctypes.string_at, trip.size
    gate.start()
    _send(publisher, _await(take, size))
    for _ in range(trip.rounds * trip.blocks):
        question = take()
        while question is None:
            question = take()
        answer = loan(size)
        copy_in(answer.payload_ptr, copy_out(question.payload_ptr, size), size)
        answer.assume_init().send()
    gate.finish()


def ask(shared: str, trip: RoundTrip, gate: Gate) -> None:
    publisher = _Service(shared, "ask", QUEUED).publisher(trip.size)
    take = _Service(shared, "answer", QUEUED).subscriber().receive
    message = b"m" * trip.size
    gate.start()
    _send(publisher, message)
    _await(take, trip.size)
    blocks = []
    for _ in range(trip.blocks):
        started = now_ns()
        for _ in range(trip.rounds):
            _exchange(publisher, take, message)
        blocks.append((now_ns() - started) / trip.rounds)
    gate.finish(blocks)
