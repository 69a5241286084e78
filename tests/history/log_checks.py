"""What must hold of a log, checked in one pass over a history, give or take a sort.

| violation  | what was seen                                                                              |
|------------|--------------------------------------------------------------------------------------------|
| lost       | acknowledged at an offset, and at the end not there, or something else is                  |
| vanished   | given to a reader, and at the end not there                                                |
| torn       | of one publish a part is there at the end, and a part is not, or is elsewhere              |
| doubled    | one value at two offsets                                                                   |
| misplaced  | acknowledged at one offset, and found at another                                           |
| invented   | a value that nobody published                                                              |
| undead     | a value whose publisher was told that it was not published                                 |
| premature  | a value given out before anybody began to publish it                                       |
| split      | two values at one offset                                                                   |
| gap        | an offset left out within one answer, or the whole log does not begin at its beginning     |
| skipped    | a subscription left out an offset between two polls                                        |
| repeated   | a subscription or one answer gave an offset again, or went back                            |
| reordered  | what one process published later comes before what it published earlier                    |
| overtaken  | what was published after an acknowledgement comes before what was acknowledged             |
| stale      | an end that is below what had been acknowledged, given out or told as the end before      |
| unserved   | a group went on behind a record that none of its members had been given                    |
| rewound    | a group's position is below one that had been committed or told before                     |

A loss is certain only with a `final` operation; without one, `lost`, `vanished` and `torn` are not judged,
except where another value is at the offset.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

import msgspec

from tests.history.events import NEVER, HistoryError, Operation, Outcome

__all__ = ["KINDS", "Violation", "check_logs"]

KINDS: Final = (
    *("lost", "vanished", "torn", "doubled", "misplaced", "invented", "undead", "premature"),
    *("split", "gap", "skipped", "repeated", "reordered", "overtaken", "stale", "unserved", "rewound"),
)
_ABOUT_GROUPS: Final = frozenset({"take", "commit", "position"})
_ABOUT_LOGS: Final = _ABOUT_GROUPS | {"publish", "poll", "seek", "read", "final", "state", "trim"}
_GIVING: Final = frozenset({"poll", "read", "final", "take"})


class Violation(msgspec.Struct, frozen=True):
    """What is wrong, where, and which operations show it, the one that makes it certain last."""

    kind: str
    object: str
    what: str
    shown_by: tuple[Operation, ...]

    @property
    def time(self) -> int:
        """When it was certain."""
        return max(each.invoked if each.returned == NEVER else each.returned for each in self.shown_by)

    def __str__(self) -> str:
        shown = [f"    {operation}" for operation in self.shown_by]
        return "\n".join([f"{self.kind}: {self.object}: {self.what}", *shown])


class _Place(msgspec.Struct, frozen=True):
    offset: int
    value: str
    by: Operation


class _Log:
    """One log's part of a history, and where each value is."""

    def __init__(self, name: str, operations: list[Operation]) -> None:
        self.name = name
        self.operations = operations
        done = [operation for operation in operations if operation.outcome is Outcome.DONE]
        self.publishes = [operation for operation in operations if operation.name == "publish"]
        self.giving = [operation for operation in done if operation.name in _GIVING]
        self.ends = [each for each in done if each.result is not None and each.result.end is not None]
        self.trims = [(each.invoked, each.asked.offset or 1) for each in operations if each.name == "trim"]
        self.finals = [operation for operation in self.giving if operation.name == "final"]
        self.published_by = _publishers(name, self.publishes)
        self.given = [
            _Place(offset, value, operation)
            for operation in self.giving
            if operation.result is not None
            for offset, value in operation.result.records
        ]
        self.acknowledged = [
            _Place(operation.result.offset + number, value, operation)
            for operation in self.publishes
            if operation.result is not None and operation.result.offset is not None
            for number, value in enumerate(operation.asked.values)
        ]
        # Who saw something first; a reader counts for more than an acknowledgement.
        self.at_offset: dict[int, _Place] = {}
        self.of_value: dict[str, _Place] = {}
        for place in (*self.given, *self.acknowledged):
            self.at_offset.setdefault(place.offset, place)
            self.of_value.setdefault(place.value, place)

    def floor_before(self, time: int) -> int:
        """The first offset that must still be there at `time`."""
        return max((offset for invoked, offset in self.trims if invoked <= time), default=1)

    def violation(self, kind: str, what: str, *shown_by: Operation) -> Violation:
        assert kind in KINDS
        return Violation(kind, self.name, what, shown_by)


def _publishers(name: str, publishes: Iterable[Operation]) -> dict[str, Operation]:
    publishers: dict[str, Operation] = {}
    for operation in publishes:
        for value in operation.asked.values:
            if publishers.setdefault(value, operation) is not operation:
                raise HistoryError(
                    f"{name}: {value!r} was published twice; the checker cannot tell them apart"
                )
        if len(set(operation.asked.values)) != len(operation.asked.values):
            raise HistoryError(f"{name}: a publish has a value twice: {operation}")
    return publishers


def _origins(log: _Log) -> Iterator[Violation]:
    """Invented, undead and premature."""
    for place in log.given:
        publisher = log.published_by.get(place.value)
        if publisher is None:
            yield log.violation("invented", f"nobody published {place.value!r}", place.by)
        elif publisher.outcome is Outcome.NOT_DONE:
            what = f"{place.value!r} is at {place.offset}, and its publisher was told that it failed"
            yield log.violation("undead", what, publisher, place.by)
        elif place.by.returned < publisher.invoked:
            yield log.violation(
                "premature", f"{place.value!r} was given before its time", publisher, place.by
            )


def _places(log: _Log) -> Iterator[Violation]:
    """Split and doubled among what was given; lost, misplaced and split among what was acknowledged."""
    for place in log.given:
        there, elsewhere = log.at_offset[place.offset], log.of_value[place.value]
        if there.value != place.value:
            what = f"at offset {place.offset} there are {there.value!r} and {place.value!r}"
            yield log.violation("split", what, there.by, place.by)
        if elsewhere.offset != place.offset:
            what = f"{place.value!r} is at {elsewhere.offset} and at {place.offset}"
            yield log.violation("doubled", what, elsewhere.by, place.by)
    given = {place.value for place in log.given}
    given_at = {place.offset for place in log.given}
    for place in log.acknowledged:
        there, found = log.at_offset[place.offset], log.of_value[place.value]
        if place.value in given and found.offset != place.offset:
            what = f"{place.value!r} was acknowledged at {place.offset} and is at {found.offset}"
            yield log.violation("misplaced", what, place.by, found.by)
        elif there.value != place.value and place.value not in given:
            kind = "lost" if place.offset in given_at else "split"
            what = f"{place.value!r} was acknowledged at {place.offset}, where {there.value!r} is"
            yield log.violation(kind, what, place.by, there.by)


def _kept(log: _Log) -> Iterator[Violation]:
    """Lost and vanished: what the whole log must hold."""
    for final in log.finals:
        assert final.result is not None
        kept = dict(final.result.records)
        values = set(kept.values())
        floor = log.floor_before(final.returned)
        for kind, places in (("lost", log.acknowledged), ("vanished", log.given)):
            for place in places:
                if place.offset >= floor and place.offset not in kept and place.value not in values:
                    verb = "acknowledged" if kind == "lost" else "given out"
                    what = f"{place.value!r} was {verb} at {place.offset} and is gone"
                    yield log.violation(kind, what, place.by, final)


def _batches(log: _Log) -> Iterator[Violation]:
    """Torn: what was published together is there together."""
    for final in log.finals:
        assert final.result is not None
        where = {value: offset for offset, value in final.result.records}
        floor = log.floor_before(final.returned)
        for publish in log.publishes:
            values = publish.asked.values
            there = [(number, value) for number, value in enumerate(values) if value in where]
            if not there:
                continue
            start = where[there[0][1]] - there[0][0]
            due = [(offset, value) for offset, value in enumerate(values, start) if offset >= floor]
            if start < 1 or any(where.get(value) != offset for offset, value in due):
                what = f"of {len(values)} values of one publish {len(there)} are there, or not in a row"
                yield log.violation("torn", what, publish, final)


def _density(log: _Log) -> Iterator[Violation]:
    """Gap and repeated within one answer, and where an answer begins."""
    for operation in log.giving:
        assert operation.result is not None
        offsets = [offset for offset, _ in operation.result.records]
        for before, after in pairwise(offsets):
            if after != before + 1:
                kind = "gap" if after > before else "repeated"
                yield log.violation(kind, f"after offset {before} comes {after}", operation)
        if not offsets or operation.name in ("poll", "take"):
            continue
        wanted = 1 if operation.name == "final" else operation.asked.offset or 1
        if offsets[0] > max(wanted, log.floor_before(operation.returned)):
            yield log.violation("gap", f"asked for {wanted}, it begins at {offsets[0]}", operation)
        elif offsets[0] < wanted:
            yield log.violation("repeated", f"asked for {wanted}, it begins at {offsets[0]}", operation)


class _Position(msgspec.Struct, frozen=True):
    """Where a subscription goes on; after a poll of which nobody knows the end, perhaps further on."""

    next: int
    since: Operation
    is_certain: bool = True


def _subscriptions(log: _Log) -> Iterator[Violation]:
    """Skipped and repeated between the polls of one process."""
    positions: dict[str, _Position] = {}
    for operation in log.operations:
        process, result = operation.process, operation.result
        position = positions.get(process)
        if operation.name == "seek" and operation.outcome is not Outcome.NOT_DONE:
            positions.pop(process, None)
            if operation.asked.offset is not None and operation.outcome is Outcome.DONE:
                positions[process] = _Position(operation.asked.offset, operation)
        if operation.name != "poll":
            continue
        if operation.outcome is Outcome.UNKNOWN and position is not None:
            positions[process] = _Position(position.next, operation, is_certain=False)
        if result is None or not result.records:
            continue
        if position is not None:
            yield from _continued(log, position, operation, result.records[0][0])
        positions[process] = _Position(result.records[-1][0] + 1, operation)


def _continued(log: _Log, position: _Position, poll: Operation, first: int) -> Iterator[Violation]:
    what = f"{poll.process} was given {first} when {position.next} was next"
    if first < position.next:
        yield log.violation("repeated", what, position.since, poll)
    elif first > position.next and position.is_certain and first > log.floor_before(poll.returned):
        yield log.violation("skipped", what, position.since, poll)


def _order(log: _Log) -> Iterator[Violation]:
    """Reordered: by process; overtaken: by the clock."""
    latest: dict[str, _Place] = {}
    for operation in log.publishes:
        for value in operation.asked.values:
            place = log.of_value.get(value)
            if place is None:
                continue
            before = latest.get(operation.process)
            if before is not None and before.offset > place.offset:
                what = f"{value!r} at {place.offset} was published after {before.value!r} at {before.offset}"
                yield log.violation("reordered", what, log.published_by[before.value], operation)
            else:
                latest[operation.process] = place
    heights = _Heights((place.by.returned, place.offset, place.by) for place in log.acknowledged)
    for operation in log.publishes:
        highest = heights.before(operation.invoked)
        found = [log.of_value[value] for value in operation.asked.values if value in log.of_value]
        for place in found:
            if highest is not None and highest[0] > place.offset and highest[1].process != operation.process:
                what = f"{place.value!r} got {place.offset} when {highest[0]} had been acknowledged already"
                yield log.violation("overtaken", what, highest[1], operation)


class _Heights:
    """The highest offset that was known at a time; to be asked in order of time."""

    def __init__(self, moments: Iterable[tuple[int, int, Operation]]) -> None:
        self._moments = sorted(moments, key=lambda moment: moment[0])
        self._next = 0
        self._highest: tuple[int, Operation] | None = None

    def before(self, time: int) -> tuple[int, Operation] | None:
        while self._next < len(self._moments) and self._moments[self._next][0] < time:
            _, offset, operation = self._moments[self._next]
            if self._highest is None or offset > self._highest[0]:
                self._highest = offset, operation
            self._next += 1
        return self._highest


def _freshness(log: _Log) -> Iterator[Violation]:
    """Stale: an end that leaves out what was known before it was asked for."""
    known = [(place.by.returned, place.offset, place.by) for place in (*log.acknowledged, *log.given)]
    for operation in log.ends:
        assert operation.result is not None and operation.result.end is not None
        known.append((operation.returned, operation.result.end - 1, operation))
    heights = _Heights(known)
    for operation in log.ends:
        assert operation.result is not None and operation.result.end is not None
        highest = heights.before(operation.invoked)
        if highest is not None and highest[0] >= operation.result.end:
            what = f"the end was told as {operation.result.end} when offset {highest[0]} was known already"
            yield log.violation("stale", what, highest[1], operation)


def _groups(log: _Log) -> Iterator[Violation]:
    """Unserved and rewound: where a group goes on, against what its members were given and told."""
    done = [each for each in log.operations if each.name in _ABOUT_GROUPS and each.outcome is Outcome.DONE]
    for group in sorted({operation.asked.group for operation in done}):
        mine = [operation for operation in done if operation.asked.group == group]
        takes = sorted((each for each in mine if each.name == "take"), key=lambda take: take.returned)
        claims = [_Claim.of(each) for each in mine if each.name != "take"]
        yield from _unserved(log, takes, sorted(claims, key=lambda claim: claim.known))
        yield from _rewound(log, claims)


class _Claim(msgspec.Struct, frozen=True):
    """The group goes on at `offset`, or further on. What is below had been given by the time `known`."""

    offset: int
    known: int
    by: Operation

    @staticmethod
    def of(operation: Operation) -> "_Claim":
        if operation.name == "commit":
            return _Claim(operation.asked.offset or 1, operation.invoked, operation)
        assert operation.result is not None
        return _Claim(operation.result.offset or 1, operation.returned, operation)


def _unserved(log: _Log, takes: list[Operation], claims: list[_Claim]) -> Iterator[Violation]:
    given: set[int] = set()
    following = 1
    taken = 0
    for claim in claims:
        while taken < len(takes) and takes[taken].returned <= claim.known:
            result = takes[taken].result
            given |= {offset for offset, _ in result.records} if result is not None else set()
            taken += 1
        following = max(following, log.floor_before(claim.known))
        while following in given:
            following += 1
        if claim.offset > following:
            what = f"the group is at {claim.offset}, and nobody was given {following}"
            yield log.violation("unserved", what, claim.by)


def _rewound(log: _Log, claims: list[_Claim]) -> Iterator[Violation]:
    heights = _Heights((claim.by.returned, claim.offset, claim.by) for claim in claims)
    for claim in claims:
        highest = heights.before(claim.by.invoked)
        # A commit of what the group has long left behind is no news, and changes nothing.
        if claim.by.name == "position" and highest is not None and highest[0] > claim.offset:
            what = f"the group is at {claim.offset}, after it was at {highest[0]}"
            yield log.violation("rewound", what, highest[1], claim.by)


_CHECKS: Final[tuple[Callable[[_Log], Iterator[Violation]], ...]] = (
    *(_origins, _places, _kept, _batches, _density, _subscriptions, _order, _freshness, _groups),
)


def check_logs(operations: Iterable[Operation]) -> list[Violation]:
    """Every violation, in the order in which they became certain."""
    logs: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.name in _ABOUT_LOGS:
            logs.setdefault(operation.asked.object, []).append(operation)
    judged = [_Log(name, mine) for name, mine in logs.items()]
    found = [violation for log in judged for check in _CHECKS for violation in check(log)]
    return sorted(found, key=lambda violation: violation.time)
