"""Which executions the repaired C++ memory model (RC11) allows for a few short threads.

Reads-from and modification orders are enumerated; happens-before, coherence, atomicity, the order of
sequentially consistent operations and "no value out of thin air" are applied. An execution is what each
read returned, and whether two accesses race.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

RELAXED, ACQUIRE, RELEASE, BOTH, SEQUENTIAL = "relaxed", "acquire", "release", "acquire-release", "sequential"
PLAIN = "plain"  # not atomic: may race
ACQUIRING = (ACQUIRE, BOTH, SEQUENTIAL)
RELEASING = (RELEASE, BOTH, SEQUENTIAL)
BEFORE_ALL = -1

Relation = set[tuple[int, int]]
Update = Callable[[int], int | None]


@dataclass(frozen=True)
class Event:
    """`kind` is read, write or update; `update` maps the value read to the value written, None is failure."""

    kind: str
    location: str
    order: str
    name: str
    update: Update
    thread: int = BEFORE_ALL


class Execution(NamedTuple):
    reads: dict[str, int]
    race: bool


def read(location: str, order: str, name: str) -> Event:
    return Event("read", location, order, name, lambda value: value)


def write(location: str, order: str, value: int) -> Event:
    return Event("write", location, order, f"write {location}", lambda _: value)


def update(location: str, order: str, change: Update, name: str) -> Event:
    return Event("update", location, order, name, change)


def compare_and_swap(location: str, order: str, old: int, new: int, name: str) -> Event:
    """One that succeeds: executions where it fails are left out."""
    return update(location, order, lambda value: new if value == old else None, name)


def closure(count: int, relation: Relation) -> Relation:
    rows = [0] * count
    for before, after in relation:
        rows[before] |= 1 << after
    for middle in range(count):
        for before in range(count):
            if rows[before] >> middle & 1:
                rows[before] |= rows[middle]
    return {(a, b) for a in range(count) for b in range(count) if rows[a] >> b & 1}


def acyclic(count: int, relation: Relation) -> bool:
    return all(a != b for a, b in closure(count, relation))


def compose(first: Relation, second: Relation) -> Relation:
    following: dict[int, list[int]] = {}
    for before, after in second:
        following.setdefault(before, []).append(after)
    return {(a, c) for a, b in first for c in following.get(b, ())}


class Program:
    """Threads with their initial values; `executions()` gives every allowed one."""

    def __init__(self, threads: list[list[Event]], initial: dict[str, int]) -> None:
        self.events = [write(location, SEQUENTIAL, value) for location, value in initial.items()]
        for thread, operations in enumerate(threads):
            self.events += [replace(operation, thread=thread) for operation in operations]
        self.count = len(self.events)
        self.all = range(self.count)
        self.reads = [i for i in self.all if self.events[i].kind != "write"]
        self.writes = {
            location: [
                i for i in self.all if self.events[i].location == location and self.events[i].kind != "read"
            ]
            for location in initial
        }
        self.program_order = {(a, b) for a in self.all for b in self.all if self._in_program_order(a, b)}

    def _in_program_order(self, a: int, b: int) -> bool:
        first, second = self.events[a].thread, self.events[b].thread
        return (first == BEFORE_ALL != second) or (first == second != BEFORE_ALL and a < b)

    def executions(self) -> Iterator[Execution]:
        sources = [[w for w in self.writes[self.events[r].location] if w != r] for r in self.reads]
        for choice in itertools.product(*sources):
            reads_from = dict(zip(self.reads, choice, strict=True))
            edges = {(source, r) for r, source in reads_from.items()}
            if not acyclic(self.count, self.program_order | edges):
                continue
            values = self._values(reads_from)
            if values is None:
                continue
            seen = {self.events[r].name: values[reads_from[r]] for r in self.reads}
            for modification in self._modification_orders():
                happens_before = self._consistent(reads_from, modification)
                if happens_before is not None:
                    yield Execution(seen, self._races(happens_before))

    def _values(self, reads_from: dict[int, int]) -> dict[int, int] | None:
        values: dict[int, int] = {}

        def value(event: int) -> int | None:
            if event not in values:
                source = value(reads_from[event]) if event in reads_from else 0
                changed = None if source is None else self.events[event].update(source)
                if changed is None:
                    return None
                values[event] = changed
            return values[event]

        return values if all(value(event) is not None for event in self.all) else None

    def _modification_orders(self) -> Iterator[Relation]:
        orders = [[(w[0], *rest) for rest in itertools.permutations(w[1:])] for w in self.writes.values()]
        for choice in itertools.product(*orders):
            yield {pair for order in choice for pair in itertools.combinations(order, 2)}

    def _consistent(self, reads_from: dict[int, int], modification: Relation) -> Relation | None:
        """Happens-before, if the model allows this execution."""
        reads_before = {
            (r, later)
            for r, w in reads_from.items()
            for (first, later) in modification
            if first == w and later != r
        }
        for r, w in reads_from.items():
            if self.events[r].kind != "update":
                continue
            between = any((w, x) in modification and (x, r) in modification for x in self.all)
            if between or (w, r) not in modification:
                return None
        happens_before = closure(self.count, self.program_order | self._synchronizes(reads_from))
        edges = {(w, r) for r, w in reads_from.items()}
        communication = closure(self.count, edges | modification | reads_before)
        if any(a == b or (b, a) in communication for a, b in happens_before):
            return None
        sequential = self._sequential(happens_before, modification, reads_before)
        return happens_before if acyclic(self.count, sequential) else None

    def _synchronizes(self, reads_from: dict[int, int]) -> Relation:
        """A release to the acquire that reads it, also through updates in between."""
        edges: Relation = set()
        for r, w in reads_from.items():
            if self.events[r].order not in ACQUIRING:
                continue
            source: int | None = w
            while source is not None:
                if self.events[source].order in RELEASING:
                    edges.add((source, r))
                source = reads_from[source] if self.events[source].kind == "update" else None
        return edges

    def _sequential(
        self, happens_before: Relation, modification: Relation, reads_before: Relation
    ) -> Relation:
        inside = {(a, b) for a, b in self.program_order if self.events[a].thread != BEFORE_ALL}
        elsewhere = {(a, b) for a, b in inside if not self._same_location(a, b)}
        around = compose(compose(elsewhere, happens_before), elsewhere)
        same = {(a, b) for a, b in happens_before if self._same_location(a, b)}
        ordered = inside | around | same | modification | reads_before
        return {(a, b) for a, b in ordered if self.events[a].order == self.events[b].order == SEQUENTIAL}

    def _same_location(self, a: int, b: int) -> bool:
        return self.events[a].location == self.events[b].location

    def _races(self, happens_before: Relation) -> bool:
        return any(self._race(a, b, happens_before) for a, b in itertools.combinations(self.all, 2))

    def _race(self, a: int, b: int, happens_before: Relation) -> bool:
        first, second = self.events[a], self.events[b]
        plain = PLAIN in (first.order, second.order)
        conflict = self._same_location(a, b) and not first.kind == second.kind == "read"
        apart = first.thread != second.thread and BEFORE_ALL not in (first.thread, second.thread)
        return plain and conflict and apart and (a, b) not in happens_before and (b, a) not in happens_before


def possible(
    threads: list[list[Event]], initial: dict[str, int], wanted: Callable[[Execution], bool]
) -> bool:
    """Whether some allowed execution is as wanted."""
    executions: Iterable[Execution] = Program(threads, initial).executions()
    return any(wanted(execution) for execution in executions)
