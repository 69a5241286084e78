"""Publishers in shared memory, killed during a loan. Each run writes a ledger of its receipts.

The proof compares the rows of the table with the receipts. The value of a row identifies the publisher, the
run and the number of the message, and the row has its offset in the region; the receipts have the same. Each
message must be in the table once, unchanged, at the offset of its receipt. A killed run may have published
one more message, whose receipt it could not write.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from hawser.demo.messages import TOPIC, read_payload
from hawser.demo.parts.part import Environment, KillPoint, Part, Row
from hawser.demo.processes import Process
from hawser.demo.programs.ledger import Assignment, Control, read_receipts
from hawser.demo.proof import Proof, some

__all__ = ["PublisherPart", "Run", "prove_receipts"]

# The time away is long enough that the agent recovers a publisher, not its restart.
_KILL_POINTS: Final = tuple(KillPoint(share, "publisher", 0.5) for share in (0.10, 0.40, 0.75))


class Run(NamedTuple):
    """One run of a publisher: its receipts, and whether it was killed."""

    name: str
    publisher: int
    run: int
    receipts: Sequence[int]
    killed: bool


class Publisher(Process):
    """The process of a publisher; each of its runs has a ledger of its own."""

    def __init__(self, index: int, environment: Environment) -> None:
        super().__init__(f"publisher-{index + 1}", environment.memory, "hawser.demo.programs.publisher")
        self._index = index
        self._url = environment.url
        self._rate = environment.plan.messages / environment.plan.seconds / environment.plan.publishers
        self._assignments: list[Assignment] = []
        self._killed_runs: set[int] = set()

    def start(self) -> None:
        assignment = Assignment(
            url=self._url,
            topic=TOPIC,
            directory=str(self.directory),
            name=self.name,
            index=self._index,
            run=self.runs + 1,
            rate=self._rate,
        )
        self._assignments.append(assignment)
        self.arguments = [msgspec.json.encode(assignment).decode()]
        super().start()

    def kill(self) -> bool:
        killed = super().kill()
        if killed:
            self._killed_runs.add(self.runs)
        return killed

    def told(self) -> list[Run]:
        """The receipts of each of its runs."""
        return [
            Run(self.name, each.index, each.run, read_receipts(each.receipts), each.run in self._killed_runs)
            for each in self._assignments
        ]


class PublisherPart(Part):
    title = "published in shared memory"
    verb = "published"
    sign = "its loans are returned"
    kill_points = _KILL_POINTS

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.gauge = environment.published
        self._control = Control(environment.memory)
        self._publishers = [Publisher(index, environment) for index in range(environment.plan.publishers)]
        self.processes = [*self._publishers]

    @property
    def expected(self) -> int:
        return self.environment.messages

    def start(self) -> None:
        self.environment.watch.add(self.gauge, lambda: self.environment.topic.info().head)
        for publisher in self._publishers:
            publisher.start()

    def end(self) -> None:
        """Stop publishing, and wait until the publishers have ended."""
        self._control.stop_publishing()
        for publisher in self._publishers:
            publisher.wait_end()
        self.gauge.saw(self.environment.topic.info().head)

    def victim(self, what: str) -> Process | None:
        living = [each for each in self.processes if each.alive]
        return self.environment.random.choice(living) if living else None

    def recovered(self, killed: Process) -> Callable[[], bool]:
        pid = killed.pid
        return lambda: all(each.pid != pid for each in self.environment.topic.info().participants)

    def proof(self) -> Proof:
        runs = [run for publisher in self._publishers for run in publisher.told()]
        proof = prove_receipts(runs, self.environment.rows(TOPIC))
        leaked = self.environment.topic.info().slots_leaked
        proof.require(leaked == 0, f"{leaked} slots of the region are leaked")
        return proof


def prove_receipts(runs: Sequence[Run], rows: Sequence[Row]) -> Proof:
    """Compare the rows of the recorded topic with the receipts of its publishers."""
    proof = Proof("receipts of publishers, and what they published", sum(len(run.receipts) for run in runs))
    _prove_runs(runs, _contents(rows, proof), proof)
    return proof


def _contents(rows: Iterable[Row], proof: Proof) -> dict[tuple[int, int], dict[int, int]]:
    """The offset in the region of each message number, by publisher and run."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    damaged: list[int] = []
    repeated: list[int] = []
    for row in rows:
        origin = read_payload(row.value)
        if origin is None:
            damaged.append(row.sequence)
            continue
        offsets = found.setdefault((origin.publisher, origin.run), {})
        if offsets.setdefault(origin.number, row.sequence) != row.sequence:
            repeated.append(row.sequence)
    proof.damaged = len(damaged)
    proof.doubled += len(repeated)
    proof.require(not damaged, f"{len(damaged)} are not what a publisher wrote: {some(damaged)}")
    proof.require(not repeated, f"{len(repeated)} repeat another message: {some(repeated)}")
    return found


def _prove_runs(runs: Sequence[Run], contents: dict[tuple[int, int], dict[int, int]], proof: Proof) -> None:
    without_receipt = 0
    for run in runs:
        recorded = contents.pop((run.publisher, run.run), {})
        title = f"{run.name}, run {run.run}"
        told = dict(enumerate(run.receipts))
        proof.found += len(told.keys() & recorded.keys())
        differing = [number for number, offset in told.items() if recorded.get(number) != offset]
        text = (
            f"{title}: {len(differing)} messages are not at the offsets of their receipts: {some(differing)}"
        )
        proof.require(not differing, text)
        proof.lost += len(told.keys() - recorded.keys())
        untold = sorted(recorded.keys() - told.keys())
        without_receipt += len(untold)
        expected = [] if not untold or not run.killed else [len(told)]
        proof.require(untold == expected, f"{title}: messages without a receipt: {some(untold)}")
    proof.require(not contents, f"messages of runs that did not exist: {some(sorted(contents))}")
    proof.remarks.append(
        f"{without_receipt} messages were published by publishers that were killed before they wrote "
        "the receipts"
    )
