"""Offsets, look-ups, retention, and the blocks of the index."""

from bisect import bisect_right

import pytest

from hawser.log.entry import Kind
from hawser.log.state.commands import AT_END, GroupCommit, GroupDelete, GroupJoin, TrimTo
from hawser.log.state.offset_index import CACHED_PAGES
from hawser.log.state.part import BadState
from hawser.log.state.results import Accepted, OutOfRange, Place, Reason, Rejected, Trimmed
from hawser.record.record import Stamp
from tests.stateful.log_shard import PAGE_PLACES, Shard


def shard_of(counts: list[int]) -> Shard:
    """Batch i, from 0, has the timestamp 10 * i."""
    shard = Shard()
    for number, count in enumerate(counts):
        shard.publish(count, timestamp_ns=10 * number)
    return shard


def test_offsets_are_dense_from_one() -> None:
    shard = Shard()
    assert (shard.topic.start, shard.topic.end, shard.topic.count) == (1, 1, 0)
    assert [shard.publish(count) for count in (3, 1, 2)] == [Accepted(1, 3), Accepted(4, 1), Accepted(5, 2)]
    assert (shard.topic.start, shard.topic.end, shard.topic.count) == (1, 7, 6)


def test_what_is_rejected_takes_no_offsets() -> None:
    shard = shard_of([2])
    assert shard.publish(5, Stamp(b"p", 1, 2)) == Rejected(Reason.UNKNOWN_PRODUCER, 0, 2)
    assert shard.put(Kind.BATCH, b"no batch") == Rejected(Reason.BAD_PAYLOAD)
    assert shard.publish() == Accepted(3, 1)


@pytest.mark.parametrize("batches", range(1, 3 * PAGE_PLACES + 2))
@pytest.mark.parametrize("saved", [False, True])
def test_every_offset_is_located(batches: int, saved: bool) -> None:
    counts = [number % 3 + 1 for number in range(batches)]
    shard = shard_of(counts)
    if saved:
        shard.save()
        shard.restart()
    firsts = [1 + sum(counts[:number]) for number in range(batches)]
    for offset in range(1, sum(counts) + 1):
        number = bisect_right(firsts, offset) - 1
        assert shard.topic.locate(offset) == Place(number + 1, firsts[number], counts[number])
    end = sum(counts) + 1
    for offset in (-1, 0, end, end + 1):
        assert shard.topic.locate(offset) == OutOfRange(1, end)


@pytest.mark.parametrize("saved", [False, True])
def test_trimming_forgets_from_the_start(saved: bool) -> None:
    shard = shard_of([2] * (3 * PAGE_PLACES + 1))
    end = shard.topic.end
    for start in range(2, end + 1):
        assert shard.do(TrimTo(start)) == Trimmed(start, end, None)
        if saved:
            shard.save()
            shard.restart()
        assert shard.topic.count == end - start
        assert shard.topic.locate(start - 1) == OutOfRange(start, end)
        if start < end:
            batch = (start - 1) // 2
            assert shard.topic.locate(start) == Place(batch + 1, 2 * batch + 1, 2)
            assert shard.machine.needed == batch + 1
    assert shard.machine.needed == shard.machine.applied + 1
    assert shard.save().blocks == ()


def test_trimming_goes_neither_back_nor_beyond_the_end() -> None:
    shard = shard_of([5, 5])
    assert shard.do(TrimTo(4)) == Trimmed(4, 11, None)
    assert shard.do(TrimTo(2)) == Trimmed(4, 11, None)
    assert shard.do(TrimTo(0)) == Trimmed(4, 11, None)
    assert shard.do(TrimTo(AT_END)) == Trimmed(11, 11, None)
    assert shard.publish(2) == Accepted(11, 2)
    assert shard.topic.locate(11) == Place(7, 11, 2)
    assert shard.machine.needed == 7


@pytest.mark.parametrize(
    ("offset", "floor", "start", "holder"),
    [
        (3, 0, 3, None),
        (4, 0, 4, None),
        (9, 0, 4, "slow"),
        (9, 3, 4, "slow"),
        (9, 6, 6, "slow"),
        (9, 9, 9, None),
        (9, 20, 9, None),
        (4, 9, 4, None),
        (20, 20, 11, None),
    ],
)
def test_groups_hold_retention_back_down_to_the_floor(
    offset: int, floor: int, start: int, holder: str | None
) -> None:
    shard = shard_of([5, 5])
    shard.do(GroupJoin("slow", "a", 4))
    shard.do(GroupJoin("fast", "a", 8))
    assert shard.do(TrimTo(offset, floor)) == Trimmed(start, 11, holder)


def test_a_group_that_moves_or_goes_holds_no_more() -> None:
    shard = shard_of([5, 5])
    shard.do(GroupJoin("g", "a"))
    assert shard.do(TrimTo(9)) == Trimmed(1, 11, "g")
    shard.do(GroupCommit("g", "a", 1, 1, 6))
    assert shard.do(TrimTo(9)) == Trimmed(6, 11, "g")
    shard.do(GroupDelete("g"))
    assert shard.do(TrimTo(9)) == Trimmed(9, 11, None)


@pytest.mark.parametrize("saved", [False, True])
def test_a_time_is_found(saved: bool) -> None:
    batches = 3 * PAGE_PLACES + 2
    shard = shard_of([2] * batches)
    if saved:
        shard.save()
        shard.restart()
    for number in range(batches):
        assert shard.topic.at_time(10 * number) == 2 * number + 1
        assert shard.topic.at_time(10 * number - 9) == 2 * number + 1
    assert shard.topic.at_time(10 * batches) == shard.topic.end
    shard.do(TrimTo(8))
    assert shard.topic.at_time(0) == 8
    assert shard.topic.at_time(30) == 8
    assert shard.topic.at_time(40) == 9


def test_times_out_of_order_miss_nothing() -> None:
    times = [50, 10, 20, 70, 60, 5, 90]
    shard = Shard()
    for time in times:
        shard.publish(1, timestamp_ns=time)
    for wanted in range(100):
        later = [number + 1 for number, time in enumerate(times) if time >= wanted]
        assert shard.topic.at_time(wanted) == (later[0] if later else shard.topic.end)


def test_a_late_time_that_was_trimmed_is_remembered() -> None:
    """Everything after it is as late: the answer may come too early, never too late."""
    shard = Shard()
    for time in [900, *range(2 * PAGE_PLACES - 1)]:
        shard.publish(1, timestamp_ns=time)
    shard.do(TrimTo(AT_END))
    shard.save()
    shard.restart()
    shard.publish(1, timestamp_ns=5)
    assert shard.topic.at_time(800) == shard.topic.start
    assert shard.topic.at_time(901) == shard.topic.end


def test_blocks_are_written_once_and_when_full() -> None:
    shard = shard_of([1] * PAGE_PLACES)
    assert shard.blocks.writes == 0, "applying writes nothing"
    assert shard.save().blocks == ("topic-0",)
    assert shard.save().blocks == ("topic-0",)
    for _ in range(2 * PAGE_PLACES - 1):
        shard.publish()
    assert shard.save().blocks == ("topic-0", "topic-1")
    shard.publish()
    assert shard.save().blocks == ("topic-0", "topic-1", "topic-2")
    assert shard.blocks.writes == 3
    shard.do(TrimTo(PAGE_PLACES + 1))
    assert shard.save().blocks == ("topic-1", "topic-2")


def test_blocks_are_read_when_they_are_looked_into() -> None:
    runs = CACHED_PAGES + 2
    shard = shard_of([1] * (PAGE_PLACES * runs))
    shard.save()
    shard.restart()
    assert shard.blocks.reads == 0
    for _ in range(2):
        shard.topic.locate(1)
    assert shard.blocks.reads == 1
    for number in range(1, runs):
        shard.topic.locate(PAGE_PLACES * number + 1)
    assert shard.blocks.reads == runs
    shard.topic.locate(PAGE_PLACES * 2 + 1)
    assert shard.blocks.reads == runs, "the recent ones are remembered"
    shard.topic.locate(1)
    assert shard.blocks.reads == runs + 1, "the first one made room"


def test_a_block_that_is_not_the_one_is_refused() -> None:
    shard = shard_of([1] * (2 * PAGE_PLACES))
    shard.save()
    good = dict(shard.blocks.kept)
    for damaged in (b"", b"\x02" + good["topic-0"][1:], good["topic-0"][:-1], good["topic-1"]):
        shard.blocks.kept["topic-0"] = damaged
        shard.restart()
        with pytest.raises(BadState, match="block"):
            shard.topic.locate(1)


def test_saving_that_fails_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of([1] * (3 * PAGE_PLACES + 1))
    before = shard.machine.digest()
    write = shard.blocks.write

    def fail_at_second(name: str, data: bytes) -> None:
        if name == "topic-1":
            raise OSError("no room")
        write(name, data)

    monkeypatch.setattr(shard.blocks, "write", fail_at_second)
    with pytest.raises(OSError, match="no room"):
        shard.machine.save()
    assert shard.machine.digest() == before
    monkeypatch.undo()
    shard.save()
    shard.restart()
    assert shard.machine.digest() == before
