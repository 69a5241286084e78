"""The cost of more subscribers: a publish to eight instead of one, a take as one of eight, 256 joined."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import hawser
from hawser.bench.contest import MEASURED_SIZE
from hawser.bench.host.streams import domain_in
from hawser.bench.machine import two_cores
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, now_ns, run_sides
from hawser.bench.report import Row, at_least, at_most

MANY = 8
MOST = 256


def _topic(bus: hawser.Bus) -> hawser.Topic[Any]:
    return bus.topic("many", slot_size=MEASURED_SIZE, history=0, depth=1024, max_subscribers=MOST)


def follow(shared: str, count: int, gate: Gate) -> None:
    """Take samples until the last one."""
    with hawser.connect(shared) as bus, _topic(bus).subscribe() as subscription:
        gate.start()
        offset = 0
        while offset < count:
            sample = subscription.take(0)
            if sample is not None:
                offset = sample.offset
        gate.finish()


def publish(shared: str, count: int, gate: Gate) -> None:
    """The nanoseconds of one publish."""
    with hawser.connect(shared) as bus, _topic(bus).publisher() as publisher:
        message, call = b"m" * MEASURED_SIZE, publisher.publish
        gate.start()
        started = now_ns()
        for _ in range(count):
            call(message)
        gate.finish((now_ns() - started) / count)


def take_in_turn(shared: str, case: tuple[int, int], gate: Gate) -> None:
    """The nanoseconds of one take, when each subscriber takes every sample."""
    subscribers, count = case
    with ExitStack() as stack:
        bus = stack.enter_context(hawser.connect(shared))
        topic = _topic(bus)
        takes = [stack.enter_context(topic.subscribe()).take for _ in range(subscribers)]
        publisher = stack.enter_context(topic.publisher())
        batch = [b"m" * MEASURED_SIZE] * 512
        gate.start()
        spent = 0
        for _ in range(count):
            publisher.publish_many(batch)
            started = now_ns()
            for take in takes:
                for _ in batch:
                    take(0)
            spent += now_ns() - started
        gate.finish(spent / (count * len(batch) * subscribers))


def _publish_time(plan: Plan, subscribers: int, count: int) -> float:
    near, far = two_cores()
    with plan.place() as directory:
        sides = [*[(follow, far)] * subscribers, (publish, near)]
        return float(run_sides(sides, domain_in(directory), count)[-1])


def _take_time(plan: Plan, subscribers: int, count: int) -> float:
    near, _ = two_cores()
    with plan.place() as directory:
        return float(run_sides([(take_in_turn, near)], domain_in(directory), (subscribers, count))[0])


def many_subscribers(plan: Plan) -> Iterator[Row]:
    count = plan.scaled(800_000)
    found = plan.medians(
        {
            "publish 8": partial(_publish_time, plan, MANY, count),
            "publish 1": partial(_publish_time, plan, 1, count),
            "take 8": partial(_take_time, plan, MANY, plan.scaled(100)),
            "take 1": partial(_take_time, plan, 1, plan.scaled(800)),
        }
    )
    for verb, text in (
        ("publish", "no more than with one (1.1 x)"),
        ("take", "no more for each of them (1.2 x)"),
    ):
        mine, one = found[f"{verb} 8"], found[f"{verb} 1"]
        bound = 1.1 if verb == "publish" else 1.2
        target = at_most(text, mine / one, bound)
        yield Row(f"{verb}, eight subscribers", mine, "ns", {"one subscriber": one}, (target,))
    joined = _join_all(plan)
    yield Row("subscribers joined to one topic", joined, "", {}, (at_least("256", joined, MOST),))


def _join_all(plan: Plan) -> int:
    """The number of subscribers of one topic that took the same sample."""
    with plan.place() as directory, ExitStack() as stack:
        bus = stack.enter_context(hawser.connect(domain_in(directory)))
        topic = _topic(bus)
        subscriptions = [stack.enter_context(topic.subscribe()) for _ in range(MOST)]
        topic.publish(b"m")
        return sum(subscription.take(0) is not None for subscription in subscriptions)
