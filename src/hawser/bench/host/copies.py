"""4 MiB copied in and copied out, compared with plain copies into and out of shared memory in the same
run."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import hawser
from hawser.bench.machine import two_cores
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, now_ns, run_sides
from hawser.bench.report import Row, at_most

SIZE = 4 << 20
DEPTH = 8
NAMES = ("publish", "plain copy in", "bytes(sample)", "plain copy out")


class _PlainMemory:
    """Plain shared memory with as many slots as the topic uses."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(DEPTH * SIZE)
            self._view = memoryview(mmap.mmap(file.fileno(), DEPTH * SIZE))

    def slot(self, number: int) -> memoryview:
        begin = number % DEPTH * SIZE
        return self._view[begin : begin + SIZE]


def copy_both_ways(shared: str, turns: int, gate: Gate) -> None:
    """The medians of `turns` copies of each kind in alternating order. The first laps touch the memory for
    the first time and are not counted."""

    data = b"m" * SIZE
    plain = _PlainMemory(Path(shared, "plain"))
    times: dict[str, list[int]] = {name: [] for name in NAMES}

    def timed(name: str, copy: Callable[[], object]) -> None:
        started = now_ns()
        copied = copy()
        times[name].append(now_ns() - started)
        del copied

    with hawser.connect(f"shm://{shared}") as bus:
        topic = bus.topic("copies", slot_size=SIZE, history=0, depth=DEPTH, max_held=1, max_subscribers=2)
        with topic.subscribe() as subscription, topic.publisher() as publisher:
            gate.start()
            for turn in range(4 * DEPTH + turns):
                slot, step = plain.slot(turn), 1 if turn % 2 else -1
                copies: list[tuple[str, Callable[[], object]]] = [
                    ("publish", partial(publisher.publish, data)),
                    ("plain copy in", partial(slot.__setitem__, slice(None), data)),
                ]
                for name, copy in copies[::step]:
                    timed(name, copy)
                with cast("hawser.Sample", subscription.take()) as sample:
                    for name, source in [("bytes(sample)", sample), ("plain copy out", slot)][::step]:
                        timed(name, partial(bytes, source))
    gate.finish({name: statistics.median(values[4 * DEPTH :]) for name, values in times.items()})


def large_copies(plan: Plan) -> Iterator[Row]:
    near, _ = two_cores()
    runs = []
    for turn in range(plan.repeats):
        plan.tell(f"copies of 4 MiB, turn {turn + 1} of {plan.repeats}")
        with plan.place() as directory:
            runs += run_sides([(copy_both_ways, near)], str(directory), plan.scaled(200))
    found = {name: statistics.median(run[name] for run in runs) for name in NAMES}
    for label, mine, plain in (("in", NAMES[0], NAMES[1]), ("out", NAMES[2], NAMES[3])):
        target = at_most("1.2 x a plain copy", found[mine] / found[plain], 1.2)
        yield Row(f"copy {label}, 4 MiB", found[mine], "ns", {"plain copy": found[plain]}, (target,))
