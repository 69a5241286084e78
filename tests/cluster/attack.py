"""What every attack on a cluster shares: clients that note what they do, an adversary, and the judgement."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hawser
from hawser.api.cluster.subscription import ClusterSubscription
from tests.cluster.worker import GROUP, SESSION_SECONDS, TOPIC, log_of, note_taken
from tests.history.events import Outcome, Recorder, operations, read_events
from tests.history.linearizability import Verdict, judge
from tests.history.log_checks import check_logs
from tests.support.processes import ClusterProcesses

__all__ = ["Clients", "Figures", "judged", "leader_of", "under_load"]

LIMIT_SECONDS = 60.0
Figures = dict[str, object]


class Clients:
    """Processes with the roles of `tests.cluster.worker`, so many of each, each with a file of its own."""

    def __init__(self, cluster: ClusterProcesses, roles: dict[str, int]) -> None:
        self.url = cluster.url
        self.directory = cluster.directory
        self._roles = roles
        self._started: Counter[str] = Counter()
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    @property
    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.history"))

    def start(self) -> None:
        for role, count in self._roles.items():
            for _ in range(count):
                self.add(role)

    def add(self, role: str) -> None:
        """One more of them."""
        name = f"{role}{self._started[role]}"
        self._started[role] += 1
        file = self.directory / f"{name}.history"
        command = [sys.executable, "-m", "tests.cluster.worker", role, self.url, name, str(file)]
        self._processes.setdefault(role, []).append(subprocess.Popen(command, stdin=subprocess.PIPE))

    def replace(self, role: str) -> None:
        """Kill the oldest one of them; a new one comes in its place."""
        _kill(self._processes[role].pop(0))
        self.add(role)

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        processes = [each for some in self._processes.values() for each in some]
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
        codes = [process.wait(LIMIT_SECONDS) for process in processes]
        self._processes.clear()
        assert not any(codes), codes

    def kill(self) -> None:
        for processes in self._processes.values():
            for process in processes:
                _kill(process)

    def answered(self, role: str) -> int:
        """How much of what those of a role asked was answered so far."""
        return sum(
            file.read_bytes().count(b'"type":"ok"') for file in self.directory.glob(f"{role}*.history")
        )

    def wait_for_more(self, count: int = 20) -> None:
        """Until everybody who is not there to look only was answered so often again, in each role."""
        roles = [role for role in self._roles if role != "read"]
        wanted = {role: self.answered(role) + count for role in roles}
        deadline = time.monotonic() + LIMIT_SECONDS
        while behind := [role for role in roles if self.answered(role) < wanted[role]]:
            assert time.monotonic() < deadline, {role: (self.answered(role), wanted[role]) for role in behind}
            time.sleep(0.02)


def _kill(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.kill()
    process.wait()
    process.stdin.close()


@contextmanager
def under_load(
    cluster: ClusterProcesses, roles: dict[str, int] | None = None, partitions: int = 1
) -> Iterator[Clients]:
    """A topic with clients at work on it; they stop when the block ends."""
    with hawser.connect(cluster.url) as bus:
        bus.topic(TOPIC, partitions=partitions, replication=3)
    clients = Clients(cluster, roles or {"write": 2, "read": 1})
    try:
        clients.start()
        clients.wait_for_more()
        yield clients
        clients.wait_for_more()
        clients.stop()
    finally:
        clients.kill()


def leader_of(cluster: ClusterProcesses, partition: int = 0) -> str:
    """The node that leads a partition of the topic, once one does."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while (leader := cluster.shard(TOPIC, partition)["leader"]) is None:
        assert time.monotonic() < deadline, "nobody leads"
    return str(leader)


def judged(cluster: ClusterProcesses, clients: Clients) -> Figures:
    """Read the whole topic, then judge everything that was noted; AssertionError with the first violation."""
    recorder = Recorder(cluster.directory / "auditor.history", "auditor")
    options = {"timeout": LIMIT_SECONDS, "session_seconds": SESSION_SECONDS}
    with hawser.connect(cluster.url, name="auditor", **options) as bus:
        topic = bus.topic(TOPIC)
        partitions = topic.info().partitions
        assert partitions is not None
        ends = {each.partition: each.end for each in partitions}
        if clients.answered("member"):
            _drain(topic, recorder, ends)
        records = _read_all(topic, recorder, ends)
    recorder.close()
    found = operations(read_events(clients.files))
    violations = check_logs(found)
    assert not violations, violations[0]
    for name, linearization in judge(found).items():
        assert linearization.verdict is not Verdict.VIOLATED, f"{name}: {linearization}"
    counts = Counter((each.name, each.outcome) for each in found)
    of_publishing: Figures = {
        "acknowledged": counts["publish", Outcome.DONE],
        "refused": counts["publish", Outcome.NOT_DONE],
        "unknown": counts["publish", Outcome.UNKNOWN],
        "polls": counts["poll", Outcome.DONE],
        "ends": counts["state", Outcome.DONE],
        "records": records,
    }
    if not counts["take", Outcome.DONE]:
        return of_publishing
    return {
        **of_publishing,
        "given to the group": sum(
            len(each.result.records) for each in found if each.name == "take" and each.result is not None
        ),
        "commits": counts["commit", Outcome.DONE],
        "commits refused or unknown": counts["commit", Outcome.UNKNOWN],
        "positions": counts["position", Outcome.DONE],
    }


def _drain(topic: hawser.Topic[Any], recorder: Recorder, ends: dict[int, int]) -> None:
    """Be the group's last member: take the rest, and commit it."""
    deadline = time.monotonic() + LIMIT_SECONDS
    wanted = {
        f"group:{GROUP}" if len(ends) == 1 else f"group:{GROUP}/{each}": end - 1 for each, end in ends.items()
    }
    with topic.subscribe(group=GROUP, start="earliest") as subscription:
        assert isinstance(subscription, ClusterSubscription)
        while {kept.name: kept.mark for kept in topic.info().records} != wanted:
            assert time.monotonic() < deadline, f"the group is not at {wanted}: {topic.info().records}"
            note_taken(recorder, subscription.take_many(5000, timeout=0.2))
            begun = [
                recorder.invoke("commit", log_of(partition), group=GROUP, offset=position)
                for partition, position in subscription.positions.items()
            ]
            subscription.commit()
            for invoked in begun:
                recorder.end(invoked, "ok")


def _read_all(topic: hawser.Topic[Any], recorder: Recorder, ends: dict[int, int]) -> int:
    """Note the whole topic; how many records it has."""
    invoked = {partition: recorder.invoke("final", log_of(partition)) for partition in ends}
    records: dict[int, list[tuple[int, str]]] = {partition: [] for partition in ends}
    left = sum(ends.values()) - len(ends)
    total = left
    with topic.subscribe(start="earliest") as subscription:
        while left:
            samples = subscription.take_many(5000, timeout=LIMIT_SECONDS)
            assert samples, f"{left} of {total} records did not come"
            for sample in samples:
                records[sample.partition].append((sample.offset, bytes(sample).decode()))
            left -= len(samples)
    for partition, final in invoked.items():
        recorder.end(final, "ok", records=records[partition])
    return total
