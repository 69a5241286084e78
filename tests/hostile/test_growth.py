"""What is opened, used, cancelled and closed leaves nothing behind: memory, threads, descriptors and tasks
are as before.

A leak shows as at least one object of the collector a round, or one allocated block in the long run. Growth
counts only if every window of rounds has it. An event loop keeps cancelled timers, up to about a hundred:
those do not count.
"""

import asyncio
import gc
import heapq
import os
import secrets
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hawser
from hawser import aio, xa
from hawser.api.local.aio.bus import LocalAsyncBus
from hawser.cluster import wire
from hawser.cluster.client.router import Router
from hawser.cluster.client.settings import ClientSettings
from hawser.spark import connection as spark_connection
from hawser.testing import LocalBus
from tests.support.processes import LIMIT_SECONDS, Daemon

ROUNDS = 20
SOAK_ROUNDS = 10_000
WINDOWS = 4
# One object in two rounds. A connection is hundreds of blocks, and takes ways that are new for long.
HALF = 0.5
SOME = 8.0
# Blocks that the first hundreds of rounds leave, and later ones do not.
MOST_OF_FREE_LISTS = 100
# What was closed may have its end a moment later.
SETTLING_SECONDS = 3.0

Use = Callable[[Any], None]
AsyncUse = Callable[[Any], Awaitable[None]]


class Counts(NamedTuple):
    objects: int
    blocks: int
    threads: int
    descriptors: int
    tasks: int


def purge(loop: Any) -> None:
    """Throw away the cancelled timers of an event loop, in that loop."""
    loop._scheduled[:] = [each for each in loop._scheduled if not each.cancelled()]
    heapq.heapify(loop._scheduled)
    loop._timer_cancelled_count = 0


def purge_all() -> None:
    """Those of every event loop of this process."""
    for loop in [each for each in gc.get_objects() if isinstance(each, asyncio.BaseEventLoop)]:
        if loop.is_running():
            purged = threading.Event()
            if loop is asyncio._get_running_loop():
                purge(loop)
                continue
            loop.call_soon_threadsafe(purge, loop)
            loop.call_soon_threadsafe(purged.set)
            purged.wait(LIMIT_SECONDS)


def counts() -> Counts:
    purge_all()
    gc.collect()
    try:
        tasks = len(asyncio.all_tasks())
    except RuntimeError:
        tasks = 0
    descriptors = len(os.listdir("/proc/self/fd"))
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    return Counts(objects, blocks, threading.active_count(), descriptors, tasks)


def growth(before: Counts, after: Counts) -> Counts:
    return Counts(*(now - then for then, now in zip(before, after, strict=True)))


def is_level(grown: Counts, rounds: int, each: float) -> bool:
    """Whether less than so many objects are left by a round, and blocks, beside those of free lists."""
    is_small = grown.objects < rounds * each and grown.blocks < MOST_OF_FREE_LISTS + rounds * each
    return is_small and max(grown.threads, grown.descriptors, grown.tasks) <= 0


class Windows:
    """The growth in each window of rounds, until it is level in one of them."""

    def __init__(self) -> None:
        self.grown: list[tuple[int, Counts]] = []
        self._is_level = False

    @property
    def has_to_go_on(self) -> bool:
        return not self._is_level and len(self.grown) < WINDOWS

    def add(self, grown: Counts, rounds: int, each: float, deadline: float) -> bool:
        """Whether the window is over: nothing has grown, or what was closed had its time to end."""
        self._is_level = is_level(grown, rounds, each)
        if self._is_level or time.monotonic() >= deadline:
            self.grown.append((rounds, grown))
            return True
        return False

    def judge(self, name: str, record_property: Any) -> None:
        record_property(name, f"{len(self.grown)} x {self.grown[-1][0]}, {tuple(self.grown[-1][1])}")
        assert self._is_level, (name, self.grown)


class Rounds:
    """So many rounds, or fewer if they take longer than a number of seconds."""

    def __init__(self, most: int, seconds: float = inf, each: float = HALF) -> None:
        self.most = most
        self.seconds = seconds
        self.each = each

    def of(self, each: float) -> "Rounds":
        """As many, of which each may leave so many blocks."""
        return Rounds(self.most, self.seconds, each)

    def __iter__(self) -> Iterator[int]:
        deadline = time.monotonic() + self.seconds
        return takewhile(lambda done: not done or time.monotonic() < deadline, range(self.most))


def repeat(use: Use, made: Any, rounds: Rounds) -> Windows:
    for _ in rounds:
        use(made)
    windows = Windows()
    while windows.has_to_go_on:
        before, made_rounds = counts(), 0
        for _ in rounds:
            use(made)
            made_rounds += 1
        deadline = time.monotonic() + SETTLING_SECONDS
        while not windows.add(growth(before, counts()), made_rounds, rounds.each, deadline):
            time.sleep(0.1)
    return windows


async def repeat_async(use: AsyncUse, made: Any, rounds: Rounds) -> Windows:
    for _ in rounds:
        await use(made)
    windows = Windows()
    while windows.has_to_go_on:
        before, made_rounds = counts(), 0
        for _ in rounds:
            await use(made)
            made_rounds += 1
        deadline = time.monotonic() + SETTLING_SECONDS
        while not windows.add(growth(before, counts()), made_rounds, rounds.each, deadline):
            await asyncio.sleep(0.1)
    return windows


# What is opened, used and closed. Each has the bus; the same for one host and for a cluster where it can be.


def topic(bus: Any) -> None:
    with bus.topic("t") as opened:
        opened.publish(b"x")
        opened.read_newest(1)


def publisher(bus: Any) -> None:
    with bus.topic("kept").publisher() as opened:
        opened.publish(b"x")


def dropped_publisher(bus: Any) -> None:
    bus.topic("kept").publisher().publish(b"x")


def loan(bus: Any) -> None:
    with bus.topic("kept").loan(1) as buffer:
        buffer[:] = b"x"


def subscription(bus: Any) -> None:
    with bus.topic("kept").subscribe(history=1) as opened:
        assert opened.take(LIMIT_SECONDS) is not None
        assert opened.take(0.001) is None


def dropped_subscription(bus: Any) -> None:
    assert bus.topic("kept").subscribe(history=1).take(LIMIT_SECONDS) is not None


def member(bus: Any) -> None:
    with bus.topic("kept").subscribe(group="g", start="earliest") as opened:
        assert opened.take(LIMIT_SECONDS) is not None


def queue(bus: Any) -> None:
    with bus.queue("q") as opened:
        opened.put(b"x")
        with opened.get(LIMIT_SECONDS):
            pass
        assert opened.get(0) is None


def consumer(bus: Any) -> None:
    opened = bus.queue("q2")
    opened.put(b"x")
    with opened.consume() as consuming, next(consuming) as message:
        assert bytes(message) == b"x"


def dropped_message(bus: Any) -> None:
    opened = bus.queue("q3")
    opened.put(b"x")
    opened.get(LIMIT_SECONDS)
    with opened.get(LIMIT_SECONDS):
        pass


def dead_letters(bus: Any) -> None:
    opened = bus.queue("q4")
    opened.put(b"x")
    opened.get(LIMIT_SECONDS).reject()
    with opened.dead_letters() as dead_letters:
        dead_letters.get(LIMIT_SECONDS).accept()


def info(bus: Any) -> None:
    bus.topic("kept").info()
    bus.queue("q2").info()
    bus.participants()


def transaction(bus: Any) -> None:
    with bus.transaction() as work:
        work.publish(bus.topic("kept"), b"x")
        work.publish(bus.queue("other"), b"x")
    with bus.transaction() as work:
        work.accept(work.get(bus.queue("other"), LIMIT_SECONDS))


def rolled_back_transaction(bus: Any) -> None:
    work = bus.transaction()
    work.publish(bus.topic("kept"), b"x")
    work.rollback()


def dropped_transaction(bus: Any) -> None:
    bus.transaction().publish(bus.topic("kept"), b"x")


def branch(bus: Any) -> None:
    xid = xa.Xid(4711, secrets.token_bytes(8), b"b")
    work = bus.xa.start(xid)
    work.publish(bus.topic("kept"), b"x")
    bus.xa.end(xid)
    bus.xa.rollback(xid)


SHARED: list[Use] = [topic, publisher, dropped_publisher, loan, subscription, dropped_subscription, queue]
SHARED += [consumer, dropped_message, dead_letters, info]
OF_CLUSTERS: list[Use] = [member, transaction, rolled_back_transaction, dropped_transaction, branch]


async def cancelled(work: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.001)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def async_topic(bus: aio.AsyncBus) -> None:
    async with bus.topic("t") as opened:
        await opened.publish(b"x")
        await opened.read_newest(1)


async def async_publisher(bus: aio.AsyncBus) -> None:
    async with bus.topic("kept").publisher() as opened:
        await opened.publish_nowait(b"x")


async def async_subscription(bus: aio.AsyncBus) -> None:
    async with bus.topic("kept").subscribe(history=1) as opened:
        assert await opened.take(LIMIT_SECONDS) is not None
        await cancelled(opened.take())
        assert await opened.take(0.001) is None


async def async_queue(bus: aio.AsyncBus) -> None:
    async with bus.queue("q") as opened:
        await cancelled(opened.get())
        await opened.put(b"x")
        message = await opened.get(LIMIT_SECONDS)
        assert message is not None
        await message.accept()


async def cancelled_gets(bus: aio.AsyncBus) -> None:
    await cancelled(bus.queue("empty").get())


async def cancelled_openings(bus: aio.AsyncBus) -> None:
    async with bus.topic("t") as opened:
        await cancelled(opened.publish(b"x"))


async def async_consumer(bus: aio.AsyncBus) -> None:
    opened = bus.queue("q2")
    await opened.put(b"x")
    async with opened.consume() as consuming:
        async for message in consuming:
            await message.accept()
            break
        await cancelled(anext(consuming))


async def async_transaction(bus: aio.AsyncBus) -> None:
    async with bus.transaction() as work:
        await work.publish(bus.topic("kept"), b"x")
    await cancelled(bus.run_transaction(_publish, 0))


async def _publish(work: aio.AsyncTransaction) -> None:
    await asyncio.sleep(LIMIT_SECONDS)


ASYNC_SHARED: list[AsyncUse] = [async_topic, async_publisher, async_subscription, async_queue, cancelled_gets]
ASYNC_SHARED += [cancelled_openings, async_consumer]


async def cancelled_members(bus: aio.AsyncBus) -> None:
    await cancelled(bus.topic("kept").subscribe(group="c").take())


async def async_branch(bus: aio.AsyncBus) -> None:
    xid = xa.Xid(4711, secrets.token_bytes(8), b"b")
    work = await bus.xa.start(xid)
    await work.publish(bus.topic("kept"), b"x")
    await bus.xa.end(xid)
    await bus.xa.rollback(xid)


ASYNC_OF_CLUSTERS: list[AsyncUse] = [async_transaction, async_branch, cancelled_members]


@pytest.fixture(scope="module")
def daemon(module_path: Path) -> Iterator[Daemon]:
    arguments = ["up", "--dir", str(module_path / "cluster"), "--listen", "127.0.0.1:0"]
    with Daemon(arguments, module_path / "log") as running:
        yield running


def url_of(local: LocalBus, daemon: Daemon, is_cluster: bool) -> str:
    return daemon.ready if is_cluster else local.url


def options(is_cluster: bool) -> dict[str, float]:
    return {"timeout": LIMIT_SECONDS, "connect_timeout": LIMIT_SECONDS} if is_cluster else {}


def prepared(bus: Any) -> None:
    bus.topic("kept").publish(b"x")
    for name in ("q", "q2", "q3", "q4", "other", "empty"):
        bus.queue(name)


def buses(url: str, is_cluster: bool) -> Use:
    def use(_: object) -> None:
        with hawser.connect(url, name=None, **options(is_cluster)) as bus:
            bus.topic("kept").publish(b"x")

    return use


def judge(url: str, is_cluster: bool, rounds: Rounds, record_property: Any) -> None:
    with hawser.connect(url, name="growth", **options(is_cluster)) as bus:
        prepared(bus)
        for use in [*SHARED, *(OF_CLUSTERS if is_cluster else [])]:
            repeat(use, bus, rounds).judge(use.__name__, record_property)
    repeat(buses(url, is_cluster), None, rounds.of(SOME)).judge("buses", record_property)


async def judge_async(url: str, is_cluster: bool, rounds: Rounds, record_property: Any) -> None:
    async with aio.connect(url, name=None, **options(is_cluster)) as bus:
        for use in [*ASYNC_SHARED, *(ASYNC_OF_CLUSTERS if is_cluster else [])]:
            windows = await repeat_async(use, bus, rounds)
            windows.judge(getattr(use, "__name__", ""), record_property)

    async def one(_: object) -> None:
        async with aio.connect(url, name=None, **options(is_cluster)) as bus:
            await bus.topic("kept").publish(b"x")

    (await repeat_async(one, None, rounds.of(SOME))).judge("buses", record_property)


SCOPES = pytest.mark.parametrize("is_cluster", [False, True], ids=["shm", "hawser"])


@SCOPES
def test_nothing_is_left_by_threads(
    local: LocalBus, daemon: Daemon, is_cluster: bool, record_property: Any
) -> None:
    judge(url_of(local, daemon, is_cluster), is_cluster, Rounds(ROUNDS), record_property)


@SCOPES
def test_nothing_is_left_by_event_loops(
    local: LocalBus, daemon: Daemon, is_cluster: bool, record_property: Any
) -> None:
    asyncio.run(judge_async(url_of(local, daemon, is_cluster), is_cluster, Rounds(ROUNDS), record_property))


@pytest.mark.parametrize("planted", [list, threading.Lock, bytearray], ids=lambda each: each.__name__)
def test_a_planted_leak_is_found(
    planted: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setattr(f"{__name__}.SETTLING_SECONDS", 0.01)
    kept: list[Any] = []
    rounds = Rounds(10 * MOST_OF_FREE_LISTS)
    with pytest.raises(AssertionError, match="planted"):
        repeat(lambda _: kept.append(planted()), None, rounds).judge("planted", record_property)


def test_handles_of_many_names_are_not_kept(local: LocalBus) -> None:
    """An asynchronous bus of one host kept each closed topic and queue."""

    async def run() -> None:
        async with aio.connect(local.url) as bus:
            for number in range(20):
                for opened in (bus.topic(f"t{number}"), bus.queue(f"q{number}")):
                    await (opened.delete() if number % 2 else opened.close())
            assert isinstance(bus, LocalAsyncBus)
            assert not bus._topics and not bus._queues

    asyncio.run(run())


def test_a_client_forgets_where_leaders_were() -> None:
    """What nodes said of the leaders of topics that are deleted now stayed in the client for good."""

    async def run() -> None:
        router = Router([], "c", ClientSettings(backoff_most_seconds=0.001))
        for number in range(20):
            shard = wire.shard_of("t", f"{number:08}", 0)
            moved = wire.Failed(wire.Code.NOT_LEADER, "elsewhere", True, leader=("n1", "n1:7400"))
            router.map.topics["t"] = wire.TopicEntry(number, f"{number:08}", 1, {})
            assert router.note(shard, moved) and router._leader_address(shard) == "n1:7400"
            router._forget_hints()
            assert router._leader_address(shard) == "n1:7400"
            await asyncio.sleep(0.002)
        assert len(router._hints) == 1 and len(router._followed) == 1

    asyncio.run(run())


def test_a_connection_of_spark_that_is_given_up_ends(daemon: Daemon, record_property: Any) -> None:
    """Also while several threads ask for it."""

    async def fail() -> None:
        raise hawser.Unavailable("no node answers")

    def use(_: object) -> None:
        found: list[Any] = []
        asking = [
            threading.Thread(target=lambda: found.append(spark_connection.connection(daemon.ready)))
            for _ in range(3)
        ]
        for each in asking:
            each.start()
        for each in asking:
            each.join()
        assert len(found) == 3 and len(set(map(id, found))) == 1
        with suppress(hawser.Unavailable):
            found[0].call(fail())

    repeat(use, None, Rounds(ROUNDS // 3, each=SOME)).judge("connections", record_property)


@pytest.mark.soak
@SCOPES
def test_nothing_is_left_after_many_rounds(
    local: LocalBus, daemon: Daemon, is_cluster: bool, soak_seconds: float, record_property: Any
) -> None:
    url = url_of(local, daemon, is_cluster)
    kinds = len([*SHARED, *OF_CLUSTERS, *ASYNC_SHARED, *ASYNC_OF_CLUSTERS]) + 2
    rounds = Rounds(SOAK_ROUNDS, soak_seconds / kinds / 2)
    judge(url, is_cluster, rounds, record_property)
    asyncio.run(judge_async(url, is_cluster, rounds, record_property))
