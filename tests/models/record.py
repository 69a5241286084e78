"""Positions kept by name: records in a region's table, each claimed for a name by whoever first needs it.

A process that wants a name first locks the name's byte and keeps it for life. It then looks for a used
record with that name, or makes one: CAS of a record's word from free, or from claiming{dead claimant}, to
claiming{itself, its incarnation}; name written; word used. Forgetting a name happens under the same byte.

What must hold: no two living holders of a name, no name in two used records, nothing of a living claimant
taken away, a used record always has a whole name, and no record is lost whoever is killed where.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .explorer import Model

FREE, USED = "free", "used"
TORN = "torn"


class Claiming(NamedTuple):
    process: int
    incarnation: int


class Record(NamedTuple):
    word: str | Claiming = FREE
    name: str = ""


class Process(NamedTuple):
    at: str = "out"
    incarnation: int = 0
    name: str = ""
    record: int = 0
    seen: str | Claiming = FREE


class State(NamedTuple):
    records: tuple[Record, ...]
    bytes_held: frozenset[tuple[str, int]]
    processes: tuple[Process, ...]
    kills: int
    starts: tuple[int, ...]


Move = tuple[str, State]


def held_by_other(state: State, name: str, k: int) -> bool:
    return any(held == name and holder != k for held, holder in state.bytes_held)


@dataclass(frozen=True)
class Records:
    processes: int = 2
    records: int = 2
    names: tuple[str, ...] = ("a", "b")
    kills: int = 2
    starts: int = 2
    bug: str = ""

    def model(self) -> Model[State]:
        initial = State(
            records=(Record(),) * self.records,
            bytes_held=frozenset(),
            processes=(Process(),) * self.processes,
            kills=self.kills,
            starts=(self.starts,) * self.processes,
        )
        return Model(initial, self.successors, self.check)

    def successors(self, state: State) -> Iterator[Move]:
        for k, process in enumerate(state.processes):
            for label, following in self.moves(state, k):
                yield f"J{k} {label}", following
            if state.kills and process.at != "out":
                yield f"J{k} KILLED", self.gone(state, k)._replace(kills=state.kills - 1)

    def gone(self, state: State, k: int) -> State:
        held = frozenset(pair for pair in state.bytes_held if pair[1] != k)
        return self.put(
            state._replace(bytes_held=held), k, Process(incarnation=state.processes[k].incarnation)
        )

    @staticmethod
    def put(state: State, k: int, process: Process) -> State:
        return state._replace(processes=(*state.processes[:k], process, *state.processes[k + 1 :]))

    @staticmethod
    def put_record(state: State, which: int, record: Record) -> State:
        return state._replace(records=(*state.records[:which], record, *state.records[which + 1 :]))

    def moves(self, state: State, k: int) -> Iterator[Move]:
        process = state.processes[k]
        if process.at == "out":
            if state.starts[k]:
                starts = (*state.starts[:k], state.starts[k] - 1, *state.starts[k + 1 :])
                for name in self.names:
                    for at in ("byte", "forget byte"):
                        fresh = Process(at, process.incarnation + 1, name)
                        yield f"starts: {at} of {name}", self.put(state._replace(starts=starts), k, fresh)
        elif process.at in ("byte", "forget byte"):
            if held_by_other(state, process.name, k) and self.bug != "no byte":
                yield "is refused: the name is held", self.gone(state, k)
            else:
                held = state.bytes_held | {(process.name, k)}
                at = "look" if process.at == "byte" else "forget"
                locked = self.put(state, k, process._replace(at=at, record=0))
                yield (
                    "locks the name's byte",
                    locked if self.bug == "no byte" else locked._replace(bytes_held=held),
                )
        elif process.at in ("look", "forget"):
            yield self.look(state, k, process)
        elif process.at in ("pick", "cas"):
            yield from self.claim(state, k, process)
        elif process.at == "erase":
            erased = self.put_record(state, process.record, Record())
            yield "CAS used to free", self.gone(erased, k)
        elif process.at == "holds":
            yield "leaves", self.gone(state, k)
        else:
            yield self.write(state, k, process)

    def look(self, state: State, k: int, process: Process) -> Move:
        if process.record == self.records:
            if process.at == "forget":
                return "no such name", self.gone(state, k)
            return "no record of that name yet", self.put(state, k, process._replace(at="pick", record=0))
        record = state.records[process.record]
        if record.word == USED and record.name == process.name:
            at = "holds" if process.at == "look" else "erase"
            return "finds its record", self.put(state, k, process._replace(at=at))
        following = process._replace(record=process.record + 1)
        return f"record {process.record} is another", self.put(state, k, following)

    def is_dead(self, state: State, claiming: Claiming) -> bool:
        claimant = state.processes[claiming.process]
        return claimant.at == "out" or (
            claimant.incarnation != claiming.incarnation and self.bug != "no incarnation"
        )

    def mine(self, state: State, k: int) -> Claiming:
        return Claiming(k, 0 if self.bug == "no incarnation" else state.processes[k].incarnation)

    def claim(self, state: State, k: int, process: Process) -> Iterator[Move]:
        if process.record == self.records:
            yield "table is full", self.gone(state, k)
            return
        word = state.records[process.record].word
        if process.at == "pick":
            dead = isinstance(word, Claiming) and self.is_dead(state, word)
            own = self.bug == "no incarnation" and word == self.mine(state, k)
            if word == FREE or dead or own:
                yield (
                    f"record {process.record} can be had",
                    self.put(state, k, process._replace(at="cas", seen=word)),
                )
            else:
                following = process._replace(record=process.record + 1)
                yield f"record {process.record} is taken", self.put(state, k, following)
        elif word == process.seen:
            claimed = self.put_record(state, process.record, Record(self.mine(state, k)))
            at = "use early" if self.bug == "used before named" else "half"
            yield "CAS to claiming", self.put(claimed, k, process._replace(at=at, seen=FREE))
        else:
            yield "CAS to claiming lost", self.put(state, k, process._replace(at="pick", record=0, seen=FREE))

    def write(self, state: State, k: int, process: Process) -> Move:
        record = state.records[process.record]
        steps = {
            "use early": ("word used", record._replace(word=USED), "half"),
            "half": ("writes half the name", record._replace(name=TORN), "rest"),
            "rest": ("writes the rest", record._replace(name=process.name), "use"),
            "use": ("word used", record._replace(word=USED), "holds"),
        }
        label, written, at = steps[process.at]
        return label, self.put(self.put_record(state, process.record, written), k, process._replace(at=at))

    def check(self, state: State) -> str | None:
        holders = [p.name for p in state.processes if p.at == "holds"]
        if len(set(holders)) != len(holders):
            return "two living holders of one name"
        used = [record.name for record in state.records if record.word == USED]
        if len(set(used)) != len(used):
            return "one name in two used records"
        if any(name not in self.names for name in used):
            return "a used record without a whole name"
        for k, process in enumerate(state.processes):
            record = state.records[process.record] if process.record < self.records else Record()
            if process.at in ("half", "rest", "use") and record.word not in (self.mine(state, k), USED):
                return "a living claimant's record was taken from it"
            if process.at == "holds" and record != Record(USED, process.name):
                return "a holder's record is not its own"
        return self.check_alone(state)

    def check_alone(self, state: State) -> str | None:
        """A newcomer with a name nobody holds gets a record, unless all are used or being claimed."""
        newcomer = len(state.processes)
        for name in self.names:
            if held_by_other(state, name, newcomer):
                continue
            alone = state._replace(
                processes=(*state.processes, Process("byte", 1, name)), starts=(*state.starts, 0)
            )
            for _ in range(8 * self.records + 8):
                if alone.processes[newcomer].at in ("holds", "out"):
                    break
                alone = next(iter(self.moves(alone, newcomer)))[1]
            busy = [
                record.word == USED
                or (isinstance(record.word, Claiming) and not self.is_dead(state, record.word))
                for record in state.records
            ]
            if alone.processes[newcomer].at != "holds" and not all(busy):
                return "a record nobody uses cannot be had"
        return None
