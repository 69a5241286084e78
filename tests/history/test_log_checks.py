"""The log's checker on histories written by hand: the good pass, and each violation is called by its name."""

import pytest

from tests.history.events import HistoryError
from tests.history.log_checks import KINDS, check_logs
from tests.history.story import Story

GOOD = {
    "nothing": Story(),
    "a round trip": Story().publish("p", "a b", 1).poll("c", "a b").state("s", 3).final("a b"),
    "no answer, and it is there": Story().publish("p", "a", outcome="info").poll("c", "a").final("a"),
    "no answer, and it is not there": Story().publish("p", "a", outcome="info").final(""),
    "no end, and it is there": Story().publish("p", "a", outcome="").poll("c", "a").final("a"),
    "refused, and it is not there": Story().publish("p", "a", outcome="fail").publish("p", "b", 1).final("b"),
    "read while it is published": Story()
    .publish("p", "a", 1, at=(1, 9))
    .poll("c", "a", at=(2, 3))
    .final("a"),
    "published together": Story()
    .publish("p", "a", 2, at=(1, 9))
    .publish("q", "b", 1, at=(2, 8))
    .final("b a"),
    "pipelined": Story().publish("p", "a", 1, at=(1, 9)).publish("p", "b", 2, at=(2, 8)).final("a b"),
    "poll by poll": Story()
    .publish("p", "a b c", 1)
    .poll("c", "a")
    .poll("c", "")
    .poll("c", "b c", 2)
    .final("a b c"),
    "a late reader": Story().publish("p", "a b c", 1).poll("c", "b c", 2).final("a b c"),
    "a slow replica": Story().publish("p", "a", 1).poll("c", "").final("a"),
    "sought back": Story().publish("p", "a b", 1).poll("c", "a b").seek("c", 1).poll("c", "a b").final("a b"),
    "sought anywhere": Story()
    .publish("p", "a b", 1)
    .poll("c", "a")
    .seek("c", None)
    .poll("c", "a")
    .final("a b"),
    "a poll without an answer": Story()
    .publish("p", "a b c", 1)
    .poll("c", "a")
    .poll("c", "", outcome="info")
    .poll("c", "c", 3)
    .final("a b c"),
    "trimmed": Story().publish("p", "a b c", 1).poll("c", "a").trim(3).poll("c", "c", 3).final("c", 3),
    "trimmed within a batch of unknown end": Story()
    .publish("p", "a b", outcome="info")
    .trim(2)
    .final("b", 2),
    "not trimmed yet": Story().publish("p", "a b c", 1).trim(3).final("b c", 2),
    "a group": Story().publish("p", "a b", 1).take("m", "a b").commit("m", 3).position("s", 3).final("a b"),
    "a group, what was not committed is given again": Story()
    .publish("p", "a b", 1)
    .take("m", "a b")
    .commit("m", 2)
    .take("n", "b", 2)
    .commit("n", 3)
    .final("a b"),
    "a group, a commit without an answer": Story()
    .publish("p", "a b", 1)
    .take("m", "a b")
    .commit("m", 3, outcome="info")
    .position("s", 1)
    .position("s", 3)
    .final("a b"),
    "a group, a commit of what is behind it": Story()
    .publish("p", "a b", 1)
    .take("m", "a")
    .take("n", "a b")
    .commit("n", 3)
    .commit("m", 2)
    .position("s", 3)
    .final("a b"),
    "a group, trimmed": Story().publish("p", "a b", 1).trim(2).take("m", "b", 2).commit("m", 3).final("b", 2),
    "an end told late": Story().publish("p", "a", 1, at=(2, 3)).state("s", 1, at=(1, 9)).final("a"),
}

BAD = {
    "lost": Story().publish("p", "a", 1).publish("p", "b", 2).final("a"),
    "lost, and another is there": (Story().publish("p", "a", 1).publish("q", "b", outcome="info").final("b")),
    "vanished": Story().publish("p", "a", outcome="info").poll("c", "a").final(""),
    "torn": Story().publish("p", "a b", outcome="info").final("a"),
    "torn, the first part": Story().publish("p", "a b", outcome="info").final("b"),
    "torn, not in a row": Story().publish("p", "a b", outcome="info").publish("q", "x", 2).final("a x b"),
    "doubled": Story().publish("p", "a", 1).final("a a"),
    "doubled, seen by two": Story().publish("p", "a", outcome="info").poll("c", "a", 1).poll("d", "a", 2),
    "misplaced": Story().publish("p", "x", 1).publish("p", "a", 3).poll("c", "x a").final("x a"),
    "invented": Story().poll("c", "ghost"),
    "invented, at the end": Story().publish("p", "a", 1).final("a ghost"),
    "undead": Story().publish("p", "a", outcome="fail").poll("c", "a").final("a"),
    "premature": Story().poll("c", "a").publish("p", "a", 1).final("a"),
    "split": Story()
    .publish("p", "a", outcome="info")
    .publish("q", "b", outcome="info")
    .poll("c", "a")
    .poll("d", "b"),
    "split, by acknowledgements": Story().publish("p", "a", 1, at=(1, 5)).publish("q", "b", 1, at=(2, 6)),
    "gap": Story().publish("p", "a b c", 1).tell("c", "poll", {}, {"records": [(1, "a"), (3, "c")]}),
    "gap, at the beginning": Story().publish("p", "a", outcome="info").final("a", 2),
    "gap, a read begins late": Story()
    .publish("p", "a b", 1)
    .tell("c", "read", {"offset": 1}, {"records": [(2, "b")]}),
    "skipped": Story().publish("p", "a b c", 1).poll("c", "a").poll("c", "c", 3).final("a b c"),
    "skipped, after a seek": Story().publish("p", "a b c", 1).seek("c", 1).poll("c", "c", 3).final("a b c"),
    "repeated": Story().publish("p", "a b", 1).poll("c", "a b").poll("c", "b", 2).final("a b"),
    "repeated, after a poll without an answer": Story()
    .publish("p", "a b", 1)
    .poll("c", "a b")
    .poll("c", "", outcome="info")
    .poll("c", "b", 2)
    .final("a b"),
    "repeated, within an answer": Story()
    .publish("p", "a b", 1)
    .tell("c", "poll", {}, {"records": [(1, "a"), (2, "b"), (1, "a")]}),
    "reordered": Story().publish("p", "a", 2).publish("p", "b", 1).final("b a"),
    "reordered, in flight together": (
        Story().publish("p", "a", 2, at=(1, 9)).publish("p", "b", 1, at=(2, 8)).final("b a")
    ),
    "reordered, and only readers know": (
        Story().publish("p", "a", outcome="info").publish("p", "b", 1).final("b a")
    ),
    "overtaken": Story().publish("p", "a", 2).publish("q", "b", 1).final("b a"),
    "stale": Story().publish("p", "a", 1).state("s", 1).final("a"),
    "stale, of a read": Story().publish("p", "a b", 1).read("s", 1, "a", end=2).final("a b"),
    "stale, after a poll": Story()
    .publish("p", "a", 1, at=(1, 20))
    .poll("c", "a", at=(2, 3))
    .state("s", 1, at=(4, 5)),
    "stale, after another end": Story()
    .publish("p", "a", 1, at=(1, 20))
    .state("s", 2, at=(2, 3))
    .state("t", 1, at=(4, 5)),
    "unserved": Story()
    .publish("p", "a b c", 1)
    .take("m", "a")
    .take("m", "c", 3)
    .commit("m", 4)
    .final("a b c"),
    "unserved, and nobody committed": Story().publish("p", "a", 1).position("s", 2).final("a"),
    "unserved, given only later": (
        Story().publish("p", "a", 1).take("m", "a", at=(3, 9)).commit("n", 2, at=(4, 10)).final("a")
    ),
    "rewound": Story().publish("p", "a", 1).take("m", "a").commit("m", 2).position("s", 1).final("a"),
    "rewound, as it was told": Story()
    .publish("p", "a b", 1)
    .take("m", "a b")
    .commit("m", 3, outcome="info")
    .position("s", 3)
    .position("t", 2)
    .final("a b"),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert [str(violation) for violation in check_logs(GOOD[name].operations())] == []


@pytest.mark.parametrize("name", BAD)
def test_a_violation_is_called_by_its_name(name: str) -> None:
    expected = name.partition(",")[0]
    assert {violation.kind for violation in check_logs(BAD[name].operations())} == {expected}


def test_every_kind_is_planted() -> None:
    assert {name.partition(",")[0] for name in BAD} == set(KINDS)


def test_the_first_violation_is_the_first_in_time() -> None:
    story = Story().publish("p", "a", 1).state("s", 1).poll("c", "ghost", 2).final("a ghost")
    assert [violation.kind for violation in check_logs(story.operations())] == [
        "stale",
        "invented",
        "invented",
    ]


def test_a_violation_reads_well() -> None:
    (violation,) = check_logs(Story().publish("p", "a", 1).publish("p", "b", 2).final("a").operations())
    assert str(violation).splitlines() == [
        "lost: log: 'b' was acknowledged at 2 and is gone",
        "    [3..4] p publish object 'log' values ['b'] ok offset 2",
        "    [5..6] auditor final object 'log' ok records [(1, 'a')]",
    ]


def test_a_value_published_twice_cannot_be_judged() -> None:
    for story in (Story().publish("p", "a", 1).publish("q", "a", 2), Story().publish("p", "a a", 1)):
        with pytest.raises(HistoryError, match="twice"):
            check_logs(story.operations())
