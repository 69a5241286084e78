"""The leaders' part: the coordinator of a home, the keeper of a shard, and who is told."""

from typing import Any

import pytest

from hawser.log.entry import Kind
from hawser.log.state.results import Answered, Finished, Outcome, Prepared, Reason, Rejected
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.expiry import KEEP_SECONDS, MARK_SECONDS
from hawser.transaction.identity import ONCE, Label, TransactionId, Xid, owner_of
from hawser.transaction.participant import maintenance as k
from hawser.transaction.xa.table import Call, Code
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import HOME, Site, branch, lane

ONE, XA = lane(), Xid(7, b"global", b"branch")
# What `Leader.close` has committed: the entry that starts it is the first.
CLOSED = TransactionId(XA, 1)
COMMITTED = Finished(Outcome.COMMITTED)


class Leader:
    """A home that proposes whatever its coordinator wants, and shows the rest."""

    def __init__(self, site: Site | None = None) -> None:
        self.site = site or Site()
        self.coordinator = c.Coordinator(self.site.decisions, HOME)
        self.replies: list[tuple[Any, Any]] = []
        self.proposed: list[int] = []
        self.began = self.step(c.Began(0.0))

    def step(self, event: c.Event) -> list[tuple[str, int]]:
        """What it tells whom, everything it proposes being applied."""
        told: list[tuple[str, int]] = []
        effects = self.coordinator.step(event)
        while effects:
            effect = effects.pop(0)
            if isinstance(effect, c.Tell):
                told.append((effect.shard, effect.kind))
            elif isinstance(effect, c.Reply):
                self.replies.append((effect.tag, effect.result))
            else:
                self.proposed.append(effect.kind)
                self.site.put(effect.kind, effect.payload)
                effects += self.coordinator.step(c.Changed(event.now))
        return told

    def close(self, *shards: str) -> list[tuple[str, int]]:
        """In one phase."""
        assert self.site.commit_in_one_phase(XA, *shards) == CLOSED
        return self.step(c.Changed(0.0))

    def announce(self, transaction: TransactionId, *others: str) -> list[tuple[str, int]]:
        """A branch of this shard is committed, with those of others."""
        self.site.stage(transaction)
        assert self.site.commit(transaction, 1, others=others) == COMMITTED
        return self.step(c.Changed(0.0))

    def hear(
        self, shard: str, kind: int, result: Any, now: float = 0.0, of: TransactionId = CLOSED
    ) -> list[tuple[str, int]]:
        return self.step(c.Heard(now, shard, of, kind, result))


def test_it_asks_all_then_decides_then_tells_all() -> None:
    leader = Leader()
    assert leader.close("q", "p") == [("p", Kind.BRANCH_PREPARE), ("q", Kind.BRANCH_PREPARE)]
    leader.step(c.Await(0.0, "client", CLOSED))
    assert leader.hear("p", Kind.BRANCH_PREPARE, Prepared(1)) == []
    assert leader.proposed == []
    told = leader.hear("q", Kind.BRANCH_PREPARE, Prepared(1))
    assert told == [("p", Kind.BRANCH_COMMIT), ("q", Kind.BRANCH_COMMIT)]
    leader.hear("p", Kind.BRANCH_COMMIT, COMMITTED)
    assert leader.replies == []
    leader.hear("q", Kind.BRANCH_COMMIT, COMMITTED)
    assert leader.replies == [("client", COMMITTED)]
    assert leader.proposed == [Kind.HOME_VOTES]
    leader.step(c.Tick(0.5))
    assert leader.proposed == [Kind.HOME_VOTES, Kind.HOME_TOLD]
    assert len(leader.site.ledger.register) == 0


def test_that_many_are_over_is_one_entry() -> None:
    leader = Leader()
    site = leader.site
    for number in range(1, c.ENOUGH_FINISHED + 2):
        transaction = lane(name=b"lane %d" % number)
        assert leader.announce(transaction, "p") == [("p", Kind.BRANCH_COMMIT)]
        leader.hear("p", Kind.BRANCH_COMMIT, COMMITTED, of=transaction)
        if number == c.ENOUGH_FINISHED - 1:
            assert leader.proposed == []
            assert len(site.ledger.register) == number
    assert leader.proposed == [Kind.HOME_TOLD]
    assert len(site.ledger.register) == 1


def test_a_shard_is_told_one_thing_at_a_time() -> None:
    leader = Leader()
    leader.close("p", "q")
    assert leader.hear("p", Kind.BRANCH_PREPARE, Finished(Outcome.NO_ROOM)) == [("p", Kind.BRANCH_ABORT)]
    assert leader.step(c.Tick(5.0)) == []
    assert leader.hear("q", Kind.BRANCH_PREPARE, Prepared(1), 5.0) == [("q", Kind.BRANCH_ABORT)]
    other = Leader()
    other.close("p", "q")
    other.hear("p", Kind.BRANCH_PREPARE, Finished(Outcome.NO_ROOM))
    assert other.step(c.Lost(0.0, "q", CLOSED)) == [("q", Kind.BRANCH_ABORT)]


@pytest.mark.parametrize("vote", [Finished(Outcome.NO_ROOM), Rejected(Reason.OLD_INCARNATION, 2, 1)])
def test_one_vote_against_it_is_enough(vote: Any) -> None:
    leader = Leader()
    leader.close("p", "q")
    assert leader.hear("q", Kind.BRANCH_PREPARE, Prepared(1)) == []
    told = leader.hear("p", Kind.BRANCH_PREPARE, vote)
    assert told == [("p", Kind.BRANCH_ABORT), ("q", Kind.BRANCH_ABORT)]
    expected = Outcome.NO_ROOM if isinstance(vote, Finished) else Outcome.INCOMPLETE
    assert leader.site.ledger.outcome(CLOSED) is expected


def test_a_shard_that_was_deleted_holds_nothing_up() -> None:
    leader = Leader()
    leader.close("p", "deleted")
    gone = Rejected(Reason.TRANSACTION_OVER)
    leader.hear("p", Kind.BRANCH_PREPARE, Prepared(1))
    assert leader.hear("deleted", Kind.BRANCH_PREPARE, gone) == [
        ("deleted", Kind.BRANCH_ABORT),
        ("p", Kind.BRANCH_ABORT),
    ]
    leader.hear("deleted", Kind.BRANCH_ABORT, gone)
    leader.hear("p", Kind.BRANCH_ABORT, Finished(Outcome.INCOMPLETE))
    leader.step(c.Tick(0.5))
    assert len(leader.site.ledger.register) == 0


def test_a_new_leader_goes_on_where_the_log_ends() -> None:
    leader = Leader()
    leader.close("p", "q")
    leader.hear("p", Kind.BRANCH_PREPARE, Prepared(1))
    second = Leader(leader.site)
    assert second.began == [("p", Kind.BRANCH_PREPARE), ("q", Kind.BRANCH_PREPARE)]
    second.hear("p", Kind.BRANCH_PREPARE, Prepared(1))
    second.hear("q", Kind.BRANCH_PREPARE, Prepared(1))
    second.hear("p", Kind.BRANCH_COMMIT, COMMITTED)
    third = Leader(leader.site)
    assert third.began == [("p", Kind.BRANCH_COMMIT), ("q", Kind.BRANCH_COMMIT)]
    third.step(c.Await(0.0, "client", CLOSED))
    # It was told twice, and its tombstone is gone.
    third.hear("p", Kind.BRANCH_COMMIT, Rejected(Reason.TRANSACTION_OVER))
    third.hear("q", Kind.BRANCH_COMMIT, COMMITTED)
    assert third.replies == [("client", COMMITTED)]


def test_it_asks_again_what_nobody_answers() -> None:
    leader = Leader()
    leader.close("p", "q")
    leader.hear("p", Kind.BRANCH_PREPARE, Prepared(1))
    assert leader.step(c.Lost(0.5, "q", CLOSED)) == []
    assert leader.step(c.Tick(1.5)) == [("q", Kind.BRANCH_PREPARE)]
    assert leader.step(c.Tick(9.0)) == []


def test_a_client_waits_for_those_that_can_be_reached_only() -> None:
    leader = Leader()
    leader.close("p", "q")
    leader.step(c.Await(0.0, "client", CLOSED))
    for shard in ("p", "q"):
        leader.hear(shard, Kind.BRANCH_PREPARE, Prepared(1))
    leader.hear("p", Kind.BRANCH_COMMIT, COMMITTED)
    assert leader.replies == []
    leader.step(c.Lost(0.0, "q", CLOSED))
    assert leader.replies == [("client", COMMITTED)]
    assert leader.step(c.Tick(1.0)) == [("q", Kind.BRANCH_COMMIT)]
    record = leader.site.ledger.register.get(CLOSED)
    assert record is not None and record.waiting == ["q"]
    leader.hear("q", Kind.BRANCH_COMMIT, COMMITTED, 3.0)
    leader.step(c.Tick(4.0))
    assert len(leader.site.ledger.register) == 0


def test_a_vote_missing_at_the_time_out_rolls_back() -> None:
    leader = Leader()
    leader.close("p", "q")
    leader.hear("p", Kind.BRANCH_PREPARE, Prepared(1))
    leader.step(c.Tick(59.0))
    assert leader.site.ledger.outcome(CLOSED) is None
    leader.step(c.Tick(60.0))
    assert leader.site.ledger.outcome(CLOSED) is Outcome.TIMED_OUT


def test_what_is_prepared_has_no_time_out_but_its_own() -> None:
    one = branch(b"one")
    leader, other = Leader(), Leader()
    for each, seconds in ((leader, 0), (other, 100)):
        each.site.close(one, "p", orphan_seconds=seconds)
        each.step(c.Changed(0.0))
        each.step(c.Await(0.0, "client", one))
        each.hear("p", Kind.BRANCH_PREPARE, Prepared(1), of=one)
        assert each.replies == [("client", Prepared(1))]
    leader.step(c.Tick(1e9))
    assert leader.site.ledger.outcome(one) is None
    other.step(c.Tick(99.0))
    assert other.site.ledger.outcome(one) is None
    other.step(c.Tick(101.0))
    assert other.site.ledger.outcome(one) is Outcome.ORPHANED


# What a branch has decided for others.


def test_others_are_told_what_a_branch_has_decided_and_then_nothing_is_left() -> None:
    leader = Leader()
    has_news = [leader.coordinator.has_news]
    leader.site.stage(ONE)
    leader.site.commit(ONE, 1, others=("q", "p"))
    has_news.append(leader.coordinator.has_news)
    told = leader.step(c.Changed(0.0))
    has_news.append(leader.coordinator.has_news)
    assert has_news == [False, True, False]
    assert told == [("p", Kind.BRANCH_COMMIT), ("q", Kind.BRANCH_COMMIT)]
    leader.step(c.Await(0.0, "client", ONE, known=COMMITTED))
    leader.hear("p", Kind.BRANCH_COMMIT, COMMITTED, of=ONE)
    assert leader.replies == []
    leader.hear("q", Kind.BRANCH_COMMIT, COMMITTED, of=ONE)
    assert leader.replies == [("client", COMMITTED)] and leader.proposed == []
    leader.step(c.Tick(0.5))
    assert leader.proposed == [Kind.HOME_TOLD] and leader.site.decisions.is_unused
    # Whoever asks when nothing is left is told what is known.
    leader.step(c.Await(1.0, "late", ONE, known=COMMITTED))
    assert leader.replies[-1] == ("late", COMMITTED)


def test_others_are_told_that_a_branch_was_rolled_back_and_why() -> None:
    leader = Leader()
    assert leader.site.abort(ONE, Outcome.NO_ROOM, others=("p",)) == Finished(Outcome.NO_ROOM)
    (tell,) = leader.coordinator.step(c.Changed(0.0))
    assert isinstance(tell, c.Tell) and tell.shard == "p"
    other = Site()
    other.stage(ONE)
    other.prepare(ONE, 1, coordinator="here")
    heard = other.put(tell.kind, tell.payload, transaction=tell.label)
    assert heard == Finished(Outcome.NO_ROOM) and other.branches.prepared_count == 0
    leader.hear("p", tell.kind, heard, of=ONE)
    leader.step(c.Tick(0.5))
    assert leader.site.decisions.is_unused


def test_a_new_leader_tells_others_what_a_branch_has_decided() -> None:
    leader = Leader()
    leader.announce(ONE, "p", "q")
    leader.hear("p", Kind.BRANCH_COMMIT, COMMITTED, of=ONE)
    leader.site.restart_equal()
    second = Leader(leader.site)
    assert second.began == [("p", Kind.BRANCH_COMMIT), ("q", Kind.BRANCH_COMMIT)]
    second.hear("p", Kind.BRANCH_COMMIT, COMMITTED, of=ONE)
    second.step(c.Await(0.0, "client", ONE, known=COMMITTED))
    second.step(c.Lost(0.0, "q", ONE))
    assert second.replies == [("client", COMMITTED)]
    second.step(c.Tick(0.5))
    record = second.site.ledger.register.get(ONE)
    assert record is not None and record.waiting == ["q"]
    # It is told again, also when its lane has gone on; there it may be forgotten.
    second.announce(lane(2), "p")
    assert second.step(c.Tick(2.0)) == [("q", Kind.BRANCH_COMMIT)]
    second.hear("q", Kind.BRANCH_COMMIT, Rejected(Reason.TRANSACTION_OVER), of=ONE)
    second.hear("p", Kind.BRANCH_COMMIT, COMMITTED, of=lane(2))
    second.step(c.Tick(2.5))
    assert second.site.decisions.is_unused


def test_calls_of_the_xa_interface_are_answered_when_the_votes_are_in() -> None:
    leader = Leader()
    site = leader.site
    xid = Xid(1, b"g", b"b")
    started = site.call(xid, Call.START)
    assert isinstance(started, Answered)
    transaction = TransactionId(xid, started.incarnation)
    site.call(xid, Call.END, participants=(("p", 2),))
    site.call(xid, Call.PREPARE, request=b"prepare")
    leader.step(c.Changed(0.0))
    leader.step(c.Await(0.0, "prepare", transaction, Call.PREPARE, b"prepare"))
    assert leader.replies == []
    site.vote(transaction, "p")
    # The leader gets to hear of both at once.
    rolled_back = site.call(xid, Call.ROLLBACK)
    leader.step(c.Changed(0.0))
    assert leader.replies == []
    leader.step(c.Await(0.0, "rollback", transaction, known=rolled_back))
    leader.step(c.Heard(0.0, "p", transaction, Kind.BRANCH_ABORT, Finished(Outcome.ROLLED_BACK)))
    prepared = Answered(Code.OK, transaction.incarnation)
    assert leader.replies == [("prepare", prepared), ("rollback", rolled_back)]


def test_lost_sessions_are_proposed_as_such() -> None:
    leader = Leader()
    leader.site.call(Xid(1, b"g", b"b"), Call.START)
    assert leader.site.ledger.sessions == {"s"}
    leader.step(c.Tick(0.0, ("s",)))
    assert Kind.HOME_SESSION_LOST in leader.proposed
    assert leader.site.ledger.sessions == set()


def test_old_tombstones_are_forgotten() -> None:
    leader = Leader()
    leader.site.decide(TransactionId(Xid(7, b"xa", b""), 1), Outcome.ROLLED_BACK)
    leader.site.decide_batch(0, query=ONCE)
    for seconds in range(0, KEEP_SECONDS + 1, 60):
        leader.step(c.Tick(float(seconds)))
    assert list(leader.site.ledger.register.tombstones) and leader.site.decisions.applications
    for seconds in range(KEEP_SECONDS, KEEP_SECONDS + 2 * MARK_SECONDS, 60):
        leader.step(c.Tick(float(seconds)))
    assert not list(leader.site.ledger.register.tombstones) and not leader.site.decisions.applications


def test_what_was_decided_is_what_has_happened_or_it_stops() -> None:
    leader = Leader()
    leader.close("p", "q")
    for shard in ("p", "q"):
        leader.hear(shard, Kind.BRANCH_PREPARE, Prepared(1))
    with pytest.raises(AssertionError):
        leader.hear("p", Kind.BRANCH_COMMIT, Finished(Outcome.ROLLED_BACK))


# The keeper.


def nobody(owner: int) -> bool:
    return False


def carry_out(site: Site, actions: list[k.Action]) -> None:
    for action in actions:
        assert isinstance(action, k.Propose)
        site.put(action.kind, action.payload, transaction=action.label)


def test_an_open_branch_ends_at_its_time_out_and_a_prepared_one_asks() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.stage(ONE, timeout_seconds=30)
    other = lane(name=b"other")
    site.stage(other)
    site.prepare(other, 1)
    assert branch_maintenance.tick(0.0, nobody) == []
    assert branch_maintenance.tick(29.0, nobody) == [k.Ask(HOME, other)]
    carry_out(site, [each for each in branch_maintenance.tick(30.0, nobody) if isinstance(each, k.Propose)])
    assert site.branches.register.outcome(ONE) is Outcome.TIMED_OUT
    carry_out(site, [branch_maintenance.decided(other, Outcome.COMMITTED)])
    assert site.branches.register.outcome(other) is Outcome.COMMITTED
    assert site.topic.end == 2


def test_what_a_lost_session_has_open_is_rolled_back() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.stage(ONE, owner=owner_of("s"))
    other = lane(name=b"other")
    site.stage(other, owner=owner_of("s"))
    site.prepare(other, 1)
    actions = branch_maintenance.tick(0.0, {owner_of("s")}.__contains__)
    carry_out(site, [each for each in actions if isinstance(each, k.Propose)])
    assert site.branches.register.outcome(ONE) is Outcome.SESSION_LOST
    assert site.branches.prepared_count == 1


def test_a_proposal_to_time_out_that_comes_behind_prepare_does_nothing() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.stage(ONE)
    branch_maintenance.tick(0.0, nobody)
    late = branch_maintenance.tick(60.0, nobody)
    site.prepare(ONE, 1)
    carry_out(site, late)
    assert site.branches.prepared_count == 1


def test_a_branch_that_home_has_not_decided_about_is_rolled_back() -> None:
    site, coordinator = Site(), Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    task = branch(b"task")
    coordinator.stage(ONE)
    for each in (ONE, task):
        site.stage(each)
        site.prepare(each, 1)
        assert coordinator.decision(each) is None
        carry_out(coordinator, [branch_maintenance.disown(each, Outcome.SESSION_LOST)])
        outcome = coordinator.decision(each)
        assert outcome is not None
        carry_out(site, [branch_maintenance.decided(each, outcome)])
        assert site.branches.register.outcome(each) is Outcome.SESSION_LOST
    # It is too late for whoever had it prepared.
    assert coordinator.commit(ONE, 1, others=("p",)) == Finished(Outcome.SESSION_LOST)
    assert coordinator.close(task, "p") == Finished(Outcome.SESSION_LOST)
    assert coordinator.topic.end == 1


def test_a_branch_that_home_has_committed_is_not_disowned() -> None:
    site, coordinator = Site(), Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    for each in (site, coordinator):
        each.stage(ONE)
    site.prepare(ONE, 1)
    coordinator.commit(ONE, 1, others=("p",))
    # The question was asked before that.
    disowned = branch_maintenance.disown(ONE, Outcome.TIMED_OUT)
    assert coordinator.put(disowned.kind, disowned.payload, transaction=disowned.label) == COMMITTED
    assert coordinator.decision(ONE) is Outcome.COMMITTED


def test_home_is_only_asked_while_the_client_is_there_and_has_time() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.stage(ONE, owner=7, timeout_seconds=3600)
    site.prepare(ONE, 1)
    asked = [
        second
        for second in range(400)
        if branch_maintenance.tick(float(second), nobody) == [k.Ask(HOME, ONE)]
    ]
    assert asked == [5, 15, 35, 75, 135, 195, 255, 315, 375]
    # It leaves: that is said at once, then again after a while.
    lost = {7}.__contains__
    assert branch_maintenance.tick(400.0, lost) == [k.Ask(HOME, ONE, Outcome.SESSION_LOST)]
    assert branch_maintenance.tick(404.0, lost) == []
    assert branch_maintenance.tick(405.0, lost) == [k.Ask(HOME, ONE, Outcome.SESSION_LOST)]
    assert branch_maintenance.tick(3600.0, nobody) == [k.Ask(HOME, ONE, Outcome.TIMED_OUT)]


def test_an_open_branch_of_xa_asks_home_which_has_its_time_out() -> None:
    site, coordinator = Site(), Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    xid = Xid(7, b"xa", b"")
    started = coordinator.call(xid, Call.START)
    assert isinstance(started, Answered)
    outside = TransactionId(xid, started.incarnation)
    site.stage(outside, worker=1, timeout_seconds=3600)
    site.stage(ONE, timeout_seconds=3600)
    asked = [second for second in range(40) if branch_maintenance.tick(float(second), nobody)]
    assert asked == [5, 15, 35]
    assert branch_maintenance.tick(80.0, nobody) == [k.Ask("", outside, Outcome.ROLLED_BACK)]
    assert (
        coordinator.ledger.outcome(outside) is None and coordinator.ledger.register.get(outside) is not None
    )
    coordinator.decide(outside, Outcome.TIMED_OUT)
    outcome = coordinator.ledger.outcome(outside)
    assert outcome is Outcome.TIMED_OUT
    carry_out(site, [branch_maintenance.decided(outside, outcome)])
    assert site.branches.register.outcome(outside) is Outcome.TIMED_OUT
    assert branch_maintenance.waiting(1e9, 0, 1.0) == 0


def test_an_open_branch_of_xa_is_left_to_home_which_knows_whether_its_work_was_ended() -> None:
    site, coordinator = Site(), Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    xid, owner = Xid(7, b"xa", b""), owner_of("s")
    started = coordinator.call(xid, Call.START)
    assert isinstance(started, Answered)
    outside = TransactionId(xid, started.incarnation)
    site.stage(outside, worker=1, owner=owner, timeout_seconds=3600)
    coordinator.call(xid, Call.END, participants=(("p", 1),))
    assert coordinator.ledger.sessions == set()
    ask = k.Ask("", outside, Outcome.ROLLED_BACK)
    assert [second for second in range(60) if branch_maintenance.tick(float(second), nobody) == [ask]] == [
        5,
        15,
        35,
    ]
    # The session leaves. The keeper asks at once, then with growing pauses, and proposes nothing by itself.
    lost = {owner}.__contains__
    asked = {second: branch_maintenance.tick(float(second), lost) for second in range(60, 100)}
    assert all(actions in ([], [ask]) for actions in asked.values())
    assert [second for second, actions in asked.items() if actions] == [60, 65, 75, 95]
    # Neither does it end the branch at the branch's own time-out, since home's may run anew.
    assert branch_maintenance.tick(7200.0, nobody) == [ask]
    assert site.prepare(outside, 0, 1) == Prepared(1)


def test_what_home_has_committed_without_an_open_branch_is_rolled_back() -> None:
    """Home collects the votes of all participants first; so a branch that is still open is none of them."""
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    outside = TransactionId(Xid(7, b"xa", b""), 1)
    site.stage(outside, worker=1)
    carry_out(site, [branch_maintenance.decided(outside, Outcome.COMMITTED)])
    assert site.branches.register.outcome(outside) is Outcome.ROLLED_BACK
    site.stage(ONE)
    site.prepare(ONE, 1)
    carry_out(site, [branch_maintenance.decided(ONE, Outcome.COMMITTED)])
    assert site.branches.register.outcome(ONE) is Outcome.COMMITTED


def carries(actions: list[k.Action]) -> list[k.Carry]:
    return [each for each in actions if isinstance(each, k.Carry)]


def test_few_are_carried_at_a_time() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    for _ in range(k.MOST_CARRIES + 5):
        site.stage(ONE)
    applied = site.machine.applied + 1
    assert len(branch_maintenance.tick(0.0, nobody, carry_before=applied)) == k.MOST_CARRIES


def test_those_behind_the_first_that_are_carried_have_their_turn() -> None:
    """Also if none of the first can be; these are tried again, with growing pauses."""
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    most = 2 * k.MOST_CARRIES + 5
    for number in range(most):
        site.stage(lane(1, b"lane-%d" % number), timeout_seconds=3600)
    applied = site.machine.applied + 1
    ticks = [
        [each.index for each in carries(branch_maintenance.tick(float(second), nobody, carry_before=applied))]
        for second in range(20)
    ]
    first, second, third, *rest = ticks
    assert (len(first), len(second)) == (k.MOST_CARRIES, k.MOST_CARRIES)
    assert [*first, *second, *third] == list(range(1, most + 1)), "the oldest first"
    assert sum(map(len, rest)) == 2 * most, "each again after 5 and after 10 seconds"


def test_not_too_many_bytes_are_carried_at_a_time() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    for _ in range(3):
        site.operation(ONE, Kind.BATCH, bytes(Batch.of([Record(bytes(k.MOST_CARRY_BYTES * 2 // 3))]).data))
    applied = site.machine.applied + 1
    for index in (1, 2, 3):
        (carry,) = branch_maintenance.tick(0.0, nobody, carry_before=applied)
        assert isinstance(carry, k.Carry) and carry.index == index


def test_what_lies_far_back_is_carried_forward() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.stage(ONE)
    site.publish()
    assert branch_maintenance.tick(0.0, nobody, carry_before=1) == []
    (carry,) = branch_maintenance.tick(0.0, nobody, carry_before=2)
    assert carry == k.Carry(1, Label(ONE, 1, carried=True).encode())
    site.put(Kind.BATCH, batch(), transaction=carry.label)
    assert branch_maintenance.tick(0.0, nobody, carry_before=2) == []


def test_old_tombstones_of_a_shard_are_forgotten() -> None:
    site = Site()
    branch_maintenance = k.BranchMaintenance(site.branches)
    site.abort(ONE)
    for seconds in range(0, KEEP_SECONDS + 1, 60):
        carry_out(site, branch_maintenance.tick(float(seconds), nobody))
    assert list(site.branches.register.tombstones)
    for seconds in range(KEEP_SECONDS, KEEP_SECONDS + 2 * MARK_SECONDS, 60):
        carry_out(site, branch_maintenance.tick(float(seconds), nobody))
    assert not list(site.branches.register.tombstones)
