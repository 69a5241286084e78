"""Costs outside the message path: memory, recovery, start-up."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import hawser
from hawser.bench.host.streams import domain_in
from hawser.bench.plan import Plan
from hawser.bench.processes import ANSWER_SECONDS, CONTEXT, now_ns
from hawser.bench.report import Row, at_least, at_most

SLOTS = 1024
PARTICIPANTS = 64
MESSAGE = 64


def memory(plan: Plan) -> Iterator[Row]:
    """Resident memory of a topic that is configured for much more than it uses."""
    with plan.place() as directory, hawser.connect(domain_in(directory)) as bus:
        topic = bus.topic("memory", slot_size=1 << 20, history=256, depth=256)
        empty = topic.info().resident_bytes
        for _ in range(8):
            topic.publish(bytes(1 << 20))
        info = topic.info()
    used, configured = info.resident_bytes, info.configured_bytes
    target = at_most("what was used (8 MiB) and a hundredth", (used - (8 << 20)) / configured, 0.01)
    yield Row(
        "resident after 8 samples of 1 MiB", used, "B", {"empty": empty, "configured": configured}, (target,)
    )


def _crowded_topic(bus: hawser.Bus) -> hawser.Topic[Any]:
    """A topic with 1,024 slots and room for 64 participants."""
    subscribers, held, publishers, loans = PARTICIPANTS, 4, 8, 2
    ring = SLOTS - (subscribers + 1) * held - publishers * (loans + 1)
    return bus.topic(
        "crowd",
        slot_size=MESSAGE,
        history=ring - 64,
        depth=64,
        max_subscribers=subscribers,
        max_held=held,
        max_publishers=publishers,
        max_loans=loans,
    )


def hold_until_killed(shared: str, connection: Connection) -> None:
    """Take the maximum number of samples, report it, and wait to be killed."""
    with hawser.connect(shared) as bus, _crowded_topic(bus).subscribe(history=4) as subscription:
        samples = subscription.take_many(4)
        connection.send(len(samples))
        time.sleep(ANSWER_SECONDS)


def _recovery_time(bus: hawser.Bus, shared: str) -> float:
    """Nanoseconds to recover one killed holder of four samples."""
    near, far = CONTEXT.Pipe()
    process = CONTEXT.Process(target=hold_until_killed, args=(shared, far), daemon=True)
    process.start()
    far.close()
    held = near.recv()
    process.kill()
    process.join()
    started = now_ns()
    recovered = bus.recover()
    spent = now_ns() - started
    if held != 4 or len(recovered) != 1:
        raise RuntimeError(f"1 holder of 4 samples was killed, but {len(recovered)} recovered, {held} held")
    return spent


def recovery(plan: Plan) -> Iterator[Row]:
    """Recovery of one dead participant among 64, with 1,024 slots."""
    with plan.place() as directory, ExitStack() as stack:
        shared = domain_in(directory)
        bus = stack.enter_context(hawser.connect(shared))
        topic = _crowded_topic(bus)
        for _ in range(PARTICIPANTS - 2):
            stack.enter_context(topic.subscribe())
        topic.publish_many([b"m" * MESSAGE] * SLOTS)
        slots = topic.info().slots
        plan.tell("recovery of the dead")
        times = [_recovery_time(bus, shared) for _ in range(plan.repeats)]
    spent = statistics.median(times)
    yield Row(
        f"recovery of one dead among {PARTICIPANTS}, {slots:,} slots",
        spent,
        "ns",
        {},
        (at_most("1 ms", spent / 1e6, 1), at_least("1,024 slots", slots, SLOTS)),
    )


IMPORT = "import time; begin = time.perf_counter(); import hawser; print(time.perf_counter() - begin)"


def _import_time(environment: dict[str, str]) -> float:
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout) * 1e9


def _help_time(environment: dict[str, str]) -> float:
    command = [sys.executable, "-m", "hawser", "--help"]
    started = now_ns()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return now_ns() - started


def _compiled(directory: Path) -> dict[str, str]:
    """An environment with a bytecode cache in that directory, as an installed package has."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(directory)}


def start(plan: Plan) -> Iterator[Row]:
    """The fastest of many starts, after a first one that compiles."""
    plan.tell("start-up")
    with plan.place() as directory:
        environment = _compiled(directory)
        imported = min(_import_time(environment) for _ in range(1 + 2 * plan.repeats))
        helped = min(_help_time(environment) for _ in range(1 + 2 * plan.repeats))
    yield Row("import hawser", imported, "ns", {}, (at_most("60 ms", imported / 1e6, 60),))
    yield Row("hawser --help", helped, "ns", {}, (at_most("150 ms", helped / 1e6, 150),))
