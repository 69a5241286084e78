"""Spoils correct histories: each mutation plants the violation it is named after, where it can be seen.

A mutation changes the operations of a history in place; it gives up where the history has no place for it.
"""

import random
from collections.abc import Callable
from typing import Final

import msgspec

from tests.history.events import Event, Operation, Outcome, operations

__all__ = ["MUTATIONS", "mutated"]


class NoPlace(Exception):
    """This history cannot be spoiled that way."""


class Spoiler:
    """A history on the operating table."""

    def __init__(self, events: list[Event], seed: int) -> None:
        self.events = msgspec.convert(msgspec.to_builtins(events), list[Event])
        self.operations = operations(self.events)
        self.random = random.Random(seed)
        self.finals = {each.asked.object: each for each in self.operations if each.name == "final"}

    def pick(self, wanted: Callable[[Operation], bool]) -> Operation:
        found = [operation for operation in self.operations if wanted(operation)]
        if not found:
            raise NoPlace
        return self.random.choice(found)

    def kept(self, log: str) -> dict[str, int]:
        """The offset of each value that is there at the end."""
        return {value: offset for offset, value in records(self.finals[log])}

    def is_kept(self, publish: Operation) -> bool:
        return all(value in self.kept(publish.asked.object) for value in publish.asked.values)

    def floor(self, log: str) -> int:
        trims = [
            each.asked.offset or 1
            for each in self.operations
            if each.name == "trim" and each.asked.object == log
        ]
        return max(trims, default=1)

    def is_above_floor(self, publish: Operation) -> bool:
        kept, floor = self.kept(publish.asked.object), self.floor(publish.asked.object)
        return all(kept.get(value, 0) >= floor for value in publish.asked.values)

    def remove(self, log: str, value: str, only: Operation | None = None) -> None:
        for operation in self.operations if only is None else [only]:
            if operation.asked.object == log and operation.result is not None:
                operation.result.records[:] = [each for each in operation.result.records if each[1] != value]

    def previous_poll(self, poll: Operation) -> Operation | None:
        """The poll that `poll` goes on from, if nothing came between."""
        same = [
            each
            for each in self.operations[: poll.place]
            if each.process == poll.process and each.asked.object == poll.asked.object
        ]
        last = [each for each in same if each.name == "seek" or records(each)][-1:]
        return last[0] if last and last[0].name == "poll" else None


def records(operation: Operation) -> list[tuple[int, str]]:
    return [] if operation.result is None else operation.result.records


def acknowledged(operation: Operation) -> bool:
    return operation.name == "publish" and operation.outcome is Outcome.DONE


def lost(spoiler: Spoiler) -> None:
    publish = spoiler.pick(lambda each: acknowledged(each) and spoiler.is_above_floor(each))
    for value in publish.asked.values:
        spoiler.remove(publish.asked.object, value)


def vanished(spoiler: Spoiler) -> None:
    poll = spoiler.pick(lambda each: each.name == "poll" and bool(records(each)))
    log = poll.asked.object
    offset, value = records(poll)[-1]
    if offset < spoiler.floor(log):
        raise NoPlace
    spoiler.remove(log, value, spoiler.finals[log])


def torn(spoiler: Spoiler) -> None:
    publish = spoiler.pick(
        lambda each: each.name == "publish" and len(each.asked.values) > 1 and spoiler.is_above_floor(each)
    )
    spoiler.remove(publish.asked.object, publish.asked.values[-1])


def doubled(spoiler: Spoiler) -> None:
    final = spoiler.pick(lambda each: each.name == "final" and len(records(each)) > 1)
    records(final).append((records(final)[-1][0] + 1, spoiler.random.choice(records(final))[1]))


def misplaced(spoiler: Spoiler) -> None:
    publish = spoiler.pick(lambda each: acknowledged(each) and spoiler.is_kept(each))
    assert publish.result is not None and publish.result.offset is not None
    publish.result.offset += spoiler.random.choice((-1, 1, 100))


def invented(spoiler: Spoiler) -> None:
    given = records(spoiler.pick(lambda each: bool(records(each))))
    place = spoiler.random.randrange(len(given))
    given[place] = given[place][0], "nobody's"


def undead(spoiler: Spoiler) -> None:
    publish = spoiler.pick(lambda each: acknowledged(each) and spoiler.is_kept(each))
    assert publish.result is not None
    publish.result.type, publish.result.offset = "fail", None


def premature(spoiler: Spoiler) -> None:
    reader = spoiler.pick(lambda each: each.name in ("poll", "read") and bool(records(each)))
    value = spoiler.random.choice(records(reader))[1]
    publish = spoiler.pick(lambda each: value in each.asked.values and acknowledged(each))
    publish.asked.time = max(publish.asked.time, reader.returned + 1)
    assert publish.result is not None
    publish.result.time = max(publish.result.time, publish.asked.time)


def split(spoiler: Spoiler) -> None:
    def fits(operation: Operation) -> bool:
        kept = spoiler.kept(operation.asked.object) if records(operation) else {}
        return operation.name == "poll" and sum(value in kept for _, value in records(operation)) > 1

    given = records(spoiler.pick(fits))
    (first, one), (second, other) = given[-2:]
    given[-2:] = [(first, other), (second, one)]


def gap(spoiler: Spoiler) -> None:
    given = records(spoiler.pick(lambda each: len(records(each)) > 2))
    del given[spoiler.random.randrange(1, len(given) - 1)]


def skipped(spoiler: Spoiler) -> None:
    def fits(poll: Operation) -> bool:
        is_long = poll.name == "poll" and len(records(poll)) > 1
        return (
            is_long
            and spoiler.previous_poll(poll) is not None
            and records(poll)[0][0] >= spoiler.floor(poll.asked.object)
        )

    del records(spoiler.pick(fits))[0]


def repeated(spoiler: Spoiler) -> None:
    poll = spoiler.pick(lambda each: bool(records(each)) and spoiler.previous_poll(each) is not None)
    before = spoiler.previous_poll(poll)
    assert before is not None
    records(poll).insert(0, records(before)[-1])


def exchange(spoiler: Spoiler, fits: Callable[[Operation, Operation], bool]) -> None:
    """Let two publishes of one size have got each other's places."""
    publishes = [each for each in spoiler.operations if acknowledged(each) and spoiler.is_kept(each)]
    pairs = [
        (one, other)
        for one in publishes
        for other in publishes
        if one.returned < other.invoked
        and one.asked.object == other.asked.object
        and len(one.asked.values) == len(other.asked.values)
        and fits(one, other)
    ]
    if not pairs:
        raise NoPlace
    one, other = spoiler.random.choice(pairs)
    assert one.result is not None and other.result is not None
    one.asked.values, other.asked.values = other.asked.values, one.asked.values
    one.result.offset, other.result.offset = other.result.offset, one.result.offset


def reordered(spoiler: Spoiler) -> None:
    exchange(spoiler, lambda one, other: one.process == other.process)


def overtaken(spoiler: Spoiler) -> None:
    exchange(spoiler, lambda one, other: one.process != other.process)


def stale(spoiler: Spoiler) -> None:
    state = spoiler.pick(lambda each: each.name == "state" and each.outcome is Outcome.DONE)
    before = [
        each.result.offset
        for each in spoiler.operations
        if acknowledged(each) and each.asked.object == state.asked.object and each.returned < state.invoked
        if each.result is not None and each.result.offset is not None
    ]
    if not before:
        raise NoPlace
    assert state.result is not None
    state.result.end = spoiler.random.choice(before)


def unserved(spoiler: Spoiler) -> None:
    def fits(commit: Operation) -> bool:
        return commit.name == "commit" and (commit.asked.offset or 1) > spoiler.floor(commit.asked.object)

    commit = spoiler.pick(fits)
    log = commit.asked.object
    assert commit.asked.offset is not None
    offset = spoiler.random.randrange(spoiler.floor(log), commit.asked.offset)
    for operation in spoiler.operations:
        if operation.name == "take" and operation.asked.object == log:
            records(operation)[:] = [each for each in records(operation) if each[0] != offset]


def rewound(spoiler: Spoiler) -> None:
    position = spoiler.pick(lambda each: each.name == "position" and each.outcome is Outcome.DONE)
    before = [
        each.asked.offset
        for each in spoiler.operations
        if each.name == "commit" and each.asked.object == position.asked.object
        if each.returned < position.invoked and (each.asked.offset or 1) > 1
    ]
    if not before:
        raise NoPlace
    assert position.result is not None
    position.result.offset = 1


MUTATIONS: Final[tuple[Callable[[Spoiler], None], ...]] = (
    *(lost, vanished, torn, doubled, misplaced, invented, undead, premature),
    *(split, gap, skipped, repeated, reordered, overtaken, stale, unserved, rewound),
)


def mutated(events: list[Event], mutation: Callable[[Spoiler], None], seed: int) -> list[Event] | None:
    """A copy of the history with the violation in it, or None where there is no place for it."""
    spoiler = Spoiler(events, seed)
    try:
        mutation(spoiler)
    except NoPlace:
        return None
    return sorted(spoiler.events, key=lambda event: event.time)
