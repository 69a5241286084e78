"""What every attack on a cluster shares: clients that note what they do, an adversary, and the judgement."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hawser
from hawser.api.cluster.subscription import ClusterSubscription
from tests.cluster.stalls import stalls
from tests.cluster.worker import GROUP, SESSION_SECONDS, TOPIC, commit_noted, log_of, note_taken
from tests.history.events import Outcome, Recorder, operations, read_events
from tests.history.linearizability import Verdict, judge
from tests.history.log_checks import check_logs
from tests.support.processes import LIMIT_SECONDS, ClusterProcesses, until
from tests.support.workers import Worker

__all__ = ["Clients", "Figures", "judged", "leader_of", "under_load"]

Figures = dict[str, object]


class Clients:
    """Processes with the roles of `tests.cluster.worker`, so many of each, each with a file of its own."""

    def __init__(self, cluster: ClusterProcesses, roles: dict[str, int]) -> None:
        self.url = cluster.url
        self.directory = cluster.directory
        self._roles = roles
        self._started: Counter[str] = Counter()
        self._workers: dict[str, list[Worker]] = {}

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
        words = (role, self.url, name, str(self.directory / f"{name}.history"))
        worker = Worker(self.directory / f"{name}.said", "tests.cluster.worker", *words)
        self._workers.setdefault(role, []).append(worker)

    def replace(self, role: str) -> None:
        """Kill the oldest one of them; a new one comes in its place."""
        self._workers[role].pop(0).kill()
        self.add(role)

    @property
    def _all(self) -> list[Worker]:
        return [worker for workers in self._workers.values() for worker in workers]

    def stop(self) -> None:
        """Let everybody end what it began; AssertionError if one failed."""
        for worker in self._all:
            worker.dismiss()
        for worker in self._all:
            worker.wait()
        self._workers.clear()

    def kill(self) -> None:
        for worker in self._all:
            worker.kill()

    def answered(self, role: str) -> int:
        """How much of what those of a role asked was answered so far."""
        return sum(
            file.read_bytes().count(b'"type":"ok"') for file in self.directory.glob(f"{role}*.history")
        )

    def wait_for_more(self, count: int = 20) -> None:
        """Until everybody who is not there to look only was answered so often again, in each role."""
        roles = [role for role in self._roles if role != "read"]
        wanted = {role: self.answered(role) + count for role in roles}

        def are_answered() -> bool:
            for worker in self._all:
                worker.check()
            return all(self.answered(role) >= wanted[role] for role in roles)

        until(are_answered, f"{wanted} answers", lambda: {role: self.answered(role) for role in roles})


@contextmanager
def under_load(
    cluster: ClusterProcesses, roles: dict[str, int] | None = None, partitions: int = 1
) -> Iterator[Clients]:
    """A topic with clients at work on it; they stop when the block ends."""
    with cluster.connect() as bus:
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
    return cluster.leader(TOPIC, partition)


def judged(cluster: ClusterProcesses, clients: Clients) -> Figures:
    """Read the whole topic, then judge everything that was noted; AssertionError with the first violation."""
    of_loops = stalls(cluster)
    recorder = Recorder(cluster.directory / "auditor.history", "auditor")
    with cluster.connect("auditor", session_seconds=SESSION_SECONDS) as bus:
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
        **of_loops,
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
            commit_noted(recorder, subscription, "auditor")


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
