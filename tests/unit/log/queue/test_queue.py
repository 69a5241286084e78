"""The queue as a part of a shard's state: what is put, settled, moved, refused, kept and forgotten."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.log.entry import Kind
from hawser.log.state.commands import QueueLimit, QueueSettle, Run, encode_command
from hawser.log.state.machine import Machine, shard_parts
from hawser.log.state.part import BadState, Part
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.range_map import RangeMap
from hawser.log.state.results import (
    Accepted,
    Limited,
    Place,
    Reason,
    Rejected,
    Repeated,
    Result,
    Settled,
    decode_result,
    encode_result,
)
from hawser.record.record import Stamp
from tests.stateful.log_shard import Shard, batch

BAD = Rejected(Reason.BAD_PAYLOAD)


def parts() -> Sequence[Part]:
    return shard_parts(3)


def a_queue(messages: int = 0) -> Shard:
    shard = Shard(parts)
    if messages:
        put(shard, messages)
    return shard


def queue(shard: Shard) -> Queue:
    return shard.machine.part(Queue)


def put(shard: Shard, count: int = 1, stamp: Stamp | None = None) -> Result:
    return shard.put(Kind.QUEUE_PUT, batch(count, stamp or Stamp()))


def settle(shard: Shard, subqueue: int = MESSAGES, **fields: Any) -> Result:
    return shard.put(Kind.QUEUE_SETTLE, encode_command(QueueSettle(subqueue, **fields)))


def accept(shard: Shard, *runs: Run, **fields: Any) -> Result:
    return settle(shard, accepted=runs, **fields)


def test_messages_have_dense_offsets_and_are_done_when_accepted() -> None:
    shard = a_queue()
    assert put(shard, 2) == Accepted(1, 2)
    assert put(shard, 3) == Accepted(3, 3)
    assert accept(shard, (2, 2, 0)) == Settled(2, 0, 0, 0)
    subqueue = queue(shard).messages
    assert (subqueue.start, subqueue.end, subqueue.count) == (1, 6, 3)
    assert [subqueue.deliveries(offset) for offset in range(7)] == [None, 0, None, None, 0, 0, None]
    assert subqueue.next_from(2) == 4
    assert subqueue.locate(4) == Place(2, 3, 3)


def test_of_two_accepts_one_takes_effect() -> None:
    shard = a_queue(3)
    assert accept(shard, (1, 2, 0)) == Settled(2, 0, 0, 0)
    before = shard.machine.digest()
    assert accept(shard, (2, 2, 0)) == Rejected(Reason.NOT_HELD, 0, 2)
    assert queue(shard).messages.count == 1
    assert shard.machine.digest() != before  # the index of the last entry is part of it
    assert accept(shard, (3, 1, 0)) == Settled(1, 0, 0, 0)
    assert queue(shard).messages.count == 0


def test_an_ended_delivery_is_not_ended_again() -> None:
    shard = a_queue(1)
    assert settle(shard, returned=((1, 1, 0),)) == Settled(0, 1, 0, 0)
    assert settle(shard, accepted=((1, 1, 0),)) == Rejected(Reason.NOT_HELD, 0, 1)
    assert settle(shard, returned=((1, 1, 0),)) == Rejected(Reason.NOT_HELD, 0, 1)
    assert queue(shard).messages.deliveries(1) == 1
    assert accept(shard, (1, 1, 1)) == Settled(1, 0, 0, 0)


def test_it_settles_all_or_nothing() -> None:
    shard = a_queue(4)
    accept(shard, (3, 1, 0))
    assert settle(shard, accepted=((1, 1, 0),), returned=((2, 2, 0),)) == Rejected(Reason.NOT_HELD, 0, 3)
    assert [queue(shard).messages.deliveries(offset) for offset in (1, 2)] == [0, 0]


def test_a_request_of_a_consumer_counts_once() -> None:
    shard = a_queue(4)
    stamp = {"consumer": b"c", "incarnation": 1, "sequence": 1}
    assert accept(shard, (2, 1, 0), (1, 1, 0), **stamp) == Settled(2, 0, 0, 0)
    assert accept(shard, (2, 1, 0), (1, 1, 0), **stamp) == Repeated(1, 2)
    assert accept(shard, (3, 1, 0), **stamp | {"sequence": 3}) == Rejected(Reason.GAP, 2, 3)
    assert accept(shard, (3, 1, 0), **stamp | {"sequence": 2}) == Settled(1, 0, 0, 0)
    assert accept(shard, (4, 1, 7), **stamp | {"sequence": 3}) == Rejected(Reason.NOT_HELD, 0, 4)
    assert accept(shard, (4, 1, 0), **stamp | {"sequence": 3}) == Settled(1, 0, 0, 0)


def test_a_repeated_put_is_told_its_first_receipt_also_when_there_is_no_room() -> None:
    shard = a_queue()
    stamp = Stamp(b"p", 1, 1)
    assert put(shard, 2, stamp) == Accepted(1, 2)
    shard.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(1)))
    assert put(shard, 2, stamp) == Repeated(1, 2)
    full = put(shard, 2, Stamp(b"p", 1, 2))
    assert isinstance(full, Rejected) and full.reason is Reason.QUEUE_FULL
    assert full.retryable and full.outcome == "none" and "no room" in full.text


def test_room_is_made_by_those_in_front() -> None:
    shard = a_queue(1)
    used = queue(shard).used_bytes
    assert shard.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(2 * used))) == Limited(2 * used, used)
    assert put(shard) == Accepted(2, 1)
    assert put(shard) == Rejected(Reason.QUEUE_FULL, 2 * used, used)
    accept(shard, (2, 1, 0))
    assert isinstance(put(shard), Rejected)
    accept(shard, (1, 1, 0))
    assert queue(shard).used_bytes == 0
    assert put(shard) == Accepted(3, 1)


def test_what_is_larger_than_all_the_room_goes_onto_an_empty_queue() -> None:
    shard = a_queue()
    shard.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(0)))
    assert put(shard, 3) == Accepted(1, 3)
    assert isinstance(put(shard), Rejected)


def test_a_dead_letter_is_done_here_and_new_there_in_one_entry() -> None:
    shard = a_queue(3)
    assert settle(shard, moved=((1, 1, 0), (3, 1, 0)), batch=batch(2)) == Settled(0, 0, 2, 1)
    both = queue(shard)
    assert (both.messages.count, both.dead_letters.count) == (1, 2)
    assert both.dead_letters.locate(2) == Place(2, 1, 2)
    assert settle(shard, DEAD_LETTERS, moved=((2, 1, 0),), batch=batch(1)) == Settled(0, 0, 1, 4)
    assert (both.messages.count, both.dead_letters.count) == (2, 1)
    assert both.messages.locate(4) == Place(3, 4, 1)
    assert settle(shard, DEAD_LETTERS, accepted=((1, 1, 0),)) == Settled(1, 0, 0, 0)
    assert both.dead_letters.start == both.dead_letters.end == 3


def test_the_log_is_needed_from_the_first_message_on() -> None:
    shard = a_queue()
    for _ in range(8):
        put(shard, 2)
    assert shard.machine.needed == 1
    accept(shard, (3, 12, 0))
    assert shard.machine.needed == 1
    accept(shard, (1, 2, 0))
    assert shard.machine.needed == 8
    settle(shard, moved=((15, 1, 0),), batch=batch(1))
    accept(shard, (16, 1, 0))
    assert shard.machine.needed == 11
    settle(shard, DEAD_LETTERS, accepted=((1, 1, 0),))
    assert shard.machine.needed == shard.machine.applied + 1


def test_memory_does_not_depend_on_the_number_of_messages() -> None:
    shard = a_queue()
    for _ in range(200):
        put(shard, 50)
    accept(shard, (2, 9_000, 0))
    settle(shard, returned=((9_002, 900, 0),))
    assert [len(subqueue._runs) for subqueue in queue(shard).subqueues] == [2, 0]
    shard.save()
    assert len(shard.blocks.kept) == 200 // 3


@pytest.mark.parametrize(
    "command",
    [
        QueueSettle(MESSAGES),
        QueueSettle(MESSAGES, accepted=((1, 2, 0), (2, 1, 0))),
        QueueSettle(MESSAGES, accepted=((1, 1, 0),), returned=((1, 1, 0),)),
        QueueSettle(MESSAGES, moved=((1, 1, 0),)),
        QueueSettle(MESSAGES, moved=((1, 1, 0),), batch=batch(2)),
        QueueSettle(MESSAGES, accepted=((1, 1, 0),), batch=batch(1)),
        QueueSettle(MESSAGES, moved=((1, 1, 0),), batch=b"no batch"),
        QueueSettle(MESSAGES, accepted=((1, 1, 0),), consumer=b"c"),
        QueueSettle(MESSAGES, accepted=((1, 1, 0),), sequence=1),
        QueueSettle(MESSAGES, accepted=((1, (1 << 32) - 1, 0), (1 << 40, 1, 0))),
    ],
)
def test_what_makes_no_sense_is_rejected(command: QueueSettle) -> None:
    shard = a_queue(3)
    assert shard.put(Kind.QUEUE_SETTLE, encode_command(command)) == BAD
    assert queue(shard).messages.count == 3


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode([2, [[1, 1, 0]]]),
        msgspec.msgpack.encode([0, [[1, 0, 0]]]),
        msgspec.msgpack.encode([0, [[-1, 1, 0]]]),
        msgspec.msgpack.encode([0, [[1, 1]]]),
        msgspec.msgpack.encode([0, [[1, 1, 0]], [], [], b"", b"c" * 256, 1, 1]),
        msgspec.msgpack.encode([0, [[1, 1, 0]], [], [], b"", b"", 0, 0, 0]),
    ],
)
def test_what_is_no_settlement_is_rejected(payload: bytes) -> None:
    assert a_queue(3).put(Kind.QUEUE_SETTLE, payload) == BAD


@pytest.mark.parametrize(
    ("run", "missing"),
    [((4, 1, 0), 4), ((0, 1, 0), 0), ((3, 2, 0), 4), ((1, 1, 1), 1), ((1 << 60, 1, 0), 1 << 60)],
)
def test_what_is_not_there_is_not_held(run: Run, missing: int) -> None:
    assert accept(a_queue(3), run) == Rejected(Reason.NOT_HELD, 0, missing)


def test_of_a_run_the_message_that_is_not_held_is_named() -> None:
    shard = a_queue(9)
    accept(shard, (5, 1, 0))
    settle(shard, returned=((8, 1, 0),))
    assert accept(shard, (1, 9, 0)) == Rejected(Reason.NOT_HELD, 0, 5)
    assert accept(shard, (6, 4, 0)) == Rejected(Reason.NOT_HELD, 0, 8)
    assert accept(shard, (8, 2, 1)) == Rejected(Reason.NOT_HELD, 0, 9)


@pytest.mark.parametrize("kind", [Kind.QUEUE_PUT, Kind.QUEUE_SETTLE, Kind.QUEUE_LIMIT])
@given(payload=st.binary(max_size=80))
def test_bad_payloads_are_rejected_alike(kind: Kind, payload: bytes) -> None:
    first, second = a_queue(), a_queue()
    digest = queue(first).digest()
    result = first.put(kind, payload)
    assert result == second.put(kind, payload)
    assert first.machine.hash == second.machine.hash
    if isinstance(result, Rejected):
        assert queue(first).digest() == digest


@pytest.mark.parametrize("result", [Settled(1, 2, 3, 4), Limited(5, 6), Rejected(Reason.NOT_HELD, 0, 7)])
def test_results_are_read_as_they_were_written(result: Result) -> None:
    assert decode_result(encode_result(result)) == result


def test_a_topic_and_a_queue_share_a_shard() -> None:
    shard = Shard(lambda: shard_parts(3))
    assert shard.publish(2, Stamp(b"p", 1, 1)) == Accepted(1, 2)
    assert put(shard, 3, Stamp(b"p", 1, 2)) == Accepted(1, 3)
    assert (shard.topic.end, queue(shard).messages.end) == (3, 4)
    shard.save()
    shard.restart()
    assert (shard.topic.end, queue(shard).messages.end) == (3, 4)


def a_used_queue() -> Shard:
    shard = a_queue()
    for _ in range(9):
        put(shard, 2, None)
    accept(shard, (1, 3, 0), (8, 2, 0))
    settle(shard, returned=((5, 2, 0),), moved=((7, 1, 0),), batch=batch(1))
    shard.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(12_345)))
    return shard


def test_it_is_the_same_after_it_was_saved_and_loaded() -> None:
    shard = a_used_queue()
    saved, digest = shard.save(), shard.machine.digest()
    other = Machine(shard.blocks, parts())
    other.load(saved.state)
    assert (other.digest(), other.hash, other.needed) == (digest, shard.machine.hash, shard.machine.needed)
    both = other.part(Queue)
    assert (both.capacity_bytes, both.messages.count) == (12_345, 12)
    assert both.used_bytes == queue(shard).used_bytes > 0


def damaged_states() -> list[bytes]:
    """The state of a used queue with one thing in it that cannot be."""
    state, _ = queue(a_used_queue()).save()
    capacity, messages, dead_letters, _ = msgspec.msgpack.decode(state)
    subqueue = msgspec.msgpack.decode(messages)
    changes: list[tuple[int, object]] = [
        (1, [[5, 5, 1]]),
        (1, [[5, 7, 0]]),
        (1, [[5, 7, 1], [7, 8, 1]]),
        (1, [[1, 2, -1]]),
        (1, [[17, 90, 1]]),
    ]
    changes += [(2, []), (2, [5]), (2, [1, 2]), (3, [-1])]
    damaged = [
        b"",
        b"\x93",
        msgspec.msgpack.encode([capacity, messages]),
        msgspec.msgpack.encode([capacity, b"", dead_letters]),
    ]
    for place, value in changes:
        changed = [*subqueue[:place], value, *subqueue[place + 1 :]]
        damaged.append(msgspec.msgpack.encode([capacity, msgspec.msgpack.encode(changed), dead_letters]))
    return damaged


@pytest.mark.parametrize("place", range(len(damaged_states())))
def test_a_state_that_was_never_saved_is_refused(place: int) -> None:
    with pytest.raises(BadState):
        queue(a_queue()).load(damaged_states()[place])


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(-1, 2)), max_size=30))
def test_runs_are_a_list_of_numbers(steps: list[tuple[int, int, int]]) -> None:
    runs, twin = RangeMap(), [0] * 50
    for first, count, value in steps:
        runs.put(first, first + count, value)
        twin[first : first + count] = [value] * count
        assert [runs.get(offset) for offset in range(50)] == twin
    saved = runs.save()
    other = RangeMap()
    other.load(saved)
    assert other.save() == saved
    assert all(end < first or old != new for (_, end, old), (first, _, new) in pairwise(saved))
    for first in range(1, 40):
        for value in (-1, 0, 1):
            assert runs.are_all(first, first + 3, value) == (twin[first : first + 3] == [value] * 3)
