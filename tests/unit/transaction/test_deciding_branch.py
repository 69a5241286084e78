"""A branch on a lane that decides for others: what it announces and until when, and what they are told who
ask."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit, GroupJoin, QueueLimit, encode_command
from hawser.log.state.results import Expired, Finished, Outcome, Prepared, Reason, Rejected, Result, Staged
from hawser.transaction.commands import BranchForget, to_fields
from hawser.transaction.coordinator.ledger import ENOUGH_TRANSACTIONS
from hawser.transaction.identity import TransactionId, Xid
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import Site, branch, lane

ONE = lane()
COMMITTED, ROLLED_BACK = Finished(Outcome.COMMITTED), Finished(Outcome.ROLLED_BACK)
INCOMPLETE = Finished(Outcome.INCOMPLETE)
OTHERS = ("p", "q")


def announced(site: Site, transaction: TransactionId = ONE) -> tuple[Outcome | None, list[str]] | None:
    """What is to be told, and to whom."""
    record = site.ledger.register.get(transaction)
    return None if record is None else (record.outcome, record.waiting)


def committed(transaction: TransactionId = ONE) -> Site:
    """It has decided to commit, and the others have not heard."""
    site = Site()
    site.stage(transaction)
    assert site.commit(transaction, 1, others=OTHERS) == COMMITTED
    return site


# What one entry does.


def test_a_commit_for_others_commits_and_announces_in_one_entry() -> None:
    site = Site()
    site.stage(ONE, 2)
    before = len(site.log)
    assert site.decision(ONE) is None
    assert site.commit(ONE, 1, others=("q", "p")) == COMMITTED
    assert len(site.log) == before + 1 and site.topic.end == 3
    assert announced(site) == (Outcome.COMMITTED, ["p", "q"])
    assert site.decision(ONE) is site.branches.register.outcome(ONE) is Outcome.COMMITTED


def test_a_commit_without_others_announces_nothing() -> None:
    site = Site()
    site.stage(ONE)
    assert site.commit(ONE, 1) == COMMITTED
    assert site.decisions.is_unused and site.decision(ONE) is Outcome.COMMITTED


@pytest.mark.parametrize("staged", [0, 1])
def test_a_commit_that_misses_an_operation_rolls_back_and_announces_that(staged: int) -> None:
    site = Site()
    for _ in range(staged):
        site.stage(ONE)
    assert site.commit(ONE, 2, others=OTHERS) == INCOMPLETE
    assert site.topic.end == 1 and announced(site) == (Outcome.INCOMPLETE, ["p", "q"])
    assert site.decision(ONE) is Outcome.INCOMPLETE
    assert site.stage(ONE, number=1) == Rejected(Reason.TRANSACTION_OVER, Outcome.INCOMPLETE)


def test_a_commit_that_has_no_room_or_a_conflict_rolls_back_and_announces_that() -> None:
    full, moved = Site(), Site()
    full.put(Kind.QUEUE_PUT, batch())
    full.stage_put(ONE)
    full.put(Kind.QUEUE_LIMIT, encode_command(QueueLimit(1)))
    moved.put(Kind.GROUP_JOIN, encode_command(GroupJoin("g", "m")))
    for _ in range(2):
        moved.publish()
    moved.stage_move(ONE, GroupCommit("g", "m", 1, 1, 2))
    moved.put(Kind.GROUP_COMMIT, encode_command(GroupCommit("g", "m", 1, 1, 3)))
    for site, outcome in ((full, Outcome.NO_ROOM), (moved, Outcome.CONFLICT)):
        assert site.commit(ONE, 1, others=OTHERS) == Finished(outcome)
        assert announced(site) == (outcome, ["p", "q"])


def test_a_commit_of_what_is_rolled_back_answers_so_and_announces_it() -> None:
    site = Site()
    site.stage(ONE)
    site.abort(ONE, Outcome.TIMED_OUT)
    assert site.decisions.is_unused
    assert site.commit(ONE, 1, others=OTHERS) == Finished(Outcome.TIMED_OUT)
    assert announced(site) == (Outcome.TIMED_OUT, ["p", "q"]) and site.topic.end == 1


@pytest.mark.parametrize("staged", [0, 1])
def test_an_abort_for_others_announces_its_reason(staged: int) -> None:
    site = Site()
    for _ in range(staged):
        site.stage(ONE)
    assert site.abort(ONE, Outcome.SESSION_LOST, others=OTHERS) == Finished(Outcome.SESSION_LOST)
    assert announced(site) == (Outcome.SESSION_LOST, ["p", "q"])
    assert len(site.branches.register) == 0
    assert site.commit(ONE, 1, others=OTHERS) == Finished(Outcome.SESSION_LOST)


def test_what_waits_for_another_shard_decides_for_nobody() -> None:
    site = Site()
    site.stage(ONE)
    site.prepare(ONE, 1)
    assert site.commit(ONE, 1, others=OTHERS) == Rejected(Reason.TRANSACTION_CLOSED)
    assert site.abort(ONE, others=OTHERS) == Prepared(1)
    assert site.decisions.is_unused and site.decision(ONE) is None


def test_a_repeat_changes_nothing() -> None:
    site = committed()
    before = site.branches.digest(), site.decisions.digest()
    for result in (
        site.commit(ONE, 1, others=OTHERS),
        site.abort(ONE, Outcome.TIMED_OUT, others=OTHERS),
        site.abort(ONE, Outcome.TIMED_OUT),
        site.prepare(ONE, 1),
        site.commit(ONE, 2, others=("r",)),
    ):
        assert result == COMMITTED
    assert (site.branches.digest(), site.decisions.digest()) == before and site.topic.end == 2


# Until everybody has heard.


def test_nothing_is_left_of_it_when_all_have_heard() -> None:
    site = committed()
    assert site.tell(ONE, "q") == Expired(0)
    assert announced(site) == (Outcome.COMMITTED, ["p"])
    assert site.tell(ONE, "p") == Expired(1)
    assert site.decisions.is_unused and len(site.branches.register) == 0
    # The branch remembers it.
    assert site.decision(ONE) is Outcome.COMMITTED
    assert site.abort(ONE) == COMMITTED
    site.restart_equal()


def test_a_repeat_when_all_have_heard_has_them_told_the_same_once_more() -> None:
    site = committed()
    site.tell(ONE, *OTHERS)
    assert site.commit(ONE, 1, others=OTHERS) == COMMITTED
    assert announced(site) == (Outcome.COMMITTED, ["p", "q"]) and site.topic.end == 2
    site.tell(ONE, *OTHERS)
    assert site.decisions.is_unused


@pytest.mark.parametrize("goes_on", ["commits", "commits for others", "aborts", "is open"])
def test_a_commit_is_known_until_all_have_heard_though_the_lane_goes_on(goes_on: str) -> None:
    site = committed()
    site.tell(ONE, "p")
    later = lane(2)
    if goes_on != "aborts":
        site.stage(later)
    if goes_on == "aborts":
        site.abort(later)
    elif goes_on != "is open":
        site.commit(later, 1, others=("r",) if goes_on == "commits for others" else ())
    for _ in range(2):
        assert site.branches.register.outcome(ONE) is (None if goes_on != "is open" else Outcome.COMMITTED)
        assert site.decision(ONE) is Outcome.COMMITTED
        assert site.abort(ONE, Outcome.TIMED_OUT) == COMMITTED
        assert site.abort(ONE, Outcome.TIMED_OUT, others=OTHERS) == COMMITTED
        assert site.commit(ONE, 1, others=OTHERS) == site.prepare(ONE, 1) == COMMITTED
        assert announced(site) == (Outcome.COMMITTED, ["q"])
        site.restart_equal()
    site.tell(ONE, "q")
    assert announced(site) is None
    site.tell(later, "r")
    assert site.decisions.is_unused


def test_a_rollback_is_known_though_the_lane_goes_on() -> None:
    site = Site()
    site.stage(ONE)
    site.abort(ONE, Outcome.NO_ROOM, others=OTHERS)
    site.stage(lane(2))
    site.commit(lane(2), 1)
    assert site.decision(ONE) is Outcome.NO_ROOM
    assert site.abort(ONE) == Finished(Outcome.NO_ROOM)


def test_of_an_earlier_use_that_nobody_has_to_be_told_of_nothing_was_committed() -> None:
    site = Site()
    site.stage(lane(2))
    # It may be open still; whoever is prepared was not heard of, or would have been told.
    assert site.decision(ONE) is Outcome.ROLLED_BACK and site.decision(lane(2)) is None
    site.commit(lane(2), 1, others=OTHERS)
    assert site.abort(ONE) == Rejected(Reason.OLD_INCARNATION, 2, 1)
    assert site.commit(ONE, 1, others=OTHERS) == Rejected(Reason.OLD_INCARNATION, 2, 1)
    assert announced(site) is None
    site.tell(lane(2), *OTHERS)
    assert site.decision(ONE) is Outcome.ROLLED_BACK


def test_each_use_of_a_lane_is_told_to_its_own_others() -> None:
    site = committed()
    site.stage(lane(2))
    site.commit(lane(2), 2, others=("r",))
    assert announced(site) == (Outcome.COMMITTED, ["p", "q"])
    assert announced(site, lane(2)) == (Outcome.INCOMPLETE, ["r"])
    site.restart_equal()
    site.tell(ONE, *OTHERS)
    assert announced(site) is None and site.decision(lane(2)) is Outcome.INCOMPLETE


def test_what_was_committed_for_others_is_known_to_them_when_its_tombstone_is_forgotten() -> None:
    site = committed()
    forget = BranchForget((to_fields(ONE),))
    assert site.put(Kind.BRANCH_FORGET, encode_command(forget)) == Expired(1)
    assert site.branches.register.outcome(ONE) is None
    assert site.decision(ONE) is Outcome.COMMITTED
    assert site.abort(ONE) == site.commit(ONE, 1, others=OTHERS) == COMMITTED
    assert announced(site) == (Outcome.COMMITTED, ["p", "q"])


def test_what_is_not_of_lanes_is_decided_by_the_ledger_alone() -> None:
    """Branches of them may be here, too: how one of them ended is no decision."""
    site = Site()
    for transaction in (branch(b"task"), TransactionId(Xid(7, b"xa", b""), 1)):
        site.stage(transaction)
        site.abort(transaction, Outcome.TIMED_OUT)
        assert site.branches.register.outcome(transaction) is Outcome.TIMED_OUT
        assert site.decision(transaction) is None
        site.decide(transaction, Outcome.ROLLED_BACK)
        assert site.decision(transaction) is Outcome.ROLLED_BACK


def test_a_snapshot_has_what_others_are_to_be_told() -> None:
    site = committed()
    site.stage(lane(name=b"other"))
    site.abort(lane(name=b"other"), Outcome.TIMED_OUT, others=("r",))
    site.tell(ONE, "p")
    site.restart_equal()
    assert announced(site) == (Outcome.COMMITTED, ["q"])
    assert announced(site, lane(name=b"other")) == (Outcome.TIMED_OUT, ["r"])
    site.tell(ONE, "q")
    site.tell(lane(name=b"other"), "r")
    assert site.decisions.is_unused
    site.restart_equal()


ACTIONS = ("stage", "commit", "abort", "prepare", "tell p", "tell q", "forget", "restart", "go on")


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.booleans(), st.booleans()), max_size=40))
def test_as_long_as_others_have_not_heard_everybody_is_told_the_same(
    steps: list[tuple[str, bool, bool]],
) -> None:
    """Of a lane that goes on when its last use is over; requests of the one before come late."""
    site, latest = Site(), 1
    # Of what is forgotten no operation is under way any more.
    forgotten: set[TransactionId] = set()
    ended: dict[TransactionId, Outcome] = {}
    for action, is_late, for_others in steps:
        transaction = lane(max(1, latest - is_late))
        others = OTHERS if for_others else ()
        result: Result | None = None
        if action == "go on":
            latest += lane(latest) in ended
        elif transaction in forgotten and (action == "stage" or announced(site, transaction) is None):
            continue
        elif action == "stage":
            site.stage(transaction, number=1)
        elif action == "commit":
            result = site.commit(transaction, 1, others=others)
        elif action == "abort":
            result = site.abort(transaction, Outcome.TIMED_OUT, others=others)
        elif action == "prepare":
            # It is the one that decides; of one that is over a question may be left.
            result = site.prepare(transaction, 1) if transaction in ended else None
        elif action.startswith("tell"):
            site.tell(transaction, action[-1])
        elif action == "forget" and announced(site, transaction) is not None:
            forgotten.add(transaction)
            site.put(Kind.BRANCH_FORGET, encode_command(BranchForget((to_fields(transaction),))))
        elif action == "restart":
            site.restart_equal()
        if isinstance(result, Finished):
            assert ended.setdefault(transaction, result.outcome) is result.outcome
        for each, record in site.ledger.register:
            assert record.waiting and site.decision(each) is record.outcome is ended[each]
        assert site.topic.end == 1 + sum(outcome is Outcome.COMMITTED for outcome in ended.values())


# Bounds.


def test_where_too_many_are_being_told_nothing_is_committed_for_others() -> None:
    site = Site()
    site.ledger.most = 1
    first, second, alone = (lane(name=name) for name in (b"first", b"second", b"alone"))
    for each in (first, second, alone):
        site.stage(each)
    assert site.commit(first, 1, others=OTHERS) == COMMITTED
    end, open_count = site.topic.end, site.branches.open_count
    refused = site.commit(second, 1, others=OTHERS)
    assert refused == Rejected(Reason.TOO_MANY_TRANSACTIONS, 1) and refused.retryable
    assert (site.topic.end, site.branches.open_count) == (end, open_count)
    assert announced(site, second) is None and site.decision(second) is None
    assert site.stage(second) == Staged(2)
    # A repeat, a rollback, and one without others are answered.
    assert site.commit(first, 1, others=OTHERS) == COMMITTED
    assert site.commit(alone, 1) == COMMITTED
    assert site.abort(second, others=OTHERS) == ROLLED_BACK
    assert announced(site, second) == (Outcome.ROLLED_BACK, ["p", "q"])
    site.restart_equal()


def test_rollbacks_fill_nothing() -> None:
    """While another shard is away each of them would stay; it asks when it is back."""
    site = Site()
    names = [lane(name=b"%d" % number) for number in range(ENOUGH_TRANSACTIONS + 10)]
    for each in names:
        assert site.abort(each, others=OTHERS) == ROLLED_BACK
    assert len(site.ledger.register) == ENOUGH_TRANSACTIONS
    assert announced(site, names[-1]) is None and site.decision(names[-1]) is Outcome.ROLLED_BACK
    site.stage(ONE)
    assert site.commit(ONE, 1, others=OTHERS) == COMMITTED
    assert announced(site) == (Outcome.COMMITTED, ["p", "q"])


def test_where_there_is_room_again_the_same_commit_is_taken() -> None:
    site = Site()
    site.ledger.most = 1
    first, second = lane(name=b"first"), lane(name=b"second")
    for each in (first, second):
        site.stage(each)
    site.commit(first, 1, others=("p",))
    assert isinstance(site.commit(second, 1, others=("p",)), Rejected)
    site.tell(first, "p")
    assert site.commit(second, 1, others=("p",)) == COMMITTED
