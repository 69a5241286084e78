"""Home: closing, voting, deciding, telling; applications and their batches; what is remembered."""

import msgspec
import pytest

from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.part import BadState
from hawser.log.state.results import (
    Answered,
    Expired,
    Finished,
    Outcome,
    Prepared,
    Reason,
    Rejected,
    Result,
)
from hawser.transaction.commands import CoordinatorClose, CoordinatorForget, Participants, to_fields
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, ONCE, TransactionId, Xid
from hawser.transaction.xa.table import Call, Code
from tests.stateful.transaction_shard import Site, branch, lane

ONE, XA = branch(b"one"), Xid(7, b"global", b"branch")
PENDING = Answered(Code.PENDING)
COMMITTED, ROLLED_BACK = Finished(Outcome.COMMITTED), Finished(Outcome.ROLLED_BACK)
BAD = Rejected(Reason.BAD_PAYLOAD)


def test_all_votes_decide_a_transaction_in_one_entry() -> None:
    site = Site()
    one = site.commit_in_one_phase(XA, "p", "q")
    assert site.vote(one, "p") == Rejected(Reason.NOT_PREPARED)
    assert site.vote(one, "p", "q") == COMMITTED
    assert site.vote(one, "p", "q") == COMMITTED
    assert site.decide(one, Outcome.TIMED_OUT) == COMMITTED
    assert site.ledger.outcome(one) is Outcome.COMMITTED


def test_a_time_out_before_the_votes_wins() -> None:
    site = Site()
    one = site.commit_in_one_phase(XA, "p", "q")
    site.close(ONE, "p", "q")
    for each in (one, ONE):
        assert site.decide(each, Outcome.TIMED_OUT) == Finished(Outcome.TIMED_OUT)
        assert site.vote(each, "p", "q") == Finished(Outcome.TIMED_OUT)
        assert site.ledger.outcome(each) is Outcome.TIMED_OUT
    assert site.close(ONE, "p", "q") == Finished(Outcome.TIMED_OUT)


def test_nobody_commits_without_votes() -> None:
    site = Site()
    assert site.decide(ONE, Outcome.COMMITTED, prepared=True) == Rejected(Reason.TRANSACTION_OVER)
    site.close(ONE, "p")
    assert site.decide(ONE, Outcome.COMMITTED, prepared=True) == Rejected(Reason.NOT_PREPARED)


def test_what_home_knows_nothing_of_is_undecided_unless_a_later_one_has_begun() -> None:
    site = Site()
    first, second = TransactionId(XA, 1), TransactionId(XA, 2)
    assert site.ledger.outcome(first) is None
    site.publish()
    site.decide(second, Outcome.ROLLED_BACK)
    assert site.ledger.outcome(first) is Outcome.ROLLED_BACK


def test_an_undecided_transaction_has_no_outcome() -> None:
    site = Site()
    site.close(ONE, "p")
    assert site.ledger.outcome(ONE) is None
    site.vote(ONE, "p")
    assert site.ledger.outcome(ONE) is None


def test_asking_for_a_rollback_decides_also_what_was_never_heard_of() -> None:
    site = Site()
    assert site.decide(ONE, Outcome.ROLLED_BACK) == ROLLED_BACK
    assert site.close(ONE, "p", "q") == ROLLED_BACK
    assert site.vote(ONE, "p", "q") == ROLLED_BACK


def test_a_decision_is_kept_until_everybody_was_told() -> None:
    site = Site()
    one = site.commit_in_one_phase(XA, "p", "q")
    assert site.tell(one, "p") == Expired(0)  # nothing is decided
    site.vote(one, "p", "q")
    assert site.tell(one, "p") == Expired(0)
    record = site.ledger.register.get(one)
    assert record is not None and record.waiting == ["q"]
    site.restart_equal()
    assert site.tell(one, "q", "r") == Expired(1)
    assert len(site.ledger.register) == 0
    assert site.vote(one, "p", "q") == COMMITTED


def test_an_old_incarnation_is_turned_away() -> None:
    site = Site()
    first, second, third = (TransactionId(ONE.xid, number) for number in (1, 2, 3))
    site.close(second, "p")
    assert site.close(first, "p") == Rejected(Reason.OLD_INCARNATION, 2, 1)
    assert site.decide(first, Outcome.ROLLED_BACK) == Rejected(Reason.OLD_INCARNATION, 2, 1)
    assert site.close(third, "p") == PENDING
    assert len(site.ledger.register) == 2


@pytest.mark.parametrize("form", [LANE_FORMAT, APPLICATION_FORMAT])
def test_xids_of_lanes_and_applications_have_no_calls(form: int) -> None:
    site = Site()
    assert site.call(Xid(form, b"global", b"branch"), Call.START) == Rejected(Reason.BAD_PAYLOAD)
    assert site.decisions.is_unused


def test_home_is_bounded() -> None:
    site = Site()
    site.ledger.most = 1
    site.close(ONE, "p")
    refused = site.close(branch(b"other"), "p")
    assert refused == Rejected(Reason.TOO_MANY_TRANSACTIONS, 1) and refused.retryable
    assert site.close(ONE, "p") == PENDING
    assert site.call(XA, Call.START) == refused


def test_tombstones_are_forgotten_by_an_entry() -> None:
    site = Site()
    is_unused = [site.decisions.is_unused]
    site.decide(ONE, Outcome.ROLLED_BACK)
    is_unused.append(site.decisions.is_unused)
    command = encode_command(CoordinatorForget((to_fields(ONE), to_fields(TransactionId(ONE.xid, 2)))))
    assert site.put(Kind.HOME_FORGET, command) == Expired(1)
    is_unused.append(site.decisions.is_unused)
    assert list(site.ledger.register.tombstones) == [] and is_unused == [True, False, True]


@pytest.mark.parametrize(
    ("transaction", "participants"),
    [
        (ONE, ()),
        (ONE, (("p", ()),)),
        (TransactionId(ONE.xid, 0), (("p", ((0, 1),)),)),
        (lane(), (("p", ((0, 1),)),)),
        (TransactionId(XA, 1), (("p", ((0, 1),)),)),
    ],
)
def test_what_is_closed_is_a_branch_of_an_application_with_shards_and_operations(
    transaction: TransactionId, participants: Participants
) -> None:
    site = Site()
    command = CoordinatorClose(to_fields(transaction), participants, b"q", 0)
    assert site.put(Kind.HOME_CLOSE, encode_command(command)) == BAD
    assert site.decisions.is_unused


# Applications.


def prepare(site: Site, name: bytes, number: int, query: bytes = b"q", ttl: int = 0) -> Result:
    transaction = branch(name)
    answer = site.close(transaction, "p", query=query, batch=number, orphan_seconds=ttl)
    return site.vote(transaction, "p") if answer == PENDING else answer


def test_a_batch_commits_what_it_names_and_drops_the_rest() -> None:
    site = Site()
    for name in (b"a", b"b", b"zombie"):
        assert prepare(site, name, 0) == Prepared(1)
    assert prepare(site, b"next", 1) == Prepared(1)
    site.close(branch(b"late"), "p", query=b"q", batch=0)
    assert site.decide_batch(0, b"a", b"b") == COMMITTED
    outcomes = [site.ledger.outcome(branch(name)) for name in (b"a", b"b", b"zombie", b"late", b"next")]
    assert outcomes == [Outcome.COMMITTED] * 2 + [Outcome.DROPPED] * 2 + [None]
    assert site.vote(branch(b"late"), "p") == Finished(Outcome.DROPPED)


def test_a_batch_that_comes_again_changes_nothing() -> None:
    site = Site()
    prepare(site, b"a", 0)
    site.decide_batch(0, b"a")
    assert prepare(site, b"again", 0) == Finished(Outcome.DROPPED)
    assert prepare(site, b"c", 1) == Prepared(1)
    assert site.decide_batch(0, b"a") == COMMITTED
    assert site.decide_batch(0, b"a", b"again") == Finished(Outcome.DROPPED)
    site.restart_equal()
    assert site.decide_batch(0, b"a") == COMMITTED
    assert site.decide_batch(0, b"nobody", source=b"elsewhere") == Finished(Outcome.DROPPED)
    assert site.ledger.outcome(branch(b"c")) is None
    assert site.decisions.applications == {b"app": (b"q", 1)} and site.decisions.sources == {}


def test_what_the_last_batch_was_made_of_is_kept() -> None:
    site = Site()
    for number, source in enumerate((b"one", b"other", b"")):
        assert site.decide_batch(number, source=source) == COMMITTED
        site.restart_equal()
        assert site.decisions.sources == ({b"app": source} if source else {})


def test_an_application_that_writes_once_is_forgotten_and_no_other() -> None:
    command = encode_command(CoordinatorForget((to_fields(TransactionId(branch(b"").xid, 1)),)))
    for query, forgotten in ((b"q", 0), (ONCE, 1)):
        site = Site()
        site.decide_batch(0, query=query)
        assert len(list(site.decisions.old(0))) == forgotten
        assert site.put(Kind.HOME_FORGET, command) == Expired(forgotten)
        assert site.put(Kind.HOME_FORGET, command) == Expired(0)
        assert len(site.decisions.applications) == 1 - forgotten and not list(site.decisions.old(0))
    # Whatever it is, it has gone on.
    site.decide_batch(1, query=ONCE)
    assert site.put(Kind.HOME_FORGET, command) == Expired(0)


def test_naming_a_branch_that_is_missing_fails_the_batch() -> None:
    site = Site()
    prepare(site, b"a", 3)
    prepare(site, b"other batch", 4)
    site.close(branch(b"voting"), "p", query=b"q", batch=3)
    for missing in (b"gone", b"other batch", b"voting"):
        assert site.decide_batch(3, b"a", missing) == Rejected(Reason.NO_BRANCH, 0, 1)
    assert site.decisions.applications == {}
    assert site.decide_batch(3, b"a") == COMMITTED


def test_another_query_under_the_same_name_is_refused() -> None:
    site = Site()
    prepare(site, b"a", 0)
    site.decide_batch(0, b"a")
    refused = site.decide_batch(1, query=b"another")
    assert isinstance(refused, Rejected) and refused.reason is Reason.OTHER_QUERY
    assert "txnAppId" in refused.text
    assert prepare(site, b"b", 1, query=b"another") == Rejected(Reason.OTHER_QUERY)


def test_an_orphan_is_dropped_by_an_entry_and_nothing_else_is() -> None:
    site = Site()
    prepare(site, b"a", 0, ttl=10)
    prepare(site, b"b", 0)
    assert site.decide(branch(b"a"), Outcome.TIMED_OUT) == Prepared(1)
    assert site.decide(branch(b"b"), Outcome.ORPHANED) == Prepared(1)
    assert site.decide(branch(b"a"), Outcome.ORPHANED) == Finished(Outcome.ORPHANED)


def test_discarding_never_touches_what_is_committed_and_never_bars_the_batch() -> None:
    site = Site()
    prepare(site, b"a", 0)
    assert site.decide(branch(b"a"), Outcome.ROLLED_BACK, prepared=True) == ROLLED_BACK
    prepare(site, b"b", 0)
    assert site.decide_batch(0, b"b") == COMMITTED
    assert site.decide(branch(b"b"), Outcome.ROLLED_BACK, prepared=True) == COMMITTED


# Saving.


@pytest.mark.parametrize("state", [b"", b"\x95", msgspec.msgpack.encode([[], [], []])])
def test_a_state_that_was_never_saved_is_refused(state: bytes) -> None:
    with pytest.raises(BadState):
        Decisions().load(state)


def test_a_state_that_contradicts_itself_is_refused() -> None:
    site = Site()
    site.close(ONE, "p")
    records, *rest = msgspec.msgpack.decode(site.decisions.save()[0])
    decided = [*records[0][:4], [4, *records[0][4][1:]]]
    for changed in ([decided], [records[0], records[0]]):
        with pytest.raises(BadState):
            Decisions().load(msgspec.msgpack.encode([changed, *rest]))
