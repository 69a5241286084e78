"""Walks through the XA interface at random: answers and calls are lost, come late, or are cancelled, and the
program goes on with whatever call comes next. What a branch has accepted is committed, or an error says that
it is not.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.router import Router
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster

STEPS = 24
SEEDS = [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 200))]


class Weather:
    """Between a session and the homes, once `chance` is above 0."""

    def __init__(self, ask: Callable[..., Any], random: Random) -> None:
        self._ask = ask
        self._random = random
        self.chance = 0.0
        self.late: list[asyncio.Task[Any]] = []

    async def ask_leader(self, router: Router, name: str, shard: str, request: Any, *rest: Any) -> Any:
        kind = self._random.choice(["answer", "call", "late"])
        if not isinstance(request, wire.Transact) or self._random.random() >= self.chance:
            return await self._ask(router, name, shard, request, *rest)
        if kind == "answer":
            await self._ask(router, name, shard, request, *rest)
        elif kind == "late":
            self.late.append(asyncio.create_task(self._later(router, name, shard, request, *rest)))
        raise hawser.OutcomeUnknown(f"lost: {kind}")

    async def _later(self, *call: Any) -> None:
        await asyncio.sleep(self._random.uniform(0, 0.05))
        await self._ask(*call)


class Walk:
    """One branch, by one session."""

    def __init__(self, bus: Any, topic: Any, xid: Xid, random: Random) -> None:
        self.xa, self.topic, self.xid, self.random = bus.xa, topic, xid, random
        self.works: list[Any] = []
        self.accepted: list[bytes] = []
        self.told: list[str] = []

    async def go(self, weather: Weather) -> None:
        self.works.append(await self.xa.start(self.xid))
        weather.chance = 0.4
        for _ in range(STEPS):
            await self._step()
        weather.chance = 0.0
        await asyncio.gather(*weather.late)
        weather.late.clear()

    async def _step(self) -> None:
        work = self.random.choice([self._publish] * 3 + [self._start] * 2 + [self._end] * 2 + [self._look])
        task = asyncio.create_task(work())
        if self.random.random() < 0.3:
            for _ in range(self.random.randrange(12)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except (hawser.HawserError, asyncio.CancelledError) as error:
            self.told.append(f"{work.__name__}: {error}")

    async def _publish(self) -> None:
        value = b"%d of %s" % (len(self.accepted), self.xid.global_id)
        await self.random.choice(self.works).publish(self.topic, value)
        self.accepted.append(value)

    async def _start(self) -> None:
        flags = {"resume": self.random.random() < 0.7}
        self.works.append(await self.xa.start(self.xid, join=not flags["resume"], **flags))

    async def _end(self) -> None:
        await self.xa.end(self.xid, suspend=self.random.random() < 0.6)

    async def _look(self) -> None:
        await self.xa.set_timeout(self.xid, 600)

    async def finish(self) -> None:
        """End the work, as far as this session has some, then have the branch committed."""
        for flags in ({}, {"resume": True}, {}):
            try:
                if flags:
                    await self.xa.start(self.xid, **flags)
                else:
                    await self.xa.end(self.xid)
            except XAError as error:
                self.told.append(f"finish: {error}")
        try:
            await self.xa.commit(self.xid, one_phase=True)
        except XAError as error:
            self.told.append(str(error))
            # Nothing of it is committed then.
            assert error.code == "rb-rollback", "\n".join(self.told)
            self.accepted.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_branch_accepted_is_committed_or_refused(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    weather = Weather(Router.ask_leader, random)
    monkeypatch.setattr(Router, "ask_leader", lambda *given: weather.ask_leader(*given))

    async def work() -> None:
        async with aio.connect(cluster.url, name=f"walk {seed}") as bus:
            topic = bus.topic(f"walk {seed}", partitions=1)
            expected: list[bytes] = []
            for number in range(6):
                xid = Xid(7, b"walk %d, %d" % (seed, number), b"")
                walk = Walk(bus, topic, xid, random)
                await walk.go(weather)
                await walk.finish()
                expected += walk.accepted
                found = [bytes(each) for each in (await topic.read_oldest(10_000)).samples]
                assert found == expected, "\n".join(walk.told)

    asyncio.run(work())
