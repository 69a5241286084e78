"""The search for a linearization: on histories written by hand, against a dumb search, and bounded."""

import random
from collections.abc import Callable, Hashable, Sequence
from itertools import permutations
from typing import Any

import pytest

from tests.history.events import Operation, Outcome
from tests.history.linearizability import (
    IMPOSSIBLE,
    Verdict,
    end_of_log,
    judge,
    linearize,
    register,
)
from tests.history.story import Story

Record = Callable[[str, object], None]


class Registers(Story):
    """A story about one register."""

    def get(self, process: str, value: str | None, **how: Any) -> "Registers":
        self.tell(process, "get", {}, {"value": value}, **how)
        return self

    def set(self, process: str, value: str, **how: Any) -> "Registers":
        self.tell(process, "set", {"value": value}, {}, **how)
        return self

    def swap(
        self, process: str, expected: str | None, value: str, done: bool | None, **how: Any
    ) -> "Registers":
        self.tell(process, "swap", {"expected": expected, "value": value}, {"done": done}, **how)
        return self


GOOD: dict[str, Story] = {
    "nothing is there at first": Registers().get("a", None),
    "read what was written": Registers().set("a", "1").get("b", "1"),
    "old or new, while it is written": Registers()
    .set("a", "1")
    .set("a", "2", at=(10, 20))
    .get("b", "1", at=(11, 12))
    .get("c", "2", at=(13, 14)),
    "no answer, and it took effect later": Registers()
    .set("a", "1", outcome="info")
    .get("b", None)
    .get("b", "1"),
    "no answer, and it never took effect": Registers().set("a", "1", outcome="info").get("b", None),
    "refused": Registers().set("a", "1", outcome="fail").get("b", None),
    "of two swaps one is done": Registers()
    .swap("a", None, "1", True, at=(1, 9))
    .swap("b", None, "2", False, at=(2, 8)),
    "a swap without an answer": Registers()
    .swap("a", None, "1", None, outcome="info")
    .swap("b", "1", "2", True),
    "ends of a log": Story().publish("p", "a b", 1).state("s", 3).publish("q", "c", 3).state("s", 4),
    "published together": Story()
    .publish("p", "a b", 2, at=(1, 9))
    .publish("q", "c", 1, at=(2, 8))
    .state("s", 4),
    "a publish without an answer": Story().publish("p", "a", outcome="info").state("s", 1).state("s", 2),
}

BAD: dict[str, Story] = {
    "never written": Registers().get("a", "1"),
    "an old value": Registers().set("a", "1").set("a", "2").get("b", "1"),
    "new, then old": Registers()
    .set("a", "1")
    .set("a", "2", at=(10, 20))
    .get("b", "2", at=(11, 12))
    .get("c", "1", at=(13, 14)),
    "refused, and there": Registers().set("a", "1", outcome="fail").get("b", "1"),
    "two swaps of one value": Registers()
    .swap("a", None, "1", True, at=(1, 9))
    .swap("b", None, "2", True, at=(2, 8)),
    "a swap that should have been done": Registers().set("a", "1").swap("b", "1", "2", False),
    "an end too low": Story().publish("p", "a", 1).state("s", 1),
    "an end too high": Story().publish("p", "a", 1).state("s", 3),
    "one offset twice": Story().publish("p", "a", 1, at=(1, 9)).publish("q", "b", 1, at=(2, 8)),
    "an offset left out": Story().publish("p", "a", 1).publish("p", "b", 3),
    "an end that goes back": Story().publish("p", "a", outcome="info").state("s", 2).state("s", 1),
    "an unknown publish seen too late": Story()
    .publish("p", "a", 1)
    .publish("q", "b", outcome="info")
    .final("a b"),
}
BAD["an unknown publish seen too late"].publish("p", "c", 2, at=(30, 31))


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert [each.verdict for each in judge(GOOD[name].operations()).values()] == [Verdict.LINEARIZABLE]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_does_not(name: str) -> None:
    assert [each.verdict for each in judge(BAD[name].operations()).values()] == [Verdict.VIOLATED]


def test_a_violation_reads_well() -> None:
    story = Registers().set("a", "1").set("a", "2").get("b", "1")
    assert str(judge(story.operations())["log"]).splitlines() == [
        "not linearizable: 2 operations can be put in order, the last of them",
        "    [1..2] a set object 'log' value '1' ok",
        "    [3..4] a set object 'log' value '2' ok",
        "and then this one fits nowhere",
        "    [5..6] b get object 'log' ok value '1'",
    ]


def test_the_search_is_bounded() -> None:
    story = Registers()
    for number in range(14):
        story.set(f"p{number}", str(number), at=(1, 100))
    story.get("reader", "nobody's", at=(200, 201))
    found = linearize(story.operations(), None, register, most_steps=1000)
    assert found.verdict is Verdict.UNDECIDED


def dumb_linearizable(operations: Sequence[Operation], initial: Hashable, step: Any) -> bool:
    """Every order of every subset that leaves out only what has no known end."""
    certain = [each for each in operations if each.outcome is Outcome.DONE]
    unknown = [each for each in operations if each.outcome is Outcome.UNKNOWN]
    for chosen in range(1 << len(unknown)):
        some = certain + [each for number, each in enumerate(unknown) if chosen >> number & 1]
        if any(explains(order, initial, step) for order in permutations(some)):
            return True
    return False


def explains(order: Sequence[Operation], state: Hashable, step: Any) -> bool:
    latest = 0
    for operation in order:
        if operation.returned < latest:
            return False
        latest = max(latest, operation.invoked)
        state = step(state, operation)
        if state is IMPOSSIBLE:
            return False
    return True


def random_story(seed: int) -> Story:
    """A few operations that overlap at random, with answers that may or may not be right."""
    generator = random.Random(seed)
    story = Registers()
    values: list[str | None] = [None, "1", "2"]
    for number in range(generator.randint(2, 6)):
        began = generator.randint(1, 12)
        how: dict[str, Any] = {"at": (began, began + generator.randint(0, 6))}
        how["outcome"] = generator.choice(["ok"] * 6 + ["info", "fail", ""])
        process, value = f"p{number}", generator.choice(values)
        kind = generator.randrange(3)
        if kind == 0:
            story.get(process, value, **how)
        elif kind == 1:
            story.set(process, value or "1", **how)
        else:
            story.swap(process, value, generator.choice(["1", "2"]), generator.random() < 0.5, **how)
    return story


def test_it_agrees_with_a_dumb_search(record_property: Record) -> None:
    bad = 0
    for seed in range(1500):
        operations = random_story(seed).operations()
        found = linearize(operations, None, register).verdict
        expected = dumb_linearizable(operations, None, register)
        assert found is (Verdict.LINEARIZABLE if expected else Verdict.VIOLATED), f"seed {seed}"
        bad += not expected
    assert 300 < bad < 1200, "the stories are too good or too bad to tell anything"
    record_property("histories", 1500)
    record_property("not linearizable", bad)


def test_a_wrong_model_would_be_noticed() -> None:
    def forgetful(state: Any, operation: Operation) -> Hashable:
        return state if operation.name == "swap" else register(state, operation)

    wrong = 0
    for seed in range(200):
        operations = random_story(seed).operations()
        is_linearizable = linearize(operations, None, forgetful).verdict is Verdict.LINEARIZABLE
        wrong += is_linearizable is not dumb_linearizable(operations, None, register)
    assert wrong > 10


def test_a_long_history_takes_few_steps(record_property: Record) -> None:
    generator = random.Random(1)
    # Each takes effect somewhere between its beginning and its end, while a handful of others are under way.
    spans = [(start, start + generator.randint(1, 80)) for start in range(0, 200_000, 10)]
    instants = sorted((generator.uniform(*span), number) for number, span in enumerate(spans))
    offsets = {number: offset for offset, (_, number) in enumerate(instants, 1)}
    story = Story()
    for number, span in enumerate(spans):
        story.publish(f"p{number}", f"v{number}", offsets[number], at=span)
    found = linearize(story.operations(), 1, end_of_log)
    assert found.verdict is Verdict.LINEARIZABLE
    assert found.steps < 10 * len(spans)
    record_property("operations", len(spans))
    record_property("steps", found.steps)
