"""Whether operations can be put in one order that explains every answer and contradicts no clock.

The search of Wing and Gong as Lowe and Porcupine do it: try the operations that may come next, remember the
pairs (what is placed, state) that were tried, go back when an operation has ended and could not be placed.
Objects are judged one by one, which is enough: linearizability is local. An operation without a known end
may be placed anywhere after its beginning; at the very end means that it never took effect, as nobody looks.
The time is exponential in the number of operations that overlap, so the search is bounded.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from tests.history.events import Operation, Outcome

__all__ = ["Linearization", "Verdict", "end_of_log", "judge", "linearize", "register"]

MOST_STEPS: Final = 2_000_000
_SHOWN: Final = 5

# The state after the operation, or IMPOSSIBLE if it cannot have had that answer.
Step = Callable[[Any, Operation], Hashable]
IMPOSSIBLE: Final = object()


class Verdict(StrEnum):
    LINEARIZABLE = "linearizable"
    VIOLATED = "not linearizable"
    UNDECIDED = "undecided"


class Linearization(msgspec.Struct, frozen=True):
    """What came of a search. `placed` is the most operations that could be put in order, `last` are the last
    of these, and `stuck` is an operation that fits nowhere after them."""

    verdict: Verdict
    placed: int = 0
    last: tuple[Operation, ...] = ()
    stuck: Operation | None = None
    steps: int = 0

    def __str__(self) -> str:
        if self.verdict is not Verdict.VIOLATED:
            return f"{self.verdict.value} ({self.placed} operations, {self.steps} steps)"
        last = [f"    {operation}" for operation in self.last]
        head = f"{self.verdict.value}: {self.placed} operations can be put in order, the last of them"
        return "\n".join([head, *last, "and then this one fits nowhere", f"    {self.stuck}"])


class _Calls:
    """Beginnings and ends in order of time, as a ring from which operations are lifted and put back.

    Node 0 is the ring's own. A beginning knows its end; an end has 0 there.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        moments = [(operation.invoked, 0, number) for number, operation in enumerate(operations)]
        moments += [(operation.returned, 1, number) for number, operation in enumerate(operations)]
        moments.sort()
        self.operation = [0] * (len(moments) + 1)
        self.end = [0] * (len(moments) + 1)
        begun: dict[int, int] = {}
        for node, (_, is_end, number) in enumerate(moments, 1):
            self.operation[node] = number
            if is_end:
                self.end[begun[number]] = node
            else:
                begun[number] = node
        self.next = [*range(1, len(moments) + 1), 0]
        self.previous = [len(moments), *range(len(moments))]

    def lift(self, node: int) -> None:
        for lifted in (node, self.end[node]):
            self.next[self.previous[lifted]] = self.next[lifted]
            self.previous[self.next[lifted]] = self.previous[lifted]

    def put_back(self, node: int) -> None:
        for lifted in (self.end[node], node):
            self.next[self.previous[lifted]] = lifted
            self.previous[self.next[lifted]] = lifted


class _Done(NamedTuple):
    """Which operations are placed: all below `base`, and those above it whose bit is set.

    A bit for each operation of the history would make every step as long as the history.
    """

    base: int
    bits: int

    def with_one(self, number: int) -> "_Done":
        bits = self.bits | 1 << (number - self.base)
        leading = (~bits & (bits + 1)).bit_length() - 1
        return _Done(self.base + leading, bits >> leading)


def linearize(
    operations: Sequence[Operation], initial: Hashable, step: Step, most_steps: int = MOST_STEPS
) -> Linearization:
    """Search an order for the operations on one object; those that were certainly not done are left out."""
    operations = [operation for operation in operations if operation.outcome is not Outcome.NOT_DONE]
    operations.sort(key=lambda operation: operation.invoked)
    calls = _Calls(operations)
    tried: set[tuple[int, int, Hashable]] = set()
    placed: list[tuple[int, _Done, Hashable]] = []
    longest: list[tuple[int, _Done, Hashable]] = []
    most = 0
    stuck: Operation | None = None
    state, done, steps = initial, _Done(0, 0), 0
    node = calls.next[0]
    while calls.next[0]:
        operation = operations[calls.operation[node]]
        if calls.end[node]:
            steps += 1
            if steps > most_steps:
                return Linearization(Verdict.UNDECIDED, steps=steps)
            after = step(state, operation)
            with_it = done.with_one(calls.operation[node])
            if after is IMPOSSIBLE or (*with_it, after) in tried:
                node = calls.next[node]
                continue
            tried.add((*with_it, after))
            placed.append((node, done, state))
            state, done = after, with_it
            calls.lift(node)
            node = calls.next[0]
            continue
        if stuck is None or len(placed) > most:
            most, longest, stuck = len(placed), placed[-_SHOWN:], operation
        if not placed:
            last = tuple(operations[calls.operation[node]] for node, _, _ in longest)
            return Linearization(Verdict.VIOLATED, most, last, stuck, steps)
        node, done, state = placed.pop()
        calls.put_back(node)
        node = calls.next[node]
    return Linearization(Verdict.LINEARIZABLE, len(placed), steps=steps)


def end_of_log(state: int, operation: Operation) -> Hashable:
    """A log as far as its end goes: appending moves it, and tells where it was."""
    result = operation.result
    if operation.name == "publish":
        fits = result is None or result.offset == state
        return state + len(operation.asked.values) if fits else IMPOSSIBLE
    return state if result is None or result.end in (state, None) else IMPOSSIBLE


def register(state: str | None, operation: Operation) -> Hashable:
    """A register with compare and set; None is nothing."""
    asked, result = operation.asked, operation.result
    if operation.name == "get":
        return state if result is None or result.value == state else IMPOSSIBLE
    if operation.name == "set":
        return asked.value
    fits = state == asked.expected
    if result is not None and result.done is not fits:
        return IMPOSSIBLE
    return asked.value if fits else state


_MODELS: Final[tuple[tuple[frozenset[str], Hashable, Step], ...]] = (
    (frozenset({"publish", "state", "read"}), 1, end_of_log),
    (frozenset({"get", "set", "swap"}), None, register),
)


def judge(operations: Iterable[Operation], most_steps: int = MOST_STEPS) -> dict[str, Linearization]:
    """The verdict on each object that some model is about."""
    objects: dict[str, list[Operation]] = {}
    for operation in operations:
        objects.setdefault(operation.asked.object, []).append(operation)
    verdicts = {}
    for name, mine in objects.items():
        settled = _settled(mine)
        for names, initial, step in _MODELS:
            judged = [operation for operation in settled if operation.name in names]
            if judged:
                verdicts[name] = linearize(judged, initial, step, most_steps)
    return verdicts


def _settled(operations: list[Operation]) -> list[Operation]:
    """The same, with the outcome of a publish taken from what readers found, where nobody else knows it.

    Only this keeps the search short: publishes that may or may not have taken effect multiply.
    """
    found: dict[str, int] = {}
    is_whole = False
    for operation in operations:
        if operation.result is not None:
            found.update((value, offset) for offset, value in operation.result.records)
            is_whole |= operation.name == "final"
    is_whole &= not any(operation.name == "trim" for operation in operations)
    settled = []
    for operation in operations:
        if operation.name != "publish" or operation.outcome is not Outcome.UNKNOWN:
            settled.append(operation)
            continue
        offset = found.get(operation.asked.values[0])
        if offset is not None:
            result = msgspec.structs.replace(operation.asked, type="ok", offset=offset)
            settled.append(msgspec.structs.replace(operation, result=result))
        elif not is_whole:
            settled.append(operation)
    return settled
