"""Groups: members share the partitions, come, go and die; nothing is lost and no commit goes back."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from hawser import aio
from hawser.cluster import wire
from hawser.cluster.client.admin.offsets import share_of
from hawser.cluster.client.publish.partitioner import partition_of
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.cluster.client.subscribe.takers import Taken
from hawser.log.entry import Kind
from hawser.log.state.commands import AT_END, GroupCommit, GroupJoin, GroupLeave, encode_command
from hawser.log.state.results import Joined
from tests.support.cluster import RunningCluster

SECONDS = 30.0
SESSION_SECONDS = 1.0


@pytest.fixture
def topic(cluster: RunningCluster, request: pytest.FixtureRequest) -> hawser.Topic[Any]:
    bus = cluster.connect("publisher", session_seconds=SESSION_SECONDS)
    opened: hawser.Topic[Any] = bus.topic(request.node.name.replace("_", "-"), partitions=4)
    return opened


class Consumer:
    """A member in a thread: takes and commits until stopped."""

    def __init__(
        self, cluster: RunningCluster, topic: str, taken: list[tuple[int, int]], commit_every: int = 1
    ) -> None:
        self._bus = cluster.connect("consumer", session_seconds=SESSION_SECONDS)
        self.subscription = self._bus.topic(topic).subscribe(group="g", start="earliest")
        self._taken = taken
        self._commit_every = commit_every
        self.fenced = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for count, sample in enumerate(self.subscription, 1):
            self._taken.append((sample.partition, sample.offset))
            if count % self._commit_every == 0:
                try:
                    self.subscription.commit()
                except hawser.Fenced:
                    self.fenced += 1

    def stop(self) -> None:
        self.subscription.close()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


def positions(topic: hawser.Topic[Any]) -> list[int]:
    return [record.mark for record in topic.info().records]


def until(condition: Callable[[], bool]) -> None:
    """Return when it is so; the test's own limit ends it otherwise."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def publish(topic: hawser.Topic[Any], count: int) -> None:
    topic.publish_many([b"x"] * count, keys=[str(number).encode() for number in range(count)])


@pytest.mark.parametrize("members", range(1, 6))
@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7, 64])
def test_shares_are_even_and_complete(members: int, partitions: int) -> None:
    names = tuple(f"m{number}" for number in range(members))
    shares = [share_of(name, names, partitions) for name in names]
    assert sorted(partition for share in shares for partition in share) == list(range(partitions))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert share_of("stranger", names, partitions) == set()


def test_a_group_goes_on_where_it_committed(topic: hawser.Topic[Any]) -> None:
    publish(topic, 40)
    with topic.subscribe(group="g", start="earliest") as first:
        taken = [first.take(timeout=SECONDS) for _ in range(10)]
        first.commit()
        first.commit()
        assert first.take(timeout=SECONDS) is not None
    seen = {(each.partition, each.offset) for each in taken if each is not None}
    with topic.subscribe(group="g", start="latest") as second:
        again = [second.take(timeout=SECONDS) for _ in range(30)]
        assert all(again)
        assert second.take(timeout=0) is None
        assert not seen & {(each.partition, each.offset) for each in again if each is not None}
    assert topic.forget("group:g") is True
    assert topic.forget("group:g") is False
    with pytest.raises(hawser.UsageError, match="group:NAME"):
        topic.forget("g")


def test_a_new_group_begins_where_it_is_told(topic: hawser.Topic[Any]) -> None:
    publish(topic, 40)
    ends = {each.partition: each.end for each in topic.info().partitions}
    for group, options, expected in (
        ("a", {"start": "latest"}, dict.fromkeys(range(4), 0)),
        ("b", {"history": 2}, dict.fromkeys(range(4), 2)),
        ("c", {"start": 3}, {partition: end - 3 for partition, end in ends.items()}),
    ):
        with topic.subscribe(group=group, **options) as subscription:
            left = {
                partition: ends[partition] - position
                for partition, position in subscription.positions.items()  # type: ignore[attr-defined]
            }
            assert left == expected


def share_the_work(cluster: RunningCluster, topic: hawser.Topic[Any]) -> tuple[int, int]:
    """Three members come and go while messages are published; (taken, different ones among them)."""
    taken: list[tuple[int, int]] = []
    members = [Consumer(cluster, topic.name, taken)]
    highest = [0] * 4

    def check_forward() -> None:
        now = positions(topic)
        assert all(before <= after for before, after in zip(highest, now, strict=True)), (highest, now)
        highest[:] = now

    for _ in range(2):
        publish(topic, 60)
        members.append(Consumer(cluster, topic.name, taken))
        until(lambda: all(len(owned(each)) >= 1 for each in members))
        until(lambda: sum(len(owned(each)) for each in members) == 4)
        check_forward()
    while members:
        publish(topic, 200)
        members.pop(0).stop()
        check_forward()
        if members:
            until(lambda: sum(len(owned(each)) for each in members) == 4)
            until(lambda: positions(topic) == [each.end - 1 for each in topic.info().partitions])
    last = Consumer(cluster, topic.name, taken)
    until(lambda: positions(topic) == [each.end - 1 for each in topic.info().partitions])
    check_forward()
    last.stop()
    ends = {each.partition: each.end for each in topic.info().partitions}
    expected = {(partition, offset) for partition, end in ends.items() for offset in range(1, end)}
    assert set(taken) == expected, "something was never taken"
    return len(taken), len(expected)


def test_members_come_and_go_and_share_the_work(
    cluster: RunningCluster, topic: hawser.Topic[Any], record_property: Callable[[str, object], None]
) -> None:
    taken, different = share_the_work(cluster, topic)
    record_property("taken", taken)
    record_property("taken again", taken - different)


def test_members_that_commit_what_they_only_fetched_are_found_out(
    cluster: RunningCluster, topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a member that is stopped has fetched more than it has taken is a matter of chance: several
    times."""
    commit = GroupMember.commit

    async def hasty(self: GroupMember, taken: Taken) -> None:
        fetched = {number: reader._offset for number, reader in self._readers.items()}
        await commit(self, taken._replace(positions={**taken.positions, **fetched}))

    monkeypatch.setattr(GroupMember, "commit", hasty)
    bus = cluster.connect("publisher", session_seconds=SESSION_SECONDS)
    with pytest.raises(AssertionError, match="never taken"):
        for life in range(10):
            share_the_work(cluster, bus.topic(f"{topic.name}-{life}", partitions=4))


def owned(member: Consumer) -> dict[int, int]:
    held: dict[int, int] = member.subscription.positions  # type: ignore[attr-defined]
    return held


def test_a_member_that_falls_silent_while_it_commits_rarely_loses_nothing(
    cluster: RunningCluster, topic: hawser.Topic[Any]
) -> None:
    taken: list[tuple[int, int]] = []
    first = Consumer(cluster, topic.name, taken, commit_every=1000)
    publish(topic, 40)
    until(lambda: len(taken) == 40)
    second = Consumer(cluster, topic.name, taken)
    # The first never commits: after its grace the second takes over, and takes again what was not committed.
    until(lambda: len(owned(first)) == len(owned(second)) == 2)
    moved = set(owned(second))
    until(lambda: all((partition, 1) in taken[40:] for partition in moved))
    first.stop()
    until(lambda: len(set(taken[40:])) == 40)
    second.stop()


def test_a_commit_after_the_place_was_lost_is_fenced(
    cluster: RunningCluster, topic: hawser.Topic[Any]
) -> None:
    publish(topic, 40)
    with topic.subscribe(group="g", start="earliest") as subscription:
        for _ in range(40):
            assert subscription.take(timeout=SECONDS)
        for partition in topic.info().partitions:
            member = next(each.name for each in topic.info().participants)
            for kind, command in (
                (Kind.GROUP_JOIN, GroupJoin("g", "thief")),
                (Kind.GROUP_LEAVE, GroupLeave("g", member)),
            ):
                request = wire.Execute(partition.shard, kind, encode_command(command))
                assert isinstance(cluster.ask(request, partition.leader), wire.Executed)
        with pytest.raises(hawser.Fenced, match="another member has taken over"):
            subscription.commit()
        marks = positions(topic)
        left = {
            (each.partition, offset)
            for each, mark in zip(topic.info().partitions, marks, strict=True)
            for offset in range(mark + 1, each.end)
        }
        assert left
        # The thief never says that it lives, so the place is ours again, and nothing is lost.
        again = {(each.partition, each.offset) for each in take(subscription, len(left))}
        assert again == left
        subscription.commit()
    assert positions(topic) == [each.end - 1 for each in topic.info().partitions]


def take(subscription: hawser.Subscription[Any], count: int) -> list[hawser.Sample]:
    found: list[hawser.Sample] = []
    while len(found) < count:
        sample = subscription.take(timeout=SECONDS)
        assert sample is not None, f"only {len(found)} of {count} came"
        found.append(sample)
    return found


DYING = """
import hawser, sys, time
bus = hawser.connect(sys.argv[1], name="dying", session_seconds=float(sys.argv[3]))
subscription = bus.topic(sys.argv[2]).subscribe(group="g", start="earliest")
for sample in subscription:
    print(sample.partition, sample.offset, flush=True)
"""


def test_a_member_that_dies_is_replaced(cluster: RunningCluster, topic: hawser.Topic[Any]) -> None:
    publish(topic, 40)
    command = [sys.executable, "-c", DYING, cluster.url, topic.name, str(SESSION_SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdout is not None
        dying.stdout.readline()
        with topic.subscribe(group="g", start="earliest") as survivor:
            dying.kill()
            found = {(sample.partition, sample.offset) for sample in take(survivor, 40)}
            assert len(found) == 40
            survivor.commit()
    assert positions(topic) == [each.end - 1 for each in topic.info().partitions]


def test_a_partition_that_cannot_be_taken_at_first_is_taken_in_the_end(
    cluster: RunningCluster, topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, int]] = []
    members = [Consumer(cluster, topic.name, taken) for _ in range(2)]
    until(lambda: all(len(owned(each)) == 2 for each in members))
    join, calls = GroupMember._join_shard, []

    async def slow_join(self: GroupMember, partition: int, deadline: float) -> Joined:
        calls.append(partition)
        if len(calls) == 1:
            raise hawser.Unavailable("nobody leads it")
        await asyncio.sleep(0.2)
        return await join(self, partition, deadline)

    monkeypatch.setattr(GroupMember, "_join_shard", slow_join)
    members.pop().stop()
    until(lambda: len(owned(members[0])) == 4)
    # What is not taken yet is tried again, and nothing else.
    assert len(calls) == 3, calls
    publish(topic, 40)
    until(lambda: len(taken) == 40)
    members.pop().stop()
    assert len(set(taken)) == 40


def test_a_member_that_fails_says_so_and_takes_nothing_more(
    topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with topic.subscribe(group="g", start="earliest") as subscription:
        publish(topic, 40)
        take(subscription, 10)
        monkeypatch.setattr(GroupMember, "_next_move", lambda _: 1 / 0)
        with pytest.raises(hawser.HawserError, match="subscribe again"):
            take(subscription, 31)
        monkeypatch.undo()
        assert subscription.positions == {}  # type: ignore[attr-defined]
        received = subscription.received
        publish(topic, 40)
        with pytest.raises(hawser.HawserError, match="subscribe again"):
            subscription.take(timeout=SECONDS)
        subscription.commit()
        assert sum(positions(topic)) == received >= 10


def test_a_group_follows_the_leaders(cluster: RunningCluster, topic: hawser.Topic[Any]) -> None:
    taken: list[tuple[int, int]] = []
    members = [Consumer(cluster, topic.name, taken) for _ in range(2)]
    until(lambda: all(len(owned(each)) == 2 for each in members))
    for partition in topic.info().partitions:
        publish(topic, 20)
        other = next(node for node in partition.members if node != partition.leader)
        cluster.transfer(partition.shard, other)
    publish(topic, 20)
    until(lambda: positions(topic) == [each.end - 1 for each in topic.info().partitions])
    for member in members:
        member.stop()
    assert len(set(taken)) == 100
    assert sum(member.fenced for member in members) == 0


def test_a_new_group_begins_in_every_partition_when_its_member_is_there(
    cluster: RunningCluster, topic: hawser.Topic[Any]
) -> None:
    """Also in those that another member would have to give away first."""
    home = topic.info().partitions[partition_of(b"g", 4)]
    request = wire.Execute(
        home.shard, Kind.GROUP_JOIN, encode_command(GroupJoin("g", "a silent one", AT_END))
    )
    assert isinstance(cluster.ask(request, home.leader), wire.Executed)
    with topic.subscribe(group="g") as subscription:
        publish(topic, 40)
        assert len({(each.partition, each.offset) for each in take(subscription, 40)}) == 40


def test_what_a_stalled_owner_commits_while_another_takes_over_is_not_taken_again(
    cluster: RunningCluster, topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the entry by which the next member joins, and the one by which the owner leaves."""
    publish(topic, 40)
    for partition in topic.info().partitions:
        join = encode_command(GroupJoin("g", "stalled"))
        cluster.ask(wire.Execute(partition.shard, Kind.GROUP_JOIN, join), partition.leader)
    execute = GroupMember._execute

    async def late(self: GroupMember, partition: int, kind: Kind, command: Any, *deadline: float) -> Any:
        if kind is Kind.GROUP_LEAVE and command.member == "stalled":
            joined: Any = await execute(self, partition, Kind.GROUP_JOIN, GroupJoin("g", "stalled"))
            move = GroupCommit("g", "stalled", joined.generation, joined.position, joined.position + 1)
            await execute(self, partition, Kind.GROUP_COMMIT, move)
        return await execute(self, partition, kind, command, *deadline)

    monkeypatch.setattr(GroupMember, "_execute", late)
    with topic.subscribe(group="g", start="earliest") as subscription:
        found = take(subscription, 37)
        assert sorted(each.offset for each in found).count(1) == 1
        subscription.commit()
    assert positions(topic) == [each.end - 1 for each in topic.info().partitions]


def test_a_member_that_no_longer_waits_to_join_leaves_nothing_behind(
    cluster: RunningCluster, topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(self: GroupMember, partition: int) -> None:
        await asyncio.Event().wait()

    async def story() -> None:
        async with aio.connect(cluster.url) as bus:
            opened = bus.topic(topic.name)
            await opened.info()
            monkeypatch.setattr(GroupMember, "_take", stuck)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await opened.subscribe(group="g", start="earliest")
            left = [task.get_coro() for task in asyncio.all_tasks() if not task.cancelling()]
            assert not [each for each in left if "Event.wait" in repr(each)]

    asyncio.run(story())


def test_a_position_is_final_when_a_partition_is_taken_away(
    topic: hawser.Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread takes at that moment: it takes before, or nothing."""
    publish(topic, 40)
    with topic.subscribe(group="g", start="earliest") as subscription:
        take(subscription, 4)
        member: Any = subscription._consumer  # type: ignore[attr-defined]
        partition, dropped = member.partitions[0], threading.Event()
        # What has nothing to commit is given away at once.
        while member.positions[partition] == member._committed[partition]:
            take(subscription, 1)

        def drop() -> None:
            member._set_leaving(partition)
            dropped.set()

        with member.lock:
            member.router.loop.call_soon_threadsafe(drop)
            assert not dropped.wait(0.1)
            while member.next_sample() is not None:
                pass
            reached = member.positions[partition]
        assert dropped.wait(SECONDS)
        assert member._leaving == {partition: reached} and partition not in member.positions
