"""What a client of a cluster costs: acknowledged messages a second, and reading as Arrow.

Run as a program: starts three nodes and an operator in a process of their own, with their disks in `--dir`,
and prints one line for each measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hawser

VALUE = b"v" * 100
BATCH = 1000

CLUSTER = """
import asyncio, sys
from pathlib import Path
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.transport import run

async def main():
    cluster = EmbeddedCluster(Path(sys.argv[1]))
    await cluster.start()
    print(cluster.url, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await cluster.stop()

run(main())
"""


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """The URL of a cluster in another process."""
    command = [sys.executable, "-c", CLUSTER, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


def one_at_a_time(topic: hawser.Topic[Any], seconds: float) -> str:
    times = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        topic.publish(VALUE)
        times.append(time.perf_counter() - began)
    times.sort()
    median, late = times[len(times) // 2], times[len(times) * 99 // 100]
    return f"{len(times) / seconds:9,.0f} messages/s, p50 {median * 1e3:.2f} ms, p99 {late * 1e3:.2f} ms"


def in_flight(topic: hawser.Topic[Any], seconds: float, width: int) -> str:
    waiting: deque[Any] = deque()
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        while len(waiting) < width:
            waiting.append(topic.publish_nowait(VALUE))
        waiting.popleft().result()
        count += 1
    topic.flush()
    return f"{count / seconds:9,.0f} messages/s"


async def in_flight_async(url: str, name: str, seconds: float, width: int) -> str:
    async with hawser.aio.connect(url) as bus:
        topic: Any = await bus.topic(name)
        count = 0
        end = time.perf_counter() + seconds

        async def publish() -> None:
            nonlocal count
            while time.perf_counter() < end:
                await topic.publish(VALUE)
                count += 1

        await asyncio.gather(*(publish() for _ in range(width)))
        return f"{count / seconds:9,.0f} messages/s"


def batched(topic: hawser.Topic[Any], seconds: float) -> str:
    values = [VALUE] * BATCH
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        count += topic.publish_many(values)[0].count
    return f"{count / seconds:9,.0f} messages/s"


async def batched_async(url: str, name: str, seconds: float, width: int) -> str:
    values = [VALUE] * BATCH
    async with hawser.aio.connect(url) as bus:
        topic: Any = await bus.topic(name)
        count = 0
        end = time.perf_counter() + seconds

        async def publish() -> None:
            nonlocal count
            while time.perf_counter() < end:
                receipts = await topic.publish_many(values)
                count += receipts[0].count

        await asyncio.gather(*(publish() for _ in range(width)))
        return f"{count / seconds:9,.0f} messages/s"


def fill(topic: hawser.Topic[Any], megabytes: int) -> None:
    values = [bytes(1000)] * BATCH
    for _ in range(megabytes):
        topic.publish_many(values)


def read_arrow(topic: hawser.Topic[Any], megabytes: int) -> str:
    rows = size = 0
    began = time.perf_counter()
    with topic.subscribe(start="earliest") as subscription:
        while rows < megabytes * BATCH:
            for batch in subscription.take_batches(64, timeout=10):
                rows += batch.num_rows
                size += batch.nbytes
    seconds = time.perf_counter() - began
    return f"{size / seconds / 1e6:9,.0f} MB/s, {rows / seconds:,.0f} messages/s of 1,000 bytes"


def read_samples(topic: hawser.Topic[Any], seconds: float) -> str:
    count = 0
    end = time.perf_counter() + seconds
    with topic.subscribe(start="earliest") as subscription:
        while time.perf_counter() < end and (taken := subscription.take_many(1000, timeout=1)):
            count += len(taken)
    return f"{count / seconds:9,.0f} messages/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=None, help="where the disks of the nodes are")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory, cluster(Path(directory)) as url:
        measure(url, options.seconds)


def measure(url: str, seconds: float) -> None:
    with hawser.connect(url, name="bench") as bus:
        topic: Any = bus.topic("small")
        topic.publish(VALUE)
        show("one at a time", one_at_a_time(topic, seconds))
        show("64 in flight", in_flight(topic, seconds, 64))
        show("1,024 in flight", in_flight(topic, seconds, 1024))
        show("64 in flight, async", asyncio.run(in_flight_async(url, "small", seconds, 64)))
        many: Any = bus.topic("batched")
        show("batches of 1,000 x 100 bytes", batched(many, seconds))
        show("the same, 8 in flight, async", asyncio.run(batched_async(url, "batched", seconds, 8)))
        show("samples taken, 100 bytes", read_samples(many, seconds))
        large: Any = bus.topic("large")
        fill(large, 100)
        read_arrow(large, 100)
        show("read as Arrow", read_arrow(large, 100))


def show(name: str, figure: str) -> None:
    print(f"{name:30}", figure, flush=True)


if __name__ == "__main__":
    main()
