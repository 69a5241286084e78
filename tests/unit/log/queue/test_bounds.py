"""What a desk reads, lends and moves at a time is bounded; and what it cannot read changes nothing."""

from collections.abc import Callable

import pytest

from hawser.errors import Corrupt
from hawser.log.entry import Entry, Kind
from hawser.log.queue import dispatcher as dispatcher_module
from hawser.log.queue.claims import NO_TOKEN, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import DeliveryBatch, Get, nbytes_of
from hawser.log.state.results import Settled
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from tests.unit.log.queue.test_dispatcher import QueueLeader

ONCE = DeliveryPolicy(session_duration=100, max_deliveries=1)


def put(leader: QueueLeader, *records: Record) -> None:
    stamp = Stamp(b"me", len(leader.shard.log) + 1, 1)
    leader.shard.put(Kind.QUEUE_PUT, bytes(Batch.of(records, stamp).data))


def count_of(delivery_batches: list[DeliveryBatch]) -> int:
    return sum(delivery_batch.count for delivery_batch in delivery_batches)


def reading(leader: QueueLeader, before: Callable[[Entry], None]) -> None:
    """Let `before` see every entry that the desk reads."""
    read = leader.dispatcher._read

    def read_and_tell(index: int) -> Entry:
        entry = read(index)
        before(entry)
        return entry

    leader.dispatcher._read = read_and_tell
    leader.dispatcher._decoded = None


def damage(leader: QueueLeader, index: int) -> None:
    def refuse(entry: Entry) -> None:
        if entry.index == index:
            raise Corrupt(f"entry {index} is damaged")

    reading(leader, refuse)


def test_headers_count_where_an_answer_is_bounded() -> None:
    leader = QueueLeader()
    for _ in range(20):
        put(leader, Record(b"", None, {"h": bytes(60_000)}))
    delivery_batches = leader.dispatcher.deliver(Get("a", 1, NO_TOKEN, 20, most_bytes=300_000), 0)
    assert count_of(delivery_batches) == 4
    assert sum(len(delivery_batch.batch) for delivery_batch in delivery_batches) <= 300_000
    assert count_of(leader.dispatcher.peek(0, 20, 300_000)) == 4
    assert nbytes_of(Record(b"", None, {"ä": b"12"})) == nbytes_of(Record(b"")) + 16 + 2 + 2


def test_what_is_larger_than_the_rest_of_an_answer_is_for_the_next() -> None:
    leader = QueueLeader()
    put(leader, Record(bytes(10)), Record(bytes(5_000)), Record(bytes(10)))
    first = leader.dispatcher.deliver(Get("a", 1, NO_TOKEN, 3, most_bytes=1_000), 0)
    assert [(delivery_batch.offset, delivery_batch.count) for delivery_batch in first] == [(1, 1)]
    second = leader.dispatcher.deliver(Get("a", 2, first[0].token, 3, most_bytes=1_000), 0)
    assert [(delivery_batch.offset, delivery_batch.count) for delivery_batch in second] == [(2, 1)]


def test_headers_count_where_letters_move_together() -> None:
    leader = QueueLeader(0, ONCE)
    for _ in range(70):
        put(leader, Record(b"", None, {"h": bytes(1 << 20)}))
    leader.put(b"small")
    assert len(leader.get("a", 8, now=0)) == 7
    moved = 0
    for time in range(101, 121):
        leader.get("a", 100, now=time - 101)
        result = leader.tick(time + 1_000)
        assert isinstance(result, Settled)
        moved += result.moved
        if moved == 71:
            break
    assert (leader.queue.dead_letters.count, leader.queue.messages.count) == (71, 0)


def test_what_cannot_be_proposed_is_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = QueueLeader(2, ONCE)
    leader.get("a", 2)

    def fail(*_: object) -> bytes:
        raise Corrupt("no")

    with monkeypatch.context() as patched:
        patched.setattr(dispatcher_module.Dispatcher, "_batch", fail)
        with pytest.raises(Corrupt):
            leader.dispatcher.tick(200)
    assert leader.tick(201) == Settled(0, 0, 2, 1)


def test_no_more_is_read_than_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = QueueLeader(30, ONCE)
    (first, *_) = leader.get("a", 30)
    monkeypatch.setattr(dispatcher_module, "MOST_MOVED_BYTES", 3 * nbytes_of(first.record))
    read: list[Entry] = []
    reading(leader, read.append)
    assert leader.tick(200) == Settled(0, 0, 3, 1)
    assert len(read) == 4


def test_no_more_is_claimed_than_fits() -> None:
    leader = QueueLeader()
    for _ in range(20):
        leader.put(*[bytes(4096)] * 20)
    received, requests, got = NO_TOKEN, 0, 0
    while got < 400:
        requests += 1
        delivery_batches = leader.dispatcher.deliver(Get("a", requests, received, 400, most_bytes=18_000), 0)
        got += count_of(delivery_batches)
        received = Token(1, delivery_batches[-1].token.number + delivery_batches[-1].count - 1)
        assert len(leader.dispatcher.claims) == got
    assert requests == 100
    # One too many each time.
    assert received.number < got + requests + 1


def test_whoever_asks_for_what_cannot_be_read_is_lent_nothing() -> None:
    leader = QueueLeader(3)
    damage(leader, 2)
    with pytest.raises(Corrupt):
        leader.get("a", 3)
    assert len(leader.dispatcher.claims) == 0 and leader.dispatcher.claims.holders == {"a": 0}
    (only,) = leader.get("b", 1)
    assert (only.offset, only.delivery_count, only.redelivered) == (1, 1, False)


def test_a_letter_that_cannot_be_read_does_not_hold_up_what_is_returned() -> None:
    leader = QueueLeader(2)
    leader.settle("a", released=leader.get("a", 1))
    leader.lead(DeliveryPolicy(session_duration=100, max_deliveries=2))
    assert len(leader.get("b", 2)) == 2
    damage(leader, 1)
    assert leader.tick(200) == Settled(0, 1, 0, 0)
    with pytest.raises(Corrupt):
        leader.tick(201)
    assert leader.offsets("c", now=202) == [2]


def test_what_a_session_asked_for_before_is_outdated() -> None:
    leader = QueueLeader(2)
    first = Get("a", 1, NO_TOKEN, 1)
    leader.dispatcher.hear(first, 0)
    assert not leader.dispatcher.claims.is_outdated("a", 1) and len(leader.dispatcher.claims) == 0
    leader.dispatcher.deliver(first, 0)
    assert len(leader.dispatcher.claims) == 1
    leader.dispatcher.hear(Get("a", 2, NO_TOKEN, 1), 0)
    assert leader.dispatcher.claims.is_outdated("a", 1) and len(leader.dispatcher.claims) == 0
    assert leader.dispatcher.deliver(first, 0) == []


def test_nobody_is_there_once_all_have_gone() -> None:
    leader = QueueLeader(1)
    idle = [leader.dispatcher.is_idle]
    leader.get("a", 1)
    for moment in (50, 200):
        leader.tick(moment)
        idle.append(leader.dispatcher.is_idle)
    assert idle == [True, False, True]


def test_a_batch_is_opened_once_while_its_messages_are_wanted_and_not_kept_longer() -> None:
    leader = QueueLeader()
    leader.put(*(b"%d" % number for number in range(5)))
    dispatcher, read = leader.dispatcher, list[int]()
    reading(leader, lambda entry: read.append(entry.index))
    for moment in range(3):
        assert len(leader.get("a", 1, now=moment)) == 1
        leader.tick(moment)
    assert read == [1]
    leader.tick(3)
    assert len(leader.get("a", 1, now=4)) == 1
    assert read == [1, 1]
    dispatcher.claims.leave("a")
    moment = 4
    while not dispatcher.is_idle:
        leader.tick(moment)
        moment += 1
        assert moment < 9
    assert dispatcher._decoded is None
