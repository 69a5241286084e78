"""The tiers of a host: what was published, taken or settled by the trace, and recorded by the log.

A *region* is the shared memory of a topic or queue; its messages are numbered from 1. An *owner* is a
participant of a region, by its entry and incarnation. Each tier of a region, a subscriber or a recorder
becomes a `Line`: the runs of messages that the evidence has, and the pieces of messages that were expected.
An expected message that is absent gets a word:

| word | the message |
|---|---|
| missed | was overwritten before the subscriber took it, and the subscriber was told |
| pending | may still be taken, accepted or recorded |
| missing | is lost: the evidence is complete at the place where it would be, or a recorder says so |
| unwitnessed | may have been there: the evidence of that place is lost |
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from hawser.spark.pipelines.auditing.lines import Line, Run, behind, by, labelled
from hawser.spark.pipelines.auditing.witness import Neighbours, Witness
from hawser.spark.pipelines.ranges import Piece, common, disjoint, holes, merged, without

__all__ = ["host_lines"]

_HASH_BYTES: Final = 8
_UNPUBLISHED: Final = "the trace does not say what was published"

_Recorder = tuple[str, int, str, str]


def host_lines(by_what: Mapping[str, list[Run]], trace: Witness) -> Iterator[Line]:
    """The lines of all regions that the trace or a recorder has evidence of."""
    return _Hosts(by_what, trace).lines()


def _recorder(run: Run) -> _Recorder:
    return run.topic, run.partition, run.region, run.who


def _carrier(run: Run) -> str:
    return run.carrier


def _partition(run: Run) -> tuple[str, int]:
    return run.topic, run.partition


class _Hosts:
    """The evidence by region, by subscriber (region, owner) or by recorder, and the lines made of it."""

    def __init__(self, by_what: Mapping[str, list[Run]], trace: Witness) -> None:
        def some(*names: str) -> list[Run]:
            return [run for name in names for run in by_what.get(name, ())]

        self._sent = by(some("published", "put"), lambda run: run.region)
        self._settled = by(some("accepted", "moved"), lambda run: run.region)
        returned = by(some("returned"), lambda run: (run.region, run.owner))
        taken = by(some("taken"), lambda run: (run.region, run.owner))
        kept = {key: _without(runs, returned.get(key, [])) for key, runs in taken.items()}
        self._taken = {key: runs for key, runs in kept.items() if runs}
        self._missed = by(some("missed"), lambda run: (run.region, run.owner))
        self._joined = by(some("joined"), lambda run: (run.region, run.owner))
        self._left = by(some("left"), lambda run: (run.region, run.owner))
        self._recorded = by(some("recorded"), _recorder)
        self._gaps = by(some("gap"), _recorder)
        self._gone = {(run.region, run.owner) for run in some("left", "recovered")}
        self._queues = {run.region for run in some("put", "accepted", "moved")}
        self._trace = trace
        self._is_traced = bool(some("traced", "lost"))
        self._switched = by(some("switched"), lambda run: run.region)
        self._log = Witness(some("replicated"), (), _partition)
        # The name of a region is unknown until evidence has it.
        self._names = {
            run.region: run.topic for runs in by_what.values() for run in runs if run.region and run.topic
        }
        self._names |= {run.region: run.topic for run in some("published", "put", "taken") if run.topic}

    def lines(self) -> Iterator[Line]:
        for region in sorted({*self._sent, *self._settled, *(region for region, _ in self._taken)}):
            yield self._of_publishers(region)
            if region in self._queues:
                yield self._of_consumers(region)
        for (region, owner), who in self._subscribers().items():
            yield self._of_subscriber(region, owner, who)
        for key in sorted({*self._recorded, *self._gaps}):
            yield self._of_recorder(*key)

    def _of_publishers(self, region: str) -> Line:
        """Messages that any tier has were published, whether the trace says so or not; so were those between
        them."""
        sent = self._sent.get(region, [])
        known = [*sent, *self._settled.get(region, [])]
        known += [run for (where, _), runs in self._taken.items() if where == region for run in runs]
        known += [run for (_, _, where, _), runs in self._recorded.items() if where == region for run in runs]
        pieces = disjoint(run.piece for run in known)
        expected = disjoint([*pieces, *labelled(holes(pieces, pieces[0].first), known)])
        name, is_queue = self._names.get(region, ""), region in self._queues
        line = Line("published", name, sent, expected, region=region, is_queue=is_queue)
        line.say("unwitnessed", line.absent, "the trace does not say that they were published")
        return line

    def _of_consumers(self, region: str) -> Line:
        """Accepted, or moved to the dead letters, each once, in any order."""
        sent, settled = self._sent.get(region, []), self._settled.get(region, [])
        expected = disjoint(run.piece for run in [*sent, *settled])
        name = self._names.get(region, "")
        line = Line("delivered", name, settled, expected, region=region, is_queue=True)
        trace = self._trace_of(region)
        witnessed = merged(run.piece for run in sent if trace.read_all(run.carrier, run.at_first))
        line.say("pending", common(line.absent, witnessed), "not accepted yet")
        line.say("unwitnessed", without(line.absent, witnessed), "records of the trace are lost since")
        line.compare(sent, _UNPUBLISHED)
        return line

    def _subscribers(self) -> dict[tuple[str, int], str]:
        """The name of each subscriber, whether it took messages or not; a later subscriber of the name is
        another one."""
        found: dict[tuple[str, int], str] = {}
        times: Counter[tuple[str, str]] = Counter()
        sources = (self._taken, self._missed, self._joined, self._left)
        for region, owner in sorted({key for source in sources for key in source}):
            if region in self._queues:
                continue
            runs = [run for source in sources for run in source.get((region, owner), [])]
            name = next((run.who for run in runs if run.who), "") or f"participant {owner & 0xFFFF}"
            times[region, name] += 1
            again = times[region, name]
            found[region, owner] = name if again == 1 else f"{name} #{again}"
        return found

    def _of_subscriber(self, region: str, owner: int, who: str) -> Line:
        """The messages from where it joined, or the first that it took, to where it left; while it is there,
        also newer ones."""
        # `told`: messages that the subscriber missed and was told of; `seen`: these and those it took;
        # `between`: messages between its first and last one without evidence; `to_come`: newer messages.
        key = (region, owner)
        taken, missed = self._taken.get(key, []), self._missed.get(key, [])
        sent = self._sent.get(region, [])
        told = merged(run.piece for run in missed)
        seen = disjoint([*(run.piece for run in taken), *labelled(told, [*sent, *taken, *missed])])
        ends = _ends(self._joined.get(key, []), self._left.get(key, []))
        known = [*taken, *missed, *ends]
        pieces = [*seen, *(run.piece for run in ends)]
        between = labelled(holes(pieces, _start(seen, ends)), known)
        newest = max(known, key=lambda run: run.last)
        is_gone = key in self._gone
        to_come = [] if is_gone else behind(disjoint(run.piece for run in sent), newest.last)
        expected = disjoint([*seen, *between, *to_come])
        line = Line("delivered", self._names.get(region, ""), taken, expected, region=region, who=who)
        line.say("missed", common(line.absent, told), "the subscriber was too slow, and was told")
        trace = self._trace_of(region)
        is_known = trace.read_all(newest.carrier, newest.at_last)
        reason = "not taken yet" if is_known else "records of the trace are lost since"
        line.say("pending" if is_known else "unwitnessed", common(line.absent, to_come), reason)
        neighbours = Neighbours(known, trace, _carrier, None)
        rest = without(without(line.absent, told), to_come)
        _say_what_is_gone(line, rest, neighbours, "records of the trace are lost there")
        line.check_order(_carrier)
        line.compare(sent, _UNPUBLISHED)
        return line

    def _trace_of(self, region: str) -> Witness:
        """Where tracing was switched, it may have been off afterwards, or before."""
        return self._trace.interrupted(self._switched.get(region, []), _carrier)

    def _of_recorder(self, topic: str, partition: int, region: str, who: str) -> Line:
        """All messages from 1 on: a recorder writes a gap for those that it cannot record. Messages that were
        gone before it came, and those that another recorder has, are not missing."""
        # `excused`: messages before this recorder began, or of other recorders; `told`: messages that it says
        # it could not record.
        key = (topic, partition, region, who)
        runs, gaps = self._recorded.get(key, []), self._gaps.get(key, [])
        sent = self._sent.get(region, [])
        others = [run for each, found in self._recorded.items() if each[2] == region for run in found]
        before = _before_it_came(gaps)
        told = merged(run.piece for run in gaps if run not in before)
        seen = disjoint([*(run.piece for run in runs), *labelled(told, [*sent, *runs, *gaps])])
        between = labelled(holes([*seen, *(run.piece for run in gaps)], 1), [*runs, *gaps])
        excused = merged(run.piece for run in [*before, *(run for run in others if run not in runs)])
        whole = disjoint([*(run.piece for run in sent), *seen, *between])
        own = disjoint(run.piece for run in runs)
        expected = disjoint([*own, *without(whole, excused)])
        line = Line("recorded", topic, runs, expected, partition=partition, region=region, who=who)
        to_come = behind(line.absent, max(run.last for run in [*runs, *gaps]))
        line.say("pending", to_come, "not recorded yet")
        line.say("missing", common(line.absent, told), "the recorder could not record them, and says so")
        neighbours = Neighbours([*runs, *gaps], self._log, _partition, 1)
        rest = without(without(line.absent, told), to_come)
        _say_what_is_gone(line, rest, neighbours, "the log does not have all of that place any more")
        line.check_order(_partition)
        if self._is_traced:
            line.compare(sent, _UNPUBLISHED, with_sizes=True)
        return line


def _say_what_is_gone(line: Line, absent: list[Piece], neighbours: Neighbours, reason: str) -> None:
    """Absent messages are missing where the evidence is complete, else unwitnessed for this reason."""
    missing = [piece for piece in absent if neighbours.would_know(piece)]
    line.say("missing", missing)
    line.say("unwitnessed", without(absent, missing), reason)


def _before_it_came(gaps: list[Run]) -> list[Run]:
    """The gap that a recorder begins with, if it does, and which it writes in two: the first number, the
    rest."""
    found = [run for run in gaps if run.first == 1]
    return found + [run for run in gaps if run.first == 2 and any(each.last == 1 for each in found)]


def _without(taken: list[Run], returned: list[Run]) -> list[Run]:
    """The messages that were taken and not put back. Only the last ones, one after the other in the trace,
    can be put back."""
    kept: list[Run] = []
    for run in sorted([*taken, *returned], key=lambda run: run.at_first):
        last = kept[-1] if kept else None
        if run.what == "taken":
            kept.append(run)
        elif last is not None and last.last == run.last and last.first <= run.first:
            kept.pop()
            if last.first < run.first:
                hashes = last.hashes[: _HASH_BYTES * (run.first - last.first)]
                kept.append(last._replace(last=run.first - 1, hash=last.hash - run.hash, hashes=hashes))
    return kept


def _ends(joined: list[Run], left: list[Run]) -> list[Run]:
    """Records of joining and leaving have the number of the last message before."""
    return [*joined, *(run._replace(first=run.last + 1, last=run.last + 1) for run in left)]


def _start(seen: list[Piece], ends: list[Run]) -> int:
    return min([*(piece.first for piece in seen[:1]), *(run.first + 1 for run in ends)])
