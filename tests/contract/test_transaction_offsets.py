"""Groups in transactions: whatever becomes of one, what was taken is worked on once, and nothing is passed
over. In threads and in event loops."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client import rpc
from hawser.cluster.client.transaction import shard_pipeline
from hawser.cluster.transport import TransportError
from hawser.log.entry import Kind
from tests.support.cluster import RunningCluster
from tests.support.transactions import does

SECONDS = 60.0


@pytest.fixture
def bus(connect: Callable[..., Any]) -> Any:
    return connect(name="worker")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of things that belong to one test."""
    return str(request.node.name)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def contents(topic: Any) -> list[bytes]:
    return [bytes(sample) for sample in topic.read_oldest(1000).samples]


def inside(looked_at: Any) -> Any:
    """What is behind it, of whichever kind it is."""
    return getattr(looked_at, "inner", looked_at)


def scene(bus: Any, name: str, count: int, patient: Any = None) -> tuple[Any, Any, Any]:
    """A topic with so many samples, one to copy them to, and a member of a group; made by somebody patient,
    if the bus is not."""
    maker = patient or bus
    maker.topic(f"from {name}").publish_many([b"%d" % number for number in range(count)])
    maker.topic(f"to {name}").info()
    source, target = bus.topic(f"from {name}"), bus.topic(f"to {name}")
    return source, target, source.subscribe(group="g", start="earliest")


# What was taken for a transaction that is rolled back.


def test_a_rollback_while_members_change_passes_nothing_over(
    bus: Any, connect: Callable[..., Any], name: str
) -> None:
    source, target = bus.topic(f"from {name}", partitions=2), bus.topic(f"to {name}")
    keys = [b"%d" % number for number in range(20)]
    source.publish_many(keys, keys=keys)
    first = source.subscribe(group="g", start="earliest")
    taken = 0
    while taken < 20:
        taken += len(first.take_many(20, SECONDS))
    tx = bus.transaction()
    tx.commit_offsets(first)
    second = connect().topic(f"from {name}").subscribe(group="g")
    assert second.take(0) is None
    wait_until(lambda: bool(inside(first)._consumer._leaving))
    tx.rollback()
    # Nothing of it is left to be committed here, so the other one may have it at once.
    assert not inside(first)._consumer._leaving

    def copy(tx: Any, member: Any) -> None:
        samples = member.take_many(20, 0.05)
        tx.commit_offsets(member)
        for sample in samples:
            tx.publish(target, bytes(sample))

    def is_over() -> bool:
        for member in (first, second):
            bus.run_transaction(lambda tx, member=member: copy(tx, member))
        return bool(sum(each.mark for each in source.info().records) == 20)

    # The second one belongs to another bus.
    second.close()
    second = source.subscribe(group="g")
    wait_until(is_over)
    assert sorted(contents(target)) == sorted(keys)
    first.close()
    second.close()


def test_a_transaction_that_has_failed_takes_the_member_back(bus: Any, name: str) -> None:
    _, target, member = scene(bus, name, 2)
    jobs = bus.queue(f"jobs {name}")
    jobs.put(b"job")
    other, tx = bus.transaction(), bus.transaction()
    job = jobs.get(SECONDS)
    other.accept(job)
    # In an event loop it is told at once, and elsewhere by the next call.
    with suppress(hawser.TransactionAborted):
        tx.accept(job)
    wait_until(lambda: inside(tx)._work.has_failed)
    assert bytes(member.take(SECONDS)) == b"0"
    with pytest.raises(hawser.TransactionAborted, match="another transaction"):
        tx.commit_offsets(member)
    with pytest.raises(hawser.TransactionAborted):
        tx.commit()
    other.rollback()
    with bus.transaction() as tx:
        sample = member.take(SECONDS)
        tx.commit_offsets(member)
        tx.publish(target, bytes(sample))
    assert contents(target) == [b"0"]
    member.close()


def test_a_block_that_is_run_again_takes_again(bus: Any, name: str) -> None:
    source, target, member = scene(bus, name, 2)
    sample = member.take(SECONDS)
    tx = bus.transaction()
    tx.commit_offsets(member)
    tx.publish(target, bytes(sample))
    tx.rollback()
    again = bus.transaction()
    again.publish(target, bytes(sample))
    with pytest.raises(hawser.UsageError, match="take the samples in the block"):
        again.commit_offsets(member)
    again.rollback()
    # Whoever has tried to take has nothing old in hand, though there was nothing to be had.
    member.take(0)
    with bus.transaction() as empty:
        empty.commit_offsets(member)
    member.close()
    assert contents(target) == [] and next(each.mark for each in source.info().records) <= 1


def test_running_again_with_what_was_taken_outside_is_refused(bus: Any, name: str) -> None:
    _, target, member = scene(bus, name, 3)
    runs: list[int] = []

    def copy(tx: Any, samples: list[Any]) -> None:
        runs.append(1)
        tx.commit_offsets(member)
        tx.publish_many(target, [bytes(sample) for sample in samples])
        if len(runs) == 1:
            raise hawser.Unavailable("it passes")

    samples = member.take_many(3, SECONDS)
    with pytest.raises(hawser.UsageError, match="nothing was taken since"):
        bus.run_transaction(lambda tx: copy(tx, samples))
    assert contents(target) == []
    runs.clear()
    bus.run_transaction(lambda tx: copy(tx, member.take_many(1, SECONDS)))
    assert len(runs) == 2 and contents(target) == [b"0"]
    member.close()


# What was taken while nobody knew what became of the one before.


async def lost(link: Any, body: bytes, timeout_seconds: float) -> Any:
    raise TransportError("lost on its way", was_sent=False)


@pytest.mark.parametrize("is_told", [True, False], ids=["at the commit", "when it moves the group"])
def test_what_is_taken_behind_a_cancelled_commit_is_not_taken_for_more(
    cluster: RunningCluster, name: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = cluster.connect("patient")
    patient.topic(f"from {name}").publish_many([b"0", b"1", b"2", b"3"])
    patient.topic(f"to {name}").info()

    async def story() -> None:
        async with aio.connect(cluster.url, timeout=3.0) as bus:
            source, target = bus.topic(f"from {name}"), bus.topic(f"to {name}")
            member = source.subscribe(group="g", start="earliest")
            # The first one is cancelled while it is committed, and does not happen.
            first, second = bus.transaction(), bus.transaction()
            await first.publish(target, bytes((await member.take_many(1, SECONDS))[0]))
            await first.commit_offsets(member)
            monkeypatch.setattr(shard_pipeline, "ask", lost)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await first.commit()
            sample = await member.take(SECONDS)
            assert sample is not None
            await second.publish(target, bytes(sample))
            if is_told:
                await second.commit_offsets(member)
            # Until the group has followed, too.
            assert not await first.resolve()
            assert first.state == "rolled back"
            monkeypatch.setattr(shard_pipeline, "ask", rpc.ask)
            if not is_told:
                assert bytes(await member.take(SECONDS) or b"") == b"0"
                with pytest.raises(hawser.TransactionAborted, match="taken again"):
                    await second.commit_offsets(member)
            with pytest.raises(hawser.TransactionAborted):
                await second.commit()
            await copy_all(bus, member, target)
            await member.close()

    asyncio.run(story())


async def copy_all(bus: Any, member: Any, target: Any) -> None:
    """Copy what there is, and see that it was copied once."""

    async def copy(tx: Any) -> None:
        samples = await member.take_many(4, SECONDS)
        await tx.commit_offsets(member)
        for sample in samples:
            await tx.publish(target, bytes(sample))

    async def found() -> list[bytes]:
        return [bytes(sample) for sample in (await target.read_oldest(9)).samples]

    while len(await found()) < 4:
        await bus.run_transaction(copy)
    assert await found() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("commits_itself", [False, True])
def test_an_outcome_that_is_known_late_is_what_the_group_follows(
    connect: Callable[..., Any], name: str, commits_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = connect(timeout=3.0)
    source, _, member = scene(bus, name, 2, connect())
    runs: list[Any] = []

    async def lossy(link: Any, body: bytes, timeout_seconds: float) -> Any:
        answer = await rpc.ask(link, body, timeout_seconds)
        # Without its lane it was given up, and is being asked for again.
        if inside(runs[0])._work._lane is not None:
            raise TransportError("the answer was lost", was_sent=True)
        return answer

    def copy(tx: Any) -> bytes:
        runs.append(tx)
        sample = member.take(SECONDS)
        tx.commit_offsets(member)
        if commits_itself:
            tx.commit()
        return bytes(sample)

    monkeypatch.setattr(shard_pipeline, "ask", lossy)
    assert bus.run_transaction(copy) == b"0"
    monkeypatch.setattr(shard_pipeline, "ask", rpc.ask)
    assert bus.run_transaction(copy) == b"1" and len(runs) == 2
    assert inside(member)._consumer._returns == 0
    assert [each.mark for each in source.info().records] == [2]
    member.close()


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("what", ["the decision", "everything"])
def test_an_outcome_that_stays_unknown_has_the_group_go_on_where_it_is(
    cluster: RunningCluster, name: str, what: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost to what was done, or it never arrives. Without votes nobody decides to commit."""
    bus: Any = cluster.connect("worker", timeout=3.0)
    patient: Any = cluster.connect("patient")
    source, target, member = scene(bus, name, 2, patient)
    # A topic has no vote; a queue has.
    patient.queue(f"{name}/voting").info()
    queue = bus.queue(f"{name}/voting")

    async def lossy(link: Any, body: bytes, timeout_seconds: float) -> Any:
        is_lost = what == "everything" or decides(body)
        answer = await rpc.ask(link, body, timeout_seconds) if is_done or not is_lost else None
        if is_lost:
            raise TransportError("lost, one way or the other", was_sent=True)
        return answer

    def copy(tx: Any, timeout: float = 1.0) -> None:
        samples = member.take_many(2, timeout)
        tx.commit_offsets(member)
        for sample in samples:
            tx.publish(target, bytes(sample))
            tx.publish(queue, bytes(sample))

    expected = hawser.InDoubt if what == "the decision" else hawser.TransactionAborted
    monkeypatch.setattr(shard_pipeline, "ask", lossy)
    with pytest.raises(expected) as raised, bus.transaction() as tx:
        copy(tx, SECONDS)
    assert raised.value.outcome == ("unknown" if what == "the decision" else "none")
    monkeypatch.setattr(shard_pipeline, "ask", rpc.ask)
    while [each.mark for each in source.info().records] != [2]:
        bus.run_transaction(copy)
    bus.run_transaction(copy)
    assert contents(target) == [b"0", b"1"] and queue.info().ready == 2
    assert [each.mark for each in source.info().records] == [2]
    member.close()


def decides(body: bytes) -> bool:
    """Whether this request commits for several shards, or rolls back for them."""
    request = wire.decode_request(body)
    assert isinstance(request, wire.Transact)
    return does(request, Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT)


# What is run again, and what is not.


def test_what_was_committed_is_not_run_again(bus: Any, name: str) -> None:
    topic = bus.topic(name)
    runs: list[int] = []

    def publish(tx: Any) -> None:
        runs.append(1)
        tx.publish(topic, b"once")
        tx.commit()
        raise hawser.Unavailable("something else, later")

    with pytest.raises(hawser.Unavailable, match="something else"):
        bus.run_transaction(publish)
    assert len(runs) == 1 and contents(topic) == [b"once"]


def test_a_bus_that_closes_while_it_asks_says_that_the_outcome_is_unknown(
    connect: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect().topic(name).info()
    bus = connect(timeout=3.0)
    topic = bus.topic(name)
    runs: list[Any] = []
    errors: list[BaseException] = []

    async def lossy(link: Any, body: bytes, timeout_seconds: float) -> Any:
        await rpc.ask(link, body, timeout_seconds)
        raise TransportError("the answer was lost", was_sent=True)

    def publish(tx: Any) -> None:
        runs.append(tx)
        tx.publish(topic, b"perhaps")

    def work() -> None:
        try:
            bus.run_transaction(publish)
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(shard_pipeline, "ask", lossy)
    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: bool(runs) and inside(runs[0])._work._lane is None)
    bus.close()
    worker.join(SECONDS)
    assert [type(error) for error in errors] == [hawser.OutcomeUnknown]
