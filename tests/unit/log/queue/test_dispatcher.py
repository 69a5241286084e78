"""The desk of a queue: who is lent what, for how long, and what becomes of it."""

import pytest

from hawser.log.entry import Kind
from hawser.log.queue import dispatcher as dispatcher_module
from hawser.log.queue.claims import NO_TOKEN, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import (
    Delivery,
    Dispatcher,
    Get,
    Proposal,
    RefusalReason,
    Settlement,
    SettlementRefusal,
    nbytes_of,
)
from hawser.log.state.machine import shard_parts
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.results import Repeated, Result, Settled
from hawser.record.batch import MAX_BATCH_BYTES, Batch
from hawser.record.metadata import DEAD_LETTER_HEADER
from hawser.record.record import Record, Stamp
from tests.stateful.log_shard import Shard

POLICY = DeliveryPolicy(session_duration=100)


class QueueLeader:
    """A queue with messages m1, m2, ..., its desk, and sessions that do as they should."""

    def __init__(self, messages: int = 0, policy: DeliveryPolicy = POLICY, subqueue: int = MESSAGES) -> None:
        self.shard = Shard(lambda: shard_parts(3))
        self.requests: dict[str, int] = {}
        self.received: dict[str, Token] = {}
        self.sequences: dict[tuple[str, int], int] = {}
        self.epoch = 0
        self.lead(policy, subqueue)
        for number in range(1, messages + 1):
            self.put(f"m{number}".encode())

    def lead(self, policy: DeliveryPolicy = POLICY, subqueue: int = MESSAGES) -> None:
        """Another leader begins."""
        self.epoch += 1
        log = self.shard.log
        self.dispatcher = Dispatcher(
            self.shard.machine, lambda index: log[index - 1], self.epoch, policy, subqueue, "jobs"
        )

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
        got = self.dispatcher.get(Get(session, self.requests[session], received, most, ahead=ahead), now)
        if got:
            self.received[session] = got[-1].token
        return got

    def offsets(self, session: str, most: int = 9, now: int = 0) -> list[int]:
        return [delivery.offset for delivery in self.get(session, most, now)]

    def wish(self, session: str, **verdicts: tuple[Delivery, ...]) -> Settlement:
        sequence = self.sequences.get((session, self.epoch), 0) + 1
        tokens = {name: tuple(each.token for each in deliveries) for name, deliveries in verdicts.items()}
        return Settlement(session, self.epoch, sequence, **tokens)

    def settle(
        self, session: str, now: int = 0, **verdicts: tuple[Delivery, ...]
    ) -> Result | SettlementRefusal:
        answer = self.dispatcher.settle(self.wish(session, **verdicts), now)
        if not isinstance(answer, Proposal):
            return answer
        self.sequences[session, self.epoch] = self.sequences.get((session, self.epoch), 0) + 1
        return self.apply(answer)

    def apply(self, proposal: Proposal) -> Result:
        result = self.shard.put(Kind.QUEUE_SETTLE, proposal.payload)
        self.dispatcher.resolve(proposal)
        return result

    def tick(self, now: int) -> Result | None:
        proposal = self.dispatcher.tick(now)
        return self.apply(proposal) if proposal is not None else None


def test_each_message_goes_to_one_in_order() -> None:
    leader = QueueLeader(5)
    first = leader.get("a", 2)
    assert [(each.offset, each.record.value, each.delivery_count) for each in first] == [
        (1, b"m1", 1),
        (2, b"m2", 1),
    ]
    assert not any(each.redelivered for each in first)
    assert first[0].record.key == b"key" and first[0].record.headers == {"h": b"1"}
    assert leader.offsets("b") == [3, 4, 5]
    assert leader.offsets("a") == []
    assert leader.dispatcher.claims.holders == {"a": 2, "b": 3}
    assert leader.settle("a", accepted=first) == Settled(2, 0, 0, 0)
    assert len(leader.dispatcher.claims) == 3
    leader.put(b"m6")
    assert leader.offsets("a") == [6]


def test_a_released_message_keeps_its_place_and_counts_its_delivery() -> None:
    leader = QueueLeader(3)
    first = leader.get("a", 2)
    assert leader.settle("a", released=first) == Settled(0, 2, 0, 0)
    again = leader.get("b", 3)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in again] == [
        (1, 2, True),
        (2, 2, True),
        (3, 1, False),
    ]
    assert {each.token for each in again}.isdisjoint(each.token for each in first)


def test_what_a_lost_session_held_is_given_back_and_its_late_accept_does_not_count() -> None:
    leader = QueueLeader(2)
    held = leader.get("a", 2, now=0)
    assert leader.tick(100) is None
    assert leader.tick(101) == Settled(0, 2, 0, 0)
    late = leader.settle("a", now=102, accepted=held)
    assert late == SettlementRefusal(RefusalReason.NOT_HELD, tuple(each.token for each in held))
    assert leader.offsets("b", now=103) == [1, 2]
    assert isinstance(leader.settle("a", now=104, accepted=held), SettlementRefusal)
    assert leader.queue.messages.count == 2


def test_whoever_says_that_it_is_there_keeps_what_it_holds() -> None:
    leader = QueueLeader(1)
    held = leader.get("a", 1, now=0)
    assert leader.get("a", 0, now=90) == ()
    assert leader.tick(180) is None
    assert leader.settle("a", now=185, accepted=held) == Settled(1, 0, 0, 0)


def test_a_session_that_leaves_holds_nothing() -> None:
    leader = QueueLeader(2)
    leader.get("a", 2)
    leader.dispatcher.claims.leave("a")
    leader.dispatcher.claims.leave("nobody")
    assert leader.tick(1) == Settled(0, 2, 0, 0)
    assert leader.offsets("b") == [1, 2]


def test_what_was_ahead_of_the_dead_is_not_counted() -> None:
    """But the first is, and what may have been seen after all says so."""
    leader = QueueLeader(6, DeliveryPolicy(session_duration=100, max_deliveries=2))
    leader.get("a", 6, ahead=4)
    assert leader.tick(101) == Settled(0, 2, 0, 0)
    again = leader.get("b", 6, ahead=8)
    assert [(each.offset, each.delivery_count) for each in again] == [
        *((number, 2) for number in (1, 2)),
        *((number, 1) for number in (3, 4, 5, 6)),
    ]
    assert all(each.redelivered for each in again)
    assert leader.settle("b", accepted=again[1:2]) == Settled(1, 0, 0, 0)
    assert leader.tick(202) == Settled(0, 0, 1, 1)
    last = leader.get("c", 6)
    assert [(each.offset, each.delivery_count) for each in last] == [(number, 1) for number in (3, 4, 5, 6)]
    assert all(each.redelivered for each in last)
    assert leader.settle("c", accepted=last) == Settled(4, 0, 0, 0)
    assert not leader.dispatcher.claims._unsure


def test_what_was_ahead_comes_back_with_what_was_not() -> None:
    """Otherwise the next one would get it in another order."""
    leader = QueueLeader(3)
    leader.get("a", 3, ahead=3)
    proposal = leader.dispatcher.tick(101)
    assert proposal is not None and leader.offsets("b") == []
    leader.apply(proposal)
    assert leader.offsets("b") == [1, 2, 3]


def test_what_was_ahead_waits_for_no_settlement_of_another() -> None:
    leader = QueueLeader(3)
    held = leader.get("a", 3, ahead=2)
    settlement = leader.dispatcher.settle(leader.wish("a", accepted=held[:1]), 0)
    assert isinstance(settlement, Proposal) and leader.dispatcher.tick(101) is None
    assert leader.offsets("b") == [2, 3]
    assert leader.apply(settlement) == Settled(1, 0, 0, 0)
    assert leader.offsets("b") == [] and leader.queue.messages.count == 2


def test_a_lease_ends_also_for_who_is_there() -> None:
    leader = QueueLeader(2, DeliveryPolicy(session_duration=1_000, lease_duration=50))
    held = leader.get("a", 2, now=0)
    assert leader.settle("a", now=10, accepted=held[:1]) == Settled(1, 0, 0, 0)
    assert leader.tick(50) is None
    assert leader.tick(51) == Settled(0, 1, 0, 0)
    assert leader.settle("a", now=52, accepted=held[1:]) == SettlementRefusal(
        RefusalReason.NOT_HELD, (held[1].token,)
    )


def test_leases_of_what_is_settled_are_forgotten() -> None:
    leader = QueueLeader(0, DeliveryPolicy(session_duration=1_000_000, lease_duration=100_000))
    for time in range(300):
        leader.put(b"m")
        leader.settle("a", time, accepted=leader.get("a", 1, time))
    assert len(leader.dispatcher.claims._leases) < 100


def test_a_repeated_settlement_is_told_what_it_did_by_this_leader_and_the_next() -> None:
    leader = QueueLeader(2)
    wanted = leader.wish("a", accepted=leader.get("a", 2))
    first, second = leader.dispatcher.settle(wanted, 0), leader.dispatcher.settle(wanted, 0)
    assert isinstance(first, Proposal) and isinstance(second, Proposal)
    assert leader.apply(first) == Settled(2, 0, 0, 0)
    assert leader.apply(second) == Repeated(1, 2)
    assert leader.dispatcher.settle(wanted, 0) == Repeated(1, 2)
    leader.lead()
    assert leader.dispatcher.settle(wanted, 0) == Repeated(1, 2)


def test_a_token_of_an_earlier_leader_is_void() -> None:
    leader = QueueLeader(2)
    held = leader.get("a", 2)
    wanted = leader.wish("a", accepted=held)
    leader.lead()
    assert leader.dispatcher.settle(wanted, 0) == SettlementRefusal(
        RefusalReason.NOT_HELD, tuple(each.token for each in held)
    )
    again = leader.get("b", 2)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in again] == [
        (1, 1, True),
        (2, 1, True),
    ]
    leader.put(b"m3")
    assert not leader.get("b", 1)[0].redelivered


def test_a_leader_that_was_deposed_does_not_judge_what_the_next_one_lent() -> None:
    leader = QueueLeader(1)
    wanted = Settlement("a", 1, 1, (Token(2, 1),))
    assert leader.dispatcher.settle(wanted, 0) == SettlementRefusal(RefusalReason.OTHER_LEADER)


def test_lies_about_tokens_change_nothing() -> None:
    leader = QueueLeader(3)
    mine, other = leader.get("a", 1), leader.get("b", 1)
    for strange in (other[0].token, Token(1, 77), Token(0, 1)):
        wanted = Settlement("a", 1, 1, (mine[0].token, strange))
        assert leader.dispatcher.settle(wanted, 0) == SettlementRefusal(RefusalReason.NOT_HELD, (strange,))
    twice = Settlement("a", 1, 1, (mine[0].token,), (mine[0].token,))
    assert leader.dispatcher.settle(twice, 0) == SettlementRefusal(RefusalReason.NOT_HELD, (mine[0].token,))
    assert leader.dispatcher.settle(Settlement("a", 1, 1), 0) == SettlementRefusal(RefusalReason.NOT_HELD)
    assert leader.settle("a", accepted=mine) == Settled(1, 0, 0, 0)
    assert leader.settle("b", accepted=other) == Settled(1, 0, 0, 0)


def test_what_is_on_its_way_to_be_settled_is_not_taken_from_its_holder() -> None:
    leader = QueueLeader(1, DeliveryPolicy(session_duration=100, lease_duration=100))
    wanted = leader.wish("a", accepted=leader.get("a", 1, now=0))
    proposal = leader.dispatcher.settle(wanted, 0)
    assert isinstance(proposal, Proposal)
    assert leader.dispatcher.tick(500) is None
    assert isinstance(leader.dispatcher.settle(wanted, 500), Proposal)
    assert leader.apply(proposal) == Settled(1, 0, 0, 0)
    assert leader.dispatcher.settle(wanted, 501) == Repeated(1, 1)


def test_an_entry_that_did_not_come_through_leaves_the_message_where_it_was() -> None:
    leader = QueueLeader(2)
    held = leader.get("a", 1)
    proposal = leader.dispatcher.settle(leader.wish("a", accepted=held), 0)
    assert isinstance(proposal, Proposal)
    leader.dispatcher.resolve(proposal)
    assert leader.settle("a", accepted=held) == Settled(1, 0, 0, 0)
    leader.get("a", 1)
    back = leader.dispatcher.tick(500)
    assert back is not None and leader.dispatcher.tick(500) is None
    leader.dispatcher.resolve(back)
    assert leader.offsets("b", now=500) == []
    assert leader.tick(501) == Settled(0, 1, 0, 0)
    assert leader.offsets("b", now=502) == [2]


def test_a_session_that_is_lost_while_its_accept_fails_gives_back() -> None:
    leader = QueueLeader(1)
    proposal = leader.dispatcher.settle(leader.wish("a", accepted=leader.get("a", 1)), 0)
    assert isinstance(proposal, Proposal)
    assert leader.dispatcher.tick(500) is None
    leader.dispatcher.resolve(proposal)
    assert leader.tick(501) == Settled(0, 1, 0, 0)


def test_a_request_that_comes_again_gets_the_same_messages() -> None:
    leader = QueueLeader(4)
    wanted = Get("a", 1, NO_TOKEN, 2)
    first = leader.dispatcher.get(wanted, 0)
    assert leader.dispatcher.get(wanted, 0) == first
    assert len(leader.dispatcher.claims) == 2
    second = leader.dispatcher.get(Get("a", 2, first[-1].token, 1), 0)
    assert [each.offset for each in second] == [3]
    assert leader.dispatcher.get(wanted, 0) == ()
    assert len(leader.dispatcher.claims) == 3


def test_what_did_not_reach_the_session_is_lent_anew_and_not_counted() -> None:
    leader = QueueLeader(4)
    first = leader.dispatcher.get(Get("a", 1, NO_TOKEN, 2), 0)
    assert len(first) == 2
    (again,) = leader.dispatcher.get(Get("a", 2, NO_TOKEN, 1), 0)
    assert (again.offset, again.delivery_count) == (1, 1) and again.token != first[0].token
    assert leader.tick(1) is None
    assert leader.offsets("b") == [2, 3, 4]
    assert leader.dispatcher.settle(Settlement("a", 1, 1, (first[0].token,)), 0) == SettlementRefusal(
        RefusalReason.NOT_HELD, (first[0].token,)
    )


def test_what_a_session_shows_to_nobody_is_lent_to_others_and_not_counted() -> None:
    leader = QueueLeader(3)
    held = leader.dispatcher.get(Get("a", 1, NO_TOKEN, 3), 0)
    unseen = tuple(each.token for each in held[1:])
    # Of what others hold, or nobody, nothing can be given back.
    assert leader.dispatcher.get(Get("b", 1, NO_TOKEN, 0, unseen=unseen), 0) == ()
    assert leader.offsets("b") == []
    assert leader.dispatcher.get(Get("a", 2, held[-1].token, 0, unseen=(*unseen, Token(1, 77))), 0) == ()
    found = leader.get("b", 9)
    assert [(each.offset, each.delivery_count, each.redelivered) for each in found] == [
        (2, 1, False),
        (3, 1, False),
    ]
    assert leader.settle("a", accepted=held[:1]) == Settled(1, 0, 0, 0)


def test_a_request_that_got_nothing_may_be_asked_again() -> None:
    leader = QueueLeader(1)
    leader.get("a", 1)
    wanted = Get("b", 1, NO_TOKEN, 5)
    assert leader.dispatcher.get(wanted, 0) == ()
    leader.put(b"m2", b"m3")
    delivered = leader.dispatcher.get(wanted, 0)
    assert [each.offset for each in delivered] == [2, 3]
    leader.put(b"m4")
    assert leader.dispatcher.get(wanted, 0) == delivered


def test_what_has_no_room_in_an_answer_stays_for_the_next() -> None:
    leader = QueueLeader(4)
    size_bytes = nbytes_of(leader.dispatcher.get(Get("a", 1, NO_TOKEN, 1), 0)[0].record)
    wanted = Get("b", 1, NO_TOKEN, 9, most_bytes=2 * size_bytes)
    first = leader.dispatcher.get(wanted, 0)
    assert [each.offset for each in first] == [2, 3]
    assert leader.dispatcher.get(wanted, 0) == first
    assert [each.offset for each in leader.dispatcher.get(Get("c", 1, NO_TOKEN, 9, most_bytes=1), 0)] == [4]


def test_a_session_says_for_how_long_it_is_there() -> None:
    leader = QueueLeader(2, DeliveryPolicy(session_duration=100))
    leader.dispatcher.get(Get("a", 1, NO_TOKEN, 1, session_duration=500), 0)
    leader.dispatcher.get(Get("b", 1, NO_TOKEN, 1), 0)
    assert leader.tick(200) == Settled(0, 1, 0, 0)
    assert leader.tick(500) is None
    assert leader.tick(501) == Settled(0, 1, 0, 0)


def test_parcels_are_batches_as_they_were_put() -> None:
    leader = QueueLeader()
    leader.put(b"m1", b"m2", b"m3")
    leader.put(b"m4", b"m5", b"m6")
    whole, part = leader.dispatcher.deliver(Get("a", 1, NO_TOKEN, 5), 0)
    assert (whole.offset, whole.count, whole.delivery_count, whole.redelivered) == (1, 3, 1, False)
    assert whole.batch == leader.shard.log[0].payload
    assert (part.offset, part.count, part.token) == (4, 2, Token(1, 4))
    assert Batch.read(part.batch).stamp == Stamp(b"me", 2, 1)
    assert [each.value for each in Batch.read(part.batch).records()] == [b"m4", b"m5"]
    found = leader.dispatcher.peek(0, 5, 1 << 20)
    assert [(each.offset, each.count, each.delivery_count) for each in found] == [(1, 3, 0), (4, 2, 0)]
    assert len(leader.dispatcher.peek(0, 5, 1)) == 1
    assert [(each.offset, each.count) for each in leader.dispatcher.peek(2, 3, 1 << 20)] == [(2, 2), (4, 1)]
    assert leader.dispatcher.peek(7, 5, 1 << 20) == leader.dispatcher.peek(1 << 62, 5, 1 << 20) == []


def test_a_session_holds_no_more_than_it_may() -> None:
    leader = QueueLeader(5, DeliveryPolicy(session_duration=100, most_held=3))
    held = leader.get("a", 9)
    assert len(held) == 3
    assert leader.offsets("a") == []
    leader.settle("a", accepted=held[:1])
    assert leader.offsets("a") == [4]


@pytest.mark.parametrize("how", ["released", "lost"])
def test_poison_reaches_the_dead_letters_through_changes_of_leader(how: str) -> None:
    policy = DeliveryPolicy(session_duration=100, max_deliveries=3)
    leader = QueueLeader(2, policy)
    moved = []
    for delivery in range(1, 4):
        poison = leader.get("a", 1, now=0)
        assert (poison[0].offset, poison[0].delivery_count) == (1, delivery)
        result = leader.settle("a", released=poison) if how == "released" else leader.tick(101)
        assert isinstance(result, Settled)
        moved.append(result.moved)
        leader.lead(policy)
    assert moved == [0, 0, 1]
    assert leader.offsets("a") == [2]
    assert (leader.queue.messages.count, leader.queue.dead_letters.count) == (1, 1)


def test_a_dead_letter_says_where_it_was_and_goes_back_without() -> None:
    leader = QueueLeader(3)
    held = leader.get("a", 2)
    assert leader.settle("a", rejected=held[1:], released=held[:1]) == Settled(0, 1, 1, 1)
    leader.lead(subqueue=DEAD_LETTERS)
    (letter,) = leader.get("b", 9)
    assert letter.record.value == b"m2" and letter.record.key == b"key"
    assert letter.record.headers == {
        "h": b"1",
        DEAD_LETTER_HEADER: b'{"queue":"jobs","offset":2,"deliveries":1}',
    }
    assert leader.settle("b", rejected=(letter,)) == Settled(0, 0, 1, 4)
    leader.lead()
    back = leader.get("c", 9)
    assert [(each.offset, each.delivery_count) for each in back] == [(1, 2), (3, 1), (4, 1)]
    assert back[-1].record == Record(b"m2", b"key", {"h": b"1"})


def test_what_was_delivered_too_often_already_is_not_lent_again() -> None:
    leader = QueueLeader(2)
    leader.settle("a", released=leader.get("a", 1))
    leader.lead(DeliveryPolicy(session_duration=100, max_deliveries=1))
    assert leader.offsets("a") == [2]
    assert leader.tick(1) == Settled(0, 0, 1, 1)


def test_a_message_that_fills_a_batch_becomes_a_letter_too() -> None:
    leader = QueueLeader()
    leader.shard.put(Kind.QUEUE_PUT, bytes(Batch.of([Record(bytes(MAX_BATCH_BYTES - 56))]).data))
    assert leader.settle("a", rejected=leader.get("a", 1)) == Settled(0, 0, 1, 1)
    assert leader.queue.dead_letters.count == 1


def test_only_so_much_moves_together(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = QueueLeader(3, DeliveryPolicy(session_duration=100, max_deliveries=1))
    held = leader.get("a", 3)
    monkeypatch.setattr(dispatcher_module, "MOST_MOVED_BYTES", 2 * nbytes_of(held[0].record))
    answer = leader.settle("a", rejected=held)
    assert isinstance(answer, SettlementRefusal) and answer.why is RefusalReason.TOO_MUCH
    assert leader.settle("a", rejected=held[:2]) == Settled(0, 0, 2, 1)
    assert leader.tick(200) == Settled(0, 0, 1, 3)
