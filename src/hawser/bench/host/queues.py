"""Queues on one host: single messages, batches, many producers and consumers, and redelivery after a kill.

Every safety of Hawser is on: a message counts when it is accepted, and would be delivered to another consumer
if its consumer were killed before.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hawser
from hawser.bench.cluster.servers import Process, wait_until
from hawser.bench.contest import MEASURED_SIZE, Contestant, Crowd, Stream
from hawser.bench.host.streams import BATCH, PACKED, PYZMQ, QUEUE, domain_in, rate
from hawser.bench.peers import faster_fifo, pyzmq, redis, stdlib
from hawser.bench.plan import Plan
from hawser.bench.processes import ANSWER_SECONDS, CONTEXT, Gate, Side, now_ns, run_sides
from hawser.bench.report import Row, at_least, at_most, ratio

EACH = 4
# Divisors of the message count for peers that need system calls for each message.
FEWER = {"Redis": 32, "Queue": 8, "faster-fifo": 8}
FEWER_IN_CROWD = {"Redis": 96, "Queue": 24, "faster-fifo": 24}

QUEUED = 16_384
# With more processes than cores, some consumer is always preempted while it holds a message, and the messages
# after it need room.
QUEUED_IN_CROWD = 32_768
# Messages that an iterating consumer claims ahead, and the maximum that it may hold.
AHEAD, HELD = 64, 512
QUIET_SECONDS = 0.5
UNCOUNTED = b"uncounted"


def _queue(bus: hawser.Bus, size: int, capacity: int = QUEUED) -> hawser.Queue[Any]:
    return bus.queue("measured", slot_size=size, capacity=capacity, max_held=HELD, max_consumers=8)


def _joined_by_getting(queue: hawser.Queue[Any]) -> hawser.Queue[Any]:
    """Join as a consumer, with a first get."""
    if queue.get(0) is not None:
        raise RuntimeError("a message was put before the start")
    return queue


def _joined_by_putting(queue: hawser.Queue[Any]) -> hawser.Queue[Any]:
    """Join as a producer, with a first put that is not counted."""
    queue.put(UNCOUNTED)
    return queue


def get(shared: str, stream: Stream, gate: Gate) -> None:
    """Copy each message, and accept it with the request for the next one."""
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
    """Copy messages in batches, and accept each batch."""
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
    """Get message objects in batches, and accept each batch."""
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
    """Get until a last message. Messages that were claimed ahead are then released, perhaps after the other
    consumers have ended, so this consumer also gets messages up to the next last message, which it
    releases."""
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
    """One producer of the crowd; its result is the time of its first put."""
    with hawser.connect(shared) as bus, _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue:
        put, message = _joined_by_putting(queue).put, crowd.message()
        gate.start()
        started = now_ns()
        for _ in range(crowd.count):
            put(message)
        put(crowd.last_message())
        gate.finish(started)


def get_batches_in_crowd(shared: str, crowd: Crowd, gate: Gate) -> None:
    """Get until no message arrives for a time, which is not counted."""
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
    """One producer of the crowd; its result is the time of its first put."""
    with hawser.connect(shared) as bus, _queue(bus, crowd.size, QUEUED_IN_CROWD) as queue:
        put_many, batch = _joined_by_putting(queue).put_many, [crowd.message()] * crowd.batch
        gate.start()
        started = now_ns()
        for _ in range(crowd.count // crowd.batch):
            put_many(batch)
        gate.finish(started)


HAWSER = Contestant("hawser", "hawser", domain_in, get, put)
HAWSER_BATCHES = replace(HAWSER, name="batches", receive=get_batches, send=put_batches)
HAWSER_IN_PLACE = replace(HAWSER_BATCHES, name="in place", receive=get_batches_in_place)
FASTER_FIFO = Contestant("faster-fifo", "faster_fifo", faster_fifo.share, faster_fifo.get, faster_fifo.put)
FIFO_BATCHES = replace(
    FASTER_FIFO, name="faster-fifo many", receive=faster_fifo.get_batches, send=faster_fifo.put_batches
)


def queue(plan: Plan) -> Iterator[Row]:
    """The figures of queues on one host."""
    with ExitStack() as stack:
        peers, together = [QUEUE, PYZMQ, FASTER_FIFO], [*PACKED, FIFO_BATCHES]
        missing = redis.why_not() if plan.invited("Redis") else "not invited"
        note = f"Redis is left out: {missing}"
        if missing is None:
            socket = stack.enter_context(redis.server(stack.enter_context(plan.place())))
            peers.append(_redis(socket))
            together.append(_redis_batches(socket))
            note = "Redis keeps nothing on disk"
        peers = [one for one in peers if plan.invited(one.name) and one.installed()]
        together = [one for one in together if plan.invited(one.name.split()[0]) and one.installed()]
        yield from _streams(plan, peers, together, note)
        yield from _crowds(plan, peers)
    yield _killed(plan)


def _redis(socket: str) -> Contestant:
    """The contestant with a list of its own for each measurement."""
    return Contestant("Redis", "redis", partial(_list_at, socket), redis.get, redis.put)


def _redis_batches(socket: str) -> Contestant:
    many = replace(_redis(socket), name="Redis many")
    return replace(many, receive=redis.get_batches, send=redis.put_batches)


def _list_at(socket: str, directory: Path) -> redis.Place:
    return socket, directory.name


# One producer, one consumer.


def _streams(plan: Plan, peers: list[Contestant], together: list[Contestant], note: str) -> Iterator[Row]:
    single = Stream(MEASURED_SIZE, plan.scaled(800_000))
    batches = Stream(MEASURED_SIZE, plan.scaled(32_768) * BATCH, BATCH)
    fewer = replace(batches, count=batches.count // 32)
    measures: dict[str, Callable[[], float]] = {}
    for one in (HAWSER, *peers):
        stream = replace(single, count=single.count // FEWER.get(one.name, 1))
        measures[one.name] = partial(rate, plan, one, stream)
    for one in (HAWSER_BATCHES, HAWSER_IN_PLACE):
        measures[one.name] = partial(rate, plan, one, batches)
    for one in together:
        measures[one.name] = partial(rate, plan, one, fewer)
    found = plan.medians(measures)
    alone = {one.name: found[one.name] for one in peers}
    best = max(alone.values(), default=None)
    one_call, many = found["hawser"], found["batches"]
    target = at_least("4 x the best of the others", ratio(one_call, best), 4)
    yield Row("queue: 64 B, one call a message", one_call, "msg/s", alone, (target,), note)
    target = at_least("15 x the best message rate", ratio(many, best), 15)
    yield Row(f"queue: 64 B in batches of {BATCH}", many, "msg/s", alone, (target,))
    yield Row(
        f"queue: 64 B in batches of {BATCH}, beside batches of the others, most of them packed by hand",
        many,
        "msg/s",
        {
            "hawser, messages settled one by one": found["in place"],
            **{one.name: found[one.name] for one in together},
        },
    )


# Many producers and consumers.


def _crowds(plan: Plan, peers: list[Contestant]) -> Iterator[Row]:
    sides: dict[str, tuple[Side, Side]] = {
        "hawser": (get_in_crowd, put_in_crowd),
        "Queue": (stdlib.get_in_crowd, stdlib.put_in_crowd),
        "pyzmq": (pyzmq.get_in_crowd, pyzmq.put_in_crowd),
        "faster-fifo": (faster_fifo.get_in_crowd, faster_fifo.put_in_crowd),
        "Redis": (redis.get_in_crowd, redis.put_in_crowd),
    }
    single = Crowd(MEASURED_SIZE, plan.scaled(960_000), EACH, EACH)
    measures: dict[str, Callable[[], float]] = {}
    for one in (HAWSER, *peers):
        receive, send = sides[one.name]
        crowd = replace(single, count=single.count // FEWER_IN_CROWD.get(one.name, 1))
        crowded = replace(one, receive=receive, send=send)
        measures[one.name] = partial(_crowd_rate, plan, crowded, crowd)
    together = replace(HAWSER, receive=get_batches_in_crowd, send=put_batches_in_crowd)
    batches = replace(single, count=plan.scaled(8192) * BATCH, batch=BATCH)
    measures["batches"] = partial(_crowd_rate, plan, together, batches)
    found = plan.medians(measures)
    mine, many = found.pop("hawser"), found.pop("batches")
    name = f"queue: 64 B, {EACH} producers and {EACH} consumers"
    best = max(found.values(), default=None)
    target = at_least("4 x the best of the others", ratio(mine, best), 4)
    yield Row(f"{name}, one call a message", mine, "msg/s", found, (target,))
    target = at_least("4 x the best message rate", ratio(many, best), 4)
    yield Row(f"{name}, in batches of {BATCH}", many, "msg/s", found, (target,))


def _crowd_rate(plan: Plan, contestant: Contestant, crowd: Crowd) -> float:
    """The rate of a crowd, not pinned, because there are more processes than cores."""
    with plan.place() as directory:
        consumers, producers = [(contestant.receive, None)] * EACH, [(contestant.send, None)] * EACH
        results = run_sides([*consumers, *producers], contestant.share(directory), crowd)
    return crowd.rate(results[EACH:], results[:EACH])


# After a kill.


def _killed(plan: Plan) -> Row:
    """The time from the kill of a consumer until a waiting consumer has its message, with an agent."""
    plan.tell("a consumer is killed")
    with plan.place() as directory, _agent(directory) as domain:
        times = [_given_again(domain) for _ in range(3 * plan.repeats)]
    spent = statistics.median(times)
    target = at_most("10 ms", spent / 1e6, 10)
    name = "queue: a killed consumer's message, until another has it"
    return Row(name, spent, "ns", {"the slowest time": max(times)}, (target,))


@contextmanager
def _agent(directory: Path) -> Iterator[str]:
    """A domain with a queue and an agent."""
    domain, log = domain_in(directory / "domain"), directory / "agent.log"
    with hawser.connect(domain) as bus, _watched(bus):
        process = Process([sys.executable, "-m", "hawser", "agent", "--url", domain], log)
        try:
            wait_until(lambda: b"ready" in log.read_bytes(), [process], "the agent")
            yield domain
        finally:
            process.kill()


def _watched(bus: hawser.Bus) -> hawser.Queue[Any]:
    return bus.queue("watched", slot_size=MEASURED_SIZE)


def hold_until_killed(domain: str, connection: Connection) -> None:
    """Get a message, report it, and wait to be killed."""
    with hawser.connect(domain) as bus, _watched(bus) as queue:
        message = queue.get()
        connection.send(message is not None)
        connection.recv()


def wait_for_it(domain: str, connection: Connection) -> None:
    """Wait for a message, and report the time of its arrival."""
    with hawser.connect(domain) as bus, _watched(bus) as queue:
        connection.send(queue.get(0) is None)
        message = queue.get(ANSWER_SECONDS)
        connection.send((now_ns(), message is not None and message.redelivered))
        if message is not None:
            message.accept()


def _given_again(domain: str) -> int:
    """Nanoseconds from the kill to the get of the other consumer."""
    with hawser.connect(domain) as bus, _watched(bus) as queue:
        queue.put(b"once")
        holder, waiter = CONTEXT.Pipe(), CONTEXT.Pipe()
        held = CONTEXT.Process(target=hold_until_killed, args=(domain, holder[1]), daemon=True)
        held.start()
        holder[0].recv()
        waits = CONTEXT.Process(target=wait_for_it, args=(domain, waiter[1]), daemon=True)
        waits.start()
        waiter[0].recv()
        assert held.pid is not None
        started = now_ns()
        os.kill(held.pid, signal.SIGKILL)
        if not waiter[0].poll(ANSWER_SECONDS):
            raise RuntimeError("the message of a killed consumer was not delivered again")
        at, again = waiter[0].recv()
        held.join()
        waits.join()
    if not again:
        raise RuntimeError("the message of a killed consumer was not delivered again")
    return int(at - started)
