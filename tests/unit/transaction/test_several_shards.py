"""A transaction on a lane over several shards, as its client runs it: the others are prepared, then one of
them decides, and tells them."""

from itertools import permutations

import pytest

from hawser.errors import InDoubt, OutcomeUnknown, TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Finished, Outcome, Prepared, Reason, Rejected, Result
from hawser.transaction.client import Progress, Request
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchLimit, BranchPrepare
from hawser.transaction.identity import TransactionId, Xid
from hawser.transaction.participant.maintenance import BranchMaintenance
from tests.stateful.transaction_shard import HOME, lane
from tests.stateful.transaction_sites import Client

COMMITTED = Finished(Outcome.COMMITTED)


def a_vote(client: Client, *names: str) -> list[Request]:
    """One operation is staged on each of these, and the first will decide: the questions for votes."""
    client.deliver_all([client.publish(name) for name in names])
    votes = client.transaction.commit()
    assert client.transaction.coordinator == names[0] and [each.shard for each in votes] == list(names[1:])
    return votes


def a_decision(client: Client) -> Request:
    """Of `p`, after the vote of `q`."""
    (vote,) = a_vote(client, "p", "q")
    (commit,) = client.deliver(vote)
    return commit


def is_waiting(client: Client, outcome: Outcome, *others: str) -> bool:
    """Whether the shard that decides has these told so."""
    record = client.sites[client.transaction.coordinator].ledger.register.get(lane())
    return record is not None and (record.outcome, record.waiting) == (outcome, list(others))


# The way it is meant to go.


def test_the_others_are_prepared_and_then_one_commits_for_all_in_one_entry() -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish(name) for name in ("q", "p", "q", "r", "r")])
    votes = client.transaction.commit()
    assert [(each.shard, each.kind) for each in votes] == [
        ("q", Kind.BRANCH_PREPARE),
        ("r", Kind.BRANCH_PREPARE),
    ]
    assert votes[0].payload == encode_command(BranchPrepare(((0, 2),), "p"))
    assert client.deliver(votes[0]) == client.deliver(votes[0]) == []
    assert client.transaction.again("r") == [votes[1]] and client.transaction.again("q") == []
    before = len(client.sites["p"].log)
    (commit,) = client.deliver(votes[1])
    assert (commit.shard, commit.kind, commit.commits) == ("p", Kind.BRANCH_COMMIT, True)
    assert commit.payload == encode_command(BranchCommit(((0, 1),), ("q", "r")))
    assert client.deliver(votes[1]) == []
    client.deliver(commit)
    assert client.transaction.outcome is Outcome.COMMITTED and client.transaction.error() is None
    assert len(client.sites["p"].log) == before + 1
    assert is_waiting(client, Outcome.COMMITTED, "q", "r")
    assert [client.end(name) for name in ("p", "q", "r")] == [2, 1, 1]
    assert client.spread() == ["q", "r"]
    assert [client.end(name) for name in ("p", "q", "r")] == [2, 3, 3]
    assert client.sites["p"].decisions.is_unused and client.branches("p", "q", "r") == [0, 0, 0]
    assert len(client.sites[HOME].log) == 0


def test_the_one_that_least_was_sent_to_decides() -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish("p"), client.publish("q"), client.publish("q")])
    unsent = [client.publish("q"), client.publish("r"), client.publish("r"), client.publish("r")]
    client.transaction.commit(unsent)
    assert client.transaction.coordinator == "r"


def test_what_was_not_sent_goes_with_the_question_or_with_the_decision() -> None:
    client = Client("p", "q", "r")
    client.deliver_all([client.publish("p"), client.publish("r")])
    unsent = [client.publish("q"), client.publish("r"), client.publish("q", 2)]
    there, asked = client.transaction.commit(unsent)
    assert client.transaction.coordinator == "q" and client.transaction.again("q") == []
    assert (there.shard, there.kind, there.number) == ("r", Kind.BATCH, 2) and not there.commits
    assert (asked.shard, asked.kind) == ("p", Kind.BRANCH_PREPARE)
    assert client.apply(there) == client.apply(there) == Prepared(2)
    client.deliver_all([asked])
    assert len(client.sites["q"].log) == 0
    last = client.deliver(there)
    assert last[0] is unsent[0] and [each.number for each in last] == [1, 2] and last[1].commits
    assert [each.payload for each in last] == [unsent[0].payload, unsent[2].payload]
    # No answer comes: all of it goes again, and counts once.
    for _ in range(2):
        for request in client.transaction.again("q"):
            client.deliver(request, answered=False)
        assert client.transaction.again("q") == last
    # That it is over is known from the first one; whether the others have heard home knows.
    assert client.apply(last[1]) == COMMITTED
    (asked,) = client.deliver(last[0])
    assert asked.kind == Kind.BRANCH_ABORT and client.transaction.progress is not Progress.OVER
    client.deliver(asked)
    assert client.transaction.outcome is Outcome.COMMITTED
    client.spread()
    assert [client.end(name) for name in ("p", "q", "r")] == [2, 4, 3]


def test_what_came_too_early_for_the_one_that_decides_goes_again_with_the_decision() -> None:
    client = Client("p", "q")
    first, second = client.publish("p"), client.publish("p")
    client.deliver_all([client.publish("q"), client.publish("q"), client.publish("q")])
    (vote,) = client.transaction.commit()
    assert client.transaction.coordinator == "p"
    assert client.deliver(second) == []  # the first one was lost
    last = client.deliver(vote)
    assert last[:2] == [first, second]
    client.deliver_all(last)
    assert client.transaction.outcome is Outcome.COMMITTED and client.end("p") == 3


# Something is missing, refused or over.


@pytest.mark.parametrize("reason", [Outcome.TIMED_OUT, Outcome.SESSION_LOST, Outcome.NO_ROOM])
def test_a_vote_against_it_has_all_rolled_back_for_that_reason(reason: Outcome) -> None:
    client = Client("p", "q", "r")
    votes = a_vote(client, "p", "q", "r")
    client.deliver(votes[0])
    client.sites["r"].abort(lane(), reason)
    (abort,) = client.deliver(votes[1])
    assert (abort.shard, abort.kind, abort.commits) == ("p", Kind.BRANCH_ABORT, False)
    assert abort.payload == encode_command(BranchAbort(reason, others=("q", "r")))
    assert client.transaction.progress is Progress.COMMITTING and client.transaction.again("p") == [abort]
    client.deliver(abort)
    assert client.transaction.outcome is reason
    assert isinstance(client.transaction.error(), TransactionAborted)
    assert is_waiting(client, reason, "q", "r") and client.branches("p", "q", "r") == [0, 1, 0]
    client.spread()
    assert client.branches("p", "q", "r") == [0, 0, 0] and client.end("q") == 1


def test_a_vote_that_says_nothing_has_all_rolled_back() -> None:
    client = Client("p", "q")
    (vote,) = a_vote(client, "p", "q")
    (abort,) = client.transaction.hear(vote, Rejected(Reason.OLD_INCARNATION, 2, 1))
    assert abort.payload == encode_command(BranchAbort(Outcome.ROLLED_BACK, others=("q",)))


def test_what_is_refused_by_the_one_that_decides_is_rolled_back_for_all() -> None:
    client = Client("p", "q")
    client.deliver(client.publish("q"))
    lock = client.accept_nothing("p")
    (vote,) = client.transaction.commit([lock])
    (refused,) = client.deliver(vote)
    assert refused.payload == lock.payload and refused.commits
    client.deliver_all([refused])
    error = client.transaction.error()
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert isinstance(error, TransactionAborted) and "p says: the delivery" in str(error)
    assert client.spread() == ["q"] and client.branches("p", "q") == [0, 0]


def test_what_the_one_that_decides_has_given_up_is_not_committed_by_votes_that_come_late() -> None:
    client = Client("p", "q")
    commit = a_decision(client)
    coordinator = client.sites["p"]
    assert coordinator.decision(lane()) is None
    disowned = BranchMaintenance(client.sites["q"].branches).disown(lane(), Outcome.SESSION_LOST)
    result = coordinator.put(disowned.kind, disowned.payload, transaction=disowned.label)
    assert result == Finished(Outcome.SESSION_LOST) and coordinator.decisions.is_unused
    client.deliver(commit)
    assert isinstance(client.transaction.error(), TransactionAborted) and client.end("p") == 1
    assert is_waiting(client, Outcome.SESSION_LOST, "q")


def test_votes_that_come_late_find_the_rollback_behind_however_many_others() -> None:
    client = Client("p", "q")
    coordinator = client.sites["p"]
    register = coordinator.branches.register
    register._most = register._most_lanes = 2
    commit = a_decision(client)
    coordinator.abort(lane(), Outcome.SESSION_LOST)
    for number in range(5):
        coordinator.abort(lane(name=b"other %d" % number))
        coordinator.abort(TransactionId(Xid(7, b"%d" % number, b""), 1))
    client.deliver(commit)
    assert client.transaction.outcome is Outcome.SESSION_LOST


def test_a_shard_with_too_many_lanes_decides_for_no_other_and_can_still_roll_back() -> None:
    client, unlucky = Client("p", "q"), Client("p", "q")
    for each, lanes in ((client, 2), (unlucky, 4)):
        coordinator = each.sites["p"]
        coordinator.branches.register._most_lanes = 2
        for number in range(lanes):
            coordinator.abort(lane(name=b"other %d" % number))
        each.deliver(each.publish("q"))
        (vote,) = each.commit_asking([each.publish("p")])
        each.deliver_all(each.deliver(vote))
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert "takes no more transactional work" in str(client.transaction.error())
    assert client.spread() == ["q"] and client.branches("p", "q") == [0, 0]
    # Where not even that can be kept nobody is told how it ends.
    assert unlucky.transaction.progress is Progress.OVER and unlucky.transaction.outcome is None
    assert isinstance(unlucky.transaction.error(), OutcomeUnknown)
    assert unlucky.sites["p"].decision(lane()) is None and unlucky.sites["p"].decisions.is_unused


def test_a_shard_that_tells_too_many_others_rolls_back_for_sure() -> None:
    client = Client("p", "q")
    commit = a_decision(client)
    client.sites["p"].ledger.most = 0
    (abort,) = client.deliver(commit)
    assert (abort.shard, abort.kind) == ("p", Kind.BRANCH_ABORT)
    assert client.transaction.progress is Progress.RESOLVING and client.end("p") == 1
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert isinstance(client.transaction.error(), TransactionAborted)
    assert "takes no more transactional work" in str(client.transaction.error())
    assert client.spread() == ["q"] and client.branches("p", "q") == [0, 0]


def test_only_the_one_that_decides_says_that_it_is_over() -> None:
    client = Client("p", "q")
    there, elsewhere = client.publish("p"), client.publish("q")
    client.deliver(there, answered=False)
    client.deliver(elsewhere, answered=False)
    client.transaction.commit()
    over = Rejected(Reason.TRANSACTION_OVER, Outcome.COMMITTED)
    client.transaction.hear(elsewhere, over)
    assert client.transaction.progress is Progress.COMMITTING
    client.sites["p"].abort(lane(), Outcome.TIMED_OUT)
    (abort,) = client.deliver(there)
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.TIMED_OUT
    assert client.sites["p"].decision(lane()) is Outcome.TIMED_OUT


def test_however_many_vote_against_it_home_is_told() -> None:
    client = Client("p", "q", "r", "s")
    requests = client.commit_asking([client.publish(name) for name in ("p", "q", "r", "s")])
    assert client.transaction.coordinator == "p"
    for name in ("q", "r"):
        client.sites[name].put(Kind.BRANCH_LIMIT, encode_command(BranchLimit(9, 1 << 20, 0, 9)))
    answers = {each.shard: (each, client.apply(each)) for each in requests}
    assert answers["q"][1] == answers["r"][1] == Finished(Outcome.TOO_MUCH)
    assert client.transaction.hear(*answers["s"]) == []
    (abort,) = client.transaction.hear(*answers["q"])
    assert client.transaction.hear(*answers["r"]) == []
    assert client.transaction.progress is not Progress.OVER and client.transaction.again("p") == [abort]
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.TOO_MUCH
    client.spread()
    assert client.branches("p", "q", "r", "s") == [0, 0, 0, 0]


def test_a_vote_about_something_that_is_over_and_forgotten_is_one_against_it() -> None:
    client = Client("p", "q")
    (vote,) = client.commit_asking([client.publish("p"), client.publish("q")])
    (abort,) = client.transaction.hear(vote, Rejected(Reason.TRANSACTION_OVER))
    assert abort.payload == encode_command(BranchAbort(Outcome.ROLLED_BACK, others=("q",)))


# Nobody answers.


@pytest.mark.parametrize("arrived", [True, False])
def test_asking_the_one_that_decides_decides(arrived: bool) -> None:
    client = Client("p", "q")
    commit = a_decision(client)
    if arrived:
        client.deliver(commit, answered=False)
    (abort,) = client.transaction.resolve()
    assert abort.payload == encode_command(BranchAbort(Outcome.ROLLED_BACK, others=("q",)))
    assert client.transaction.left() == client.transaction.again("p") == [abort]
    assert client.transaction.again("q") == []
    client.deliver(abort)
    outcome = Outcome.COMMITTED if arrived else Outcome.ROLLED_BACK
    assert client.transaction.outcome is outcome and is_waiting(client, outcome, "q")
    # The commit comes late.
    client.deliver(commit)
    assert client.transaction.outcome is client.sites["p"].decision(lane()) is outcome
    client.spread()
    assert [client.end(name) for name in ("p", "q")] == ([2, 2] if arrived else [1, 1])


def test_what_is_not_prepared_is_rolled_back_too() -> None:
    client = Client("p", "q", "r")
    votes = a_vote(client, "p", "q", "r")
    client.deliver(votes[0], answered=False)
    client.deliver_all(client.transaction.resolve())
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert client.spread() == ["q", "r"] and client.branches("p", "q", "r") == [0, 0, 0]
    # A question that comes behind that finds nothing to promise.
    assert client.apply(votes[1]) == Finished(Outcome.ROLLED_BACK)


def test_votes_that_come_while_it_is_being_found_out_commit_nothing() -> None:
    client = Client("p", "q")
    (vote,) = a_vote(client, "p", "q")
    client.transaction.resolve()
    assert client.deliver(vote) == []
    assert not any(each.commits for each in client.transaction.again("p"))


def test_where_nobody_answers_it_is_in_doubt() -> None:
    client = Client("p", "q")
    a_vote(client, "p", "q")
    assert type(client.transaction.error()) is OutcomeUnknown
    client.transaction.resolve()
    error = client.transaction.error()
    assert isinstance(error, InDoubt) and "p does not answer" in str(error)


# In any order.


@pytest.mark.parametrize("fault", ["", "against", "refused", "lost"])
@pytest.mark.parametrize("order", list(permutations(range(4))))
@pytest.mark.parametrize("turned", [False, True])
def test_answers_come_in_any_order_and_twice(fault: str, order: tuple[int, ...], turned: bool) -> None:
    client = Client("p", "q", "r")
    lock_or_publish = client.accept_nothing if fault == "refused" else client.publish
    unsent = [client.publish(name) for name in ("q", "p", "r", "r")]
    client.commit_asking([*unsent, lock_or_publish("p")])
    # Nothing was sent to any, so the first one decides.
    assert client.transaction.coordinator == "q"
    requests = [each for name in ("p", "r") for each in client.transaction.again(name)]
    assert [each.number for each in requests] == [1, 2, 1, 2]
    if fault == "against":
        client.sites["r"].abort(lane(), Outcome.TIMED_OUT)
    answers: list[tuple[Request, Result]] = []
    for request in requests[fault == "lost" :]:
        answers.append((request, client.apply(request)))
    decided: list[Request] = []
    for request, result in (answers[place] for place in order if place < len(answers)):
        decided += client.transaction.hear(request, result)
        decided += client.transaction.hear(request, result)
    client.deliver_all(decided[::-1] if turned else decided)
    # What was lost went again.
    is_committed = fault in ("", "lost")
    assert (client.transaction.outcome is Outcome.COMMITTED) == is_committed
    assert client.transaction.outcome is client.sites["q"].decision(lane())
    votes = [result for request, result in answers if request.number == 2]
    assert all(isinstance(each, Prepared) for each in votes) == (not fault)
    client.spread()
    assert client.branches("p", "q", "r") == [0, 0, 0]
    assert [client.end(name) for name in ("p", "q", "r")] == ([3, 2, 3] if is_committed else [1, 1, 1])
    assert client.sites["q"].decisions.is_unused
