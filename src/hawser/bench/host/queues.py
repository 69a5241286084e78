"""Queues on one host: each message to one consumer, one call each, in batches, between crowds, and after a
kill."""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hawser
from hawser.bench.cluster.servers import Process, wait_until
from hawser.bench.contest import MEASURED_SIZE, Contestant, Crowd, Stream
from hawser.bench.host import queues_sides
from hawser.bench.host.streams import BATCH, PACKED, PYZMQ, QUEUE, domain_in, rate
from hawser.bench.peers import faster_fifo, pyzmq, redis, stdlib
from hawser.bench.plan import Plan
from hawser.bench.processes import ANSWER_SECONDS, CONTEXT, now_ns, run_sides
from hawser.bench.report import Row, at_least, at_most, ratio

EACH = 4
# Who needs a system call or two for each message is measured on fewer of them.
FEWER = {"Redis": 32, "Queue": 8, "faster-fifo": 8}
FEWER_IN_CROWD = {"Redis": 96, "Queue": 24, "faster-fifo": 24}

HAWSER = Contestant("hawser", "hawser", domain_in, queues_sides.get, queues_sides.put)
HAWSER_BATCHES = replace(
    HAWSER, name="batches", receive=queues_sides.get_batches, send=queues_sides.put_batches
)
HAWSER_IN_PLACE = replace(HAWSER_BATCHES, name="in place", receive=queues_sides.get_batches_in_place)
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
    """Each measurement has a list of its own."""
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


# Many of both.


def _crowds(plan: Plan, peers: list[Contestant]) -> Iterator[Row]:
    sides = {
        "hawser": queues_sides,
        "Queue": stdlib,
        "pyzmq": pyzmq,
        "faster-fifo": faster_fifo,
        "Redis": redis,
    }
    single = Crowd(MEASURED_SIZE, plan.scaled(960_000), EACH, EACH)
    measures: dict[str, Callable[[], float]] = {}
    for one in (HAWSER, *peers):
        side = sides[one.name]
        crowd = replace(single, count=single.count // FEWER_IN_CROWD.get(one.name, 1))
        crowded = replace(one, receive=side.get_in_crowd, send=side.put_in_crowd)
        measures[one.name] = partial(_crowd_rate, plan, crowded, crowd)
    together = replace(
        HAWSER, receive=queues_sides.get_batches_in_crowd, send=queues_sides.put_batches_in_crowd
    )
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
    """On any core: there are more processes than cores."""
    with plan.place() as directory:
        consumers, producers = [(contestant.receive, None)] * EACH, [(contestant.send, None)] * EACH
        results = run_sides([*consumers, *producers], contestant.share(directory), crowd)
    return crowd.rate(results[EACH:], results[:EACH])


# After a kill.


def _killed(plan: Plan) -> Row:
    """Until a message whose consumer was killed is had by one that waits, while an agent runs."""
    plan.tell("a consumer is killed")
    with plan.place() as directory, _agent(directory) as domain:
        times = [_given_again(domain) for _ in range(3 * plan.repeats)]
    spent = statistics.median(times)
    target = at_most("10 ms", spent / 1e6, 10)
    name = "queue: a killed consumer's message, until another has it"
    return Row(name, spent, "ns", {"the slowest time": max(times)}, (target,))


@contextmanager
def _agent(directory: Path) -> Iterator[str]:
    """A domain with a queue that an agent looks after."""
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
    """Get a message, say so, and wait for the end."""
    with hawser.connect(domain) as bus, _watched(bus) as queue:
        message = queue.get()
        connection.send(message is not None)
        connection.recv()


def wait_for_it(domain: str, connection: Connection) -> None:
    """Wait for a message; say when it came."""
    with hawser.connect(domain) as bus, _watched(bus) as queue:
        connection.send(queue.get(0) is None)
        message = queue.get(ANSWER_SECONDS)
        connection.send((now_ns(), message is not None and message.redelivered))
        if message is not None:
            message.accept()


def _given_again(domain: str) -> int:
    """Nanoseconds from the kill to the other's get."""
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
            raise RuntimeError("the message of a killed consumer was not given again")
        at, again = waiter[0].recv()
        held.join()
        waits.join()
    if not again:
        raise RuntimeError("the message of a killed consumer was not given again")
    return int(at - started)
