"""Random histories of a log that does everything right, though late and without a word at times."""

import random
from collections.abc import Callable
from typing import Any

from tests.history.events import Event, Name

__all__ = ["correct_history"]

OBJECTS = ("orders:0", "orders:1")
MOST_IN_FLIGHT = 3


class _Pending:
    """An operation under way: first it takes effect, then its end is told."""

    def __init__(self, event: Event, effect: Callable[[], dict[str, Any]]) -> None:
        self.event = event
        self.effect = effect
        self.result: dict[str, Any] | None = None
        self.is_given_up = False


class _World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.time = self.numbers = self.values = 0
        self.logs: dict[str, list[str]] = {name: [] for name in OBJECTS}
        self.floors = dict.fromkeys(OBJECTS, 1)
        self.positions: dict[tuple[str, str], int] = {}
        self.pending: list[_Pending] = []
        self.producers = [f"producer{number}" for number in range(3)]
        self.consumers = [f"consumer{number}" for number in range(3)]
        # The group: who has each log, how far that member is, and how far the group.
        self.owners = dict.fromkeys(OBJECTS, "member0")
        self.cursors = dict.fromkeys(OBJECTS, 1)
        self.committed = dict.fromkeys(OBJECTS, 1)

    def begin(
        self, process: str, name: Name, object: str, effect: Callable[[], dict[str, Any]], **given: Any
    ) -> None:
        self.time += self.random.randint(0, 3)
        self.numbers += 1
        identity = str(self.numbers)
        event = Event(
            type="invoke",
            id=identity,
            process=process,
            time=self.time,
            operation=name,
            object=object,
            **given,
        )
        self.events.append(event)
        self.pending.append(_Pending(event, effect))

    def end(self, pending: _Pending, type: str, **result: Any) -> None:
        self.time += self.random.randint(0, 3)
        event = pending.event
        end = Event(type=type, id=event.id, process=event.process, time=self.time, **result)  # type: ignore[arg-type]
        self.events.append(end)

    def busy(self, process: str) -> int:
        return sum(pending.event.process == process for pending in self.pending)

    def publish(self) -> None:
        place = self.random.randrange(len(self.producers))
        process, log = self.producers[place], self.random.choice(OBJECTS)
        if self.busy(process) >= MOST_IN_FLIGHT:
            return
        values = [str(self.values + number) for number in range(self.random.choice((1, 1, 1, 2, 4)))]
        self.values += len(values)

        def append() -> dict[str, Any]:
            self.logs[log] += values
            return {"offset": len(self.logs[log]) - len(values) + 1}

        self.begin(process, "publish", log, append, values=values)

    def poll(self) -> None:
        process, log = self.random.choice(self.consumers), self.random.choice(OBJECTS)
        if self.busy(process):
            return

        def take() -> dict[str, Any]:
            start = max(self.positions.get((process, log), 1), self.floors[log])
            # The replica asked may be behind.
            records = self.records(log, start, self.random.randint(0, 6))
            self.positions[process, log] = start + len(records)
            return {"records": records}

        self.begin(process, "poll", log, take)

    def seek(self) -> None:
        process, log = self.random.choice(self.consumers), self.random.choice(OBJECTS)
        offset = self.random.randint(1, len(self.logs[log]) + 1)
        if self.busy(process):
            return

        def move() -> dict[str, Any]:
            self.positions[process, log] = offset
            return {}

        self.begin(process, "seek", log, move, offset=offset)

    def take(self) -> None:
        log = self.random.choice(OBJECTS)
        if self.busy(self.owners[log]):
            return

        def give() -> dict[str, Any]:
            start = max(self.cursors[log], self.floors[log])
            records = self.records(log, start, self.random.randint(0, 6))
            self.cursors[log] = start + len(records)
            return {"records": records}

        self.begin(self.owners[log], "take", log, give, group="group")

    def commit(self) -> None:
        log = self.random.choice(OBJECTS)
        offset = self.cursors[log]
        if self.busy(self.owners[log]) or offset == self.committed[log]:
            return

        def move() -> dict[str, Any]:
            self.committed[log] = offset
            return {}

        self.begin(self.owners[log], "commit", log, move, group="group", offset=offset)

    def rebalance(self) -> None:
        """Another member has the log; what the one before did not commit is given again."""
        log = self.random.choice(OBJECTS)
        if not self.busy(self.owners[log]):
            self.owners[log] = f"member{self.random.randrange(3)}"
            self.cursors[log] = self.committed[log]

    def ask_position(self) -> None:
        log = self.random.choice(OBJECTS)
        self.begin("looker", "position", log, lambda: {"offset": self.committed[log]}, group="group")

    def look(self) -> None:
        log = self.random.choice(OBJECTS)
        if self.random.random() < 0.5:
            self.begin("looker", "state", log, lambda: {"end": len(self.logs[log]) + 1})
            return
        offset = self.random.randint(1, len(self.logs[log]) + 1)

        def read() -> dict[str, Any]:
            return {
                "records": self.records(log, max(offset, self.floors[log]), 5),
                "end": len(self.logs[log]) + 1,
            }

        self.begin("looker", "read", log, read, offset=offset)

    def trim(self) -> None:
        log = self.random.choice(OBJECTS)
        offset = self.random.randint(1, len(self.logs[log]) // 3 + 1)

        def forget() -> dict[str, Any]:
            self.floors[log] = max(self.floors[log], offset)
            return {}

        self.begin("trimmer", "trim", log, forget, offset=offset)

    def records(self, log: str, start: int, most: int) -> list[tuple[int, str]]:
        return list(enumerate(self.logs[log][start - 1 : start - 1 + most], start))

    def proceed(self) -> None:
        """Let one operation that is under way take effect, or tell its end."""
        pending = self.random.choice(self.pending)
        if pending.result is None:
            pending = self.first_without_effect(pending.event.process)
        fate = (
            self.random.random() if pending.event.operation == "publish" and not pending.is_given_up else 1.0
        )
        if pending.result is None and fate < 0.06:
            self.pending.remove(pending)
            self.end(pending, "fail", error="refused")
        elif fate < 0.12:
            self.give_up(pending)
        elif pending.result is None:
            pending.result = pending.effect()
        else:
            self.pending.remove(pending)
            if not pending.is_given_up:
                self.end(pending, "ok", **pending.result)

    def first_without_effect(self, process: str) -> _Pending:
        """What one process publishes takes effect in its order."""
        return next(each for each in self.pending if each.event.process == process and each.result is None)

    def give_up(self, pending: _Pending) -> None:
        """Nobody hears how it ended, or whether it took effect, or when; the client takes a new name."""
        process = pending.event.process
        pending.is_given_up = True
        if pending.result is None and self.random.random() < 0.5:
            self.pending.remove(pending)
        if self.random.random() < 0.7:
            self.end(pending, "info", error="timed out")
        if process in self.producers:
            self.producers[self.producers.index(process)] = f"producer{self.numbers}'"


def correct_history(seed: int, steps: int = 300, with_trims: bool = True) -> list[Event]:
    """A history that no checker may object to; each of its logs is read to the end at last."""
    world = _World(seed)
    actions = [world.publish] * 4 + [world.poll] * 3 + [world.look] * 2 + [world.seek]
    actions += [world.take, world.commit, world.ask_position] * 2 + [world.rebalance]
    actions += [world.trim] if with_trims else []
    for _ in range(steps):
        if world.pending and world.random.random() < 0.7:
            world.proceed()
        else:
            world.random.choice(actions)()
    while world.pending:
        world.proceed()
    for log in OBJECTS:

        def read_all(log: str = log) -> dict[str, Any]:
            return {"records": world.records(log, world.floors[log], len(world.logs[log]))}

        world.begin("auditor", "final", log, read_all)
        while world.pending:
            world.proceed()
    return world.events
