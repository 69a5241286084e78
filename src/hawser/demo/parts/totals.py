"""Totals: a Spark query sums the landed results and writes the totals back to a topic, exactly once. Its
driver is killed after the first batch is written and before Spark marks it as done, so that Spark runs the
batch again.

Each micro-batch publishes the totals of its own messages. Proof: each batch did so once, and together the
batches have the totals of all recorded messages.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hawser.demo.messages import TOPIC, TOTALS, results_of
from hawser.demo.parts.part import Environment, KillPoint, Part, Row
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, some

__all__ = ["Total", "TotalsPart", "prove_totals"]

# Minimum number of micro-batches in which the table is read.
_BATCHES: Final = 6


class Total(msgspec.Struct, frozen=True):
    """The totals of one publisher from one micro-batch."""

    batch: int
    messages: int
    bytes: int
    checksum: int
    publisher: str = ""


class TotalsPart(Part):
    title = "in totals written back to a topic"
    verb = "totalled"
    sign = "totals resume"
    kill_points = (KillPoint(0.0, "driver"),)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._driver = Process("totals", environment.directory, "hawser.demo.programs.totals")
        self.processes = [self._driver]
        self._hold = environment.directory / "totals.hold"

    @property
    def expected(self) -> int:
        return self.environment.messages

    @property
    def is_done(self) -> bool:
        # The topic has the last batch shortly before the driver ends.
        return super().is_done and self._driver.code == 0

    def start(self) -> None:
        from hawser.spark.pipelines import tables

        environment = self.environment
        files = len(tables.files(environment.landing, "raw")) // _BATCHES
        table, checkpoint = environment.landing / "tables" / "raw", environment.directory / "totals"
        places = [str(each) for each in (table, checkpoint, max(1, files), self._hold)]
        self._driver.arguments += [environment.cluster_url, *places]
        self._hold.touch()
        self._driver.start()
        environment.watch.add(self.gauge, lambda: sum(total.messages for total in self._written()))

    def recovered(self, killed: Process) -> Callable[[], bool]:
        self._hold.unlink()
        return super().recovered(killed)

    def proof(self) -> Proof:
        return prove_totals(self.environment.rows(TOPIC), self._written())

    def _written(self) -> list[Total]:
        """All totals in the topic, oldest first."""
        topic = self.environment.cluster.topic(TOTALS, create=False)
        head = topic.info().head
        found: list[Total] = []
        while len(found) < head:
            # A replica that does not have all of them yet may answer.
            for sample in topic.read_oldest(head - len(found), after=len(found)).samples:
                assert sample.key is not None, "the key of a total is its publisher"
                total = msgspec.json.decode(bytes(sample), type=Total)
                found.append(msgspec.structs.replace(total, publisher=sample.key.decode()))
        return found


def prove_totals(recorded: Sequence[Row], written: Sequence[Total]) -> Proof:
    """Compare totals of the recorded messages, computed here, with those that were written back."""
    results = results_of((row.offset, row.value) for row in recorded)
    true, told = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for result in results:
        true.update(_figures(result.publisher, 1, result.bytes, result.checksum))
    for total in written:
        told.update(_figures(total.publisher, total.messages, total.bytes, total.checksum))
    proof = Proof("messages in the totals", len(results), sum(total.messages for total in written))
    times = Counter((total.batch, total.publisher) for total in written)
    doubled = sorted(each for each, count in times.items() if count > 1)
    proof.doubled = sum(times[each] - 1 for each in doubled)
    proof.lost = max(0, proof.expected - proof.found)
    proof.invented = max(0, proof.found - proof.expected)
    proof.require(not doubled, f"batches were written twice: {some(doubled)}")
    for publisher, figure in sorted({*true, *told}):
        right, found = true[publisher, figure], told[publisher, figure]
        proof.require(right == found, f"{figure} of {publisher}: {found} in the totals, expected {right}")
    proof.remarks.append(f"the totals were written back by {len({total.batch for total in written})} batches")
    return proof


def _figures(publisher: str, messages: int, size_bytes: int, checksum: int) -> dict[tuple[str, str], int]:
    figures = {"messages": messages, "bytes": size_bytes, "checksums": checksum}
    return {(publisher, title): figure for title, figure in figures.items()}
