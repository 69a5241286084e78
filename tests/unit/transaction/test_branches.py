"""Branches: what is staged, locked, reserved, committed, rolled back and remembered on one shard."""

import msgspec
import pytest

from hawser.log.entry import Kind
from hawser.log.queue.claims import NO_TOKEN, Claims, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import Proposal, RefusalReason, SettlementRefusal
from hawser.log.state.commands import (
    GroupCommit,
    GroupDelete,
    GroupJoin,
    GroupLeave,
    QueueLimit,
    QueueSettle,
    encode_command,
)
from hawser.log.state.part import BadState
from hawser.log.state.results import (
    Accepted,
    Committed,
    Deleted,
    Done,
    Finished,
    Outcome,
    Place,
    Prepared,
    Reason,
    Rejected,
    Settled,
    Staged,
)
from hawser.transaction.commands import BranchLimit
from hawser.transaction.identity import TransactionId, Xid
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.locks import lock
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import Site, lane

ONE, TWO = lane(), lane(name=b"other")
COMMITTED, ROLLED_BACK = Finished(Outcome.COMMITTED), Finished(Outcome.ROLLED_BACK)
BAD = Rejected(Reason.BAD_PAYLOAD)


def a_site(messages: int = 0) -> Site:
    site = Site()
    for _ in range(messages):
        site.put(Kind.QUEUE_PUT, batch())
    return site


# Visibility.


def test_messages_take_their_offsets_when_they_are_committed() -> None:
    site = a_site()
    assert site.stage(ONE, 2) == Staged(1)
    assert site.publish() == Accepted(1, 1)
    assert site.stage(ONE) == Staged(2)
    assert (site.topic.start, site.topic.end) == (1, 2)
    assert site.publish() == Accepted(2, 1)
    assert site.commit(ONE, 2) == COMMITTED
    assert site.topic.end == 6
    assert [site.topic.locate(offset) for offset in (3, 5)] == [Place(1, 3, 2), Place(3, 5, 1)]
    assert site.publish() == Accepted(6, 1)


def test_an_only_operation_leaves_what_two_entries_would() -> None:
    alone, staged = a_site(1), a_site(1)
    for site in (alone, staged):
        assert site.stage(lane(1)) == Staged(1)
    assert alone.stage(lane(2), 3, last=True) == COMMITTED
    assert (staged.stage(lane(2), 3), staged.commit(lane(2), 1)) == (Staged(1), COMMITTED)
    assert alone.branches.digest() == staged.branches.digest()
    assert (alone.topic.end, alone.branches.open_count) == (staged.topic.end, 0)
    assert alone.stage(lane(1)) == Rejected(Reason.OLD_INCARNATION, 2, 1)
    alone.restart_equal()


def test_the_last_operation_commits_all_of_them() -> None:
    site = a_site(1)
    site.stage_accept(ONE, (1, 1, 0))
    before = len(site.log)
    assert site.stage(ONE, 2, last=True) == COMMITTED
    assert (len(site.log), site.topic.end, site.queue.messages.start) == (before + 1, 3, 2)
    assert site.stage(ONE, 2, number=2, last=True) == Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert site.commit(ONE, 2) == COMMITTED
    # Behind a gap it commits nothing, and one that cannot be committed is rolled back.
    assert site.stage(TWO, number=2, last=True) == Rejected(Reason.GAP, 1, 2)
    site.put(Kind.QUEUE_PUT, batch())
    site.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(1)))
    assert site.stage_put(TWO, number=1, last=True) == Finished(Outcome.NO_ROOM)
    assert (site.topic.end, len(site.branches.register)) == (3, 0)
    site.restart_equal()


def test_a_topic_and_a_queue_on_one_shard_commit_in_one_entry() -> None:
    site = a_site(1)
    site.stage_accept(ONE, (1, 1, 0))
    site.stage(ONE)
    site.stage_put(ONE)
    before = len(site.log)
    assert site.commit(ONE, 3) == COMMITTED
    assert len(site.log) == before + 1
    messages = site.queue.messages
    assert (messages.start, messages.end, site.topic.end) == (2, 3, 2)


def test_rollback_leaves_no_trace() -> None:
    site = a_site(1)
    used, end = site.queue.used_bytes, site.topic.end
    site.stage(ONE)
    site.stage_put(ONE, 3)
    site.prepare(ONE, 2)
    assert site.abort(ONE, decided=True) == ROLLED_BACK
    assert (site.queue.used_bytes, site.topic.end, site.queue.messages.count) == (used, end, 1)
    assert (site.branches.open_count, site.branches.prepared_count, len(site.branches.register)) == (0, 0, 0)


def test_the_order_of_operations_is_kept() -> None:
    site = a_site()
    for count in (3, 1, 2):
        site.stage_put(ONE, count)
    site.commit(ONE, 3)
    places = [site.queue.messages.locate(offset) for offset in (1, 4, 5)]
    assert places == [Place(1, 1, 3), Place(2, 4, 1), Place(3, 5, 2)]


# Operations are numbered.


def test_a_repeated_operation_is_staged_once() -> None:
    site = a_site()
    assert site.stage(ONE, 2) == Staged(1)
    assert site.stage(ONE, 2, number=1) == Staged(1)
    assert site.commit(ONE, 1) == COMMITTED
    assert site.topic.end == 3


def test_nothing_is_staged_behind_a_gap() -> None:
    site = a_site()
    assert site.stage(ONE, number=2) == Rejected(Reason.GAP, 1, 2)
    assert len(site.branches.register) == 0
    site.stage(ONE)
    assert site.stage(ONE, number=3) == Rejected(Reason.GAP, 2, 3)
    assert site.stage(ONE, number=2) == Staged(2)


def test_workers_number_their_own() -> None:
    site = a_site()
    for worker in (1, 2, 2, 1, 2):
        assert isinstance(site.stage(ONE, worker=worker), Staged)
    assert site.prepare(ONE, 0, 2, 3) == Prepared(5)


@pytest.mark.parametrize("counts", [(1,), (3,), (0,), (), (2, 1)])
def test_a_count_that_differs_is_a_vote_against(counts: tuple[int, ...]) -> None:
    site = a_site(1)
    site.stage(ONE)
    site.stage_accept(ONE, (1, 1, 0))
    assert site.prepare(ONE, *counts) == Finished(Outcome.INCOMPLETE)
    assert site.queue.messages.deliveries(1) == 1
    assert site.stage(ONE) == Rejected(Reason.TRANSACTION_OVER, Outcome.INCOMPLETE)


def test_an_operation_that_was_lost_in_a_failover_rolls_back_the_rest() -> None:
    site = a_site()
    site.stage(ONE)
    assert site.commit(ONE, 2) == Finished(Outcome.INCOMPLETE)
    assert site.topic.end == 1
    assert site.stage(ONE, number=2) == Rejected(Reason.TRANSACTION_OVER, Outcome.INCOMPLETE)


def test_what_was_never_there_cannot_be_prepared_and_not_begin_later() -> None:
    site = a_site()
    assert site.prepare(ONE, 1) == Finished(Outcome.INCOMPLETE)
    assert site.stage(ONE) == Rejected(Reason.TRANSACTION_OVER, Outcome.INCOMPLETE)
    assert site.abort(TWO) == ROLLED_BACK
    assert site.stage(TWO) == Rejected(Reason.TRANSACTION_OVER, Outcome.ROLLED_BACK)


# Repeats get the same answer.


def test_prepare_again_is_the_same_vote() -> None:
    site = a_site()
    site.stage(ONE)
    assert site.prepare(ONE, 1) == site.prepare(ONE, 1) == Prepared(1)
    assert site.stage(ONE, number=1) == Staged(1)
    assert site.stage(ONE, number=2) == Rejected(Reason.TRANSACTION_CLOSED)
    assert site.commit(ONE, 1) == Rejected(Reason.TRANSACTION_CLOSED)


def test_prepare_after_a_failed_prepare_is_never_ok() -> None:
    site = a_site()
    site.stage(ONE)
    assert site.prepare(ONE, 2) == Finished(Outcome.INCOMPLETE)
    assert site.prepare(ONE, 1) == Finished(Outcome.INCOMPLETE)
    assert site.commit(ONE, 1) == Finished(Outcome.INCOMPLETE)
    assert site.topic.end == 1


def test_commit_again_is_ok_and_changes_nothing() -> None:
    site = a_site()
    site.stage(ONE)
    site.prepare(ONE, 1)
    assert site.commit(ONE) == site.commit(ONE) == site.prepare(ONE, 1) == COMMITTED
    assert site.abort(ONE, decided=True) == COMMITTED
    assert site.topic.end == 2


def test_commit_after_a_rollback_says_so() -> None:
    site = a_site()
    site.stage(ONE)
    assert site.abort(ONE, Outcome.TIMED_OUT) == Finished(Outcome.TIMED_OUT)
    assert site.commit(ONE, 1) == Finished(Outcome.TIMED_OUT)
    assert site.topic.end == 1


def test_what_is_not_prepared_is_not_committed_by_a_decision() -> None:
    site = a_site()
    site.stage(ONE)
    assert site.commit(ONE) == Rejected(Reason.NOT_PREPARED)
    assert site.commit(TWO) == Rejected(Reason.TRANSACTION_OVER)
    assert site.topic.end == 1


# Time-outs.


def test_a_time_out_that_races_prepare_loses_or_wins_as_a_whole() -> None:
    first, second = a_site(), a_site()
    for site in (first, second):
        site.stage(ONE)
    assert first.prepare(ONE, 1) == Prepared(1)
    assert first.abort(ONE, Outcome.TIMED_OUT) == Prepared(1)
    assert first.commit(ONE) == COMMITTED
    assert second.abort(ONE, Outcome.TIMED_OUT) == Finished(Outcome.TIMED_OUT)
    assert second.prepare(ONE, 1) == Finished(Outcome.TIMED_OUT)


# Accepts.


def test_a_locked_message_is_nobodys_and_a_second_locker_fails_at_once() -> None:
    site = a_site(3)
    assert site.stage_accept(ONE, (2, 1, 0)) == Staged(1)
    assert site.stage_accept(TWO, (2, 1, 0)) == Rejected(Reason.LOCKED, 0, 2)
    assert site.stage_accept(ONE, (2, 1, 0), number=2) == Rejected(Reason.LOCKED, 0, 2)
    subqueue = site.queue.messages
    assert subqueue.deliveries(2) is None and subqueue.next_from(2) == 3
    settle = QueueSettle(0, ((2, 1, 0),))
    assert site.put(Kind.QUEUE_SETTLE, encode_command(settle)) == Rejected(Reason.NOT_HELD, 0, 2)
    assert site.commit(ONE, 1) == COMMITTED
    assert site.stage_accept(TWO, (2, 1, 0), number=1) == Rejected(Reason.NOT_HELD, 0, 2)


def test_the_loser_of_a_lock_may_still_commit_the_rest() -> None:
    site = a_site(2)
    site.stage_accept(ONE, (1, 1, 0))
    assert site.stage_accept(TWO, (1, 1, 0)) == Rejected(Reason.LOCKED, 0, 1)
    assert site.stage_accept(TWO, (2, 1, 0), number=1) == Staged(1)
    assert site.commit(TWO, 1) == COMMITTED


def test_an_accept_locks_all_it_names_or_none() -> None:
    site = a_site(3)
    site.stage_accept(ONE, (2, 1, 0))
    assert site.stage_accept(TWO, (1, 1, 0), (2, 2, 0)) == Rejected(Reason.LOCKED, 0, 2)
    assert [site.queue.messages.deliveries(offset) for offset in (1, 3)] == [0, 0]


def test_a_token_of_an_ended_delivery_locks_nothing() -> None:
    site = a_site(1)
    returned = QueueSettle(0, (), ((1, 1, 0),))
    assert site.put(Kind.QUEUE_SETTLE, encode_command(returned)) == Settled(0, 1, 0, 0)
    assert site.stage_accept(ONE, (1, 1, 0)) == Rejected(Reason.NOT_HELD, 0, 1)
    assert site.stage_accept(ONE, (1, 1, 1), number=1) == Staged(1)


def test_rollback_returns_messages_to_their_places_and_counts_the_delivery() -> None:
    site = a_site(4)
    site.stage_accept(ONE, (2, 2, 0))
    site.abort(ONE)
    subqueue = site.queue.messages
    assert [subqueue.deliveries(offset) for offset in (1, 2, 3, 4)] == [0, 1, 1, 0]
    assert subqueue.next_from(2) == 2
    assert site.put(Kind.QUEUE_SETTLE, encode_command(QueueSettle(0, ((2, 2, 1),)))) == Settled(2, 0, 0, 0)


def test_what_a_transaction_gives_back_is_lent_again_once() -> None:
    site = a_site(3)
    claims = Claims(site.queue.messages, 1, DeliveryPolicy(1000))
    delivered = claims.deliver("a", 1, NO_TOKEN, 2, 0)
    proposal = lock(claims, 0, "a", [Token(1, each.number) for each in delivered])
    assert isinstance(proposal, Proposal)
    assert site.operation(ONE, Kind.QUEUE_SETTLE, proposal.payload) == Staged(1)
    site.abort(ONE)  # before anybody could say that it is locked
    claims.resolve(proposal.claims)
    assert [each.offset for each in claims.deliver("b", 1, NO_TOKEN, 9, 0)] == [1, 2, 3]
    assert claims.deliver("c", 1, NO_TOKEN, 9, 0) == []


def test_what_was_locked_when_a_leader_began_is_lent_when_it_comes_back() -> None:
    site = a_site(3)
    site.stage_accept(ONE, (1, 1, 0), (2, 1, 0))
    claims = Claims(site.queue.messages, 2, DeliveryPolicy(1000))
    assert [each.offset for each in claims.deliver("a", 1, NO_TOKEN, 9, 0)] == [3]
    site.abort(ONE)
    again = claims.deliver("b", 1, NO_TOKEN, 9, 0)
    assert [(each.offset, each.deliveries) for each in again] == [(1, 1), (2, 1)]


def test_only_the_holder_accepts_in_a_transaction() -> None:
    site = a_site(2)
    claims = Claims(site.queue.messages, 3, DeliveryPolicy(1000))
    (claim,) = claims.deliver("a", 1, NO_TOKEN, 1, 0)
    token = Token(3, claim.number)
    assert lock(claims, 0, "b", [token]) == SettlementRefusal(RefusalReason.NOT_HELD, (token,))
    assert lock(claims, 0, "a", [token, token]) == SettlementRefusal(RefusalReason.NOT_HELD, (token, token))
    assert lock(claims, 0, "a", [Token(2, claim.number)]) == SettlementRefusal(
        RefusalReason.NOT_HELD, (Token(2, claim.number),)
    )
    assert lock(claims, 0, "a", [Token(4, 1)]) == SettlementRefusal(RefusalReason.OTHER_LEADER)
    assert lock(claims, 0, "a", []) == SettlementRefusal(RefusalReason.NOT_HELD)
    assert isinstance(lock(claims, 0, "a", [token]), Proposal)


def test_messages_that_lie_together_are_locked_together_and_come_back_so() -> None:
    site = a_site(6)
    claims = Claims(site.queue.messages, 3, DeliveryPolicy(1000))
    mine = claims.deliver("a", 1, NO_TOKEN, 4, 0)
    other = claims.deliver("b", 1, NO_TOKEN, 1, 0)
    found = lock(claims, 0, "a", [Token(3, claim.number) for claim in reversed(mine)])
    assert isinstance(found, Proposal)
    assert msgspec.msgpack.decode(found.payload, type=QueueSettle).accepted == ((1, 4, 0),)
    assert site.operation(ONE, Kind.QUEUE_SETTLE, found.payload) == Staged(1)
    claims.resolve(found.claims)
    site.abort(ONE)
    again = claims.deliver("c", 1, NO_TOKEN, 9, 0)
    assert [(each.offset, each.deliveries) for each in again] == [(1, 1), (2, 1), (3, 1), (4, 1), (6, 0)]
    assert [each.offset for each in other] == [5]


# Room.


def test_prepare_reserves_room_that_nobody_else_gets() -> None:
    site = a_site(1)
    used = site.queue.used_bytes
    site.stage_put(ONE)
    site.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(int(used * 2.9))))
    assert site.prepare(ONE, 1) == Prepared(1)
    full = site.put(Kind.QUEUE_PUT, batch())
    assert isinstance(full, Rejected) and full.reason is Reason.QUEUE_FULL
    site.stage_put(TWO)
    assert site.prepare(TWO, 1) == Finished(Outcome.NO_ROOM)
    assert site.commit(ONE) == COMMITTED
    assert site.queue.messages.count == 2 and site.queue.reserved_bytes == 0


def test_a_rolled_back_put_gives_its_room_back() -> None:
    site = a_site(1)
    site.stage_put(ONE)
    site.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(int(site.queue.used_bytes * 2.9))))
    site.prepare(ONE, 1)
    site.abort(ONE, decided=True)
    assert isinstance(site.put(Kind.QUEUE_PUT, batch()), Accepted)


def test_one_shard_without_room_rolls_back() -> None:
    site = a_site(1)
    site.stage_put(ONE)
    site.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(1)))
    assert site.commit(ONE, 1) == Finished(Outcome.NO_ROOM)
    assert site.queue.messages.count == 1


# Positions of groups.


def a_group() -> tuple[Site, GroupCommit]:
    site = a_site()
    site.publish(9)
    site.do(GroupJoin("g", "m", 1))
    generation = site.groups.get("g").generation  # type: ignore[union-attr]
    return site, GroupCommit("g", "m", generation, 1, 4)


def position(site: Site) -> int:
    return site.groups.get("g").position  # type: ignore[union-attr]


def test_positions_move_with_the_transaction_one_behind_the_other() -> None:
    site, move = a_group()
    assert site.stage_move(ONE, move) == Staged(1)
    assert site.stage_move(ONE, move) == Rejected(Reason.MOVED, 4, 1)
    further = msgspec.structs.replace(move, before=4, after=6)
    assert site.stage_move(ONE, further, number=2) == Staged(2)
    assert position(site) == 1
    assert site.commit(ONE, 2) == COMMITTED
    assert position(site) == 6


def test_a_position_that_was_moved_is_a_vote_against() -> None:
    site, move = a_group()
    site.stage_move(ONE, move)
    assert site.do(msgspec.structs.replace(move, after=2)) == Committed(2)
    assert site.prepare(ONE, 1) == Finished(Outcome.CONFLICT)
    assert position(site) == 2


def test_a_group_that_is_prepared_is_moved_by_nobody_else() -> None:
    site, move = a_group()
    site.stage_move(ONE, move)
    site.stage_move(TWO, move)
    assert site.prepare(ONE, 1) == Prepared(1)
    assert site.do(move) == Rejected(Reason.LOCKED)
    assert site.do(GroupDelete("g")) == Rejected(Reason.LOCKED)
    assert site.prepare(TWO, 1) == Finished(Outcome.CONFLICT)
    site.do(GroupJoin("g", "n"))
    site.do(GroupLeave("g", "m"))
    site.restart_equal()
    assert site.commit(ONE) == COMMITTED
    assert position(site) == 4
    assert site.do(GroupDelete("g")) == Deleted(True)


# Limits.


def limit(site: Site, **fields: int) -> None:
    wanted = msgspec.structs.asdict(site.branches.limit) | fields
    assert site.put(Kind.BRANCH_LIMIT, encode_command(BranchLimit(**wanted))) == Done()


def test_open_work_is_bounded() -> None:
    site = a_site()
    limit(site, most_open=1)
    site.stage(ONE)
    refused = site.stage(TWO)
    assert isinstance(refused, Rejected) and refused.retryable
    assert refused.reason is Reason.TOO_MANY_TRANSACTIONS
    assert site.stage(ONE) == Staged(2)
    assert site.commit(ONE, 2) == COMMITTED
    assert site.stage(TWO, number=1) == Staged(1)


@pytest.mark.parametrize("prepared", [False, True])
def test_what_is_staged_is_bounded_and_free_again_when_it_ends(prepared: bool) -> None:
    """Open and prepared work together: a batch that was staged is prepared, however large it is."""
    site = a_site()
    site.stage(ONE)
    size_bytes = site.branches.staged_bytes
    limit(site, most_bytes=size_bytes + 10)
    if prepared:
        assert site.prepare(ONE, 1) == Prepared(1)
    refused = site.stage(TWO, number=1)
    wanted_bytes = size_bytes + len(site.log[-1].frame)
    assert refused == Rejected(Reason.TOO_MUCH_STAGED, size_bytes + 10, wanted_bytes)
    assert refused.retryable
    assert f"{wanted_bytes} bytes staged on this shard" in refused.text
    assert f"{size_bytes + 10} are allowed" in refused.text
    assert site.branches.register.get(TWO) is None, "nothing is left of what was refused"
    limit(site, most_bytes=9 * size_bytes, most_operations=1)
    refused = site.stage(TWO, number=1)
    assert refused == Rejected(Reason.TOO_MANY_OPERATIONS, 1, 2) and refused.retryable
    assert (site.branches.staged_bytes, site.branches.staged_count) == (size_bytes, 1)
    site.abort(ONE, decided=prepared)
    assert (site.branches.staged_bytes, site.branches.staged_count) == (0, 0)
    assert site.stage(TWO, number=1) == Staged(1)


def test_a_prepare_too_many_is_voted_down_and_nothing_old_is_dropped() -> None:
    site = a_site()
    limit(site, most_prepared=1)
    for transaction in (ONE, TWO):
        site.stage(transaction)
    assert site.prepare(ONE, 1) == Prepared(1)
    assert site.prepare(TWO, 1) == Finished(Outcome.TOO_MUCH)
    assert site.commit(ONE) == COMMITTED


# Incarnations.


def test_what_comes_late_of_an_old_incarnation_changes_nothing() -> None:
    site = a_site()
    site.stage(lane(1))
    site.commit(lane(1), 1)
    site.stage(lane(2))
    old = Rejected(Reason.OLD_INCARNATION, 2, 1)
    site.commit(lane(2), 1)
    late = [
        site.stage(lane(1), number=1),
        site.commit(lane(1), 1),
        site.abort(lane(1)),
        site.prepare(lane(1), 1),
    ]
    for answer in late:
        assert answer == old
    assert site.topic.end == 3


def test_the_next_incarnation_rolls_back_what_was_left_open() -> None:
    site = a_site(1)
    site.stage_accept(lane(1), (1, 1, 0))
    assert site.stage(lane(2)) == Staged(1)
    assert site.queue.messages.deliveries(1) == 1
    assert site.stage(lane(1)) == Rejected(Reason.TRANSACTION_OVER, Outcome.ROLLED_BACK)


def test_so_does_one_behind_an_incarnation_that_never_was_here() -> None:
    """Its commit came, none of its operations did."""
    site = a_site(1)
    site.stage_accept(lane(1), (1, 1, 0))
    assert site.commit(lane(2), 1) == Finished(Outcome.INCOMPLETE)
    assert site.stage(lane(3)) == Staged(1)
    assert site.queue.messages.deliveries(1) == 1
    assert site.abort(lane(1)) == Rejected(Reason.OLD_INCARNATION, 3, 1)


def test_an_earlier_incarnation_that_is_prepared_waits_beside_the_next() -> None:
    site = a_site()
    site.stage(lane(1))
    site.prepare(lane(1), 1)
    site.stage(lane(2))
    assert site.commit(lane(2), 1) == COMMITTED
    site.restart_equal()
    assert site.commit(lane(1)) == COMMITTED
    assert site.commit(lane(1)) == Rejected(Reason.OLD_INCARNATION, 2, 1)
    assert site.commit(lane(2), 1) == COMMITTED


def test_xids_are_compared_on_all_three_fields() -> None:
    site = a_site()
    xids = [Xid(1, b"ab", b"c"), Xid(1, b"a", b"bc"), Xid(2, b"ab", b"c"), Xid(1, b"ab", b"d")]
    for number, xid in enumerate(xids):
        assert site.stage(TransactionId(xid, 1)) == Staged(1)
        assert len(site.branches.register) == number + 1


# Snapshots.


def test_a_snapshot_has_all_that_is_open_and_prepared() -> None:
    site = a_site(4)
    site.stage_accept(ONE, (1, 2, 0))
    site.stage_put(ONE, 2, owner=7, timeout_seconds=9)
    site.stage(TWO)
    site.prepare(TWO, 1)
    site.abort(lane(name=b"third"))
    site.restart_equal()
    assert site.commit(TWO) == COMMITTED
    assert site.commit(ONE, 2) == COMMITTED
    site.restart_equal()
    assert site.commit(ONE, 2) == COMMITTED
    assert site.queue.messages.count == 4


@pytest.mark.parametrize("state", [b"", b"\x93", b"\x90", msgspec.msgpack.encode([[1, 2, 3], [], []])])
def test_a_state_that_was_never_saved_is_refused(state: bytes) -> None:
    with pytest.raises(BadState):
        Branches().load(state)


def test_a_state_that_contradicts_itself_is_refused() -> None:
    site = a_site()
    site.stage(ONE)
    site.stage(ONE)
    limits, branches, *rest = msgspec.msgpack.decode(site.branches.save()[0])
    miscounted = [*branches[0][:4], [*branches[0][4][:3], {0: 3}, *branches[0][4][4:]]]
    for changed in ([branches[0], branches[0]], [miscounted]):
        with pytest.raises(BadState):
            Branches().load(msgspec.msgpack.encode([limits, changed, *rest]))
