"""The desk of a queue: who is lent what, for how long, and what becomes of it."""

import pytest

from hawser.log.entry import Kind
from hawser.log.queue import dispatcher as desk_module
from hawser.log.queue.claims import NO_TOKEN, Lending, Token
from hawser.log.queue.dispatcher import (
    Delivery,
    Desk,
    Get,
    Proposal,
    Settlement,
    Turned,
    Why,
    nbytes_of,
)
from hawser.log.state.machine import shard_parts
from hawser.log.state.queue import LETTERS, MESSAGES, Queue
from hawser.log.state.results import Repeated, Result, Settled
from hawser.record.batch import MAX_BATCH_BYTES, Batch
from hawser.record.metadata import LETTER_HEADER
from hawser.record.record import Record, Stamp
from tests.stateful.log_shard import Shard

LENDING = Lending(session_duration=100)


class Office:
    """A queue with messages m1, m2, ..., its desk, and sessions that do as they should."""

    def __init__(self, messages: int = 0, lending: Lending = LENDING, shelf: int = MESSAGES) -> None:
        self.shard = Shard(lambda: shard_parts(3))
        self.requests: dict[str, int] = {}
        self.received: dict[str, Token] = {}
        self.sequences: dict[tuple[str, int], int] = {}
        self.epoch = 0
        self.lead(lending, shelf)
        for number in range(1, messages + 1):
            self.put(f"m{number}".encode())

    def lead(self, lending: Lending = LENDING, shelf: int = MESSAGES) -> None:
        """Another leader begins."""
        self.epoch += 1
        log = self.shard.log
        self.desk = Desk(self.shard.machine, lambda index: log[index - 1], self.epoch, lending, shelf, "jobs")

    @property
    def queue(self) -> Queue:
        return self.shard.machine.part(Queue)

    def put(self, *values: bytes) -> None:
        """As one batch."""
        records = [Record(value, b"key", {"h": b"1"}) for value in values]
        self.shard.put(
            Kind.QUEUE_PUT, bytes(Batch.of(records, Stamp(b"me", len(self.shard.log) + 1, 1)).data)
        )

    def get(self, session: str, most: int = 1, now: int = 0, ahead: int = 0) -> tuple[Delivery, ...]:
        self.requests[session] = self.requests.get(session, 0) + 1
        received = self.received.get(session, NO_TOKEN)
        got = self.desk.get(Get(session, self.requests[session], received, most, ahead=ahead), now)
        if got:
            self.received[session] = got[-1].token
        return got

    def offsets(self, session: str, most: int = 9, now: int = 0) -> list[int]:
        return [delivery.offset for delivery in self.get(session, most, now)]

    def wish(self, session: str, **verdicts: tuple[Delivery, ...]) -> Settlement:
        sequence = self.sequences.get((session, self.epoch), 0) + 1
        tokens = {name: tuple(each.token for each in deliveries) for name, deliveries in verdicts.items()}
        return Settlement(session, self.epoch, sequence, **tokens)

    def settle(self, session: str, now: int = 0, **verdicts: tuple[Delivery, ...]) -> Result | Turned:
        answer = self.desk.settle(self.wish(session, **verdicts), now)
        if not isinstance(answer, Proposal):
            return answer
        self.sequences[session, self.epoch] = self.sequences.get((session, self.epoch), 0) + 1
        return self.apply(answer)

    def apply(self, proposal: Proposal) -> Result:
        result = self.shard.put(Kind.QUEUE_SETTLE, proposal.payload)
        self.desk.resolve(proposal)
        return result

    def tick(self, now: int) -> Result | None:
        proposal = self.desk.tick(now)
        return self.apply(proposal) if proposal is not None else None


def test_each_message_goes_to_one_in_order() -> None:
    office = Office(5)
    first = office.get("a", 2)
    assert [(each.offset, each.record.value, each.delivery_count) for each in first] == [
        (1, b"m1", 1),
        (2, b"m2", 1),
    ]
    assert not any(each.redelivered for each in first)
    assert first[0].record.key == b"key" and first[0].record.headers == {"h": b"1"}
    assert office.offsets("b") == [3, 4, 5]
    assert office.offsets("a") == []
    assert office.desk.claims.holders == {"a": 2, "b": 3}
    assert office.settle("a", accepted=first) == Settled(2, 0, 0, 0)
    assert len(office.desk.claims) == 3
    office.put(b"m6")
    assert office.offsets("a") == [6]


def test_a_released_message_keeps_its_place_and_counts_its_delivery() -> None:
    office = Office(3)
    first = office.get("a", 2)
    assert office.settle("a", released=first) == Settled(0, 2, 0, 0)
    again = office.get("b", 3)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in again] == [
        (1, 2, True),
        (2, 2, True),
        (3, 1, False),
    ]
    assert {each.token for each in again}.isdisjoint(each.token for each in first)


def test_what_a_lost_session_held_is_given_back_and_its_late_accept_does_not_count() -> None:
    office = Office(2)
    held = office.get("a", 2, now=0)
    assert office.tick(100) is None
    assert office.tick(101) == Settled(0, 2, 0, 0)
    late = office.settle("a", now=102, accepted=held)
    assert late == Turned(Why.NOT_HELD, tuple(each.token for each in held))
    assert office.offsets("b", now=103) == [1, 2]
    assert isinstance(office.settle("a", now=104, accepted=held), Turned)
    assert office.queue.messages.count == 2


def test_whoever_says_that_it_is_there_keeps_what_it_holds() -> None:
    office = Office(1)
    held = office.get("a", 1, now=0)
    assert office.get("a", 0, now=90) == ()
    assert office.tick(180) is None
    assert office.settle("a", now=185, accepted=held) == Settled(1, 0, 0, 0)


def test_a_session_that_leaves_holds_nothing() -> None:
    office = Office(2)
    office.get("a", 2)
    office.desk.claims.leave("a")
    office.desk.claims.leave("nobody")
    assert office.tick(1) == Settled(0, 2, 0, 0)
    assert office.offsets("b") == [1, 2]


def test_what_was_ahead_of_the_dead_is_not_counted() -> None:
    """But the first is, and what may have been seen after all says so."""
    office = Office(6, Lending(session_duration=100, max_deliveries=2))
    office.get("a", 6, ahead=4)
    assert office.tick(101) == Settled(0, 2, 0, 0)
    again = office.get("b", 6, ahead=8)
    assert [(each.offset, each.delivery_count) for each in again] == [
        *((number, 2) for number in (1, 2)),
        *((number, 1) for number in (3, 4, 5, 6)),
    ]
    assert all(each.redelivered for each in again)
    assert office.settle("b", accepted=again[1:2]) == Settled(1, 0, 0, 0)
    assert office.tick(202) == Settled(0, 0, 1, 1)
    last = office.get("c", 6)
    assert [(each.offset, each.delivery_count) for each in last] == [(number, 1) for number in (3, 4, 5, 6)]
    assert all(each.redelivered for each in last)
    assert office.settle("c", accepted=last) == Settled(4, 0, 0, 0)
    assert not office.desk.claims._unsure


def test_what_was_ahead_comes_back_with_what_was_not() -> None:
    """Otherwise the next one would get it in another order."""
    office = Office(3)
    office.get("a", 3, ahead=3)
    proposal = office.desk.tick(101)
    assert proposal is not None and office.offsets("b") == []
    office.apply(proposal)
    assert office.offsets("b") == [1, 2, 3]


def test_what_was_ahead_waits_for_no_settlement_of_another() -> None:
    office = Office(3)
    held = office.get("a", 3, ahead=2)
    settlement = office.desk.settle(office.wish("a", accepted=held[:1]), 0)
    assert isinstance(settlement, Proposal) and office.desk.tick(101) is None
    assert office.offsets("b") == [2, 3]
    assert office.apply(settlement) == Settled(1, 0, 0, 0)
    assert office.offsets("b") == [] and office.queue.messages.count == 2


def test_a_lease_ends_also_for_who_is_there() -> None:
    office = Office(2, Lending(session_duration=1_000, lease_duration=50))
    held = office.get("a", 2, now=0)
    assert office.settle("a", now=10, accepted=held[:1]) == Settled(1, 0, 0, 0)
    assert office.tick(50) is None
    assert office.tick(51) == Settled(0, 1, 0, 0)
    assert office.settle("a", now=52, accepted=held[1:]) == Turned(Why.NOT_HELD, (held[1].token,))


def test_leases_of_what_is_settled_are_forgotten() -> None:
    office = Office(0, Lending(session_duration=1_000_000, lease_duration=100_000))
    for time in range(300):
        office.put(b"m")
        office.settle("a", time, accepted=office.get("a", 1, time))
    assert len(office.desk.claims._leases) < 100


def test_a_repeated_settlement_is_told_what_it_did_by_this_leader_and_the_next() -> None:
    office = Office(2)
    wanted = office.wish("a", accepted=office.get("a", 2))
    first, second = office.desk.settle(wanted, 0), office.desk.settle(wanted, 0)
    assert isinstance(first, Proposal) and isinstance(second, Proposal)
    assert office.apply(first) == Settled(2, 0, 0, 0)
    assert office.apply(second) == Repeated(1, 2)
    assert office.desk.settle(wanted, 0) == Repeated(1, 2)
    office.lead()
    assert office.desk.settle(wanted, 0) == Repeated(1, 2)


def test_a_token_of_an_earlier_leader_is_void() -> None:
    office = Office(2)
    held = office.get("a", 2)
    wanted = office.wish("a", accepted=held)
    office.lead()
    assert office.desk.settle(wanted, 0) == Turned(Why.NOT_HELD, tuple(each.token for each in held))
    again = office.get("b", 2)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in again] == [
        (1, 1, True),
        (2, 1, True),
    ]
    office.put(b"m3")
    assert not office.get("b", 1)[0].redelivered


def test_a_leader_that_was_deposed_does_not_judge_what_the_next_one_lent() -> None:
    office = Office(1)
    wanted = Settlement("a", 1, 1, (Token(2, 1),))
    assert office.desk.settle(wanted, 0) == Turned(Why.OTHER_LEADER)


def test_lies_about_tokens_change_nothing() -> None:
    office = Office(3)
    mine, other = office.get("a", 1), office.get("b", 1)
    for strange in (other[0].token, Token(1, 77), Token(0, 1)):
        wanted = Settlement("a", 1, 1, (mine[0].token, strange))
        assert office.desk.settle(wanted, 0) == Turned(Why.NOT_HELD, (strange,))
    twice = Settlement("a", 1, 1, (mine[0].token,), (mine[0].token,))
    assert office.desk.settle(twice, 0) == Turned(Why.NOT_HELD, (mine[0].token,))
    assert office.desk.settle(Settlement("a", 1, 1), 0) == Turned(Why.NOT_HELD)
    assert office.settle("a", accepted=mine) == Settled(1, 0, 0, 0)
    assert office.settle("b", accepted=other) == Settled(1, 0, 0, 0)


def test_what_is_on_its_way_to_be_settled_is_not_taken_from_its_holder() -> None:
    office = Office(1, Lending(session_duration=100, lease_duration=100))
    wanted = office.wish("a", accepted=office.get("a", 1, now=0))
    proposal = office.desk.settle(wanted, 0)
    assert isinstance(proposal, Proposal)
    assert office.desk.tick(500) is None
    assert isinstance(office.desk.settle(wanted, 500), Proposal)
    assert office.apply(proposal) == Settled(1, 0, 0, 0)
    assert office.desk.settle(wanted, 501) == Repeated(1, 1)


def test_an_entry_that_did_not_come_through_leaves_the_message_where_it_was() -> None:
    office = Office(2)
    held = office.get("a", 1)
    proposal = office.desk.settle(office.wish("a", accepted=held), 0)
    assert isinstance(proposal, Proposal)
    office.desk.resolve(proposal)
    assert office.settle("a", accepted=held) == Settled(1, 0, 0, 0)
    office.get("a", 1)
    back = office.desk.tick(500)
    assert back is not None and office.desk.tick(500) is None
    office.desk.resolve(back)
    assert office.offsets("b", now=500) == []
    assert office.tick(501) == Settled(0, 1, 0, 0)
    assert office.offsets("b", now=502) == [2]


def test_a_session_that_is_lost_while_its_accept_fails_gives_back() -> None:
    office = Office(1)
    proposal = office.desk.settle(office.wish("a", accepted=office.get("a", 1)), 0)
    assert isinstance(proposal, Proposal)
    assert office.desk.tick(500) is None
    office.desk.resolve(proposal)
    assert office.tick(501) == Settled(0, 1, 0, 0)


def test_a_request_that_comes_again_gets_the_same_messages() -> None:
    office = Office(4)
    wanted = Get("a", 1, NO_TOKEN, 2)
    first = office.desk.get(wanted, 0)
    assert office.desk.get(wanted, 0) == first
    assert len(office.desk.claims) == 2
    second = office.desk.get(Get("a", 2, first[-1].token, 1), 0)
    assert [each.offset for each in second] == [3]
    assert office.desk.get(wanted, 0) == ()
    assert len(office.desk.claims) == 3


def test_what_did_not_reach_the_session_is_lent_anew_and_not_counted() -> None:
    office = Office(4)
    first = office.desk.get(Get("a", 1, NO_TOKEN, 2), 0)
    assert len(first) == 2
    (again,) = office.desk.get(Get("a", 2, NO_TOKEN, 1), 0)
    assert (again.offset, again.delivery_count) == (1, 1) and again.token != first[0].token
    assert office.tick(1) is None
    assert office.offsets("b") == [2, 3, 4]
    assert office.desk.settle(Settlement("a", 1, 1, (first[0].token,)), 0) == Turned(
        Why.NOT_HELD, (first[0].token,)
    )


def test_what_a_session_shows_to_nobody_is_lent_to_others_and_not_counted() -> None:
    office = Office(3)
    held = office.desk.get(Get("a", 1, NO_TOKEN, 3), 0)
    unseen = tuple(each.token for each in held[1:])
    # Of what others hold, or nobody, nothing can be given back.
    assert office.desk.get(Get("b", 1, NO_TOKEN, 0, unseen=unseen), 0) == ()
    assert office.offsets("b") == []
    assert office.desk.get(Get("a", 2, held[-1].token, 0, unseen=(*unseen, Token(1, 77))), 0) == ()
    found = office.get("b", 9)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in found] == [
        (2, 1, False),
        (3, 1, False),
    ]
    assert office.settle("a", accepted=held[:1]) == Settled(1, 0, 0, 0)


def test_a_request_that_got_nothing_may_be_asked_again() -> None:
    office = Office(1)
    office.get("a", 1)
    wanted = Get("b", 1, NO_TOKEN, 5)
    assert office.desk.get(wanted, 0) == ()
    office.put(b"m2", b"m3")
    lent = office.desk.get(wanted, 0)
    assert [each.offset for each in lent] == [2, 3]
    office.put(b"m4")
    assert office.desk.get(wanted, 0) == lent


def test_what_has_no_room_in_an_answer_stays_for_the_next() -> None:
    office = Office(4)
    size_bytes = nbytes_of(office.desk.get(Get("a", 1, NO_TOKEN, 1), 0)[0].record)
    wanted = Get("b", 1, NO_TOKEN, 9, most_bytes=2 * size_bytes)
    first = office.desk.get(wanted, 0)
    assert [each.offset for each in first] == [2, 3]
    assert office.desk.get(wanted, 0) == first
    assert [each.offset for each in office.desk.get(Get("c", 1, NO_TOKEN, 9, most_bytes=1), 0)] == [4]


def test_a_session_says_for_how_long_it_is_there() -> None:
    office = Office(2, Lending(session_duration=100))
    office.desk.get(Get("a", 1, NO_TOKEN, 1, session_duration=500), 0)
    office.desk.get(Get("b", 1, NO_TOKEN, 1), 0)
    assert office.tick(200) == Settled(0, 1, 0, 0)
    assert office.tick(500) is None
    assert office.tick(501) == Settled(0, 1, 0, 0)


def test_parcels_are_batches_as_they_were_put() -> None:
    office = Office()
    office.put(b"m1", b"m2", b"m3")
    office.put(b"m4", b"m5", b"m6")
    whole, part = office.desk.lend(Get("a", 1, NO_TOKEN, 5), 0)
    assert (whole.offset, whole.count, whole.delivery_count, whole.redelivered) == (1, 3, 1, False)
    assert whole.batch == office.shard.log[0].payload
    assert (part.offset, part.count, part.token) == (4, 2, Token(1, 4))
    assert Batch.read(part.batch).stamp == Stamp(b"me", 2, 1)
    assert [each.value for each in Batch.read(part.batch).records()] == [b"m4", b"m5"]
    found = office.desk.peek(0, 5, 1 << 20)
    assert [(each.offset, each.count, each.delivery_count) for each in found] == [(1, 3, 0), (4, 2, 0)]
    assert len(office.desk.peek(0, 5, 1)) == 1
    assert [(each.offset, each.count) for each in office.desk.peek(2, 3, 1 << 20)] == [(2, 2), (4, 1)]
    assert office.desk.peek(7, 5, 1 << 20) == office.desk.peek(1 << 62, 5, 1 << 20) == []


def test_a_session_holds_no_more_than_it_may() -> None:
    office = Office(5, Lending(session_duration=100, most_held=3))
    held = office.get("a", 9)
    assert len(held) == 3
    assert office.offsets("a") == []
    office.settle("a", accepted=held[:1])
    assert office.offsets("a") == [4]


@pytest.mark.parametrize("how", ["released", "lost"])
def test_poison_reaches_the_dead_letters_through_changes_of_leader(how: str) -> None:
    lending = Lending(session_duration=100, max_deliveries=3)
    office = Office(2, lending)
    moved = []
    for delivery in range(1, 4):
        poison = office.get("a", 1, now=0)
        assert (poison[0].offset, poison[0].delivery_count) == (1, delivery)
        result = office.settle("a", released=poison) if how == "released" else office.tick(101)
        assert isinstance(result, Settled)
        moved.append(result.moved)
        office.lead(lending)
    assert moved == [0, 0, 1]
    assert office.offsets("a") == [2]
    assert (office.queue.messages.count, office.queue.letters.count) == (1, 1)


def test_a_dead_letter_says_where_it_was_and_goes_back_without() -> None:
    office = Office(3)
    held = office.get("a", 2)
    assert office.settle("a", rejected=held[1:], released=held[:1]) == Settled(0, 1, 1, 1)
    office.lead(shelf=LETTERS)
    (letter,) = office.get("b", 9)
    assert letter.record.value == b"m2" and letter.record.key == b"key"
    assert letter.record.headers == {"h": b"1", LETTER_HEADER: b'{"queue":"jobs","offset":2,"deliveries":1}'}
    assert office.settle("b", rejected=(letter,)) == Settled(0, 0, 1, 4)
    office.lead()
    back = office.get("c", 9)
    assert [(each.offset, each.delivery_count) for each in back] == [(1, 2), (3, 1), (4, 1)]
    assert back[-1].record == Record(b"m2", b"key", {"h": b"1"})


def test_what_was_delivered_too_often_already_is_not_lent_again() -> None:
    office = Office(2)
    office.settle("a", released=office.get("a", 1))
    office.lead(Lending(session_duration=100, max_deliveries=1))
    assert office.offsets("a") == [2]
    assert office.tick(1) == Settled(0, 0, 1, 1)


def test_a_message_that_fills_a_batch_becomes_a_letter_too() -> None:
    office = Office()
    office.shard.put(Kind.QUEUE_PUT, bytes(Batch.of([Record(bytes(MAX_BATCH_BYTES - 56))]).data))
    assert office.settle("a", rejected=office.get("a", 1)) == Settled(0, 0, 1, 1)
    assert office.queue.letters.count == 1


def test_only_so_much_moves_together(monkeypatch: pytest.MonkeyPatch) -> None:
    office = Office(3, Lending(session_duration=100, max_deliveries=1))
    held = office.get("a", 3)
    monkeypatch.setattr(desk_module, "MOST_MOVED_BYTES", 2 * nbytes_of(held[0].record))
    answer = office.settle("a", rejected=held)
    assert isinstance(answer, Turned) and answer.why is Why.TOO_MUCH
    assert office.settle("a", rejected=held[:2]) == Settled(0, 0, 2, 1)
    assert office.tick(200) == Settled(0, 0, 1, 3)
