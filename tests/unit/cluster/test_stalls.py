"""The watchdog of event loops."""

import asyncio
import logging
import time
from collections.abc import Callable

import pytest

from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.metrics import node_metrics, operator_metrics
from hawser.cluster.stall_watch import StallWatch
from hawser.cluster.transport import new_event_loop
from tests.support.cluster import RunningCluster
from tests.support.processes import until

LOOPS = [asyncio.new_event_loop, new_event_loop]


class Clock:
    """The clock of a watchdog: real beats come when it says."""

    def __init__(self) -> None:
        self.now = self.busy = 0.0
        self.steps: list[tuple[float, float]] = []

    def __call__(self) -> float:
        return self.now

    def busy_clock(self) -> float:
        return self.busy


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_late_timer_is_a_stall(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hawser")
    clock = Clock()
    watch = StallWatch("node n1", clock=clock, busy_clock=clock.busy_clock)

    async def beat(seconds: float, busy: float) -> None:
        """Let a timer come after so long."""
        last = watch._timer
        clock.now += seconds
        clock.busy += busy
        while watch._timer is last:
            await asyncio.sleep(0.001)

    async def main() -> None:
        watch.start(asyncio.get_running_loop())
        await beat(0.025, 0.025)
        await beat(0.074, 0.074)
        assert (watch.count, watch.longest, caplog.text) == (0, 0.0, "")
        await beat(0.225, 0.1)
        assert (watch.count, round(watch.longest, 6), round(watch.longest_busy, 6)) == (1, 0.2, 0.1)
        # One line in ten seconds, unless it is serious.
        await beat(0.125, 0.125)
        await beat(0.825, 0.9)
        watch.stop()

    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()
    assert (watch.count, round(watch.seconds, 6)) == (3, 1.1)
    assert (round(watch.longest, 6), round(watch.longest_busy, 6)) == (0.8, 0.8)
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("INFO", "WARNING")
    assert first.getMessage().startswith("the event loop of node n1 stood still for 200 ms, 100 ms of them")
    assert "2 times since this was last reported" in second.getMessage()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_step_that_takes_long_is_a_stall(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def main() -> StallWatch:
        watch = StallWatch("test").start(asyncio.get_running_loop())
        while not watch.count:
            time.sleep(0.2)
            await asyncio.sleep(0.03)
        watch.stop()
        return watch

    loop = new_loop()
    watch = loop.run_until_complete(main())
    loop.close()
    assert watch.longest >= 0.15


def test_nodes_operators_and_clients_watch_their_loops(cluster: RunningCluster) -> None:
    async def hold() -> None:
        time.sleep(0.3)

    operator = cluster._cluster.operator
    assert operator is not None
    watches = [operator.stalls, *(node.stalls for node in cluster._nodes.values())]
    counts = [watch.count for watch in watches]
    cluster.run(hold())
    until(lambda: all(watch.count > count for watch, count in zip(watches, counts, strict=True)), "a stall")
    node = cluster._nodes[cluster.nodes[0]]
    for metrics in (node_metrics(node, node._directory.path), operator_metrics(operator)):
        figures = {metric.name: metric.value for metric in metrics}
        assert figures["hawser_loop_stalls_total"] > 0
        assert figures["hawser_loop_stall_seconds_total"] >= figures["hawser_loop_stall_seconds"] >= 0.2
        assert figures["hawser_loop_stall_busy_seconds"] <= figures["hawser_loop_stall_seconds"]
    thread = LoopThread("client")
    thread.call(hold())
    until(lambda: thread.stalls.count > 0, "a stall")
    thread.stop()
