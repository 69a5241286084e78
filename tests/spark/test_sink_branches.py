"""What the sink rests on, without Spark: attempts that are doubled or come back, drivers that do, and what
nobody decides."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser.cluster.client.admin.transactions import survey_transactions
from hawser.cluster.client.transaction import application_batch
from hawser.cluster.client.transaction.application_batch import (
    ApplicationBatch,
    BatchBranch,
    Operation,
    decide_batch,
    drop_branches,
)
from hawser.log.entry import Kind
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.spark.connection import Connection, connection
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.identity import ONCE
from tests.support.cluster import RunningCluster
from tests.support.source import wait_for

LONG_SECONDS = 3600


class Application:
    """A query that writes to a topic of two partitions."""

    def __init__(self, cluster: Connection, topic: hawser.Topic[Any], name: bytes, query: bytes) -> None:
        self._cluster = cluster
        self.topic = topic
        self._shards = [each.shard for each in topic.info().partitions]
        self._identity = name, query

    def batch(self, number: int) -> ApplicationBatch:
        return ApplicationBatch(*self._identity, number)

    def attempt(self, number: int, value: bytes, orphan_seconds: int = LONG_SECONDS) -> bytes | None:
        """An attempt to write one message to each partition: its branch, None if it was too late."""
        cluster = self._cluster
        branch = BatchBranch(cluster.router, cluster.coordinators, self.batch(number), secrets.token_bytes(8))
        payload = bytes(Batch.of([Record(value, timestamp_ns=1)]).data)
        operations = [Operation(self.topic.name, shard, Kind.BATCH, payload) for shard in self._shards]
        cluster.call(branch.stage(operations))
        return branch.name if cluster.call(branch.prepare(orphan_seconds)) else None

    def decide(self, number: int, *branches: bytes | None) -> None:
        named = [branch for branch in branches if branch is not None]
        self._cluster.call(
            decide_batch(self._cluster.router, self._cluster.coordinators, self.batch(number), named)
        )

    def drop(self, number: int, *branches: bytes) -> None:
        router, coordinators = self._cluster.router, self._cluster.coordinators
        self._cluster.call(drop_branches(router, coordinators, self.batch(number), branches))

    @property
    def values(self) -> list[bytes]:
        """What can be read, which is the same in both partitions but for its order."""
        read = (self.topic.read_oldest(100, partition=each).samples for each in (0, 1))
        one, other = (sorted(bytes(sample.data) for sample in samples) for samples in read)
        assert one == other
        return one

    @property
    def unfinished(self) -> int:
        survey = self._cluster.call(survey_transactions(self._cluster.router, 30))
        return len(survey.transactions)


@pytest.fixture
def application(
    cluster: RunningCluster, bus: hawser.Bus, request: pytest.FixtureRequest
) -> Iterator[Application]:
    name = request.node.name
    yield Application(connection(cluster.url), bus.topic(name, partitions=2), name.encode(), b"query")


def test_only_what_a_decision_names_is_committed(application: Application) -> None:
    first, second = application.attempt(0, b"lost"), application.attempt(0, b"kept")
    assert first is not None and second is not None and application.values == []
    application.decide(0, second)
    assert application.values == [b"kept"]
    # The attempt that was not named, and one that comes late, change nothing any more.
    assert application.attempt(0, b"late") is None
    application.decide(0, first)
    application.drop(0, second)
    assert application.values == [b"kept"]
    wait_for(lambda: not application.unfinished, "the end of all branches")


def test_a_driver_that_comes_back_changes_nothing(application: Application) -> None:
    """It prepared batch 1, and was taken for dead; another one wrote that batch and the next."""
    application.decide(0, application.attempt(0, b"0"))
    zombie = application.attempt(1, b"zombie")
    application.decide(1, application.attempt(1, b"1"))
    application.decide(2, application.attempt(2, b"2"))
    application.decide(1, zombie)
    assert application.values == [b"0", b"1", b"2"]


def test_what_is_not_prepared_is_not_committed(application: Application) -> None:
    one = application.attempt(0, b"one")
    with pytest.raises(hawser.TransactionAborted, match="branch 1 of the batch is not prepared"):
        application.decide(0, one, b"nobody")
    assert application.values == []
    application.decide(0, one)
    assert application.values == [b"one"]


@pytest.mark.parametrize("slept_seconds", [0, KEEP_SECONDS])
@pytest.mark.parametrize("query", [b"query", ONCE])
def test_who_slept_until_the_batch_may_be_forgotten_is_not_told_that_it_failed(
    application: Application, query: bytes, slept_seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that is not there may have been committed; of one that is kept for ever it is certain."""
    application._identity = application._identity[0], query
    times = iter([1000.0, 1000.0 + slept_seconds])
    monkeypatch.setattr(application_batch, "boot_seconds", lambda: next(times))
    is_unknown = query == ONCE and slept_seconds
    expected = hawser.OutcomeUnknown if is_unknown else hawser.TransactionAborted
    with pytest.raises(expected, match="Check whether its rows are there" if is_unknown else "not prepared"):
        application.decide(0, b"forgotten")


def test_what_is_dropped_can_be_written_again(application: Application) -> None:
    """As after a driver whose tasks failed."""
    first = application.attempt(0, b"first")
    assert first is not None
    application.drop(0, first)
    application.decide(0, application.attempt(0, b"again"))
    assert application.values == [b"again"]


def test_of_two_queries_with_one_name_one_is_refused(
    application: Application, cluster: RunningCluster
) -> None:
    name, _ = application._identity
    other = Application(connection(cluster.url), application.topic, name, b"other")
    late = other.attempt(0, b"other")
    application.decide(0, application.attempt(0, b"one"))
    with pytest.raises(hawser.Fenced, match=r"another query writes under this application's name.*txnAppId"):
        other.decide(0, late)
    with pytest.raises(hawser.Fenced, match="another query writes"):
        other.attempt(1, b"other")
    assert application.values == [b"one"]
    wait_for(lambda: not application.unfinished, "the end of all branches")


def test_what_nobody_decides_expires(application: Application) -> None:
    branch = application.attempt(0, b"orphan", orphan_seconds=1)
    wait_for(lambda: not application.unfinished, "the orphan's end")
    with pytest.raises(hawser.TransactionAborted, match="not prepared"):
        application.decide(0, branch)
    assert application.values == []


def test_attempts_live_through_leaders_that_go(application: Application, cluster: RunningCluster) -> None:
    """Home and both partitions are led by others each time."""
    branches = []
    for turn in range(3):
        branches.append(application.attempt(0, b"%d" % turn))
        victim = cluster.nodes[turn]
        cluster.stop(victim)
        branches.append(application.attempt(0, b"%d again" % turn))
        cluster.start(victim)
    application.decide(0, *branches[1::2])
    assert application.values == [b"0 again", b"1 again", b"2 again"]
