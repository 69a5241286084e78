"""Verdicts: the arithmetic of ranges against sets, and every word where it belongs, without Spark."""

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hawser.spark.pipelines.auditing.lines import Finding, Run, Verdict
from hawser.spark.pipelines.auditing.verdicts import judge
from hawser.spark.pipelines.ranges import Piece, Range, common, disjoint, doubled, holes, merged, without

RANGES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 6)).map(lambda each: Range(each[0], sum(each)))
)


def numbers(ranges: Iterable[Range | Piece]) -> list[int]:
    return [number for each in ranges for number in range(each.first, each.last + 1)]


@settings(deadline=None)
@given(RANGES, RANGES)
def test_ranges_are_sets(one: list[Range], other: list[Range]) -> None:
    ours, theirs = set(numbers(one)), set(numbers(other))
    assert numbers(merged(one)) == sorted(ours)
    assert all(before.last + 1 < after.first for before, after in pairwise(merged(one)))
    assert numbers(doubled(one)) == sorted(each for each in ours if numbers(one).count(each) > 1)
    assert numbers(holes(one, 1)) == sorted(set(range(1, max(ours, default=0))) - ours)
    assert numbers(without(merged(one), merged(other))) == sorted(ours - theirs)
    assert numbers(common(merged(one), merged(other))) == sorted(ours & theirs)


@settings(deadline=None)
@given(RANGES)
def test_pieces_keep_their_minutes(ranges: list[Range]) -> None:
    pieces = [Piece(*each, place % 3 * 60) for place, each in enumerate(ranges)]
    found = disjoint(pieces)
    assert numbers(found) == sorted(set(numbers(ranges)))
    for each in found:
        for number in range(each.first, each.last + 1):
            assert any(one.first <= number <= one.last and one.at == each.at for one in pieces)


# Scenes.

MINUTE = 1_800_000_000 // 60 * 60
TRACE = "recorder:agent/ring"
OWNER = 65_538


def hashed(number: int) -> int:
    return (number * 0x9E3779B97F4A7C15 ^ number << 7) & (1 << 64) - 1


def run(what: str, first: int, last: int, at: int | None = None, **more: Any) -> Run:
    """Of messages seen one behind the other from place `at` on."""
    at = first if at is None else at
    whole = range(first, last + 1)
    given = {
        "partition": -1,
        "owner": 0,
        "minute": MINUTE,
        "is_late": False,
        "hash": sum(map(hashed, whole)),
        "hashes": struct.pack(f"<{len(whole)}Q", *map(hashed, whole)),
        "sizes": struct.pack(f"<{len(whole)}I", *[10] * len(whole)),
        "bytes": 10 * len(whole),
        "topic": "camera",
        "region": "",
        "who": "",
        "carrier": "",
        **more,
    }
    return Run(what=what, at_first=at, at_last=at + last - first, first=first, last=last, **given)


def changed(whole: Run, number: int) -> Run:
    """The same, with another content of this message."""
    place = 8 * (number - whole.first)
    other = (hashed(number) ^ 12345).to_bytes(8, "little")
    hashes = whole.hashes[:place] + other + whole.hashes[place + 8 :]
    return whole._replace(hashes=hashes, hash=sum(struct.unpack(f"<{len(hashes) // 8}Q", hashes)))


def published(first: int, last: int) -> list[Run]:
    """In the trace at places that are a thousand times the number."""
    return [
        run("published", each, each, each * 1000, region="r", carrier=TRACE)
        for each in range(first, last + 1)
    ]


def taken(*order: int, **more: Any) -> list[Run]:
    """By one subscriber, in this order."""
    given = {"region": "r", "carrier": TRACE, "owner": OWNER, "who": "view", **more}
    return [run("taken", each, each, 1_000_000 + place, **given) for place, each in enumerate(order)]


def traced(*spans: tuple[int, int]) -> list[Run]:
    whole = run("traced", 1, 1, carrier=TRACE, minute=0)
    return [whole._replace(at_first=first, at_last=last, first=first, last=last) for first, last in spans]


def log(*spans: tuple[int, int], **more: Any) -> list[Run]:
    return [run("replicated", first, last, partition=0, **more) for first, last in spans]


def landed(*spans: tuple[int, int], at: int = 5, **more: Any) -> list[Run]:
    return [
        run("landed", first, last, partition=0, **more)._replace(at_first=at, at_last=at)
        for first, last in spans
    ]


ALL = (1, 10_000_000)


def words(verdicts: Sequence[Verdict], tier: str) -> list[tuple[str, int, int]]:
    found: list[Finding] = [each for one in verdicts if one.tier == tier for each in one.findings]
    return sorted((each.word, each.first, each.last) for each in found)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 4, 5], [("missing", 3, 3)]),
        ([1, 2, 2, 3, 4, 5], [("duplicate", 2, 2)]),
        ([1, 2, 2, 4, 5], [("duplicate", 2, 2), ("missing", 3, 3)]),
        ([1, 3, 2, 4, 5], [("reordered", 2, 2)]),
        ([1, 2, 3], [("pending", 4, 5)]),
        ([3, 4, 5], []),
    ],
)
def test_a_subscriber(order: list[int], expected: list[tuple[str, int, int]]) -> None:
    verdicts = judge([*published(1, 5), *taken(*order), *traced(ALL)], None)
    assert words(verdicts, "delivered") == expected
    assert words(verdicts, "published") == []
    (line,) = [each for each in verdicts if each.tier == "delivered"]
    assert line.topic == "camera" and line.region == "r" and line.who == "view"
    assert line.found == len(set(order))


def test_joining_and_leaving_say_what_was_a_subscribers_own() -> None:
    given = {"region": "r", "carrier": TRACE, "owner": OWNER}
    joined = run("joined", 1, 1, 999_000, **given)
    left = run("left", 6, 6, 1_100_000, **given)
    verdicts = judge([*published(1, 9), joined, *taken(3, 4, 5), left, *traced(ALL)], None)
    assert words(verdicts, "delivered") == [("missing", 2, 2), ("missing", 6, 6)]


def test_what_was_put_back_was_not_taken() -> None:
    """By the sums, which say so as well."""
    back = run("returned", 3, 3, 1_000_003, region="r", carrier=TRACE, owner=OWNER)
    first = run("taken", 1, 3, 1_000_000, region="r", carrier=TRACE, owner=OWNER)
    then = run("taken", 3, 5, 1_000_004, region="r", carrier=TRACE, owner=OWNER)
    verdicts = judge([*published(1, 5), first, back, then, *traced(ALL)], None)
    assert words(verdicts, "delivered") == []
    (line,) = [each for each in verdicts if each.tier == "delivered"]
    assert line.compared == 5


def test_a_subscriber_that_comes_again_is_another_one() -> None:
    """Named by when it came: incarnations only grow."""
    first, again = taken(1, 2), taken(2, 3, owner=OWNER + (1 << 16))
    gone = run("recovered", 0, 0, 2_000_000, region="r", carrier=TRACE, owner=OWNER)
    verdicts = judge([*published(1, 3), *again, *first, gone, *traced(ALL)], None)
    delivered = [each for each in verdicts if each.tier == "delivered"]
    assert [(each.who, each.found, each.findings) for each in delivered] == [
        ("view", 2, []),
        ("view #2", 2, []),
    ]


def test_a_subscriber_that_took_nothing_is_one() -> None:
    given = {"region": "r", "carrier": TRACE, "owner": OWNER, "who": "view"}
    joined = run("joined", 0, 0, 999_000, **given)
    left = run("left", 5, 5, 1_100_000, **given)
    assert words(judge([*published(1, 5), joined, left, *traced(ALL)], None), "delivered") == [
        ("missing", 1, 5)
    ]
    assert words(judge([*published(1, 5), joined, *traced(ALL)], None), "delivered") == [("pending", 1, 5)]
    assert words(judge([*published(1, 5), left, *traced(ALL)], None), "delivered") == []


def test_whether_a_subscriber_is_gone_a_lost_record_may_have_said() -> None:
    spans = traced((1, 1_000_005), (1_000_007, 10_000_000))
    verdicts = judge([*published(1, 5), *taken(1, 2), *spans], None)
    assert words(verdicts, "delivered") == [("unwitnessed", 3, 5)]


def test_a_subscriber_that_is_gone_is_not_waited_for() -> None:
    gone = run("recovered", 0, 0, 2_000_000, region="r", carrier=TRACE, owner=OWNER)
    verdicts = judge([*published(1, 5), *taken(1, 2), gone, *traced(ALL)], None)
    assert words(verdicts, "delivered") == []


def test_what_a_subscriber_was_told_it_missed() -> None:
    told = run("missed", 3, 4, 1_000_002, region="r", carrier=TRACE, owner=OWNER)
    verdicts = judge([*published(1, 5), *taken(1, 2, 5), told, *traced(ALL)], None)
    assert words(verdicts, "delivered") == [("missed", 3, 4)]


def test_what_the_trace_lost_is_nobodys_loss() -> None:
    spans = traced((1, 1_000_001), (1_000_003, 10_000_000))
    order = taken(1, 2, 3)
    order += [each._replace(at_first=each.at_first + 10, at_last=each.at_last + 10) for each in taken(5)]
    verdicts = judge([*published(1, 5), *order, *spans], None)
    assert words(verdicts, "delivered") == [("unwitnessed", 4, 4)]
    assert words(
        judge([*published(1, 2), *published(4, 5), *taken(1, 2, 3, 4, 5), *spans], None), "published"
    ) == [("unwitnessed", 3, 3)]


def test_what_happened_while_tracing_was_off_is_nobodys_loss() -> None:
    def off(at: int, region: str) -> list[Run]:
        return [run("switched", 0, 0, at, region=region, carrier=TRACE)]

    def later(runs: list[Run]) -> list[Run]:
        return [each._replace(at_first=each.at_first + 10, at_last=each.at_last + 10) for each in runs]

    whole = [*published(1, 5), *taken(1, 2), *later(taken(5)), *traced(ALL)]
    assert words(judge([*whole, *off(1_000_005, "r")], None), "delivered") == [("unwitnessed", 3, 4)]
    for unrelated in (off(1_000_005, "another"), off(500, "r"), off(2_000_000, "r")):
        assert words(judge([*whole, *unrelated], None), "delivered") == [("missing", 3, 4)]
    jobs = [run("put", each, each, each * 1000, region="q", carrier=TRACE) for each in (1, 2)]
    assert words(judge([*jobs, *traced(ALL), *off(1500, "q")], None), "delivered") == [
        ("pending", 2, 2), ("unwitnessed", 1, 1),
    ]  # fmt: skip


def test_a_recorder() -> None:
    def recorded(first: int, last: int, at: int) -> Run:
        return run("recorded", first, last, at, partition=0, region="r", who="agent", topic="target")

    gap = run("gap", 4, 5, 4, partition=0, region="r", who="agent", topic="target")._replace(at_last=4)
    logs = log((1, 9), topic="target")
    whole = [
        *published(1, 10),
        recorded(1, 3, 1),
        gap,
        recorded(6, 7, 5),
        recorded(9, 9, 7),
        *logs,
        *traced(ALL),
    ]
    assert words(judge(whole, None), "recorded") == [
        ("missing", 4, 5), ("missing", 8, 8), ("pending", 10, 10),
    ]  # fmt: skip
    trimmed = [each for each in whole if each.what != "replicated"] + log((1, 5), (7, 9), topic="target")
    assert ("unwitnessed", 8, 8) in words(judge(trimmed, None), "recorded")
    twice = [*published(1, 5), recorded(1, 4, 1), recorded(4, 5, 5), *logs]
    assert words(judge(twice, None), "recorded") == [("duplicate", 4, 4)]


def test_what_was_over_before_a_recorder_came_is_nobodys_loss() -> None:
    given = {"partition": 0, "region": "r", "who": "agent", "topic": "target"}
    gap = run("gap", 1, 4, 1, **given)._replace(at_last=1)
    whole = [gap, run("recorded", 5, 9, 2, **given), *log((1, 6), topic="target"), *traced(ALL)]
    unknown = ("uncompared", 5, 9)
    assert words(judge(whole, None), "recorded") == [unknown], "the trace does not tell of them"
    assert words(judge(whole[:-1], None), "recorded") == [], "without a trace nothing is asked of it"
    assert words(judge([gap], None), "recorded") == []
    assert words(judge([*whole, *published(3, 9)], None), "recorded") == []
    later = run("gap", 10, 12, 7, **given)._replace(at_last=7)
    assert words(judge([*whole, later], None), "recorded") == [("missing", 10, 12), unknown]


def test_a_recorder_with_another_name_goes_on_where_the_first_one_was() -> None:
    given = {"partition": 0, "region": "r", "topic": "target"}
    gaps = [run("gap", first, last, at, who="b", **given)._replace(at_last=at) for first, last, at in
            ((1, 1, 51), (2, 50, 52))]  # fmt: skip
    whole = [
        run("recorded", 1, 50, 1, who="a", **given),
        *gaps,
        run("recorded", 51, 100, 53, who="b", **given),
    ]
    verdicts = judge([*whole, *published(1, 100), *log((1, 102), topic="target"), *traced(ALL)], None)
    assert words(verdicts, "recorded") == []
    assert {(each.who, each.expected) for each in verdicts if each.tier == "recorded"} == {
        ("a", 50),
        ("b", 50),
    }


def test_a_trace_that_two_agents_recorded_is_one() -> None:
    whole = [*published(1, 5), *taken(1, 2, 3), *traced(ALL)]
    less = [*(each for each in whole if each.what != "traced"), *traced((1, 1_000_001))]
    twice = [*whole, *(each._replace(carrier="recorder:other/ring") for each in less)]
    assert judge(twice, None) == judge(whole, None)


def test_a_landing() -> None:
    in_spark = {("camera", 0): Range(1, 80)}
    whole = [*log((1, 100)), *landed((1, 30), (32, 80))]
    verdicts = judge(whole, in_spark)
    assert words(verdicts, "landed") == [("missing", 31, 31), ("pending", 81, 100)]
    assert words(verdicts, "in Spark") == [("pending", 81, 100)]
    assert words(verdicts, "replicated") == []
    counts_agree = [*log((1, 80)), *landed((1, 30), (32, 80)), *landed((50, 50))]
    assert words(judge(counts_agree, in_spark), "landed") == [("duplicate", 50, 50), ("missing", 31, 31)]
    late = [*log((1, 80)), *landed((1, 30), (32, 80)), *landed((31, 31), is_late=True)]
    assert words(judge(late, in_spark), "landed") == [("late", 31, 31)]
    behind = [*log((1, 80)), *landed((1, 30), (32, 80), at=9), *landed((31, 31), at=3)]
    assert words(judge(behind, in_spark), "landed") == [], "a table has no order"
    ahead = judge([*log((1, 50)), *landed((1, 30)), *landed((31, 90), at=9)], in_spark)
    assert [words(ahead, tier) for tier in ("replicated", "in Spark", "landed")] == [
        [], [], [("uncompared", 51, 90)],
    ]  # fmt: skip
    late_start = judge([*log((1, 80)), *landed((41, 80))], {("camera", 0): Range(41, 80)})
    assert [words(late_start, tier) for tier in ("in Spark", "landed")] == [[], []]
    nothing = judge([], {("camera", 1): Range(1, 100), ("camera", 2): Range(1, 0)})
    assert words(nothing, "landed") == [("missing", 1, 100)]
    assert {each.partition for each in nothing} == {1}
    others = [*log((1, 80)), *landed((1, 80)), *log((1, 9), topic="other")]
    assert {each.topic for each in judge(others, in_spark, {"camera"})} == {"camera"}
    trimmed = judge([*log((40, 80)), *landed((1, 30)), *landed((32, 80), at=9)], in_spark)
    assert words(trimmed, "replicated") == [("unwitnessed", 1, 39)]
    assert words(trimmed, "landed") == [
        ("missing", 31, 31), ("uncompared", 1, 30), ("uncompared", 32, 39),
    ]  # fmt: skip


def test_a_message_that_was_changed_is_named() -> None:
    before = log((1, 100))
    (after,) = landed((1, 100))
    in_spark = {("camera", 0): Range(1, 100)}
    assert words(judge([*before, changed(after, 77)], in_spark), "landed") == [("damaged", 77, 77)]
    several = changed(changed(after, 11), 77)
    assert words(judge([*before, several], in_spark), "landed") == [("damaged", 11, 11), ("damaged", 77, 77)]
    unread = several._replace(hashes=b"")
    assert words(judge([*before, unread], in_spark), "landed") == [("damaged", 1, 100)]
    (verdict,) = [each for each in judge([*before, after], in_spark) if each.tier == "landed"]
    assert verdict.compared == 100 and verdict.findings == []


def test_a_queue() -> None:
    def queue(what: str, *those: int) -> list[Run]:
        return [run(what, each, each, each * 1000, region="q", carrier=TRACE, topic="jobs") for each in those]

    settled = [*queue("accepted", 3, 1), *queue("moved", 2)]
    verdicts = judge([*queue("put", 1, 2, 3, 4), *settled, *traced(ALL)], None)
    assert words(verdicts, "delivered") == [("pending", 4, 4)]
    assert all(each.is_queue for each in verdicts)
    twice = [*queue("put", 1, 2, 3), *settled, *queue("accepted", 3), *traced(ALL)]
    assert words(judge(twice, None), "delivered") == [("duplicate", 3, 3)]
    lost = [*queue("put", 1, 2, 3, 4), *settled, *traced((1, 6000), (6002, 9000))]
    assert words(judge(lost, None), "delivered") == [("unwitnessed", 4, 4)]


@settings(deadline=None)
@given(st.data())
def test_how_evidence_is_cut_and_ordered_changes_nothing(data: st.DataObject) -> None:
    """Whatever was lost, doubled or late in a table."""
    copies = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=30))
    rows = [number for number, count in enumerate(copies, 1) for _ in range(count)]
    singles = [each for number in rows for each in landed((number, number))]
    cut: list[Run] = []
    for each in singles:
        is_next = cut and cut[-1].last + 1 == each.first and data.draw(st.booleans())
        cut.append(landed((cut.pop().first, each.last))[0] if is_next else each)
    logs = log((1, len(copies)))
    in_spark = {("camera", 0): Range(1, len(copies))}
    expected = judge([*logs, *singles], in_spark)
    assert judge(data.draw(st.permutations([*logs, *cut])), in_spark) == expected
    found = words(expected, "landed")
    assert numbers(Range(*each[1:]) for each in found if each[0] == "missing") == [
        number for number, count in enumerate(copies, 1) if count == 0
    ]
    assert numbers(Range(*each[1:]) for each in found if each[0] == "duplicate") == [
        number for number, count in enumerate(copies, 1) if count == 2
    ]
