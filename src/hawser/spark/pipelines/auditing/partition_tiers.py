"""The tiers of a log's partition: replicated, in Spark, landed."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hawser.spark.pipelines.auditing.lines import Line, Run, behind, by, labelled
from hawser.spark.pipelines.ranges import Piece, Range, common, disjoint, holes, without

__all__ = ["partition_lines"]

_Place = tuple[str, int]


def partition_lines(
    by_what: Mapping[str, list[Run]], in_spark: Mapping[_Place, Range] | None
) -> Iterator[Line]:
    """Of all partitions that a log, a table or a checkpoint tells of; of the log alone if `in_spark` is None,
    because there is no landing."""
    logs = by(by_what.get("replicated", ()), lambda run: (run.topic, run.partition))
    tables = by(by_what.get("landed", ()), lambda run: (run.topic, run.partition))
    committed = {} if in_spark is None else {place: each for place, each in in_spark.items() if each.size > 0}
    if in_spark is None:
        tables = {}
    for place in sorted({*logs, *tables, *committed}):
        partition = _Partition(place, logs.get(place, []), tables.get(place, []), committed.get(place))
        yield partition.replicated()
        if in_spark is not None:
            yield partition.in_spark()
            yield partition.landed()


class _Partition(NamedTuple):
    """`committed` begins at 0 if the start of the landing is no longer known."""

    place: _Place
    log: list[Run]
    table: list[Run]
    committed: Range | None

    @property
    def runs(self) -> list[Run]:
        return [*self.log, *self.table]

    @property
    def read(self) -> Range | None:
        """The records that Spark has read: up to its last commit, or up to the table's end if that is
        further."""
        ends = [run.last for run in self.table] + ([] if self.committed is None else [self.committed.last])
        if not ends:
            return None
        firsts = [run.first for run in self.table]
        if self.committed is not None and self.committed.first > 0:
            firsts.append(self.committed.first)
        else:
            firsts += [run.first for run in self.log]
        return Range(min(firsts, default=1), max(ends))

    def line(self, tier: str, runs: list[Run], expected: list[Piece]) -> Line:
        return Line(tier, self.place[0], runs, expected, partition=self.place[1])  # type: ignore[arg-type]

    def replicated(self) -> Line:
        """A log has no holes but where it was trimmed. A landing may be ahead of what was read of it here."""
        reached = max((run.last for run in self.log or self.table), default=0)
        known = disjoint(run.piece for run in self.runs)
        first = known[0].first if known else 1
        whole = disjoint([*known, *labelled(holes(known, first), self.runs)])
        line = self.line("replicated", self.log, without(whole, behind(whole, reached)))
        line.say("unwitnessed", line.absent, "the log does not have them any more")
        return line

    def in_spark(self) -> Line:
        """Only the offsets of a batch's records are known."""
        expected, read = self._expected(), self.read
        place = ("in Spark", *self.place, "", "", 0, "", 0, 0)
        found = [] if read is None else common(expected, [read])
        runs = [Run(*place, piece.at, False, piece.first, piece.last, 0, 0) for piece in found]
        line = self.line("in Spark", runs, expected)
        line.say("pending", line.absent, "no batch of the landing has committed them")
        return line

    def landed(self) -> Line:
        """The table has every record that Spark has read, whether the log still has it or not. A table has no
        order."""
        line = self.line("landed", self.table, self._expected())
        to_come = behind(line.absent, 0 if self.read is None else self.read.last)
        line.say("pending", to_come, "not landed yet")
        line.say("missing", without(line.absent, to_come))
        line.compare(self.log, "the log does not have them any more, or was not read so far")
        return line

    def _expected(self) -> list[Piece]:
        """The records from the start of the landing, if that is known."""
        known = disjoint(run.piece for run in self.runs)
        read = self.read
        if read is None:
            return known
        whole = disjoint([*known, *labelled(without([read], known), self.runs)])
        return (
            behind(whole, read.first - 1)
            if self.committed is not None and self.committed.first > 0
            else whole
        )
