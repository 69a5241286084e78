"""Two workers that process messages in transactions, and are killed during one.

Proof: each recorded message has one result, in the same order, and each hundredth was processed once.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from hawser.demo.messages import CHECKED, DONE, JOBS, RESULTS, TOPIC, results_of
from hawser.demo.parts.part import Environment, KillPoint, Part, Row
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, compare

__all__ = ["CheckerPart", "SorterPart", "expected_jobs", "expected_results", "prove_jobs", "prove_results"]


class _WorkerPart(Part):
    """A worker, and the topic it publishes to."""

    role: ClassVar[str]
    target: ClassVar[str]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._worker = Process(self.role, environment.directory, "hawser.demo.programs.worker", self.role)
        self.processes = [self._worker]

    def start(self) -> None:
        self._worker.arguments.append(self.environment.cluster_url)
        self._worker.start()
        target = self.environment.cluster.topic(self.target, create=False)
        self.environment.watch.add(self.gauge, lambda: target.info().head)

    def found(self) -> list[bytes]:
        return [row.value for row in self.environment.rows(self.target)]


class SorterPart(_WorkerPart):
    title = "results, by transactions"
    verb = "sorted"
    kill_points = (KillPoint(0.30, "worker"), KillPoint(0.70, "worker"))
    role = "sorter"
    target = RESULTS
    sign = "results resume"

    @property
    def expected(self) -> int:
        return self.environment.messages

    def proof(self) -> Proof:
        return prove_results(self.environment.rows(TOPIC), self.found())


class CheckerPart(_WorkerPart):
    title = "jobs of a queue, done by transactions"
    verb = "done"
    kill_points = (KillPoint(0.50, "worker"),)
    role = "checker"
    target = DONE
    sign = "jobs resume"

    @property
    def expected(self) -> int:
        return self.environment.messages // CHECKED

    def proof(self) -> Proof:
        proof = prove_jobs(self.environment.rows(TOPIC), self.found())
        left = self.environment.cluster.queue(JOBS, create=False).info()
        text = f"the queue has {left.ready} ready messages, {left.claimed} claimed and {left.dead} dead ones"
        proof.require(left.ready == left.claimed == left.dead == 0, text)
        return proof


def expected_results(recorded: Sequence[Row]) -> list[bytes]:
    """The results of the recorded messages."""
    return [msgspec.json.encode(each) for each in results_of((row.offset, row.value) for row in recorded)]


def expected_jobs(recorded: Sequence[Row]) -> list[bytes]:
    """The jobs of the recorded messages."""
    return expected_results([row for row in recorded if row.offset % CHECKED == 0])


def prove_results(recorded: Sequence[Row], found: Sequence[bytes]) -> Proof:
    return compare("results of recorded messages", expected_results(recorded), found)


def prove_jobs(recorded: Sequence[Row], found: Sequence[bytes]) -> Proof:
    # A job that is delivered again is done after others.
    return compare("jobs of the queue", expected_jobs(recorded), found, is_ordered=False)
