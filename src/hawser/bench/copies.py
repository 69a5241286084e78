"""4 MiB copied in and copied out, beside plain copies into and out of shared memory in the same run."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import hawser
from hawser.bench.machine import two_cores
from hawser.bench.plan import Plan
from hawser.bench.report import Row, at_most
from hawser.bench.sides import Gate, now_ns, run_sides

SIZE = 4 << 20
DEPTH = 8
NAMES = ("publish", "plain copy in", "bytes(sample)", "plain copy out")


class _PlainMemory:
    """As many slots of ordinary shared memory as the topic has in use."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(DEPTH * SIZE)
            self._view = memoryview(mmap.mmap(file.fileno(), DEPTH * SIZE))

    def slot(self, number: int) -> memoryview:
        begin = number % DEPTH * SIZE
        return self._view[begin : begin + SIZE]


def copy_both_ways(shared: str, turns: int, gate: Gate) -> None:
    """The medians of `turns` copies of each kind, taking turns; the first laps only touch the memory."""
    data = b"m" * SIZE
    plain = _PlainMemory(Path(shared, "plain"))
    times: dict[str, list[int]] = {name: [] for name in NAMES}
    with hawser.connect(f"shm://{shared}") as bus:
        topic = bus.topic("copies", slot_size=SIZE, history=0, depth=DEPTH, max_held=1, max_subscribers=2)
        with topic.subscribe() as subscription, topic.publisher() as publisher:
            gate.start()
            for turn in range(-4 * DEPTH, turns):
                marks = [now_ns()]
                publisher.publish(data)
                marks.append(now_ns())
                plain.slot(turn)[:] = data
                marks.append(now_ns())
                with cast("hawser.Sample", subscription.take()) as sample:
                    marks.append(now_ns())
                    copy = bytes(sample)
                    marks.append(now_ns())
                del copy
                begin = now_ns()
                copy = bytes(plain.slot(turn))
                marks.append(now_ns() - begin)
                del copy
                if turn >= 0:
                    spent = (marks[1] - marks[0], marks[2] - marks[1], marks[4] - marks[3], marks[5])
                    for name, value in zip(NAMES, spent, strict=True):
                        times[name].append(value)
    gate.finish({name: statistics.median(values) for name, values in times.items()})


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
