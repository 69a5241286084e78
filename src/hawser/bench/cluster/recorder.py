"""From shared memory to a majority of disks: a publisher, a recorder, three nodes and an operator.

All of them are processes of their own that share all cores, as on a host that records what it publishes.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import hawser
from hawser.agent.recording import Recorder
from hawser.bench.cluster.loads import VALUE
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, now_ns, run_sides
from hawser.bench.report import Row, at_least

TOPIC = "recorded"
BATCH = 256
# Unacknowledged messages stay in the ring, which holds more than a second of messages.
DEPTH = 50_000
_LOOK_SECONDS = 0.001

Places = tuple[str, str]


def recorder(plan: Plan) -> Iterator[Row]:
    """The rate of a recorder with a publisher at full speed."""
    count = plan.scaled(2_000_000) // BATCH * BATCH
    with hawser_servers() as servers:
        rates = plan.turns({"recorder": partial(_rate, plan, servers.url, count)}, most=3)["recorder"]
    rate = statistics.median(rates)
    target = at_least("200 thousand messages a second", rate, 200_000)
    name = f"recorder: shared memory to acknowledged, {len(VALUE)} B"
    yield Row(name, rate, "msg/s", {"the slowest turn": min(rates)}, (target,))


def _rate(plan: Plan, url: str, count: int) -> float:
    """Messages per second from the first publish to the last acknowledgement."""
    with plan.place() as directory:
        places = (f"shm://{directory}", url)
        started, finished = run_sides([(publish, None), (record, None)], places, count)
    return float(count * 1e9 / (finished - started))


def publish(places: Places, count: int, gate: Gate) -> None:
    """Publish, waiting for room in the ring; the result is the time of the first publish."""
    with hawser.connect(places[0]) as bus:
        topic = bus.topic(TOPIC, slot_size=len(VALUE), history=0, depth=DEPTH)
        values = [VALUE] * BATCH
        gate.start()
        started = now_ns()
        for _ in range(count // BATCH):
            topic.publish_many(values)
        gate.finish(started)


def record(places: Places, count: int, gate: Gate) -> None:
    """Record; the result is the time of the last acknowledgement."""
    domain, url = places
    stop = threading.Event()
    recording = Recorder(domain, TOPIC, url, name="bench")
    thread = threading.Thread(target=recording.run, args=(stop,))
    thread.start()
    try:
        _wait_for(recording, lambda: recording.status().state == "recording")
        gate.start()
        _wait_for(recording, lambda: recording.status().position >= count)
        finished = now_ns()
        status = recording.status()
        with hawser.connect(url) as bus:
            topic = bus.topic(TOPIC, create=False)
            (partition,) = topic.info().partitions
            if (partition.end - partition.start, status.lost) != (count, 0):
                raise RuntimeError(f"{count} messages were published; recorded is {status}, {partition}")
            gate.finish(finished)
            stop.set()
            thread.join()
            topic.delete()
    finally:
        stop.set()
        thread.join()


def _wait_for(recording: Recorder, condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; RuntimeError if the recorder fails first."""
    while not condition():
        if recording.status().state == "failed":
            raise RuntimeError(f"the recorder failed: {recording.status().error}")
        time.sleep(_LOOK_SECONDS)
