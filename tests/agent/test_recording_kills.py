"""Publisher, recorder and leader killed -9 at random, many times: what was acknowledged on the host is in the
cluster once, in its order, and nothing is said to be lost."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.agent.recorded import check_tiling, recording, rows_of, until_recorded
from tests.agent.recording_worker import NAME, TOPIC
from tests.support.lines import whole_lines
from tests.support.processes import ClusterProcesses, cluster_processes, until

Note = Callable[[str, object], None]

_STOPPED_SECONDS = 1.5


class Worker:
    """A process of a module of workers, which may be killed and started again."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", f"tests.agent.{module}", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        # How often it was killed, and how often it died by its own hand.
        self.deaths = self.own_deaths = 0

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def start_again_if_dead(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            self.own_deaths += self._process.returncode == -signal.SIGKILL
            self.kill()
            self.start()

    def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
            self.deaths += 1


class Storm:
    """A publisher and a recorder of one topic at work, and kills."""

    def __init__(self, cluster: ClusterProcesses, local: LocalBus, role: str = "record") -> None:
        self.domain = local.url
        self.cluster = cluster
        self.noted = cluster.directory / "acknowledged"
        self.make(local.connect("owner"))
        self.publisher, self.recorder = self.workers(role)
        self.leaders_killed = self.leaders_stopped = 0
        self._killed_node: str | None = None
        # The recorder comes first, so that nothing is lost before.
        with recording(self.domain, TOPIC, cluster.url, name=NAME) as first:
            until(lambda: first.status().state == "recording", "a first recorder")

    def make(self, owner: hawser.Bus) -> None:
        self.topic: hawser.Topic[Any] = owner.topic(
            TOPIC, slot_size=64, history=0, depth=4000, max_publishers=32
        )

    def workers(self, role: str) -> tuple[Worker, Worker]:
        """Who publishes, and who records."""
        module = "recording_worker"
        return (
            Worker(module, "publish", self.domain, str(self.noted)),
            Worker(module, role, self.domain, self.cluster.url),
        )

    def run(self, random: Random, seconds: float, least_deaths: int) -> None:
        """For so long, and until the recorder has died so often by its own hand."""
        self.publisher.start()
        self.recorder.start()
        try:
            until(self.noted.exists, "a publisher at work")
            end = time.monotonic() + seconds
            while time.monotonic() < end or self.recorder.own_deaths < least_deaths:
                time.sleep(random.uniform(0.1, 0.7))
                self._kill_somebody(random.random())
                self.publisher.start_again_if_dead()
                self.recorder.start_again_if_dead()
        finally:
            self.publisher.kill()
            self.recorder.kill()
            self._leader_back()

    def _kill_somebody(self, choice: float) -> None:
        if choice < 0.35:
            self.publisher.kill()
            self.publisher.start()
        elif choice < 0.7:
            self.recorder.kill()
            self.recorder.start()
        elif choice < 0.9:
            self._leader_back()
            leader = self.cluster.shard(TOPIC)["leader"]
            if leader is not None and choice < 0.82:
                self.cluster.nodes[leader].kill()
                self._killed_node = leader
                self.leaders_killed += 1
            elif leader is not None:
                self._stop_for_a_while(leader)

    def _stop_for_a_while(self, leader: str) -> None:
        """With a batch in its socket, perhaps, whose recorder is dead when it goes on."""
        self.cluster.nodes[leader].pause()
        self.recorder.kill()
        self.recorder.start()
        time.sleep(_STOPPED_SECONDS)
        self.cluster.nodes[leader].resume()
        self.leaders_stopped += 1

    def _leader_back(self) -> None:
        if self._killed_node is not None:
            self.cluster.nodes[self._killed_node].start()
            self._killed_node = None

    def judge(self) -> dict[str, object]:
        """The figures of a storm that did no harm; AssertionError otherwise."""
        head = self.topic.info().head
        with recording(self.domain, TOPIC, self.cluster.url, name=NAME) as last:
            until_recorded(last, head)
        rows = rows_of(self.cluster.url, TOPIC)
        samples, gone = check_tiling(rows)
        assert (samples, gone) == (head, 0)
        return self.figures([row.record.value for row in rows])

    def figures(self, values: list[bytes]) -> dict[str, object]:
        """Of all that was recorded, in its order; AssertionError unless each message is there once, and those
        that were acknowledged where they were."""
        acknowledged = 0
        for line in whole_lines(self.noted):
            first_offset, count, process, number = map(int, line.split())
            for place in range(count):
                value = values[first_offset - 1 + place]
                assert value == b"%d.%d" % (process, number + place), f"offset {first_offset + place}"
            acknowledged += count
        assert max(Counter(values).values()) == 1
        return {
            "published": len(values),
            "acknowledged": acknowledged,
            "publishers killed": self.publisher.deaths,
            "recorders killed": self.recorder.deaths,
            "leaders killed": self.leaders_killed,
            "leaders stopped": self.leaders_stopped,
        }


def attack(
    directory: Path,
    seconds: float,
    role: str = "record",
    kind: type[Storm] = Storm,
    least_deaths: int = 0,
) -> dict[str, object]:
    seed = Random().randrange(1 << 32)
    with LocalBus() as local, cluster_processes(directory) as cluster:
        storm = kind(cluster, local, role)
        storm.run(Random(seed), seconds, least_deaths)
        return {"seed": seed, **storm.judge()}


@pytest.mark.slow
def test_everybody_killed_at_random(tmp_path: Path, record_property: Note) -> None:
    for name, value in attack(tmp_path, seconds=10).items():
        record_property(name, value)


@pytest.mark.slow
def test_a_recorder_that_trusts_its_region_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"is where|=="):
        attack(tmp_path, seconds=0, role="trust", least_deaths=5)


@pytest.mark.soak
def test_soak(tmp_path: Path, soak_seconds: float, record_property: Note) -> None:
    for name, value in attack(tmp_path, seconds=soak_seconds).items():
        record_property(name, value)
