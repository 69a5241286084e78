"""Groups that are moved by transactions: samples of a transaction that was not committed were passed over for
good, or copied twice. Found by review."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client import rpc
from hawser.cluster.client.admin import offsets
from hawser.cluster.client.subscribe.fetcher import Fetcher
from hawser.cluster.client.transaction import shard_pipeline
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupLeave, encode_command
from tests.support.cluster import RunningCluster

SECONDS = 60.0
COUNT = 8


@pytest.fixture
def bus(cluster: RunningCluster) -> Any:
    return cluster.connect("worker")


@pytest.fixture
def source(bus: Any, request: pytest.FixtureRequest) -> Any:
    """A topic with some samples."""
    topic = bus.topic(f"{request.node.name}/source")
    topic.publish_many([b"%d" % number for number in range(COUNT)])
    return topic


@pytest.fixture
def target(bus: Any, request: pytest.FixtureRequest) -> Any:
    """The topic to copy them to."""
    topic = bus.topic(f"{request.node.name}/target")
    topic.info()
    return topic


def until(condition: Callable[[], bool]) -> None:
    """Return when it is so; the test's own limit ends it otherwise."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)


@contextmanager
def changing(member: Any) -> Iterator[None]:
    """The member is busy with its partitions until the block ends, as while it asks a leader."""
    lock, loop = member._consumer._changing, member._thread.loop
    asyncio.run_coroutine_threadsafe(lock.acquire(), loop).result(SECONDS)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(lock.release)


def expel(cluster: RunningCluster, source: Any) -> None:
    """Make the only member leave the group; it comes back by itself."""
    (partition,), (participant,) = source.info().partitions, source.info().participants
    leave = GroupLeave("g", participant.name)
    request = wire.Execute(partition.shard, Kind.GROUP_LEAVE, encode_command(leave))
    assert isinstance(cluster.ask(request, partition.leader), wire.Executed)


def rob(cluster: RunningCluster, source: Any, member: Any) -> None:
    """Expel it with two samples in hand: its next commit is refused."""
    assert len(member.take_many(2, SECONDS)) == 2
    expel(cluster, source)
    until(lambda: bool(member.positions == {0: 1}))


def copied_in_the_end(bus: Any, source: Any, target: Any, member: Any) -> list[bytes]:
    """Copy until the group is at the end; everything that was copied, in order."""

    def copy(tx: Any) -> None:
        samples = member.take_many(2, 0.1)
        tx.commit_offsets(member)
        for sample in samples:
            tx.publish(target, bytes(sample))

    while source.info().records[0].mark < COUNT:
        with suppress(hawser.TransactionAborted):
            bus.run_transaction(copy)
    return sorted(bytes(sample) for sample in target.read_oldest(100).samples)


EVERYTHING = [b"%d" % number for number in range(COUNT)]


def test_a_thread_that_takes_while_its_member_goes_back_passes_nothing_over(
    cluster: RunningCluster, bus: Any, source: Any, target: Any
) -> None:
    """The next move began before the one that was refused, and went on behind it."""
    began: list[Any] = []

    def refused() -> None:
        tx = bus.transaction()
        with pytest.raises(hawser.TransactionAborted, match="taken over"), tx:
            member.take_many(2, SECONDS)
            tx.commit_offsets(member)
            began.append(tx)
            tx.commit()

    with source.subscribe(group="g", start="earliest") as member:
        rob(cluster, source, member)
        with changing(member):
            worker = threading.Thread(target=refused, daemon=True)
            worker.start()
            until(lambda: bool(began) and began[0].state == "rolled back")
            samples = member.take_many(2, 0.2)
        with suppress(hawser.HawserError), bus.transaction() as tx:
            tx.commit_offsets(member)
            for sample in samples:
                tx.publish(target, bytes(sample))
        worker.join(SECONDS)
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_a_task_that_no_longer_waits_for_its_member_passes_nothing_over(
    cluster: RunningCluster, bus: Any, source: Any, target: Any
) -> None:
    """A time-out ended the wait for the member to go back, and the next samples were taken at once."""

    async def copy(looped: Any, member: Any, samples: list[Any]) -> None:
        async with looped.transaction() as tx:
            await tx.commit_offsets(member)
            for sample in samples:
                await tx.publish(looped.topic(target.name), bytes(sample))

    async def story() -> None:
        async with aio.connect(cluster.url) as looped:
            member: Any = looped.topic(source.name).subscribe(group="g", start="earliest")
            assert len(await member.take_many(2, SECONDS)) == 2
            await asyncio.to_thread(expel, cluster, source)
            while member.positions != {0: 1}:
                await asyncio.sleep(0.01)
            async with member._consumer._changing:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await copy(looped, member, await member.take_many(2, SECONDS))
                samples = await member.take_many(2, 0.2)
            with suppress(hawser.HawserError):
                await copy(looped, member, samples)
            await member.close()

    asyncio.run(story())
    with source.subscribe(group="g") as member:
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_what_a_thread_has_in_hand_when_its_member_goes_back_is_not_copied_twice(
    bus: Any, source: Any, target: Any
) -> None:
    """Only the thread that had its transaction rolled back was told."""
    taken, is_over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def other() -> None:
        samples = member.take_many(2, SECONDS)
        taken.set()
        is_over.wait(SECONDS)
        try:
            with bus.transaction() as tx:
                tx.commit_offsets(member)
                for sample in samples:
                    tx.publish(target, bytes(sample))
        except hawser.HawserError as error:
            errors.append(error)

    with source.subscribe(group="g", start="earliest") as member:
        worker = threading.Thread(target=other, daemon=True)
        tx = bus.transaction()
        assert len(member.take_many(2, SECONDS)) == 2
        worker.start()
        taken.wait(SECONDS)
        tx.commit_offsets(member)
        tx.rollback()
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING
        is_over.set()
        worker.join(SECONDS)
    assert ["is taken again" in str(error) for error in errors] == [True]
    assert len(target.read_oldest(100).samples) == COUNT


@pytest.mark.parametrize("is_over", [False, True], ids=["open", "rolled back"])
def test_a_commit_does_not_move_the_group_behind_a_transaction(
    bus: Any, source: Any, target: Any, is_over: bool
) -> None:
    """It committed what the transaction had claimed, and that was rolled back."""

    def commit() -> None:
        with pytest.raises(hawser.UsageError, match=r"transaction (moves|with)"):
            member.commit()
        refused.append(True)

    refused: list[bool] = []
    with source.subscribe(group="g", start="earliest") as member:
        tx = bus.transaction()
        member.take_many(2, SECONDS)
        tx.commit_offsets(member)
        ending, committing = (threading.Thread(target=each, daemon=True) for each in (tx.rollback, commit))
        if is_over:
            with changing(member):
                ending.start()
                until(lambda: bool(tx.state == "rolled back"))
                committing.start()
        else:
            committing.start()
        committing.join(SECONDS)
        if not is_over:
            ending.start()
        ending.join(SECONDS)
        assert refused
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_a_commit_that_is_late_does_not_let_its_samples_be_copied_again(
    cluster: RunningCluster, bus: Any, source: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member had gone back before it; what was taken again counted as committed, and was copied again."""

    async def story() -> None:
        released = asyncio.Event()

        async def late(link: Any, body: bytes, timeout_seconds: float) -> Any:
            await released.wait()
            return await rpc.ask(link, body, timeout_seconds)

        async def copy(tx: Any, samples: list[Any]) -> None:
            await tx.commit_offsets(member)
            for sample in samples:
                await tx.publish(looped.topic(target.name), bytes(sample))

        async with aio.connect(cluster.url) as looped:
            member: Any = looped.topic(source.name).subscribe(group="g", start="earliest")
            await looped.topic(target.name).info()
            first, second, third = (looped.transaction() for _ in range(3))
            await copy(first, await member.take_many(2, SECONDS))
            with monkeypatch.context() as patch:
                patch.setattr(shard_pipeline, "ask", late)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await first.commit()
                await copy(second, await member.take_many(2, SECONDS))
                await second.rollback()
                again = await member.take_many(2, SECONDS)
                released.set()
                assert await first.resolve()
                with suppress(hawser.HawserError):
                    await copy(third, again)
                    await third.commit()
            await third.rollback()
            await member.close()

    asyncio.run(story())
    with source.subscribe(group="g") as member:
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_a_member_that_cannot_ask_where_its_group_is_reads_again(
    bus: Any, source: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions were left without readers by an error that no one had foreseen."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("not foreseen")

    with source.subscribe(group="g", start="earliest") as member:
        tx = bus.transaction()
        assert len(member.take_many(2, SECONDS)) == 2
        tx.commit_offsets(member)
        with monkeypatch.context() as patch:
            patch.setattr(offsets, "inspect", broken)
            tx.rollback()
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_a_member_joins_again_while_a_leader_does_not_answer(
    cluster: RunningCluster, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one of its partitions had no leader, it came back to none of them."""

    async def unanswered(*_: Any, **__: Any) -> None:
        raise hawser.Unavailable("it has no leader")

    with source.subscribe(group="g", start="earliest") as member:
        monkeypatch.setattr(Fetcher, "check", unanswered)
        rob(cluster, source, member)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_whose_end_is_interrupted_does_not_stay_open(
    bus: Any, source: Any, target: Any, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The call was cancelled before its first step; the group waited for it, and nothing ever ended it."""

    def interrupted(work: Any, *_: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    with source.subscribe(group="g", start="earliest") as member:
        tx = bus.transaction()
        assert len(member.take_many(2, SECONDS)) == 2
        tx.commit_offsets(member)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(member._thread, "call", interrupted)
            getattr(tx, end)()
        until(lambda: bool(tx.state == "rolled back"))
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING


def test_a_transaction_that_is_over_does_not_swallow_what_was_taken_for_it(
    bus: Any, source: Any, target: Any
) -> None:
    """It could not move the group, so the next one moved it behind what was taken for both."""
    with source.subscribe(group="g", start="earliest") as member:
        tx = bus.transaction()
        tx.rollback()
        member.take_many(2, SECONDS)
        with pytest.raises(hawser.UsageError, match="has ended"):
            tx.commit_offsets(member)
        assert copied_in_the_end(bus, source, target, member) == EVERYTHING
