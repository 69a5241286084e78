"""A transaction as its client runs it, against shards that answer, forget to, or say no."""

import pytest

from hawser.errors import InDoubt, OutcomeUnknown, TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.commands import QueueSettle, encode_command
from hawser.log.state.results import Answered, Finished, Outcome, Reason, Rejected, Staged
from hawser.transaction.client import Progress, Request, Transaction
from hawser.transaction.identity import TransactionId, Xid
from hawser.transaction.keeper import Keeper
from hawser.transaction.xa import Code
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import HOME, Site, lane

COMMITTED = Finished(Outcome.COMMITTED)


class Client:
    """A transaction over sites that are all there."""

    def __init__(self, *names: str) -> None:
        self.sites = {name: Site() for name in (*names, HOME)}
        self.transaction = Transaction(lane(), HOME, owner=5, timeout_seconds=30)

    def publish(self, name: str, count: int = 1) -> Request:
        return self.transaction.operation(name, Kind.BATCH, batch(count))

    def deliver(self, request: Request, answered: bool = True) -> list[Request]:
        site = self.sites[request.shard]
        result = site.put(request.kind, request.payload, transaction=request.label)
        return self.transaction.hear(request, result) if answered else []

    def deliver_all(self, requests: list[Request]) -> None:
        for request in requests:
            self.deliver_all(self.deliver(request))

    def end(self, name: str) -> int:
        return self.sites[name].topic.end


def test_one_shard_commits_alone_in_one_round() -> None:
    client = Client("p")
    operations = [client.publish("p"), client.publish("p", 2)]
    requests = [*operations, *client.transaction.commit()]
    assert [each.kind for each in requests] == [Kind.BATCH, Kind.BATCH, Kind.BRANCH_COMMIT]
    client.deliver_all(requests)
    assert client.transaction.outcome is Outcome.COMMITTED and client.transaction.error() is None
    assert client.end("p") == 4 and len(client.sites[HOME].log) == 0


def test_the_last_operation_commits_if_it_was_not_sent_before() -> None:
    client = Client("p")
    first, last = client.publish("p"), client.publish("p", 2)
    (ending,) = client.transaction.commit(last)
    assert (ending.kind, ending.number, ending.commits) == (Kind.BATCH, 2, True)
    # Before the first one it is too early, and goes again behind it.
    assert client.deliver(ending) == [first]
    assert client.deliver(first) == [ending]
    client.deliver(ending, answered=False)
    assert client.transaction.progress is Progress.COMMITTING and client.end("p") == 4
    assert client.transaction.again("p") == [ending]
    client.deliver(ending)
    assert client.transaction.outcome is Outcome.COMMITTED and client.end("p") == 4
    assert len(client.sites["p"].log) == 4


def test_what_is_refused_before_the_last_operation_is_rolled_back() -> None:
    client = Client("p")
    accept = encode_command(QueueSettle(0, ((1, 1, 0),)))
    lock = client.transaction.operation("p", Kind.QUEUE_SETTLE, accept)
    (ending,) = client.transaction.commit(client.publish("p"))
    (abort,) = client.deliver(lock)
    assert client.transaction.progress is Progress.ROLLING_BACK and client.transaction.again("p") == [abort]
    client.deliver(ending)
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.ROLLED_BACK and client.end("p") == 1
    assert isinstance(client.transaction.error(), TransactionAborted)


def test_several_shards_get_what_was_not_sent_with_their_question() -> None:
    client = Client("p", "q")
    client.deliver(client.publish("p"))
    last = client.publish("q")
    requests = client.transaction.commit(last)
    assert requests[0] is last and [each.kind for each in requests[1:]] == [Kind.BRANCH_PREPARE] * 2
    client.deliver_all(requests)
    assert client.transaction.outcome is Outcome.COMMITTED


def test_nothing_is_committed_without_asking_anybody() -> None:
    transaction = Transaction(lane(), HOME)
    assert transaction.commit() == [] and transaction.outcome is Outcome.COMMITTED
    other = Transaction(lane(), HOME)
    assert other.rollback() == [] and other.progress is Progress.OVER


def test_several_shards_are_prepared_and_then_committed_at_home_in_one_entry() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("q"), client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    assert [(each.shard, each.kind) for each in votes] == [
        ("q", Kind.BRANCH_PREPARE),
        ("p", Kind.BRANCH_PREPARE),
    ]
    assert client.deliver(votes[0]) == client.deliver(votes[0]) == []
    assert client.transaction.again("p") == [votes[1]]
    (close,) = client.deliver(votes[1])
    assert (close.shard, close.kind) == (HOME, Kind.HOME_CLOSE)
    assert client.deliver(votes[1]) == []
    client.deliver(close)
    assert client.transaction.outcome is Outcome.COMMITTED
    assert client.sites[HOME].machine.applied == 1
    record = client.sites[HOME].ledger.register.get(lane())
    assert record is not None and record.participants == {"p": {0: 1}, "q": {0: 2}}
    assert record.outcome is Outcome.COMMITTED and record.waiting == ["p", "q"]


def test_a_vote_against_it_goes_to_home_which_tells_everybody() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    client.sites["q"].abort(lane(), Outcome.TIMED_OUT)
    (close,) = client.deliver(votes[1])
    assert client.deliver(close) == [] and client.transaction.progress is Progress.COMMITTING
    record = client.sites[HOME].ledger.register.get(lane())
    assert record is not None and record.outcome is None
    assert record.participants.keys() == {"p", "q"}


def test_what_home_rolled_back_is_not_committed_by_votes_that_come_late() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    (close,) = client.deliver(votes[1])
    home = client.sites[HOME]
    assert home.ledger.outcome(lane()) is None
    disowned = Keeper(client.sites["p"].branches).disown(lane(), Outcome.ROLLED_BACK)
    assert home.put(disowned.kind, disowned.payload) == Finished(Outcome.ROLLED_BACK)
    client.deliver(close)
    assert isinstance(client.transaction.error(), TransactionAborted)


def test_votes_that_come_late_find_the_rollback_behind_however_many_others() -> None:
    client = Client("p", "q")
    home = client.sites[HOME]
    register = home.ledger.register
    register._most = register._most_lanes = 2
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    (close,) = client.deliver(votes[1])
    home.decide(lane(), Outcome.SESSION_LOST)
    for number in range(5):
        home.decide(lane(name=b"other %d" % number), Outcome.ROLLED_BACK)
        home.decide(TransactionId(Xid(7, b"%d" % number, b""), 1), Outcome.ROLLED_BACK)
    client.deliver(close)
    assert client.transaction.outcome is Outcome.SESSION_LOST


def test_a_home_with_too_many_lanes_takes_no_other_and_can_still_roll_back() -> None:
    client = Client("p", "q")
    home = client.sites[HOME]
    home.ledger.register._most_lanes = 2
    for number in range(2):
        home.decide(lane(name=b"other %d" % number), Outcome.ROLLED_BACK)
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    (close,) = client.deliver(votes[1])
    asked = client.deliver(close)
    assert [each.kind for each in asked] == [Kind.HOME_CLOSE, Kind.HOME_DECIDE]
    client.deliver_all(asked)
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    # Where not even that can be kept nobody is told how it ends.
    register = home.ledger.register
    for number in range(4):
        home.decide(lane(name=b"more %d" % number), Outcome.ROLLED_BACK)
    assert home.decide(lane(name=b"unknown"), Outcome.ROLLED_BACK) == Rejected(Reason.TRANSACTION_OVER)
    assert register.outcome(lane(name=b"unknown")) is None


def test_a_commit_that_is_found_while_it_is_rolled_back_is_one() -> None:
    """An operation before the last one is refused by whoever leads now; the last one had committed it all."""
    client = Client("p")
    first = client.publish("p")
    (last,) = client.transaction.commit(client.publish("p"))
    for request in (first, last):
        client.deliver(request, answered=False)
    aborts = client.transaction.hear(first, Rejected(Reason.NOT_HELD))
    assert [each.kind for each in aborts] == [Kind.BRANCH_ABORT]
    client.deliver_all(aborts)
    assert client.transaction.outcome is Outcome.COMMITTED
    assert client.transaction.error() is None


def test_what_was_not_acknowledged_is_sent_again_and_counts_once() -> None:
    client = Client("p")
    first, second = client.publish("p"), client.publish("p")
    client.deliver(first, answered=False)
    client.deliver_all(client.transaction.again("p"))
    assert client.transaction.is_staged and client.transaction.again("p") == []
    (commit,) = client.transaction.commit()
    client.deliver(commit, answered=False)
    assert client.transaction.again("p") == [commit]
    client.deliver_all(client.transaction.again("p"))
    assert client.transaction.outcome is Outcome.COMMITTED and client.end("p") == 3
    assert second.number == 2


def test_operations_and_the_commit_may_all_be_lost_together() -> None:
    client = Client("p")
    operation = client.publish("p")
    (commit,) = client.transaction.commit()
    client.deliver(operation, answered=False)
    client.deliver(commit, answered=False)
    # The operation alone tells that it is over.
    client.deliver(client.transaction.again("p")[0])
    assert client.transaction.outcome is Outcome.COMMITTED and client.end("p") == 2


def test_a_gap_sends_what_came_before_again() -> None:
    client = Client("p")
    first, second = client.publish("p"), client.publish("p")
    assert client.deliver(second) == [first]
    client.deliver_all([first])
    assert client.transaction.is_staged


def test_a_refused_operation_dooms_the_transaction() -> None:
    client = Client("p", "q")
    client.deliver(client.publish("q"))
    accept = encode_command(QueueSettle(0, ((1, 1, 0),)))
    client.deliver(client.transaction.operation("p", Kind.QUEUE_SETTLE, accept))
    behind = client.publish("p")
    assert client.deliver(behind) == []  # a gap that nothing fills
    requests = client.transaction.commit()
    assert [each.kind for each in requests] == [Kind.BRANCH_ABORT] * 2
    client.deliver_all(requests)
    error = client.transaction.error()
    assert isinstance(error, TransactionAborted) and "message 1 is over" in str(error)
    assert client.end("q") == 1 and len(client.sites["q"].branches.register) == 0


def test_a_shard_that_rolled_back_by_itself_dooms_the_rest() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    client.sites["p"].abort(lane(), Outcome.TIMED_OUT)
    client.deliver(client.publish("p"))
    assert client.transaction.refused is not None
    client.deliver_all(client.transaction.commit())
    assert isinstance(client.transaction.error(), TransactionAborted)
    assert len(client.sites["q"].branches.register) == 0


@pytest.mark.parametrize("arrived", [True, False])
def test_asking_what_became_of_a_commit_decides_it(arrived: bool) -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    (commit,) = client.transaction.commit()
    if arrived:
        client.deliver(commit, answered=False)
    client.deliver_all(client.transaction.resolve())
    assert client.transaction.outcome is (Outcome.COMMITTED if arrived else Outcome.ROLLED_BACK)
    if not arrived:
        # The commit comes late.
        client.deliver(commit)
        assert client.end("p") == 1
        assert isinstance(client.transaction.error(), TransactionAborted)


@pytest.mark.parametrize("arrived", [True, False])
def test_asking_home_decides_too(arrived: bool) -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    (close,) = client.deliver(votes[1])
    if arrived:
        client.deliver(close, answered=False)
    client.deliver_all(client.transaction.resolve())
    outcome = Outcome.COMMITTED if arrived else Outcome.ROLLED_BACK
    assert client.transaction.outcome is outcome
    # Home knows whom to tell.
    record = client.sites[HOME].ledger.register.get(lane())
    assert record is not None and record.waiting == ["p", "q"]
    client.deliver(close)
    assert client.sites[HOME].ledger.outcome(lane()) is outcome


def test_what_is_not_prepared_is_rolled_back_by_the_client_too() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    client.transaction.commit()
    client.deliver_all(client.transaction.resolve())
    assert client.transaction.outcome is Outcome.ROLLED_BACK
    assert [len(client.sites[name].branches.register) for name in ("p", "q")] == [0, 0]


def test_unknown_is_not_the_same_as_rolled_back() -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    client.transaction.commit()
    error = client.transaction.error()
    assert isinstance(error, OutcomeUnknown) and not isinstance(error, TransactionAborted)
    several = Client("p", "q")
    several.deliver_all([several.publish("p"), several.publish("q")])
    several.transaction.commit()
    several.transaction.resolve()
    assert isinstance(several.transaction.error(), InDoubt)


def test_a_home_that_has_no_room_rolls_back_for_sure() -> None:
    client = Client("p", "q")
    client.deliver_all([client.publish("p"), client.publish("q")])
    votes = client.transaction.commit()
    client.deliver(votes[0])
    (close,) = client.deliver(votes[1])
    full = Rejected(Reason.TOO_MANY_TRANSACTIONS, 9)
    closing, deciding = client.transaction.hear(close, full)
    assert client.transaction.hear(closing, full) == []
    client.deliver_all([deciding])
    assert isinstance(client.transaction.error(), TransactionAborted)
    assert "as much transactional work" in str(client.transaction.error())
    assert client.sites[HOME].ledger.outcome(lane()) is Outcome.ROLLED_BACK


def test_an_answer_from_an_older_use_is_no_outcome() -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    (commit,) = client.transaction.commit()
    client.transaction.hear(commit, Rejected(Reason.OLD_INCARNATION, 2, 1))
    assert client.transaction.progress is Progress.OVER and client.transaction.outcome is None
    assert type(client.transaction.error()) is OutcomeUnknown


def test_a_branch_of_an_application_waits_for_its_batch() -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    (close,) = client.transaction.prepare(b"query", 4, 100)
    seen = []
    for _ in range(2):
        assert client.deliver(close) == []
        seen.append(client.transaction.progress)
        client.sites[HOME].vote(lane(), "p")
    assert seen == [Progress.PREPARING, Progress.PREPARED]
    record = client.sites[HOME].ledger.register.get(lane())
    assert record is not None and (record.query, record.batch, record.orphan_seconds) == (b"query", 4, 100)


def test_answers_come_late_and_again() -> None:
    client = Client("p")
    operation = client.publish("p")
    client.deliver(operation)
    assert client.transaction.hear(operation, Staged(1)) == []
    (commit,) = client.transaction.commit()
    assert client.transaction.hear(commit, Answered(Code.PENDING)) == []
    client.deliver(commit)
    assert client.transaction.hear(commit, Finished(Outcome.ROLLED_BACK)) == []
    assert client.transaction.outcome is Outcome.COMMITTED


def test_a_lost_operation_does_not_multiply_those_behind_it() -> None:
    """However often they come before it, each answer is followed by one request at the most."""
    transaction = Transaction(lane(), "__tx/0")
    first, *behind = [transaction.operation("a", Kind.BATCH, batch(1)) for _ in range(4)]
    for each in behind:
        again = transaction.hear(each, Rejected(Reason.GAP, 1, each.number))
        assert again == [first]
    assert transaction.hear(first, Staged(1)) == [behind[0]]
    assert transaction.hear(first, Staged(1)) == []
    assert transaction.hear(behind[0], Staged(2)) == [behind[1]]
    assert transaction.hear(behind[1], Staged(3)) == [behind[2]]
    assert transaction.hear(behind[2], Staged(4)) == []
    assert transaction.is_staged
