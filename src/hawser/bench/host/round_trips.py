"""Round trips between two processes, spinning and blocking."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import hawser
from hawser.bench.contest import MEASURED_SIZE, RoundTrip, address_in
from hawser.bench.host.streams import ICEORYX2, PIPE, PYZMQ, domain_in
from hawser.bench.machine import two_cores
from hawser.bench.peers import futex, iceoryx2, pyzmq, stdlib
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, Side, now_ns, run_sides
from hawser.bench.report import Row, at_most, ratio

Take = Callable[[], bytes]


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


def trip_time(
    plan: Plan, share: Callable[[Path], object], sides: tuple[Side, Side], trip: RoundTrip
) -> float:
    """The nanoseconds of one round trip in the median block."""
    near, far = two_cores()
    echo, ask = sides
    with plan.place() as directory:
        blocks = run_sides([(echo, far), (ask, near)], share(directory), trip)[1]
    return float(statistics.median(blocks))


def spinning(plan: Plan) -> Iterator[Row]:
    """Round trips with polling on both sides."""
    trip = RoundTrip(MEASURED_SIZE, 500, plan.scaled(80), spin=True)
    measures: dict[str, Callable[[], float]] = {
        "hawser": partial(trip_time, plan, domain_in, (echo, ask), trip)
    }
    if ICEORYX2.installed() and plan.invited("iceoryx2"):
        sides = (iceoryx2.echo, iceoryx2.ask)
        measures["iceoryx2"] = partial(trip_time, plan, address_in, sides, trip)
    found = plan.medians(measures)
    mine = found.pop("hawser")
    target = at_most("a quarter of iceoryx2", ratio(mine, found.get("iceoryx2")), 0.25)
    yield Row("64 B round trip, spinning", mine, "ns", found, (target,))


def blocking(plan: Plan) -> Iterator[Row]:
    """Round trips with sleep and wake-up on both sides, compared with a bare futex."""
    trip = RoundTrip(MEASURED_SIZE, 250, plan.scaled(40), spin=False)
    measures: dict[str, Callable[[], float]] = {
        "hawser": partial(trip_time, plan, domain_in, (echo, ask), trip),
        "futex from Python": partial(trip_time, plan, address_in, (futex.echo, futex.ask), trip),
    }
    with plan.place() as directory:
        program = futex.compile_program(directory)
        if program is not None:
            measures["bare futex"] = lambda: statistics.median(futex.run_program(program, trip))
        if PYZMQ.installed() and plan.invited("pyzmq"):
            measures["pyzmq"] = partial(trip_time, plan, address_in, (pyzmq.echo, pyzmq.ask), trip)
        if plan.invited("Pipe"):
            pipe = (stdlib.echo_on_pipe, stdlib.ask_on_pipe)
            measures["Pipe"] = partial(trip_time, plan, PIPE.share, pipe, trip)
        found = plan.medians(measures)
    mine = found.pop("hawser")
    target = at_most("1.2 x a bare futex", ratio(mine, found.get("bare futex")), 1.2)
    yield Row("64 B round trip, blocking", mine, "ns", found, (target,))
