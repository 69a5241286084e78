"""Queues of hawser through the public API, with every safety on: a message is done when it was accepted, and
would be somebody else's if its consumer were killed before."""

from __future__ import annotations

from itertools import islice
from typing import Any

import hawser
from hawser.bench.contest import Crowd, Stream
from hawser.bench.processes import ANSWER_SECONDS, Gate, now_ns

QUEUED = 16_384
# Among more processes than cores somebody is always put aside while it holds a message, and what comes behind
# that one needs room.
QUEUED_IN_CROWD = 32_768
# How many a consumer that iterates claims ahead, and how many it may have in all.
AHEAD, HELD = 64, 512
QUIET_SECONDS = 0.5
UNCOUNTED = b"uncounted"


def _queue(bus: hawser.Bus, size: int, capacity: int = QUEUED) -> hawser.Queue[Any]:
    return bus.queue("measured", slot_size=size, capacity=capacity, max_held=HELD, max_consumers=8)


def _joined_by_getting(queue: hawser.Queue[Any]) -> hawser.Queue[Any]:
    """A consumer joins with its first get."""
    if queue.get(0) is not None:
        raise RuntimeError("somebody puts before the start")
    return queue


def _joined_by_putting(queue: hawser.Queue[Any]) -> hawser.Queue[Any]:
    """A producer joins with its first put; what it puts is not counted."""
    queue.put(UNCOUNTED)
    return queue


def get(shared: str, stream: Stream, gate: Gate) -> None:
    """Each message is copied out, and accepted when the next one is asked for."""
    with hawser.connect(shared) as bus, _queue(bus, stream.size) as queue, queue.consume(AHEAD) as consumer:
        last, values = b"", consumer.values()
        gate.start()
        for value in islice(values, 1 + stream.count):
            last = value
        values.accept()
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def put(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, _queue(bus, stream.size) as queue:
        put, message = _joined_by_putting(queue).put, stream.message()
        gate.start()
        started = now_ns()
        for _ in range(stream.count - 1):
            put(message)
        put(stream.last_message())
        gate.finish(started)


def get_batches(shared: str, stream: Stream, gate: Gate) -> None:
    """Copies of many messages at a time, accepted together."""
    with hawser.connect(shared) as bus, _queue(bus, stream.size) as queue:
        get_values, batch, remaining, last = queue.get_values, stream.batch, 1 + stream.count, b""
        gate.start()
        while remaining:
            values = get_values(batch)
            values.accept()
            remaining -= len(values)
            last = values[-1]
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def get_batches_in_place(shared: str, stream: Stream, gate: Gate) -> None:
    """Messages that can be settled one by one, accepted together."""
    with hawser.connect(shared) as bus, _queue(bus, stream.size) as queue:
        get_many, batch, remaining, last = queue.get_many, stream.batch, 1 + stream.count, b""
        gate.start()
        while remaining:
            messages = get_many(batch)
            remaining -= len(messages)
            if not remaining:
                last = bytes(messages[-1])
            messages.accept()
        finished = now_ns()
        stream.check(last)
        gate.finish(finished)


def put_batches(shared: str, stream: Stream, gate: Gate) -> None:
    with hawser.connect(shared) as bus, _queue(bus, stream.size) as queue:
        put_many, batch = _joined_by_putting(queue).put_many, [stream.message()] * stream.batch
        gate.start()
        started = now_ns()
        for _ in range(stream.count // stream.batch - 1):
            put_many(batch)
        put_many([*batch[:-1], stream.last_message()])
        gate.finish(started)


def get_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    """Until a last message. What was claimed ahead then goes back, maybe when the others are done already: so
    what is there up to the next last message, which is somebody else's, is got, too."""
    with (
        hawser.connect(shared) as bus,
        _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue,
        queue.consume(AHEAD) as consumer,
    ):
        usual, last, count, values = crowd.message(), crowd.last_message(), 0, consumer.values()
        gate.start()
        for data in values:
            if data == usual:
                count += 1
            elif data == last:
                break
        values.accept()
        consumer.close()
        while (found := queue.get(0)) is not None and found.value != last:
            count += found.value != UNCOUNTED
            found.accept()
        finished = now_ns()
        if found is not None:
            found.release()
        gate.finish((finished, count))


def put_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    with hawser.connect(shared) as bus, _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue:
        put, message = _joined_by_putting(queue).put, crowd.message()
        gate.start()
        started = now_ns()
        for _ in range(crowd.count):
            put(message)
        put(crowd.last_message())
        gate.finish(started)


def get_batches_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    """Until nothing comes any more. The time in which nothing came does not count."""
    with hawser.connect(shared) as bus, _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue:
        get_values, count, finished = _joined_by_getting(queue).get_values, 0, 0
        gate.start()
        values = get_values(crowd.batch, ANSWER_SECONDS)
        while values:
            values.accept()
            count += len(values) - values.count(UNCOUNTED)
            finished = now_ns()
            values = get_values(crowd.batch, QUIET_SECONDS)
        gate.finish((finished, count))


def put_batches_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    with hawser.connect(shared) as bus, _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue:
        put_many, batch = _joined_by_putting(queue).put_many, [crowd.message()] * crowd.batch
        gate.start()
        started = now_ns()
        for _ in range(crowd.count // crowd.batch):
            put_many(batch)
        gate.finish(started)
