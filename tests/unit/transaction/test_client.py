"""A transaction as its client runs it, against shards that answer, forget to, or say no."""

import pytest

from hawser.errors import OutcomeUnknown, TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.results import Answered, Finished, Outcome, Reason, Rejected, Staged
from hawser.transaction.client import Progress, Transaction
from hawser.transaction.xa.table import Code
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import HOME, branch, lane
from tests.stateful.transaction_sites import Client


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
    (ending,) = client.transaction.commit([last])
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
    lock = client.accept_nothing("p")
    (ending,) = client.transaction.commit([client.publish("p")])
    (abort,) = client.deliver(lock)
    assert client.transaction.progress is Progress.ROLLING_BACK and client.transaction.again("p") == [abort]
    client.deliver(ending)
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.ROLLED_BACK and client.end("p") == 1
    assert isinstance(client.transaction.error(), TransactionAborted)


@pytest.mark.parametrize(
    ("leaders", "sent", "coordinator"),
    [
        # Whoever leads most of them tells itself.
        ({"p": 1, "q": 2, "r": 2, "s": 3}, (), "q"),
        ({"p": 1, "q": 2, "r": 3, "s": 3}, (), "r"),
        # It was sent least.
        ({"p": 1, "q": 2, "r": 2, "s": 3}, ("q", "r"), "p"),
        ({"p": 1, "q": 2, "r": 2, "s": 3}, ("q",), "r"),
        # Somebody leads it, if there is such a one.
        ({"p": 1, "q": None, "r": None, "s": None}, ("p",), "p"),
        ({"p": None, "q": None, "r": None, "s": None}, ("p",), "q"),
    ],
)
def test_who_decides(leaders: dict[str, int | None], sent: tuple[str, ...], coordinator: str) -> None:
    client = Client(*leaders)
    for shard in sent:
        client.deliver(client.publish(shard))
    unsent = [client.accept_nothing(shard) for shard in leaders]
    votes = client.transaction.commit(unsent, leaders.__getitem__)
    assert client.transaction.coordinator == coordinator
    assert [each.shard for each in votes] == [each for each in leaders if each != coordinator]


def test_nothing_is_committed_without_asking_anybody() -> None:
    transaction = Transaction(lane())
    assert transaction.commit() == [] and transaction.outcome is Outcome.COMMITTED
    other = Transaction(lane())
    assert other.rollback() == [] and other.progress is Progress.OVER


def test_a_commit_that_is_found_while_it_is_rolled_back_is_one() -> None:
    """An operation before the last one is refused by whoever leads now; the last one had committed it all."""
    client = Client("p")
    first = client.publish("p")
    (last,) = client.transaction.commit([client.publish("p")])
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
    client.deliver(client.accept_nothing("p"))
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


def test_unknown_is_not_the_same_as_rolled_back() -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    client.transaction.commit()
    error = client.transaction.error()
    assert isinstance(error, OutcomeUnknown) and not isinstance(error, TransactionAborted)


def test_an_answer_from_an_older_use_is_no_outcome() -> None:
    client = Client("p")
    client.deliver(client.publish("p"))
    (commit,) = client.transaction.commit()
    client.transaction.hear(commit, Rejected(Reason.OLD_INCARNATION, 2, 1))
    assert client.transaction.progress is Progress.OVER and client.transaction.outcome is None
    assert type(client.transaction.error()) is OutcomeUnknown


def test_a_branch_of_an_application_waits_for_its_batch() -> None:
    task = branch(b"task")
    client = Client("p", transaction=task)
    client.deliver(client.publish("p"))
    (close,) = client.transaction.prepare(HOME, b"query", 4, 100)
    seen = []
    for _ in range(2):
        assert client.deliver(close) == []
        seen.append(client.transaction.progress)
        client.sites[HOME].vote(task, "p")
    assert seen == [Progress.PREPARING, Progress.PREPARED]
    record = client.sites[HOME].ledger.register.get(task)
    assert record is not None and (record.query, record.batch, record.orphan_seconds) == (b"query", 4, 100)


def test_a_branch_of_an_application_is_rolled_back_where_home_has_no_room() -> None:
    client = Client("p", transaction=branch(b"task"))
    client.deliver(client.publish("p"))
    client.sites[HOME].ledger.most = 0
    (close,) = client.transaction.prepare(HOME, b"query", 4, 100)
    (abort,) = client.deliver(close)
    assert (abort.shard, abort.kind) == ("p", Kind.BRANCH_ABORT)
    client.deliver(abort)
    assert client.transaction.outcome is Outcome.ROLLED_BACK and client.branches("p") == [0]
    assert "takes no more transactional work" in str(client.transaction.error())


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
    transaction = Transaction(lane())
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
