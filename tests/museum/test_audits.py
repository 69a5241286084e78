"""Audits that said more than they had looked at: complete, though contents differed."""

import pytest

from hawser.record.trace import TraceKind
from hawser.spark.pipelines.ranges import Range
from tests.support.audits import Row, Step, World, audited

COUNT = 50
ALL = Range(1, COUNT)


def world(*, joined: int = 0, landed: Range = ALL) -> World:
    """All messages of the host are in one block: published, taken by one subscriber, and in the log and table
    from others."""
    made = World("topic", 1)
    made.trace = [
        Step(TraceKind.PUBLISH, number, 1 << 20, number * 1000, 7) for number in range(1, COUNT + 1)
    ]
    made.trace.insert(joined, Step(TraceKind.SUBSCRIBE, joined, 8, 0, 2, "view"))
    made.trace += [
        Step(TraceKind.TAKE, number, 8, number * 1000, number * 1_000_000, "view")
        for number in range(joined + 1, COUNT + 1)
    ]
    made.append(1, COUNT)
    made.committed["topic", 1] = landed
    made.table = [Row(*each[:5], each.time_us) for each in made.log[landed.first - 1 : landed.last]]
    return made


def damage_table(made: World) -> None:
    made.table = [each._replace(content=each.content + 1) for each in made.table]


@pytest.mark.parametrize("first", [1, 21])
def test_rows_are_compared_from_where_the_landing_began(first: int) -> None:
    """The log and the table were compared only if a whole block of both had the same numbers."""
    made = world(landed=Range(first, COUNT))
    assert audited(made).verdict.startswith("complete: 100 messages")
    damage_table(made)
    document = audited(made)
    assert [(each.word, each.first, each.last) for each in document.problems] == [("damaged", first, COUNT)]


@pytest.mark.parametrize("trimmed", [1, 20, COUNT - 1])
def test_rows_are_compared_with_what_retention_left_of_the_log(trimmed: int) -> None:
    made = world()
    made.trim(1, trimmed)
    whole = audited(made)
    assert whole.is_whole and not whole.is_proven and whole.uncompared == trimmed
    assert whole.verdict.startswith("undecided: nothing wrong was found among 100 messages, but ")
    assert f"{trimmed} uncompared in landed of topic" in whole.verdict
    damage_table(made)
    found = {(each.tier, each.word, each.first, each.last) for each in audited(made).problems}
    assert found == {
        ("replicated", "unwitnessed", 1, trimmed),
        ("landed", "uncompared", 1, trimmed),
        ("landed", "damaged", trimmed + 1, COUNT),
    }


def test_a_late_subscriber_is_compared_from_its_first_message() -> None:
    made = world(joined=20)
    assert audited(made).verdict.startswith("complete: 100 messages")
    made.trace = [
        each._replace(value=each.value + 1000) if each and each.kind == TraceKind.TAKE else each
        for each in made.trace
    ]
    (problem,) = audited(made).problems
    assert (problem.tier, problem.word, problem.first, problem.last) == ("delivered", "damaged", 21, COUNT)


def test_a_row_that_did_not_land_does_not_hide_the_others() -> None:
    """Beside a landing that is behind, or has lost a row, no row of the block was compared."""
    made = world(landed=Range(1, 40))
    del made.table[10]
    damage_table(made)
    found = {(each.tier, each.word, each.first, each.last) for each in audited(made).problems}
    assert found == {
        ("in Spark", "pending", 41, COUNT), ("landed", "pending", 41, COUNT), ("landed", "missing", 11, 11),
        ("landed", "damaged", 1, 10), ("landed", "damaged", 12, 40),
    }  # fmt: skip
