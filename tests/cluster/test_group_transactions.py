"""Members of a group copy from topic to topic in transactions. They come and go; threads and tasks share
them; their calls are cancelled, their transactions fail. In the end each message was copied once.

The twin is the committed history: what was published, and what is in the other topic.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster.client.subscribe.group_member import GroupMember
from tests.support.cluster import RunningCluster

SESSION_SECONDS = 1.0
ATTACK_SECONDS = 4.0
PARTITIONS = 3
TIMEOUTS = (0.003, 0.01, 0.03, 5.0)


class Rollback(Exception):
    """The user's own reason."""


class Copying:
    """Topics, and what was done so far. Each of the loops ends with `until`."""

    def __init__(self, cluster: RunningCluster, name: str, seed: int, seconds: float) -> None:
        self.url = cluster.url
        self.seed = seed
        self.names = f"{name}/from", f"{name}/to"
        self.until = time.monotonic() + seconds
        self.bus: Any = cluster.connect("publisher", session_seconds=SESSION_SECONDS)
        self.source = self.bus.topic(self.names[0], partitions=PARTITIONS)
        self.target = self.bus.topic(self.names[1], partitions=2)
        self.target.info()
        self.published = 0
        self.ended: Counter[str] = Counter()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def publish(self) -> None:
        while self.goes_on:
            values = [b"%d" % number for number in range(self.published, self.published + 10)]
            self.source.publish_many(values, keys=values)
            self.published += 10
            time.sleep(0.02)

    # Tasks.

    async def tasks(self) -> None:
        """Two members, each shared by two tasks."""
        async with aio.connect(self.url, session_seconds=SESSION_SECONDS) as bus:
            await asyncio.gather(*(self._member(bus, random.Random(f"{self.seed} {each}")) for each in "ab"))

    async def _member(self, bus: Any, dice: random.Random) -> None:
        source, target = bus.topic(self.names[0]), bus.topic(self.names[1])
        while self.goes_on:
            end = time.monotonic() + dice.uniform(0.5, 2.0)
            member = source.subscribe(group="g", start="earliest")
            # One at a time takes, and claims what was taken.
            turn = asyncio.Lock()

            async def work(member: Any = member, turn: asyncio.Lock = turn, end: float = end) -> None:
                while time.monotonic() < end:
                    try:
                        async with asyncio.timeout(dice.choice(TIMEOUTS)):
                            await self._copy(bus, member, target, turn, dice)
                        self.ended["copied"] += 1
                    except (TimeoutError, Rollback, hawser.HawserError) as error:
                        self.ended[type(error).__name__] += 1

            await asyncio.gather(work(), work())
            await member.close()

    async def _copy(
        self, bus: Any, member: Any, target: Any, turn: asyncio.Lock, dice: random.Random
    ) -> None:
        async with bus.transaction() as tx:
            async with turn:
                samples = await member.take_many(dice.randint(1, 8), 0.1)
                await tx.commit_offsets(member)
            for sample in samples:
                await tx.publish(target, bytes(sample), key=bytes(sample))
            if dice.random() < 0.1:
                raise Rollback

    # Threads.

    def threads(self) -> None:
        """One member after the other, each shared by two threads."""
        dice = random.Random(f"{self.seed} threads")
        with hawser.connect(self.url, session_seconds=SESSION_SECONDS) as bus:
            source, target = bus.topic(self.names[0]), bus.topic(self.names[1])
            while self.goes_on:
                end = time.monotonic() + dice.uniform(0.5, 2.0)
                with source.subscribe(group="g", start="earliest") as member:
                    turn = threading.Lock()

                    def work(member: Any = member, turn: Any = turn, end: float = end) -> None:
                        while time.monotonic() < end:
                            try:
                                self._copy_in_thread(bus, member, target, turn, dice)
                                self.ended["copied"] += 1
                            except (Rollback, hawser.HawserError) as error:
                                self.ended[type(error).__name__] += 1

                    run_all(work, work)

    def _copy_in_thread(self, bus: Any, member: Any, target: Any, turn: Any, dice: random.Random) -> None:
        with bus.transaction() as tx:
            with turn:
                samples = member.take_many(dice.randint(1, 8), 0.1)
                tx.commit_offsets(member)
            for sample in samples:
                tx.publish(target, bytes(sample), key=bytes(sample))
            if dice.random() < 0.2:
                raise Rollback

    # Everything.

    def run(self) -> None:
        run_all(self.publish, self.threads, lambda: asyncio.run(self.tasks()))

    def wrong(self) -> list[bytes]:
        """In the end: what was not copied once."""
        self.copy_rest()
        copied = self.copied()
        values = {*copied, *(b"%d" % number for number in range(self.published))}
        return [value for value in values if copied[value] != 1]

    def copy_rest(self) -> None:
        """Copy what is left, with one member."""

        def copy(tx: Any) -> None:
            samples = member.take_many(100, 0.2)
            tx.commit_offsets(member)
            for sample in samples:
                tx.publish(self.target, bytes(sample), key=bytes(sample))

        with self.source.subscribe(group="g", start="earliest") as member:
            while sum(each.mark for each in self.source.info().records) < self.published:
                with suppress(hawser.HawserError):
                    self.bus.run_transaction(copy)

    def copied(self) -> Counter[bytes]:
        """How often each is in the other topic."""
        ends = [each.end - 1 for each in self.target.info().partitions]
        found: Counter[bytes] = Counter()
        with self.target.subscribe(start="earliest") as subscription:
            while subscription.received < sum(ends):
                found.update(bytes(sample) for sample in subscription.take_many(10_000, 30.0))
        return found


def run_all(*works: Callable[[], None]) -> None:
    """Each in a thread; the first error of any of them is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_each_message_is_copied_once(
    cluster: RunningCluster, record_property: Callable[[str, object], None]
) -> None:
    copying = Copying(cluster, "once", 1, ATTACK_SECONDS)
    copying.run()
    record_property("published", copying.published)
    record_property("ended", dict(copying.ended))
    assert copying.wrong() == []
    assert copying.ended["copied"] and copying.ended["TimeoutError"] and copying.ended["Rollback"]


@pytest.mark.soak
def test_each_message_is_copied_once_for_long(
    cluster: RunningCluster, soak_seconds: float, record_property: Callable[[str, object], None]
) -> None:
    copying = Copying(cluster, "soak", random.randrange(1 << 30), soak_seconds)
    copying.run()
    record_property("published", copying.published)
    assert copying.wrong() == [], copying.seed


def test_members_that_go_on_before_they_have_gone_back_are_found_out(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that does not count, and no sample becomes void: what is refused is passed over."""

    def claim(self: GroupMember, taken: Any, claim: Any) -> Any:
        before = dict(self._claimed)
        moves = original(self, taken, claim)
        self._claimed.update(before)
        return moves

    original = GroupMember.claim
    for seed in range(10):
        copying = Copying(cluster, f"canary-{seed}", seed, 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(GroupMember, "claim", claim)
            patch.setattr(GroupMember, "go_back", lambda self, claim: self._follow_with(self._settle()))
            copying.run()
        if copying.wrong():
            return
    pytest.fail("no message was passed over or copied twice")
