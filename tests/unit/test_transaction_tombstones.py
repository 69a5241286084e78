"""What became of transactions is remembered: of lanes for certain, of others as long as there is room."""

from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Expired, Finished, Outcome, Reason, Rejected, Staged
from hawser.transaction.commands import BranchForget, to_fields
from hawser.transaction.identity import TransactionId, Xid
from hawser.transaction.register import Register
from tests.stateful.transaction_shard import Site, lane

ONE, TWO = lane(), lane(name=b"other")


def outside(number: int) -> TransactionId:
    return TransactionId(Xid(7, b"%d" % number, b""), 1)


def test_tombstones_are_bounded_and_lanes_stay() -> None:
    register: Register[str] = Register(most_tombstones=3)
    register.bury(lane(1), Outcome.COMMITTED)
    for number in range(1, 10):
        register.bury(outside(number), Outcome.ROLLED_BACK)
    kept = [transaction for transaction, _ in register.tombstones]
    assert kept == [lane(1), outside(7), outside(8), outside(9)]
    assert register.outcome(lane(1)) is Outcome.COMMITTED


def test_what_a_lane_has_committed_is_known_whoever_comes_behind_it() -> None:
    """Branches of applications are many; an answer that was lost is asked for again behind all of them."""
    site = Site()
    register = site.branches.register
    register._most = 10
    site.stage(ONE)
    assert site.commit(ONE, 1) == Finished(Outcome.COMMITTED)
    end = site.topic.end
    for number in range(20):
        site.abort(outside(number))
    assert site.abort(ONE) == Finished(Outcome.COMMITTED)
    assert site.stage(ONE, number=1) == Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    assert site.commit(ONE, 1) == Finished(Outcome.COMMITTED)
    assert site.topic.end == end


def test_where_there_are_too_many_lanes_no_other_begins_and_none_is_forgotten() -> None:
    site = Site()
    register = site.branches.register
    most = register._most_lanes = 4
    lanes = [lane(name=b"%d" % number) for number in range(3 * most)]
    for each in lanes[:most]:
        site.stage(each)
        assert site.commit(each, 1) == Finished(Outcome.COMMITTED)
    assert site.stage(lanes[most]) == Rejected(Reason.TOO_MANY_TRANSACTIONS, most)
    # A lane that is known goes on, and whoever asks for a rollback is answered as long as that is kept.
    again = TransactionId(lanes[0].xid, 2)
    assert site.stage(again) == Staged(1) and site.commit(again, 1) == Finished(Outcome.COMMITTED)
    for each in lanes[most : 2 * most]:
        assert site.abort(each) == Finished(Outcome.ROLLED_BACK)
    assert site.abort(lanes[-1]) == Rejected(Reason.TRANSACTION_OVER)
    assert site.abort(lanes[-1], decided=True) == Rejected(Reason.TRANSACTION_OVER)
    assert all(site.abort(each) == Finished(Outcome.COMMITTED) for each in lanes[1:most])
    old = BranchForget(tuple(to_fields(each) for each in lanes[1 : most + 2]))
    assert site.put(Kind.BRANCH_FORGET, encode_command(old)) == Expired(most + 1)
    assert site.stage(lanes[-1], number=1) == Staged(1)
    site.restart_equal()


def test_an_entry_forgets_what_was_not_used_since() -> None:
    site = Site()
    for transaction in (lane(1), TWO, lane(2)):
        site.stage(transaction)
        site.commit(transaction, 1)
    command = BranchForget((to_fields(lane(1)), to_fields(TWO)))
    assert site.put(Kind.BRANCH_FORGET, encode_command(command)) == Expired(1)
    assert [transaction for transaction, _ in site.branches.register.tombstones] == [lane(2)]
