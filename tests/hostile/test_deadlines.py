"""Every public call on a cluster ends within its time-out, and with an error of Hawser's, whatever becomes of
the cluster: no process listens at its addresses, its processes stand still, its shards have no majority, or
it closes.

All calls are made at the same time. A control that only waits measures how late this machine is.
"""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy  # noqa: F401  # the first import of each takes a while, and cannot be made by two threads at once
import pyarrow  # noqa: F401
import pytest

import hawser
from hawser import aio
from tests.support.processes import ClusterProcesses, cluster_processes
from tests.support.surface import SECONDS, SURFACE, Scene, done, in_thread, missing

# A call may take its time-out and a second; a loaded machine has as much again, and what the control says.
MORE_SECONDS = 2.0
# A call that has not ended by then hangs.
HANGING_SECONDS = 30.0

Trouble = Callable[[], object]


class Ended(NamedTuple):
    name: str
    seconds: float
    most: float
    result: Any


class Control:
    """How late the threads of this process run."""

    def __init__(self) -> None:
        self.late = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            time.sleep(0.1)
            self.late = max(self.late, time.monotonic() - began - 0.1)

    def __enter__(self) -> "Control":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


async def timed(name: str, scene: Scene, made: Any) -> list[Ended]:
    """Each call of an entry, with what it came to."""
    entry, found = SURFACE[name], list[Ended]()
    for call in entry.calls:
        began = time.monotonic()
        try:
            work: Awaitable[Any] = done(call(made)) if scene.is_async else in_thread(partial(call, made))
            result = await work
        except BaseException as error:
            result = error
        found.append(Ended(name, time.monotonic() - began, SECONDS * entry.times, result))
    return found


async def closed(scene: Scene) -> Ended:
    """The end of all its buses."""
    began = time.monotonic()
    await scene.close()
    return Ended("close", time.monotonic() - began, SECONDS, None)


async def walk(url: str, begin: Trouble) -> tuple[list[Ended], list[str]]:
    """All calls of both APIs once the trouble has begun; and those that have not ended."""
    scenes = [Scene(url, is_async) for is_async in (False, True)]
    prepared = [(name, scene, await scene.made(name)) for scene in scenes for name in SURFACE]
    await asyncio.to_thread(begin)
    tasks = {
        asyncio.create_task(timed(name, scene, made)): f"{name}, {'aio' if scene.is_async else 'threads'}"
        for name, scene, made in prepared
    }
    ended, hanging = await asyncio.wait(tasks, timeout=HANGING_SECONDS)
    closing = {asyncio.create_task(closed(scene)): "close" for scene in scenes}
    left, late = await asyncio.wait(closing, timeout=HANGING_SECONDS)
    for task in (*hanging, *late):
        task.cancel()
    return [*(each for task in ended for each in task.result()), *(task.result() for task in left)], [
        *(tasks[task] for task in hanging),
        *(closing[task] for task in late),
    ]


def judge(ended: list[Ended], hanging: list[str], late: float, record_property: Any) -> None:
    slowest = max(ended, key=lambda each: each.seconds - each.most)
    record_property("calls", len(ended))
    record_property("slowest", f"{slowest.name} {slowest.seconds:.2f} s of {slowest.most:g}")
    assert not hanging
    patience = 1.0 + MORE_SECONDS + 2 * late
    slow = [(each.name, round(each.seconds, 2)) for each in ended if each.seconds > each.most + patience]
    assert not slow
    own = hawser.HawserError
    odd = [
        each for each in ended if isinstance(each.result, BaseException) and not isinstance(each.result, own)
    ]
    assert not odd


def attack(cluster: ClusterProcesses, begin: Trouble, record_property: Any) -> None:
    with Control() as control:
        ended, hanging = asyncio.run(walk(cluster.url, begin))
    judge(ended, hanging, control.late, record_property)


@pytest.fixture(scope="module")
def processes(module_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(module_path) as cluster:
        yield cluster


@pytest.fixture
def cluster(processes: ClusterProcesses) -> ClusterProcesses:
    """Works, whatever the test before has done to it."""
    for daemon in processes.daemons:
        if daemon.runs:
            daemon.resume()
    dead = [daemon for daemon in processes.daemons if not daemon.runs]
    for daemon in dead:
        daemon.begin()
    for daemon in dead:
        daemon.wait_until_ready()
    processes.wait_until_alive(*processes.nodes)
    return processes


def test_every_public_method_is_walked() -> None:
    assert missing() == set()


def test_nothing_fails_while_the_cluster_works(cluster: ClusterProcesses, record_property: Any) -> None:
    attack(cluster, lambda: None, record_property)


def test_a_cluster_without_majorities(cluster: ClusterProcesses, record_property: Any) -> None:
    def begin() -> None:
        for node in list(cluster.nodes.values())[1:]:
            node.kill()

    attack(cluster, begin, record_property)


def test_a_cluster_that_stands_still(cluster: ClusterProcesses, record_property: Any) -> None:
    def begin() -> None:
        for daemon in cluster.daemons:
            daemon.pause()

    attack(cluster, begin, record_property)


def test_a_cluster_that_is_killed(cluster: ClusterProcesses, record_property: Any) -> None:
    attack(cluster, cluster.kill, record_property)


def test_a_cluster_that_closes(cluster: ClusterProcesses, record_property: Any) -> None:
    def begin() -> None:
        for daemon in cluster.daemons:
            daemon.signal(signal.SIGTERM)

    attack(cluster, begin, record_property)
    for daemon in cluster.daemons:
        daemon.wait()


@pytest.mark.parametrize("api", [hawser, aio], ids=["threads", "aio"])
def test_connecting_ends_within_the_time_of_a_call(api: Any) -> None:
    """Also if something accepts the connection and says nothing."""

    async def connect(url: str) -> None:
        if api is aio:
            async with aio.connect(url, timeout=SECONDS):
                pass
        else:
            await in_thread(partial(hawser.connect, url, timeout=SECONDS))

    with Control() as control, socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(hawser.Unavailable):
            asyncio.run(connect(f"hawser://127.0.0.1:{silent.getsockname()[1]}"))
        seconds = time.monotonic() - began
    assert seconds <= SECONDS + 1.0 + MORE_SECONDS / 2 + 2 * control.late
