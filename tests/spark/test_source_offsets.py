"""Where a query is and what it reads next; no Spark and no cluster."""

import json
import random

import pytest

from hawser import UsageError
from hawser.cluster.client.admin.offsets import Bounds
from hawser.spark.source.offsets import (
    Bounded,
    Patience,
    Place,
    Range,
    advance,
    begun,
    clipped,
    ends,
    from_json,
    is_at,
    losses,
    ranges,
    share,
    starts,
    to_json,
)
from hawser.spark.source.planning import plan

START = {"a": Place("u1", {0: 5, 1: 1})}
NOW = {"a": Bounded("u1", {0: Bounds(1, 105), 1: Bounds(1, 11)})}


def test_offsets_are_text_that_is_always_the_same() -> None:
    one = {"b": Place("u2", {10: 3, 2: 4}), "a": Place("u1", {0: 1})}
    other = {"a": Place("u1", {0: 1}), "b": Place("u2", {2: 4, 10: 3})}
    text = json.dumps(to_json(one))
    assert text == '{"a": {"uuid": "u1", "0": 1}, "b": {"uuid": "u2", "2": 4, "10": 3}}'
    assert json.dumps(to_json(other)) == text
    assert from_json(json.loads(text)) == one


def test_the_first_micro_batch_knows_where_it_began() -> None:
    """Whatever Spark believes by the time it runs it again; and no other one reads that again."""
    start = from_json(json.loads(json.dumps(to_json(begun(START)))))
    assert is_at(start, START) and start != START
    first = advance(start, NOW, 10, {})
    assert to_json(first) == {"a": {"uuid": "u1", "0": 10, "1": 6, "began": {"0": 5, "1": 1}}}
    expected = [Range("a", "u1", 0, 5, 10), Range("a", "u1", 1, 1, 6)]
    for believed in (start, START, ends(NOW), {}):
        assert list(ranges(believed, first)) == expected
    second = advance(first, NOW, None, {})
    assert second == ends(NOW)
    assert list(ranges(first, second)) == [Range("a", "u1", 0, 10, 105), Range("a", "u1", 1, 6, 11)]


@pytest.mark.parametrize("strange", [{"a": 3}, {"a": {"0": 1}}, {"a": {"uuid": "u", "x": 1}}, {"a": None}])
def test_a_strange_checkpoint_is_told(strange: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="checkpoint of its own"):
        from_json(strange)


def test_without_a_limit_everything_is_read() -> None:
    assert advance(START, NOW, None, {}) == ends(NOW)
    assert list(ranges(START, ends(NOW))) == [Range("a", "u1", 0, 5, 105), Range("a", "u1", 1, 1, 11)]


def test_a_limit_is_shared_fairly() -> None:
    assert advance(START, NOW, 40, {}) == {"a": Place("u1", {0: 35, 1: 11})}
    assert advance(START, NOW, 10, {}) == {"a": Place("u1", {0: 10, 1: 6})}
    assert advance(START, NOW, 1, {}) == {"a": Place("u1", {0: 6, 1: 1})}


def test_a_limit_of_bytes_weighs_records_and_always_moves_on() -> None:
    weights = {("a", 0): 10, ("a", 1): 100}
    assert advance(START, NOW, 1000, weights) == {"a": Place("u1", {0: 55, 1: 6})}
    assert advance(START, NOW, 1, weights) == {"a": Place("u1", {0: 6, 1: 1})}


def test_a_small_micro_batch_waits_but_not_for_ever() -> None:
    patience = Patience(10, 60.0)
    assert not patience.waits(3, 100.0), "the first one of a run"
    assert [patience.waits(records, 101.0) for records in (0, 9)] == [True, True]
    assert not patience.waits(10, 102.0)
    assert patience.waits(9, 161.9)
    assert not patience.waits(0, 162.0), "there is nothing to begin with"
    assert not patience.waits(9, 163.0), "and the time is up"
    assert patience.waits(9, 164.0)


def test_any_limit_is_kept_and_reaches_the_end() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        partitions = {n: Bounds(1, chance.randint(1, 200)) for n in range(chance.randint(1, 6))}
        now, limit = {"t": Bounded("u", partitions)}, chance.randint(1, 60)
        at = starts(now)
        for _ in range(1200):
            following = advance(at, now, limit, {})
            count = sum(each.records for each in ranges(at, following))
            assert 0 <= count <= limit, seed
            if following == at:
                break
            at = following
        assert at == ends(now), seed


def test_shares_never_exceed_what_is_there() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        wanted = {n: chance.randint(0, 50) for n in range(chance.randint(0, 8))}
        limit = chance.randint(0, 200)
        shares = share(wanted, limit)
        assert all(shares[n] <= wanted[n] for n in wanted)
        assert sum(shares.values()) == min(limit, sum(wanted.values()))
        least = min((shares[n] for n in wanted if shares[n] < wanted[n]), default=None)
        if least is not None:
            assert max(shares.values()) <= least + 1 + limit % (len(wanted) or 1)


def test_what_is_new_joins_where_it_begins_and_is_read_from_then_on() -> None:
    grown = {
        "a": Bounded("u1", {0: Bounds(1, 105), 1: Bounds(1, 11), 2: Bounds(1, 8)}),
        "b": Bounded("u9", {0: Bounds(4, 6)}),
    }
    first = advance(START, grown, None, {})
    assert first == {"a": Place("u1", {0: 105, 1: 11, 2: 1}), "b": Place("u9", {0: 4})}
    assert [each.partition for each in ranges(START, first)] == [0, 1]
    second = advance(first, grown, None, {})
    assert list(ranges(first, second)) == [Range("a", "u1", 2, 1, 8), Range("b", "u9", 0, 4, 6)]


def test_a_topic_made_anew_is_another_one() -> None:
    anew = {"a": Bounded("u2", {0: Bounds(1, 50)})}
    (loss,) = losses(START, anew)
    assert "made anew" in loss.text and "offset 4 of partition 0, offset 0 of partition 1" in loss.text
    first = advance(START, anew, None, {})
    assert first == {"a": Place("u2", {0: 1})}
    assert list(ranges(START, first)) == []
    (loss,) = losses(START, {})
    assert "was deleted" in loss.text and not loss.is_range


def test_a_topic_that_is_not_looked_at_keeps_its_place() -> None:
    """Left out by the query, not listed by a node, deleted, or not in the target of AvailableNow: dropped, it
    would be read again from its start."""
    assert advance(START, {}, None, {}) == START
    both = {**START, "b": Place("u9", {0: 3})}
    only_b = {"b": Bounded("u9", {0: Bounds(1, 8)})}
    following = advance(both, only_b, None, {})
    assert following == {**START, "b": Place("u9", {0: 8})}
    assert list(ranges(both, following)) == [Range("b", "u9", 0, 3, 8)]
    one_partition = {"a": Bounded("u1", {0: Bounds(1, 105)})}
    assert advance(START, one_partition, None, {}) == {"a": Place("u1", {0: 105, 1: 1})}


def test_the_first_micro_batch_is_read_once_by_a_query_that_leaves_its_topic_out() -> None:
    first = advance(begun(START), NOW, None, {})
    assert first["a"].began == START["a"].partitions
    following = advance(first, {"b": Bounded("u9", {0: Bounds(1, 8)})}, None, {})
    assert list(ranges(first, following)) == []
    again = advance(following, {"a": Bounded("u1", {0: Bounds(1, 107), 1: Bounds(1, 11)})}, None, {})
    assert list(ranges(following, again)) == [Range("a", "u1", 0, 105, 107)]


def test_what_retention_took_is_named_exactly() -> None:
    trimmed = {"a": Bounded("u1", {0: Bounds(60, 105), 1: Bounds(1, 11)})}
    (loss,) = losses(START, trimmed)
    assert loss.is_range
    assert loss.text.startswith("topic 'a', partition 0: records 5 to 59 (55) are no longer kept")
    assert list(losses({"a": Place("u1", {0: 60, 1: 1})}, trimmed)) == []


def test_a_pinned_end_holds_whatever_comes_later() -> None:
    target = ends(NOW)
    later = {
        "a": Bounded("u1", {0: Bounds(9, 900), 1: Bounds(1, 11), 2: Bounds(1, 4)}),
        "b": Bounded("u9", {0: Bounds(1, 6)}),
    }
    pinned = clipped(later, target)
    assert pinned == {"a": Bounded("u1", {0: Bounds(9, 105), 1: Bounds(1, 11)})}
    assert clipped({"a": Bounded("u2", {0: Bounds(1, 5)})}, target) == {}


def test_splits_cover_their_ranges_exactly() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        whole = [
            Range(
                "t", "u", n, first := chance.randint(1, 50), first + chance.choice([0, 1, 7, 300, 9_000_000])
            )
            for n in range(chance.randint(0, 4))
        ]
        least = chance.choice([None, 1, 3, 16])
        splits = plan(whole, least)
        total = sum(each.records for each in whole)
        if least is not None:
            assert len(splits) >= min(least, total)
        assert all(split.wanted.records > 0 for split in splits)
        for each in whole:
            mine = [split.wanted for split in splits if split.wanted.partition == each.partition]
            places = [each.first, *(cut.end for cut in mine)]
            assert [cut.first for cut in mine] == places[:-1]
            assert places[-1] == each.end


def test_a_hot_partition_is_cut_and_a_small_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    hot, small = Range("t", "u", 0, 1, 800_001), Range("t", "u", 0, 1, 1_001)
    for cores, tasks in (("4", 4), ("16", 16), ("1000", 16), ("1", 1), ("0", 1), ("many", 16), ("", 16)):
        monkeypatch.setenv("HAWSER_SPARK_CORES", cores)
        assert (len(plan([hot], None)), len(plan([small], None))) == (tasks, 1), cores
    monkeypatch.delenv("HAWSER_SPARK_CORES")
    assert len(plan([hot._replace(end=100_000_001)], None)) == 50, "no task has more than two million records"
    assert len(plan([hot], 4)) == 4
    assert [each.wanted.records for each in plan([small], 3, 300)] == [250] * 4
