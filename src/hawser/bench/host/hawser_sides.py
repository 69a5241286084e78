"""hawser with every safety on: a reliable subscriber, so that nothing is lost, through the public API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hawser
from hawser.bench.contest import RoundTrip, Stream
from hawser.bench.processes import Gate, now_ns

QUEUED = 16_384

Take = Callable[[], bytes]


def stream_topic(bus: hawser.Bus, stream: Stream) -> hawser.Topic[Any]:
    """The topic a stream goes through."""
    return bus.topic(
        f"stream-{stream.size}-{stream.batch}",
        slot_size=stream.size,
        history=0,
        depth=stream.queued or QUEUED,
        max_subscribers=2,
        max_publishers=2,
        max_held=max(4, 2 * stream.batch),
    )


def receive(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, stream_topic(bus, stream).subscribe(reliable=True) as subscription:
        take, last = cast("Take", subscription.take_value), b""
        gate.start()
        for _ in range(stream.count):
            last = take()
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def send(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, stream_topic(bus, stream).publisher() as publisher:
        publish, message = publisher.publish, stream.message()
        gate.start()
        started = now_ns()
        for _ in range(stream.count - 1):
            publish(message)
        publish(stream.last_message())
        gate.finish(started)


def receive_batches(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, stream_topic(bus, stream).subscribe(reliable=True) as subscription:
        take_values, batch, remaining = subscription.take_values, stream.batch, stream.count
        copies: list[bytes] = []
        gate.start()
        while remaining:
            copies = take_values(batch)
            remaining -= len(copies)
        finished = now_ns()
        stream.check(copies[-1])
        gate.finish(finished)


def receive_batches_in_place(shared: str, stream: Stream, gate: Gate) -> None:
    """Look at the samples where they lie."""
    with hawser.connect(shared) as bus, stream_topic(bus, stream).subscribe(reliable=True) as subscription:
        take_many, batch, remaining = subscription.take_many, stream.batch, stream.count
        last: hawser.Sample | None = None
        gate.start()
        while remaining:
            samples = take_many(batch)
            remaining -= len(samples)
            last = samples[-1]
        finished = now_ns()
        stream.check(bytes(last or b""))
        gate.finish(finished)


def send_batches(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, stream_topic(bus, stream).publisher() as publisher:
        publish_many, batch = publisher.publish_many, [stream.message()] * stream.batch
        gate.start()
        started = now_ns()
        for _ in range(stream.count // stream.batch - 1):
            publish_many(batch)
        publish_many([*batch[:-1], stream.last_message()])
        gate.finish(started)


def receive_loans(shared: str, stream: Stream, gate: Gate) -> None:
    """Look at each sample where it lies."""
    with hawser.connect(shared) as bus, stream_topic(bus, stream).subscribe(reliable=True) as subscription:
        take, sample = subscription.take, None
        gate.start()
        for _ in range(stream.warm + stream.count):
            sample = take()
        finished = now_ns()
        stream.check(bytes(sample or b""))
        gate.finish(finished)


def send_loans(shared: str, stream: Stream, gate: Gate) -> None:
    """Publish each sample as it was lent."""
    with hawser.connect(shared) as bus, stream_topic(bus, stream).publisher() as publisher:
        loan, size = publisher.loan, stream.size
        gate.start()
        for _ in range(stream.warm):
            with loan(size):
                pass
        started = now_ns()
        for _ in range(stream.count - 1):
            with loan(size):
                pass
        with loan(size) as buffer:
            buffer[:] = stream.last_message()
        gate.finish(started)


def _trip_topic(bus: hawser.Bus, name: str, trip: RoundTrip) -> hawser.Topic[Any]:
    return bus.topic(name, slot_size=trip.size, history=0, depth=16, max_subscribers=2, max_publishers=2)


def _spinning(subscription: hawser.Subscription[Any]) -> Take:
    """A take that never sleeps."""
    take = subscription.take_value

    def spin() -> bytes:
        value = take(0)
        while value is None:
            value = take(0)
        return cast("bytes", value)

    return spin


def echo(shared: str, trip: RoundTrip, gate: Gate) -> None:
    with (
        hawser.connect(shared) as bus,
        _trip_topic(bus, "ask", trip).subscribe(reliable=True) as subscription,
        _trip_topic(bus, "answer", trip).publisher() as publisher,
    ):
        take = _spinning(subscription) if trip.spin else cast("Take", subscription.take_value)
        publish = publisher.publish
        gate.start()
        for _ in range(trip.rounds * trip.blocks):
            publish(take())
        gate.finish()


def ask(shared: str, trip: RoundTrip, gate: Gate) -> None:
    message = b"m" * trip.size
    with (
        hawser.connect(shared) as bus,
        _trip_topic(bus, "answer", trip).subscribe(reliable=True) as subscription,
        _trip_topic(bus, "ask", trip).publisher() as publisher,
    ):
        take = _spinning(subscription) if trip.spin else cast("Take", subscription.take_value)
        publish = publisher.publish
        gate.start()
        blocks = []
        for _ in range(trip.blocks):
            started = now_ns()
            for _ in range(trip.rounds):
                publish(message)
                take()
            blocks.append((now_ns() - started) / trip.rounds)
        gate.finish(blocks)
