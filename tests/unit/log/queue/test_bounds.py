"""What a desk reads, lends and moves at a time is bounded; and what it cannot read changes nothing."""

from collections.abc import Callable

import pytest

from hawser.errors import Corrupt
from hawser.log.entry import Entry, Kind
from hawser.log.queue import dispatcher as desk_module
from hawser.log.queue.claims import NO_TOKEN, Lending, Token
from hawser.log.queue.dispatcher import Get, Parcel, nbytes_of
from hawser.log.state.results import Settled
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from tests.unit.log.queue.test_dispatcher import Office

ONCE = Lending(session_duration=100, max_deliveries=1)


def put(office: Office, *records: Record) -> None:
    stamp = Stamp(b"me", len(office.shard.log) + 1, 1)
    office.shard.put(Kind.QUEUE_PUT, bytes(Batch.of(records, stamp).data))


def count_of(parcels: list[Parcel]) -> int:
    return sum(parcel.count for parcel in parcels)


def reading(office: Office, before: Callable[[Entry], None]) -> None:
    """Let `before` see every entry that the desk reads."""
    read = office.desk._read

    def read_and_tell(index: int) -> Entry:
        entry = read(index)
        before(entry)
        return entry

    office.desk._read = read_and_tell
    office.desk._opened = None


def damage(office: Office, index: int) -> None:
    def refuse(entry: Entry) -> None:
        if entry.index == index:
            raise Corrupt(f"entry {index} is damaged")

    reading(office, refuse)


def test_headers_count_where_an_answer_is_bounded() -> None:
    office = Office()
    for _ in range(20):
        put(office, Record(b"", None, {"h": bytes(60_000)}))
    parcels = office.desk.lend(Get("a", 1, NO_TOKEN, 20, most_bytes=300_000), 0)
    assert count_of(parcels) == 4
    assert sum(len(parcel.batch) for parcel in parcels) <= 300_000
    assert count_of(office.desk.peek(0, 20, 300_000)) == 4
    assert nbytes_of(Record(b"", None, {"ä": b"12"})) == nbytes_of(Record(b"")) + 16 + 2 + 2


def test_what_is_larger_than_the_rest_of_an_answer_is_for_the_next() -> None:
    office = Office()
    put(office, Record(bytes(10)), Record(bytes(5_000)), Record(bytes(10)))
    first = office.desk.lend(Get("a", 1, NO_TOKEN, 3, most_bytes=1_000), 0)
    assert [(parcel.offset, parcel.count) for parcel in first] == [(1, 1)]
    second = office.desk.lend(Get("a", 2, first[0].token, 3, most_bytes=1_000), 0)
    assert [(parcel.offset, parcel.count) for parcel in second] == [(2, 1)]


def test_headers_count_where_letters_move_together() -> None:
    office = Office(0, ONCE)
    for _ in range(70):
        put(office, Record(b"", None, {"h": bytes(1 << 20)}))
    office.put(b"small")
    assert len(office.get("a", 8, now=0)) == 7
    moved = 0
    for time in range(101, 121):
        office.get("a", 100, now=time - 101)
        result = office.tick(time + 1_000)
        assert isinstance(result, Settled)
        moved += result.moved
        if moved == 71:
            break
    assert (office.queue.letters.count, office.queue.messages.count) == (71, 0)


def test_what_cannot_be_proposed_is_not_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(2, ONCE)
    office.get("a", 2)

    def fail(*_: object) -> bytes:
        raise Corrupt("no")

    with monkeypatch.context() as patched:
        patched.setattr(desk_module.Desk, "_batch", fail)
        with pytest.raises(Corrupt):
            office.desk.tick(200)
    assert office.tick(201) == Settled(0, 0, 2, 1)


def test_no_more_is_read_than_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(30, ONCE)
    (first, *_) = office.get("a", 30)
    monkeypatch.setattr(desk_module, "MOST_MOVED_BYTES", 3 * nbytes_of(first.record))
    read: list[Entry] = []
    reading(office, read.append)
    assert office.tick(200) == Settled(0, 0, 3, 1)
    assert len(read) == 4


def test_no_more_is_claimed_than_fits() -> None:
    office = Office()
    for _ in range(20):
        office.put(*[bytes(4096)] * 20)
    received, requests, got = NO_TOKEN, 0, 0
    while got < 400:
        requests += 1
        parcels = office.desk.lend(Get("a", requests, received, 400, most_bytes=18_000), 0)
        got += count_of(parcels)
        received = Token(1, parcels[-1].token.number + parcels[-1].count - 1)
        assert len(office.desk.claims) == got
    assert requests == 100
    # One too many each time.
    assert received.number < got + requests + 1


def test_whoever_asks_for_what_cannot_be_read_is_lent_nothing() -> None:
    office = Office(3)
    damage(office, 2)
    with pytest.raises(Corrupt):
        office.get("a", 3)
    assert len(office.desk.claims) == 0 and office.desk.claims.holders == {"a": 0}
    (only,) = office.get("b", 1)
    assert (only.offset, only.delivery_count, only.redelivered) == (1, 1, False)


def test_a_letter_that_cannot_be_read_does_not_hold_up_what_is_returned() -> None:
    office = Office(2)
    office.settle("a", released=office.get("a", 1))
    office.lead(Lending(session_duration=100, max_deliveries=2))
    assert len(office.get("b", 2)) == 2
    damage(office, 1)
    assert office.tick(200) == Settled(0, 1, 0, 0)
    with pytest.raises(Corrupt):
        office.tick(201)
    assert office.offsets("c", now=202) == [2]


def test_what_a_session_asked_for_before_is_outdated() -> None:
    office = Office(2)
    first = Get("a", 1, NO_TOKEN, 1)
    office.desk.hear(first, 0)
    assert not office.desk.claims.is_outdated("a", 1) and len(office.desk.claims) == 0
    office.desk.lend(first, 0)
    assert len(office.desk.claims) == 1
    office.desk.hear(Get("a", 2, NO_TOKEN, 1), 0)
    assert office.desk.claims.is_outdated("a", 1) and len(office.desk.claims) == 0
    assert office.desk.lend(first, 0) == []


def test_nobody_is_there_once_all_have_gone() -> None:
    office = Office(1)
    idle = [office.desk.is_idle]
    office.get("a", 1)
    for moment in (50, 200):
        office.tick(moment)
        idle.append(office.desk.is_idle)
    assert idle == [True, False, True]


def test_a_batch_is_opened_once_while_its_messages_are_wanted_and_not_kept_longer() -> None:
    office = Office()
    office.put(*(b"%d" % number for number in range(5)))
    desk, read = office.desk, list[int]()
    reading(office, lambda entry: read.append(entry.index))
    for moment in range(3):
        assert len(office.get("a", 1, now=moment)) == 1
        office.tick(moment)
    assert read == [1]
    office.tick(3)
    assert len(office.get("a", 1, now=4)) == 1
    assert read == [1, 1]
    desk.claims.leave("a")
    moment = 4
    while not desk.is_idle:
        office.tick(moment)
        moment += 1
        assert moment < 9
    assert desk._opened is None
