"""Messages in one direction between two processes: single, in batches, and as loans.

Hawser has a reliable subscriber, so that no message is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import hawser
from hawser.bench.contest import MEASURED_SIZE, Contestant, Stream, address_in
from hawser.bench.machine import two_cores
from hawser.bench.peers import iceoryx2, pyzmq, stdlib, zenoh
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, now_ns, run_sides
from hawser.bench.report import Row, at_least, ratio

BATCH = 256
LOAN_SIZES = {"64 B": 64, "64 KiB": 64 << 10, "4 MiB": 4 << 20}
QUEUED = 16_384

Take = Callable[[], bytes]


def domain_in(directory: Path) -> str:
    return f"shm://{directory}"


def stream_topic(bus: hawser.Bus, stream: Stream) -> hawser.Topic[Any]:
    """The topic of a stream."""
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
    """Take samples in batches without copies."""
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
    """Take each sample without a copy."""
    with hawser.connect(shared) as bus, stream_topic(bus, stream).subscribe(reliable=True) as subscription:
        take, sample = subscription.take, None
        gate.start()
        for _ in range(stream.warm + stream.count):
            sample = take()
        finished = now_ns()
        stream.check(bytes(sample or b""))
        gate.finish(finished)


def send_loans(shared: str, stream: Stream, gate: Gate) -> None:
    """Publish each loan without a copy."""
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


HAWSER = Contestant("hawser", "hawser", domain_in, receive, send)
HAWSER_BATCHES = replace(HAWSER, name="batches", receive=receive_batches, send=send_batches)
HAWSER_IN_PLACE = replace(HAWSER_BATCHES, name="in place", receive=receive_batches_in_place)
HAWSER_LOANS = replace(HAWSER, receive=receive_loans, send=send_loans)
ICEORYX2 = Contestant("iceoryx2", "iceoryx2", address_in, iceoryx2.receive, iceoryx2.send)
ICEORYX2_LOANS = replace(ICEORYX2, receive=iceoryx2.receive_loans, send=iceoryx2.send_loans)
PYZMQ = Contestant("pyzmq", "zmq", address_in, pyzmq.receive, pyzmq.send)
ZENOH = Contestant("zenoh", "zenoh", address_in, zenoh.receive, zenoh.send)
QUEUE = Contestant(
    "Queue",
    "multiprocessing",
    stdlib.share_queue,
    stdlib.receive_from_queue,
    stdlib.send_to_queue,
)
PIPE = Contestant(
    "Pipe",
    "multiprocessing",
    stdlib.share_pipe,
    stdlib.receive_from_pipe,
    stdlib.send_to_pipe,
)
PACKED = (
    replace(PYZMQ, name="pyzmq multipart", receive=pyzmq.receive_batches, send=pyzmq.send_batches),
    replace(
        QUEUE,
        name="Queue of lists",
        receive=stdlib.receive_lists_from_queue,
        send=stdlib.send_lists_to_queue,
    ),
)


def rate(plan: Plan, contestant: Contestant, stream: Stream) -> float:
    """Messages per second from the first send to the last receipt."""
    near, far = two_cores()
    with plan.place() as directory:
        shared = contestant.share(directory)
        finished, started = run_sides([(contestant.receive, far), (contestant.send, near)], shared, stream)
    return float(stream.count * 1e9 / (finished - started))


def _measures(plan: Plan, entries: list[tuple[Contestant, Stream]]) -> dict[str, Callable[[], float]]:
    return {
        contestant.name: partial(rate, plan, contestant, stream)
        for contestant, stream in entries
        if contestant.installed()
    }


def small_messages(plan: Plan) -> Iterator[Row]:
    """64-byte messages, copied in and copied out."""
    single = Stream(MEASURED_SIZE, plan.scaled(400_000))
    batches = Stream(MEASURED_SIZE, plan.scaled(8192) * BATCH, BATCH)
    peers = [one for one in (ICEORYX2, PYZMQ, ZENOH, QUEUE, PIPE) if plan.invited(one.name)]
    packed = [one for one in PACKED if plan.invited(one.name.partition(" ")[0])]
    found = plan.medians(
        _measures(
            plan,
            [
                (HAWSER, single),
                *((peer, single) for peer in peers),
                *((one, batches) for one in (HAWSER_BATCHES, HAWSER_IN_PLACE, *packed)),
            ],
        )
    )
    alone = {peer.name: found[peer.name] for peer in peers if peer.name in found}
    best = max((value for name, value in alone.items() if name != "iceoryx2"), default=None)
    fastest = max(alone.values(), default=None)
    one_call, together = found["hawser"], found["batches"]
    yield Row(
        "64 B, one call a message",
        one_call,
        "msg/s",
        alone,
        (
            at_least("5 x iceoryx2", ratio(one_call, alone.get("iceoryx2")), 5),
            at_least("3 x the best of the others", ratio(one_call, best), 3),
        ),
    )
    yield Row(
        f"64 B in batches of {BATCH}",
        together,
        "msg/s",
        alone,
        (at_least("15 x the best message rate", ratio(together, fastest), 15),),
    )
    yield Row(
        f"64 B in batches of {BATCH}, read in place, beside messages packed into one by hand",
        found["in place"],
        "msg/s",
        {one.name: found[one.name] for one in packed if one.name in found},
    )


def lent_messages(plan: Plan) -> Iterator[Row]:
    """Loans of several sizes, published and taken without a copy."""
    entries: dict[str, Callable[[], float]] = {}
    for label, size in LOAN_SIZES.items():
        stream = Stream(size, plan.scaled(200_000), warm=64, queued=16)
        for contestant in (HAWSER_LOANS, ICEORYX2_LOANS):
            if contestant.installed() and (contestant is HAWSER_LOANS or plan.invited(contestant.name)):
                entries[f"{contestant.name} {label}"] = partial(rate, plan, contestant, stream)
    found = plan.medians(entries)
    smallest, *_, largest = LOAN_SIZES
    for label in LOAN_SIZES:
        mine, other = found[f"hawser {label}"], found.get(f"iceoryx2 {label}")
        targets = [at_least("2 x iceoryx2", ratio(mine, other), 2)]
        if label == largest:
            flat = mine / found[f"hawser {smallest}"]
            targets.append(at_least("at any size the rate of 64 B (0.85 or more)", flat, 0.85))
        yield Row(
            f"loan to sample, {label}", mine, "msg/s", {"iceoryx2": other} if other else {}, tuple(targets)
        )
