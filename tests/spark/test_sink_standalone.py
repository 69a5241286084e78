"""The sink on a real Spark cluster of two hosts: tasks are speculated, fail, and come back from the dead.
Every row is in the topic once."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.copy_program import CopyProgram
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS
from tests.support.sink import counted, prepared
from tests.support.source import wait_for
from tests.support.spark import SMALL_EXECUTORS, StandaloneCluster, need_java, standalone_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {
    **SMALL_EXECUTORS,
    "spark.task.maxFailures": "8",
    # A task that takes longer than others is run a second time, on the other host, and soon.
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    # An executor that nobody hears of is given up, and replaced.
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
}
# Of the source and of the target.
NAMES = "spread", "spread/copy"


class Scene:
    """A query on the cluster that is told what to do by files."""

    def __init__(self, standalone: StandaloneCluster, cluster: RunningCluster, directory: Path) -> None:
        bus = cluster.connect("tests")
        self._directory = directory
        self._source = bus.topic(NAMES[0], partitions=2)
        self._target = bus.topic(NAMES[1], partitions=3)
        self._expected: Counter[bytes] = Counter()
        self.url = cluster.url
        self.standalone = standalone
        self.program = CopyProgram(standalone.master, SETTINGS, cluster.url, NAMES, directory)

    def publish(self) -> None:
        """Forty more, which are one micro-batch of two tasks."""
        first = self._expected.total()
        values = [b"%d" % number for number in range(first, first + 40)]
        self._source.publish_many(values, keys=values)
        self._expected.update(values)

    def tell(self, *words: str) -> None:
        for word in words:
            (self._directory / word).touch()

    def forget(self, *words: str) -> None:
        for word in words:
            (self._directory / word).unlink(missing_ok=True)

    def wait_until_held(self, attempt: int) -> int:
        """The process in which that attempt stands still."""
        held = self._directory / f"held-{attempt}"
        text = self.program.wait_for(lambda: held.exists() and held.read_text(), f"attempt {attempt}")
        return int(text)

    def wait_until_failed(self, attempt: int) -> None:
        is_told = (self._directory / f"fail-{attempt}").exists
        self.program.wait_for(lambda: not is_told(), f"attempt {attempt}")

    def check_written(self) -> int:
        """Wait for all rows; each is there once."""
        expected = self._expected
        self.program.wait_for(lambda: counted(self._target).total() >= expected.total(), "all rows")
        assert counted(self._target) == expected
        return expected.total()


@pytest.fixture(scope="module")
def scene(module_path: Path) -> Iterator[Scene]:
    need_java()
    with (
        RunningCluster(module_path / "cluster") as cluster,
        standalone_cluster(module_path / "standalone") as standalone,
    ):
        scene = Scene(standalone, cluster, module_path)
        try:
            scene.program.begin()
            scene.publish()
            scene.check_written()
            yield scene
        finally:
            scene.program.kill()


@pytest.mark.parametrize("first", [0, 1, None])
def test_a_task_is_speculated(scene: Scene, first: int | None) -> None:
    """Two attempts on two hosts have a part of the same rows; then one of them goes on, or both at once."""
    scene.forget("held-0", "held-1")
    scene.tell("hold-0", "hold-1")
    scene.publish()
    one, other = scene.wait_until_held(0), scene.wait_until_held(1)
    assert scene.standalone.executor_of(one) != scene.standalone.executor_of(other)
    scene.forget(*(["hold-0", "hold-1"] if first is None else [f"hold-{first}"]))
    scene.check_written()
    scene.forget("hold-0", "hold-1")
    scene.publish()
    scene.check_written()


def test_tasks_fail_and_are_tried_again(scene: Scene) -> None:
    # One that is speculated could be through before an earlier one has failed.
    later = [f"hold-{attempt}" for attempt in range(3, 8)]
    scene.tell("fail-0", "fail-1", "fail-2", *later)
    scene.publish()
    for attempt in range(3):
        scene.wait_until_failed(attempt)
    scene.forget(*later)
    scene.check_written()


def test_an_executor_comes_back(scene: Scene, record_property: Callable[[str, object], None]) -> None:
    """It stands still in the middle of its rows until it was given up and replaced; then all that is left of
    it goes on."""
    scene.forget("held-0")
    # The second attempt waits for the first: it could be through before that one has begun.
    scene.tell("hold-0", "hold-1")
    scene.publish()
    victim = scene.standalone.executor_of(scene.wait_until_held(0))
    others = set(scene.standalone.executors) - {victim}
    zombies = scene.standalone.tree(victim)
    for pid in zombies:
        os.kill(pid, signal.SIGSTOP)
    try:
        scene.forget("hold-1")
        scene.check_written()
        scene.program.wait_for(
            lambda: set(scene.standalone.executors) - others - {victim}, "an executor in its place"
        )
    finally:
        scene.forget("hold-0")
        left = [pid for pid in zombies if Path(f"/proc/{pid}").exists()]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    scene.publish()
    record_property("rows, each once", scene.check_written())
    record_property("processes that came back", len(left))
    wait_for(lambda: not prepared(scene.url), "the end of all branches", LIMIT_SECONDS)
