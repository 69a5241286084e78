"""Sessions of members at the leader of their group: who is heard stays, who is not leaves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from hawser.cluster.node.group_sessions import GroupSessions
from hawser.cluster.wire import Code, Failed, GroupState, KeepAlive
from hawser.log.state.commands import GroupDelete, GroupJoin, GroupLeave
from hawser.log.state.groups import Group, Groups
from tests.stateful.log_shard import Shard


class Clock:
    """Stands for the loop: time is what the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now


class Leader:
    """A shard with a group of `a` and `b`, and its sessions."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.shard.publish(1)
        for member in ("a", "b"):
            self.shard.do(GroupJoin("g", member))
        self.clock = Clock()
        self.dropped: list[str] = []
        self.sessions = GroupSessions(lambda: self.shard.groups, self._leave)
        self.sessions._loop = self.clock  # type: ignore[assignment]

    def _leave(self, group: str, member: str) -> None:
        self.dropped.append(member)
        self.do(GroupLeave(group, member))

    def do(self, command: Any) -> None:
        self.shard.do(command)
        self.sessions.applied()

    async def hear(self, member: str, **known: Any) -> GroupState | Failed:
        """What a member is told that asks now and does not wait."""
        asked = {"generation": 2, "known_settled": 0, "settled": 0, "wait_seconds": 0.0, **known}
        request = KeepAlive("s", "g", member, session_seconds=6.0, **asked)
        return await self.sessions.keep_alive(request)

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.sessions.tick()


def run(story: Callable[[Leader], Coroutine[Any, Any, None]]) -> None:
    async def tell() -> None:
        async with asyncio.timeout(20):
            await story(Leader())

    asyncio.run(tell())


def test_who_is_silent_for_too_long_leaves() -> None:
    async def story(leader: Leader) -> None:
        await leader.hear("a")
        leader.pass_time(5.9)
        assert leader.dropped == []
        await leader.hear("a")
        leader.pass_time(0.2)
        assert leader.dropped == ["b"]
        assert await leader.hear("a", generation=2) == GroupState(3, ("a",), ())
        leader.pass_time(100)
        assert leader.dropped == ["b", "a"]

    run(story)


def test_a_new_leader_gives_everybody_time() -> None:
    async def story(leader: Leader) -> None:
        leader.pass_time(1000)
        assert leader.dropped == [], "a group that nobody follows here is left alone"
        await leader.hear("b")
        leader.pass_time(5)
        leader.sessions.forget()
        leader.pass_time(5)
        await leader.hear("b")
        leader.pass_time(5)
        assert leader.dropped == []

    run(story)


def test_who_joined_and_was_never_heard_leaves() -> None:
    async def story(leader: Leader) -> None:
        await leader.hear("a")
        await leader.hear("b")
        leader.do(GroupJoin("g", "c"))
        leader.pass_time(1)
        for _ in range(3):
            await leader.hear("a")
            await leader.hear("b")
            leader.pass_time(2.1)
        assert leader.dropped == ["c"]

    run(story)


def test_members_are_woken_only_by_what_is_news_to_them() -> None:
    """Not by each entry of the shard: a member that is woken looks at all the others."""

    async def story(leader: Leader) -> None:
        looks: list[str] = []
        groups = leader.shard.groups

        class Counted(Groups):
            def get(self, name: str) -> Group | None:
                looks.append(name)
                return super().get(name)

        groups.__class__ = Counted
        leader.sessions.applied()
        for command in (GroupJoin("g", "c"), GroupLeave("g", "c"), GroupDelete("g")):
            generation = leader.shard.groups._generation
            waiting = asyncio.create_task(leader.hear("a", generation=generation, wait_seconds=10.0))
            await asyncio.sleep(0)
            looks.clear()
            for _ in range(10):
                leader.shard.publish(1)
                leader.sessions.applied()
                await asyncio.sleep(0)
            assert looks == [] and not waiting.done()
            leader.do(command)
            answer = await waiting
            assert isinstance(answer, Failed if isinstance(command, GroupDelete) else GroupState)

    run(story)


def test_strangers_are_told_so() -> None:
    async def story(leader: Leader) -> None:
        for asked in (leader.hear("x"), leader.hear("a", generation=9)):
            answer = await asked
            if isinstance(answer, Failed):
                assert (answer.code, answer.retryable) == (Code.REJECTED, False)
            else:
                assert answer == GroupState(2, ("a", "b"), ())

    run(story)


@pytest.mark.parametrize("news", ["members", "settled", "dropped"])
def test_news_end_the_waiting(news: str) -> None:
    async def story(leader: Leader) -> None:
        await leader.hear("b")
        waiting = asyncio.create_task(leader.hear("a", wait_seconds=60.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        # One that waits is heard, however long.
        leader.clock.now += 5.0
        await leader.hear("b")
        leader.pass_time(5.0)
        assert leader.dropped == []
        if news == "members":
            leader.do(GroupJoin("g", "c"))
            assert await waiting == GroupState(3, ("a", "b", "c"), ())
        elif news == "settled":
            assert await leader.hear("b", settled=2) == GroupState(2, ("a", "b"), ("b",))
            assert await waiting == GroupState(2, ("a", "b"), ("b",))
        else:
            leader.do(GroupLeave("g", "a"))
            answer = await waiting
            assert isinstance(answer, Failed) and answer.code is Code.REJECTED

    run(story)


def test_who_goes_away_while_it_waits_has_a_session_left() -> None:
    async def story(leader: Leader) -> None:
        waiting = asyncio.create_task(leader.hear("a", wait_seconds=60.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leader.hear("b")
        leader.pass_time(5.9)
        assert leader.dropped == []
        await leader.hear("b")
        leader.pass_time(0.2)
        assert leader.dropped == ["a"]

    run(story)
