"""Breadth-first exploration of a model: every state once, and the shortest way to a violation."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=Hashable)


@dataclass(frozen=True)
class Model(Generic[StateT]):
    """`successors` gives (label, state) pairs; `check` returns what is wrong with a state, or None."""

    initial: StateT
    successors: Callable[[StateT], Iterable[tuple[str, StateT]]]
    check: Callable[[StateT], str | None]


@dataclass(frozen=True)
class Verdict:
    """`violation` is None and `exhausted` true when nothing reachable is wrong."""

    violation: str | None
    exhausted: bool
    states: int
    transitions: int
    trace: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.violation is None and self.exhausted

    def __str__(self) -> str:
        kind = f"VIOLATION: {self.violation}" if self.violation else "OK" if self.exhausted else "LIMIT"
        lines = [f"{kind} states={self.states} transitions={self.transitions}"]
        return "\n  ".join([*lines, *self.trace])


STATES_A_SECOND = 10_000  # of a soak, on a slow machine


def explore(model: Model[StateT], limit: int = 10_000_000) -> Verdict:
    """Explore at most `limit` states."""
    reached: dict[StateT, tuple[StateT, str] | None] = {model.initial: None}
    waiting = deque([model.initial])
    transitions = 0
    while waiting:
        state = waiting.popleft()
        violation = model.check(state)
        if violation:
            return Verdict(violation, False, len(reached), transitions, _trace(reached, state))
        for label, following in model.successors(state):
            transitions += 1
            if following in reached:
                continue
            if len(reached) >= limit:
                return Verdict(None, False, len(reached), transitions, ())
            reached[following] = (state, label)
            waiting.append(following)
    return Verdict(None, True, len(reached), transitions, ())


def _trace(reached: dict[StateT, tuple[StateT, str] | None], state: StateT) -> tuple[str, ...]:
    labels: list[str] = []
    step = reached[state]
    while step is not None:
        labels.append(step[1])
        step = reached[step[0]]
    return tuple(reversed(labels))
