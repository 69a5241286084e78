"""Observers of transactions: what they are told, by whom, and what becomes of what they raise."""

from collections.abc import Sequence
from typing import Any

import pytest

from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit, GroupJoin, QueueSettle, Run, encode_command
from hawser.log.state.queue import DEAD_LETTERS
from hawser.log.state.results import Finished, Outcome
from hawser.transaction.identity import TransactionId
from hawser.transaction.participant.observers import Observers, TransactionObserverFactory
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import Site, lane

ONE = lane()
COMMITTED = Finished(Outcome.COMMITTED)


class Notes:
    """Writes down what it is told; raises at one word."""

    def __init__(self, raises_at: str = "") -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.raises_at = raises_at

    def note(self, *words: Any) -> None:
        self.heard.append(words)
        if words[0] == self.raises_at:
            raise RuntimeError("an observer of a user")

    def publish(self, target: str, records: int, index: int) -> None:
        self.note("publish", target, records, index)

    def accept(self, queue: str, runs: Sequence[Run]) -> None:
        self.note("accept", queue, *runs)

    def commit_offsets(self, topic: str, group: str, before: int, after: int) -> None:
        self.note("commit_offsets", topic, group, before, after)

    def prepare(self) -> None:
        self.note("prepare")

    def commit(self) -> None:
        self.note("commit")

    def rollback(self, outcome: Outcome) -> None:
        self.note("rollback", outcome)


def observers(*factories: TransactionObserverFactory, failed: Any = lambda *failed: None) -> Observers:
    """Of a shard with a topic and a queue."""
    return Observers("orders@1/0", {False: "orders", True: "jobs"}.__getitem__, factories, failed)


def test_observers_are_made_for_each_transaction_and_told_in_order() -> None:
    site = Site()
    made: dict[TransactionId, Notes] = {}

    def factory(transaction: TransactionId, shard: str) -> Notes:
        assert shard == "orders@1/0"
        return made.setdefault(transaction, Notes())

    site.branches.observers = observers(factory, lambda transaction, shard: None)
    site.publish()
    site.put(Kind.QUEUE_PUT, batch(3))
    site.put(Kind.QUEUE_SETTLE, encode_command(QueueSettle(0, moved=((2, 1, 0),), batch=batch())))
    site.put(Kind.GROUP_JOIN, encode_command(GroupJoin("group", "member")))
    site.stage(ONE, 2)
    site.stage_accept(ONE, (1, 1, 0), (3, 1, 0))
    site.stage_put(ONE)
    site.operation(ONE, Kind.QUEUE_SETTLE, encode_command(QueueSettle(DEAD_LETTERS, ((1, 1, 0),))))
    site.stage_move(ONE, GroupCommit("group", "member", 1, 1, 2))
    site.stage(ONE, number=1)  # a repeat is nothing new
    site.prepare(ONE, 5)
    site.prepare(ONE, 5)
    site.commit(ONE)
    site.commit(ONE)
    other = lane(2)
    site.stage(other)
    site.abort(other, Outcome.TIMED_OUT)
    site.abort(lane(name=b"nothing here"))
    assert made[ONE].heard == [
        ("publish", "orders", 2, 5),
        ("accept", "jobs", (1, 1, 0), (3, 1, 0)),
        ("publish", "jobs", 1, 7),
        ("accept", "jobs.dead", (1, 1, 0)),
        ("commit_offsets", "orders", "group", 1, 2),
        ("prepare",),
        ("commit",),
    ]
    assert made[other].heard == [("publish", "orders", 1, 15), ("rollback", Outcome.TIMED_OUT)]
    assert set(made) == {ONE, other}
    assert not site.branches.observers._observers, "nothing is kept of those that are over"


@pytest.mark.parametrize("then", ["stage", "prepare", "end"])
@pytest.mark.parametrize("is_prepared", [False, True])
def test_whoever_begins_to_lead_tells_first_what_is_there(then: str, is_prepared: bool) -> None:
    site, notes = Site(), Notes()
    site.stage(ONE)
    site.stage(ONE)
    if is_prepared:
        site.prepare(ONE, 2)
    site.branches.observers = observers(lambda transaction, shard: notes)
    expected: list[tuple[Any, ...]] = [("publish", "orders", 1, 1), ("publish", "orders", 1, 2)]
    if then == "stage":
        site.stage(ONE)
        expected = [] if is_prepared else [*expected, ("publish", "orders", 1, 3)]
    elif then == "prepare":
        site.prepare(ONE, 2)
        expected = [] if is_prepared else [*expected, ("prepare",)]
    else:
        site.abort(ONE, decided=True)
        expected += [("prepare",)] * is_prepared + [("rollback", Outcome.ROLLED_BACK)]
    assert notes.heard == expected


def test_what_an_observer_raises_goes_no_further() -> None:
    site = Site()
    bad, good = Notes("publish"), Notes()

    def broken(transaction: TransactionId, shard: str) -> Notes:
        raise RuntimeError("a factory of a user")

    failures: list[Exception] = []
    site.branches.observers = observers(
        broken,
        lambda transaction, shard: bad,
        lambda transaction, shard: good,
        failed=lambda transaction, error: failures.append(error),
    )
    site.stage(ONE)
    assert site.commit(ONE, 1) == COMMITTED
    assert bad.heard == [("publish", "orders", 1, 1)]
    assert good.heard == [("publish", "orders", 1, 1), ("commit",)]
    assert list(map(str, failures)) == ["a factory of a user", "an observer of a user"]
