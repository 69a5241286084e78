"""What every attack on a cluster shares: clients that note what they do, an adversary, and the judgement."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hawser
from tests.cluster.worker import TOPIC
from tests.history.events import Outcome, Recorder, operations, read_events
from tests.history.linearizability import Verdict, judge
from tests.history.log_checks import check_logs
from tests.support.processes import ClusterProcesses

__all__ = ["Clients", "Figures", "judged", "leader_of", "under_load"]

LIMIT_SECONDS = 60.0
Figures = dict[str, object]


class Clients:
    """Writers and readers, each a process with a file of its own."""

    def __init__(self, cluster: ClusterProcesses, writers: int, readers: int) -> None:
        self.url = cluster.url
        self.directory = cluster.directory
        self._roles = [("write", f"w{number}") for number in range(writers)]
        self._roles += [("read", f"r{number}") for number in range(readers)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.history"))

    def start(self) -> None:
        for role, name in self._roles:
            file = self.directory / f"{name}.history"
            command = [sys.executable, "-m", "tests.cluster.worker", role, self.url, name, str(file)]
            self._processes.append(subprocess.Popen(command, stdin=subprocess.PIPE))

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(LIMIT_SECONDS) for process in self._processes]
        self._processes = []
        assert not any(codes), codes

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def acknowledged(self) -> int:
        """How many publishes were answered so far."""
        return sum(file.read_bytes().count(b'"type":"ok"') for file in self.directory.glob("w*.history"))

    def wait_for_more(self, count: int = 20) -> None:
        """Until so many more publishes were answered."""
        wanted = self.acknowledged() + count
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.acknowledged() < wanted:
            assert time.monotonic() < deadline, f"{self.acknowledged()} of {wanted} publishes were answered"
            time.sleep(0.02)


@contextmanager
def under_load(cluster: ClusterProcesses, writers: int = 2, readers: int = 1) -> Iterator[Clients]:
    """A topic with clients at work on it; they stop when the block ends."""
    with hawser.connect(cluster.url) as bus:
        bus.topic(TOPIC, partitions=1, replication=3)
    clients = Clients(cluster, writers, readers)
    try:
        clients.start()
        clients.wait_for_more()
        yield clients
        clients.wait_for_more()
        clients.stop()
    finally:
        clients.kill()


def leader_of(cluster: ClusterProcesses) -> str:
    """The node that leads the topic, once one does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (leader := cluster.shard(TOPIC)["leader"]) is None:
        assert time.monotonic() < deadline, "nobody leads"
    return str(leader)


def judged(cluster: ClusterProcesses, clients: Clients) -> Figures:
    """Read the whole topic, then judge everything that was noted; AssertionError with the first violation."""
    recorder = Recorder(cluster.directory / "auditor.history", "auditor")
    with hawser.connect(cluster.url, timeout=LIMIT_SECONDS) as bus:
        topic = bus.topic(TOPIC)
        partitions = topic.info().partitions
        assert partitions is not None
        invoked = recorder.invoke("final", TOPIC)
        records: list[tuple[int, str]] = []
        with topic.subscribe(start="earliest") as subscription:
            while len(records) < partitions[0].end - 1:
                samples = subscription.take_many(5000, timeout=LIMIT_SECONDS)
                assert samples, f"{len(records)} of {partitions[0].end - 1} records came"
                records += [(sample.offset, bytes(sample).decode()) for sample in samples]
        recorder.end(invoked, "ok", records=records)
    recorder.close()
    found = operations(read_events(clients.files))
    violations = check_logs(found)
    assert not violations, violations[0]
    for name, linearization in judge(found).items():
        assert linearization.verdict is not Verdict.VIOLATED, f"{name}: {linearization}"
    counts = Counter((each.name, each.outcome) for each in found)
    return {
        "acknowledged": counts["publish", Outcome.DONE],
        "refused": counts["publish", Outcome.NOT_DONE],
        "unknown": counts["publish", Outcome.UNKNOWN],
        "polls": counts["poll", Outcome.DONE],
        "ends": counts["state", Outcome.DONE],
        "records": len(records),
    }
