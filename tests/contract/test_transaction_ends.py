"""How transactions end when nodes are silent, refuse, or something happens that nobody foresaw: whoever waits
is told the truth, and nothing that was staged stays behind.
"""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client import rpc
from hawser.cluster.client.subscribe.takers import Claim
from hawser.cluster.client.transaction import operations, shard_pipeline, transaction, workspace
from hawser.cluster.client.transaction.shard_pipeline import ShardPipelines
from hawser.cluster.node.transaction import peer_client
from hawser.cluster.shard_map import topic_of
from hawser.cluster.transport import TransportError
from hawser.log.entry import Kind
from hawser.log.state.results import Finished, Outcome, Reason, Rejected, Staged, encode_result
from hawser.transaction.client import Transaction
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.participant import maintenance
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster
from tests.support.transactions import does

SECONDS = 60.0
_numbers = itertools.count()


@pytest.fixture
def bus(cluster: RunningCluster) -> Iterator[Any]:
    """A bus that does not wait for long."""
    with cluster.connect(f"worker {next(_numbers)}", timeout=3.0) as bus:
        yield bus


def queues_of(bus: Any, count: int = 1) -> list[Any]:
    """Made by one that waits for as long as it takes."""
    names = [f"queue {next(_numbers)}" for _ in range(count)]
    with hawser.connect(bus.url, timeout=SECONDS) as patient:
        for name in names:
            patient.queue(name).info()
    return [bus.queue(name) for name in names]


def contents(queue: Any) -> list[bytes]:
    return [bytes(each) for each in queue.peek(1000)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def is_staged(tx: Any) -> bool:
    inner = tx._work.inner
    return bool(inner.shards) and inner.is_staged


def in_time(call: Callable[[], Any]) -> Any:
    """What a call gives; an error of this test if it hangs."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(SECONDS)


class Answers:
    """What is answered to requests of transactions, instead of what nodes say: an error is raised, None
    passes on what they say."""

    def __init__(self, answer: Callable[[wire.Transact], Any]) -> None:
        self._answer = answer
        self.requests = 0

    async def ask(self, link: Any, body: bytes, timeout_seconds: float) -> Any:
        request = wire.decode_request(body)
        assert isinstance(request, wire.Transact)
        self.requests += 1
        answer = self._answer(request)
        if isinstance(answer, Exception):
            raise answer
        return await rpc.ask(link, body, timeout_seconds) if answer is None else answer


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_what_nobody_could_be_told_to_drop_is_dropped_later(bus: Any, how: str, targets: int) -> None:
    jobs, *others = queues_of(bus, targets)
    jobs.put(b"job")

    with bus.transaction() as tx:
        for queue in (jobs, *others):
            tx.publish(queue, b"first")
    tx = bus.transaction(timeout=3600)
    tx.accept(tx.get(jobs, SECONDS))
    for queue in others:
        tx.publish(queue, b"no")
    wait_until(lambda: is_staged(tx))
    router = bus._client.router
    leader_link, router.leader_link = router.leader_link, lambda shard: None
    if how == "commit":
        with pytest.raises(hawser.TransactionAborted, match="no shard could be reached"):
            tx.commit()
    else:
        tx.rollback()
        wait_until(lambda: tx.state == "rolled back")
    router.leader_link = leader_link
    # The client lives and the transaction has an hour: nobody else ends it.
    wait_until(lambda: contents(jobs) == [b"job", b"first"])
    assert all(contents(queue) == [b"first"] for queue in others)
    assert bytes(jobs.get(SECONDS)) == b"job"


def unfinished(cluster: RunningCluster, tx: Any) -> int:
    """What there is of transactions on the shards of this one, for those who lead them."""
    shards = (node.shards[name] for node in cluster._nodes.values() for name in tx._work.inner.shards)
    services = [shard.transactions for shard in shards if shard.transactions is not None]
    assert len(services) == len(tx._work.inner.shards)
    branches = sum(each.participant.open_count + each.participant.prepared_count for each in services)
    return branches + sum(each.coordinator.unfinished_count for each in services)


def test_a_commit_ends_though_home_has_no_room_and_then_is_silent(
    bus: Any, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = queues_of(bus, 2)

    def publish() -> Any:
        tx = bus.transaction()
        for queue in queues:
            tx.publish(queue, b"message")
        return tx

    publish().commit()
    refusals = [wire.Transacted((encode_result(Rejected(Reason.TOO_MANY_TRANSACTIONS, 1)),))]

    def answer(request: wire.Transact) -> Any:
        if not does(request, Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT):
            return None
        return refusals.pop() if refusals else TransportError("silence", was_sent=True)

    with monkeypatch.context() as patched:
        patched.setattr(shard_pipeline, "ask", Answers(answer).ask)
        tx = publish()
        with pytest.raises(hawser.InDoubt):
            in_time(tx.commit)
        assert tx.state == "unknown" and not refusals
        # The other one is prepared, and waits for home.
        assert sum(prepared(cluster, shard) for shard in tx._work.inner.shards) == 1
    wait_until(lambda: not unfinished(cluster, tx))
    assert [contents(queue) for queue in queues] == [[b"message"]] * 2


def test_a_decision_that_was_never_sent_is_not_in_doubt(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home is not reached when the votes are in: nobody has committed."""
    queues = queues_of(bus, 2)
    lost = TransportError("lost on its way", was_sent=False)
    monkeypatch.setattr(
        shard_pipeline, "ask", Answers(lambda each: lost if does(each, Kind.BRANCH_COMMIT) else None).ask
    )
    tx = bus.transaction()
    for queue in queues:
        tx.publish(queue, b"message")
    with pytest.raises(hawser.TransactionAborted):
        tx.commit()
    assert tx.state == "rolled back" and not any(map(contents, queues))


def test_one_vote_against_it_is_enough(
    bus: Any, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the others, and whoever is prepared hears of it."""
    queues = queues_of(bus, 3)
    against: list[str] = []

    def answer(request: wire.Transact) -> Any:
        if against or not does(request, Kind.BRANCH_PREPARE):
            return None
        against.append(request.shard)
        staged = [encode_result(Staged(number + 1)) for number in range(len(request.entries) - 1)]
        return wire.Transacted((*staged, encode_result(Finished(Outcome.TOO_MUCH))))

    monkeypatch.setattr(shard_pipeline, "ask", Answers(answer).ask)
    tx = bus.transaction()
    for queue in queues:
        tx.publish(queue, b"message")
    with pytest.raises(hawser.TransactionAborted, match=Outcome.TOO_MUCH.text):
        tx.commit()
    assert against and tx.state == "rolled back"
    wait_until(lambda: not unfinished(cluster, tx))
    assert not any(map(contents, queues))


@pytest.mark.parametrize("is_used_again", [False, True])
def test_the_shard_that_decides_is_deleted_when_the_votes_are_in(
    bus: Any, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, is_used_again: bool
) -> None:
    """Nothing of the transaction is there yet, so nothing keeps it; nothing of it happens elsewhere."""
    # What is prepared asks soon, and believes the map soon.
    monkeypatch.setattr(maintenance, "ASK_SECONDS", 0.5)
    monkeypatch.setattr(peer_client, "GONE_SECONDS", 1.0)
    queues = {queue.name: queue for queue in queues_of(bus, 2)}
    deleted: list[str] = []

    async def ask(link: Any, body: bytes, timeout_seconds: float) -> Any:
        request = wire.decode_request(body)
        assert isinstance(request, wire.Transact)
        if does(request, Kind.BRANCH_COMMIT) and not deleted:
            deleted.append(topic_of(request.shard))
            await asyncio.to_thread(delete, cluster, deleted[0], is_used_again)
        return await rpc.ask(link, body, timeout_seconds)

    monkeypatch.setattr(shard_pipeline, "ask", ask)
    tx = bus.transaction()
    for queue in queues.values():
        tx.publish(queue, b"message")
    with pytest.raises((hawser.TransactionAborted, hawser.InDoubt)):
        tx.commit()
    assert tx.state in ("rolled back", "unknown")
    (other,) = (queue for name, queue in queues.items() if name not in deleted)
    (shard,) = (each for each in tx._work.inner.shards if topic_of(each) == other.name)
    wait_until(lambda: not prepared(cluster, shard))
    assert contents(other) == []
    if is_used_again:
        assert contents(bus.queue(deleted[0])) == []


def delete(cluster: RunningCluster, name: str, is_used_again: bool) -> None:
    assert cluster.delete(name).done
    if is_used_again:
        assert cluster.ask(wire.Admin(wire.AdminKind.CREATE, name, topic_kind="queue")).done


def prepared(cluster: RunningCluster, shard: str) -> int:
    services = [node.shards[shard].transactions for node in cluster._nodes.values()]
    return sum(each.participant.prepared_count for each in services if each is not None)


def send_with_the_commit(bus: Any) -> None:
    """What is published goes with the commit, however long that takes to come."""
    bus._client.lanes.pipelines.soon._seconds = SECONDS


def test_a_commit_that_may_be_done_is_not_called_rolled_back(
    bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = queues_of(bus)
    send_with_the_commit(bus)
    tx = bus.transaction()
    tx.publish(queue, b"message")
    refused = (encode_result(Rejected(Reason.QUEUE_FULL, 1)),)
    answers = [wire.Failed(wire.Code.BAD_REQUEST, "no", False), wire.Transacted(refused)]
    monkeypatch.setattr(shard_pipeline, "ask", Answers(lambda request: answers.pop()).ask)
    # The operation that commits it was sent, and whether it is rolled back nobody says.
    with pytest.raises(hawser.OutcomeUnknown):
        tx.commit()
    assert tx.state == "unknown" and not answers


def test_nobody_asks_when_shards_may_have_forgotten(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (queue,) = queues_of(bus)
    send_with_the_commit(bus)
    tx = bus.transaction()
    tx.publish(queue, b"message")
    now = [1000.0]
    monkeypatch.setattr(transaction, "boot_seconds", lambda: now[0])

    def answer(request: wire.Transact) -> Any:
        # The machine sleeps before the answer is there.
        now[0] += KEEP_SECONDS
        return TransportError("lost", was_sent=True)

    answers = Answers(answer)
    monkeypatch.setattr(shard_pipeline, "ask", answers.ask)
    for call in (tx.commit, tx.resolve):
        with pytest.raises(hawser.OutcomeUnknown, match="the shards have forgotten its outcome"):
            call()
    assert tx.state == "unknown" and answers.requests == 1


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("is_done", [False, True])
def test_an_unknown_outcome_can_be_asked_for(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, targets: int, is_done: bool
) -> None:
    bus = connect(timeout=3.0)
    queues = queues_of(bus, targets)
    tx = bus.transaction()
    for queue in queues:
        tx.publish(queue, b"message")
    with pytest.raises(hawser.UsageError, match="is open"):
        tx.resolve()

    async def ask(link: Any, body: bytes, timeout_seconds: float) -> Any:
        """The end of it is not answered; is it done?"""
        request: Any = wire.decode_request(body)
        is_lost = does(request, Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT)
        answer = None if is_lost and not is_done else await rpc.ask(link, body, timeout_seconds)
        if is_lost:
            raise TransportError("lost", was_sent=True)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(shard_pipeline, "ask", ask)
        how = rf"its resolve\(\).*hawser tx show {tx.id}"
        for call in (tx.commit, tx.resolve):
            with pytest.raises(hawser.OutcomeUnknown, match=how) as raised:
                call()
            assert isinstance(raised.value, hawser.InDoubt) == (targets > 1)
        assert tx.state == "unknown"
    wait_until(lambda: is_answered(tx.resolve))
    assert tx.resolve() is is_done
    assert tx.state == ("committed" if is_done else "rolled back")
    assert [contents(queue) for queue in queues] == [[b"message"] * is_done] * targets


def is_answered(ask: Callable[[], bool]) -> bool:
    try:
        ask()
    except hawser.OutcomeUnknown:
        return False
    return True


def test_what_was_rolled_back_or_committed_needs_no_asking(connect: Callable[..., Any]) -> None:
    bus = connect()
    (queue,) = queues_of(bus)
    tx, other = bus.transaction(), bus.transaction()
    for each in (tx, other):
        each.publish(queue, b"message")
    tx.commit()
    other.rollback()
    bus.close()
    assert tx.resolve() and not other.resolve()


def test_a_bus_that_is_closed_asks_nobody(
    connect: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = connect(timeout=3.0)
    (queue,) = queues_of(bus)
    tx = bus.transaction()
    tx.publish(queue, b"message")
    lost = TransportError("lost", was_sent=True)
    with monkeypatch.context() as patched:
        patched.setattr(shard_pipeline, "ask", Answers(lambda request: lost).ask)
        with pytest.raises(hawser.OutcomeUnknown):
            tx.commit()
    bus.close()
    with pytest.raises(hawser.Closed):
        tx.resolve()


@pytest.mark.parametrize(
    "place",
    [
        (operations.Put, "payload"),
        (workspace, "Put"),
        (Transaction, "_choose_coordinator"),
        (ShardPipelines, "apart"),
    ],
)
def test_what_nobody_foresaw_ends_a_transaction_as_a_whole(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    bus: Any = cluster.connect("worker")
    queues = queues_of(bus, 2)
    tx = bus.transaction()
    tx.publish(queues[0], b"before")
    wait_until(lambda: is_staged(tx))

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("unforeseen")

    with monkeypatch.context() as patched:
        patched.setattr(*place, fail)
        tx.publish(queues[1], b"message")
        with pytest.raises(hawser.TransactionAborted, match="unforeseen") as raised:
            tx.commit()
    assert not raised.value.retryable and isinstance(raised.value.__cause__, ZeroDivisionError)
    assert tx.state == "rolled back" and not any(map(contents, queues))
    in_time(bus.close)


def test_a_message_that_an_ended_branch_never_got_is_given_back(
    bus: Any, cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (queue,) = queues_of(bus)
    queue.put(b"message")
    xid = Xid(77, b"transaction %d" % next(_numbers), b"branch")
    branch = bus.xa.start(xid)
    lost = TransportError("lost", was_sent=False)
    with monkeypatch.context() as patched:
        patched.setattr(shard_pipeline, "ask", Answers(lambda request: lost).ask)
        branch.accept(branch.get(queue, SECONDS))
        with pytest.raises(XAError):
            bus.xa.end(xid)
    with cluster.connect("other") as other:
        again: Any = other.queue(queue.name).get(SECONDS)
    assert bytes(again) == b"message"


def test_a_first_transaction_over_several_shards_needs_a_majority_and_no_more(tmp_path: Path) -> None:
    """Nothing is made for it: one of the shards that it touches decides."""
    with RunningCluster(tmp_path) as own:
        bus: Any = own.connect("worker", timeout=SECONDS)
        queues = queues_of(bus, 2)
        own.stop(own.nodes[-1])
        with bus.transaction(timeout=3600) as tx:
            for queue in queues:
                tx.publish(queue, b"message")
        assert [contents(queue) for queue in queues] == [[b"message"]] * 2
        assert wire.HOMES not in own.ask(wire.GetMap()).topics


class Follower:
    """A member of a group that follows when all of them do."""

    received = 0

    def __init__(self, together: asyncio.Barrier) -> None:
        self._together = together

    def go_back(self, claim: Claim) -> "asyncio.Task[int]":
        return asyncio.create_task(self._together.wait())


def test_groups_follow_side_by_side(bus: Any) -> None:
    tx = bus.transaction()
    together = asyncio.Barrier(3)
    tx._work._claims = {Follower(together): Claim() for _ in range(3)}
    in_time(tx.rollback)
    assert tx.state == "rolled back"


def test_the_way_to_a_shard_is_forgotten_when_nobody_uses_it(bus: Any) -> None:
    (queue,) = queues_of(bus)
    with bus.transaction() as tx:
        tx.publish(queue, b"message")
    pipelines = bus._client.lanes.pipelines
    assert len(pipelines._shards) == 1
    del tx
    wait_until(lambda: gc.collect() >= 0 and not pipelines._shards)


def test_work_that_waits_for_a_transaction_to_begin_is_refused_if_that_was_rolled_back(
    cluster: RunningCluster,
) -> None:
    """Nothing is left open that nobody ends."""

    async def work() -> None:
        bus: Any = aio.connect(cluster.url)
        transaction = bus.transaction()
        work = asyncio.create_task(transaction.accept([]))
        await asyncio.sleep(0)
        await transaction.rollback()
        with pytest.raises(hawser.UsageError, match="has ended"):
            await work
        assert transaction.state == "rolled back"
        assert not (await bus._started()).lanes._open
        await bus.close()

    asyncio.run(work())


def test_a_commit_ends_the_wait_for_room(cluster: RunningCluster) -> None:
    """Of another task, which published so much that it has to wait."""

    async def work() -> None:
        async with aio.connect(cluster.url) as bus:
            topic = bus.topic("no room", partitions=1)
            transaction: Any = bus.transaction()
            await transaction.publish(topic, b"first")
            inner = transaction._work
            inner._begun_bytes += 1 << 30
            waiting = asyncio.create_task(inner.room())
            await asyncio.sleep(0)
            await transaction.commit()
            for _ in range(100):
                if not waiting.done():
                    await asyncio.sleep(0.01)
            assert waiting.done() and transaction.state == "committed"

    asyncio.run(work())
