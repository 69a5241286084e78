"""Sleeping and waking: publishers that wake by a futex word, waiters that must not sleep beside a sample.

A publisher: CAS of the ring, then its `wake` steps, which end when it finds no flag. It takes the flags of
those that it is about to wake: all of them, or with `wake_one` some one. A waiter: its `wait` steps, of
which the last sleeps if the futex word still has the value it read. Publishers may be killed or stopped at
any step, and waiters killed. With `bounded` sleeps a sleeper may always wake by itself, and what must hold
is stronger: in every state a waiter left alone with a sample gets it in a few steps of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .explorer import Model


class Publisher(NamedTuple):
    at: int
    left: int
    gone: bool = False
    wakes: frozenset[int] = frozenset()


class Waiter(NamedTuple):
    at: int = 0
    value: int = 0
    received: int = 0
    asleep: bool = False
    dead: bool = False


class State(NamedTuple):
    samples: int
    word: int
    flags: frozenset[int]
    publishers: tuple[Publisher, ...]
    waiters: tuple[Waiter, ...]
    faults: int
    taken: int

    def with_publisher(self, k: int, publisher: Publisher) -> "State":
        return self._replace(publishers=(*self.publishers[:k], publisher, *self.publishers[k + 1 :]))

    def with_waiter(self, k: int, waiter: Waiter) -> "State":
        return self._replace(waiters=(*self.waiters[:k], waiter, *self.waiters[k + 1 :]))


Move = tuple[str, State]


@dataclass(frozen=True)
class Wakeup:
    wake: tuple[str, ...] = ("load", "take", "bump", "wake")
    wait: tuple[str, ...] = ("value", "flag", "check", "sleep")
    publishers: int = 2
    publishes: int = 1
    waiters: int = 1
    queue: bool = False
    wake_one: bool = False
    publisher_fault: str = ""
    waiter_killed: bool = False
    bounded: bool = True

    def model(self) -> Model[State]:
        initial = State(
            samples=0,
            word=0,
            flags=frozenset(),
            publishers=(Publisher(0, self.publishes),) * self.publishers,
            waiters=(Waiter(),) * self.waiters,
            faults=1 if self.publisher_fault or self.waiter_killed else 0,
            taken=0,
        )
        return Model(initial, self.successors, self.check)

    def available(self, state: State, waiter: Waiter) -> bool:
        return state.samples > (state.taken if self.queue else waiter.received)

    def successors(self, state: State) -> Iterator[Move]:
        for k, publisher in enumerate(state.publishers):
            if not publisher.gone:
                yield from self.publisher_moves(state, k, publisher)
        for k, waiter in enumerate(state.waiters):
            if waiter.dead:
                continue
            yield from self.waiter_moves(state, k, waiter)
            if state.faults and self.waiter_killed:
                killed = state.with_waiter(k, waiter._replace(asleep=False, dead=True))
                yield f"W{k} KILLED", killed._replace(faults=0)

    def publisher_moves(self, state: State, k: int, publisher: Publisher) -> Iterator[Move]:
        if publisher.at == 0:
            if publisher.left:
                following = state.with_publisher(k, Publisher(1, publisher.left - 1))
                yield f"P{k} CAS of the ring", following._replace(samples=state.samples + 1)
            return
        operation = self.wake[publisher.at - 1]
        after = publisher._replace(at=(publisher.at + 1) % (len(self.wake) + 1))
        moved = state.with_publisher(k, after)
        if operation == "bump":
            yield f"P{k} bumps the word", moved._replace(word=state.word + 1)
        elif operation == "load":
            finished = state.with_publisher(k, Publisher(0, publisher.left))
            yield f"P{k} loads the flags", moved if state.flags else finished
        elif operation == "take":
            yield from self.take_moves(state, k, after)
        else:
            yield from self.wake_moves(moved, k, publisher)
        if state.faults and self.publisher_fault:
            stopped = state.with_publisher(k, publisher._replace(gone=True))
            yield f"P{k} {self.publisher_fault}", stopped._replace(faults=0)

    def take_moves(self, state: State, k: int, after: Publisher) -> Iterator[Move]:
        choices = [frozenset({j}) for j in state.flags] if self.wake_one else [state.flags]
        for chosen in choices or [frozenset[int]()]:
            taken = state.with_publisher(k, after._replace(wakes=chosen))
            yield f"P{k} takes the flags of {sorted(chosen)}", taken._replace(flags=state.flags - chosen)

    def wake_moves(self, state: State, k: int, publisher: Publisher) -> Iterator[Move]:
        state = state.with_publisher(k, Publisher(0, publisher.left))
        everybody = frozenset(range(self.waiters))
        for j in publisher.wakes if "take" in self.wake else everybody:
            if state.waiters[j].asleep:
                state = state.with_waiter(j, Waiter(received=state.waiters[j].received))
        yield f"P{k} wakes", state

    def waiter_moves(self, state: State, k: int, waiter: Waiter) -> Iterator[Move]:
        again = state.with_waiter(k, Waiter(received=waiter.received))
        if waiter.asleep:
            if self.bounded:
                yield f"W{k} slept long enough", again
            return
        operation = self.wait[waiter.at]
        following = state.with_waiter(k, waiter._replace(at=waiter.at + 1))
        if operation == "flag":
            yield f"W{k} sets its flag", following._replace(flags=state.flags | {k})
        elif operation == "value":
            yield (
                f"W{k} reads the word",
                state.with_waiter(k, waiter._replace(at=waiter.at + 1, value=state.word)),
            )
        elif operation == "check" and self.available(state, waiter):
            took = state.with_waiter(k, Waiter(received=waiter.received + 1))
            taken = state.taken + (1 if self.queue else 0)
            yield f"W{k} takes", took._replace(taken=taken, flags=state.flags - {k})
        elif operation == "check":
            yield f"W{k} finds nothing", following
        elif state.word == waiter.value:
            yield f"W{k} sleeps", state.with_waiter(k, waiter._replace(asleep=True))
        else:
            yield f"W{k} does not sleep: the word changed", again

    def check(self, state: State) -> str | None:
        return self.check_alone(state) if self.bounded else self.check_lost(state)

    def check_lost(self, state: State) -> str | None:
        publishing = any(not p.gone and (p.at or p.left) for p in state.publishers)
        awake = any(not w.asleep and not w.dead for w in state.waiters)
        if publishing or awake:
            return None
        for k, waiter in enumerate(state.waiters):
            if waiter.asleep and self.available(state, waiter):
                return f"W{k} sleeps for ever though a sample is there"
        return None

    def check_alone(self, state: State) -> str | None:
        for k, waiter in enumerate(state.waiters):
            if waiter.dead or not self.available(state, waiter):
                continue
            alone = state
            for _ in range(2 * len(self.wait) + 1):
                moves = list(self.waiter_moves(alone, k, alone.waiters[k]))
                if not moves:
                    break
                alone = moves[0][1]
            if alone.waiters[k].received == waiter.received:
                return f"W{k} alone does not get the sample that is there"
        return None
