"""Clocks of members step by hours, forwards and backwards, on one of them and on all: retention by time keeps
what is young, and still removes what is old. So do idle producers.

A small world around the shipped code: a log that members apply, the leader's upkeep, and clocks that are
compared. True time is known here and nowhere else.
"""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hawser.cluster.node.clock_quorum import ClockQuorum
from hawser.cluster.node.maintenance import Maintenance, Now
from hawser.cluster.node.retention import Retention
from hawser.log.clock import LogClock
from hawser.log.entry import Kind
from hawser.log.state.log_time import MOST_MARKS, LogTime
from hawser.log.state.producers import Producers
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from tests.stateful.transaction_shard import Site, lane

SECOND = 10**9
HOUR = 3600 * SECOND
RETENTION_SECONDS = 1800
# What is measured of other clocks, and the bound within which clocks may differ.
SLACK_SECONDS = 30
STEP_SECONDS = RETENTION_SECONDS / 64


class Member:
    """A node with its clocks and its copy of the log."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.site = Site()
        self.wrong_ns = world.random.randint(-SECOND, SECOND)
        self.start()

    def start(self) -> None:
        """A process begins on what is on the disk, of which it applies the last entries once more."""
        booted_ns = self.world.now_ns - self.world.random.randint(0, HOUR)
        self.clocks = ClockQuorum(
            self.name,
            wall_ns=lambda: self.world.now_ns + self.wrong_ns,
            boot_ns=lambda: self.world.now_ns - booted_ns,
        )
        self.log_clock = LogClock(self.site.machine.part(LogTime), self.clocks.boot_ns())
        self.upkeep = Maintenance()

    def restart(self) -> None:
        log = self.site.log
        if self.site.saved is None or self.world.random.random() < 0.3:
            self.site.save()
        self.site.restart()
        self.start()
        assert self.site.log == log
        self.saw()

    def saw(self) -> None:
        self.log_clock.saw(self.site.machine.part(LogTime), self.clocks.boot_ns, self.clocks.walls_ns)

    def follow(self, log: list[Any]) -> None:
        """Apply what the leader has."""
        for entry in log[len(self.site.log) :]:
            self.site.machine.apply(entry)
            self.site.log.append(entry)
            self.saw()


class World:
    """The members of a shard; the first one leads at first."""

    def __init__(self, seed: int, members: int) -> None:
        self.random = random.Random(seed)
        self.now_ns = 1_800_000_000 * SECOND
        self.members = [Member(self, name) for name in "abcde"[:members]]
        self.leader = self.members[0]
        # When each record was committed, that of offset 1 first.
        self.committed: list[int] = []
        self.most_marks = 0
        self.retention = Retention(None, RETENTION_SECONDS)

    def publish(self) -> None:
        """By a producer whose clock is anything."""
        site, count = self.leader.site, self.random.randint(1, 3)
        if self.random.random() < 0.1:
            transaction = lane(1, b"lane-%d" % len(self.committed))
            site.stage(transaction, count)
            self.pass_time(self.random.random() * 20)
            site.commit(transaction, 1)
        else:
            site.publish(count)
        self.committed += [self.now_ns] * count
        self.leader.saw()

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * SECOND)

    def compare(self) -> None:
        """Nodes ask each other, as they do every five seconds."""
        for asking in self.members:
            for asked in self.members:
                if asked is not asking:
                    asking.clocks.heard(asked.name, asked.clocks.wall_ns(), asking.clocks.boot_ns())

    def replicate(self, member: Member) -> None:
        if member is not self.leader:
            member.follow(self.leader.site.log)

    def lead(self, member: Member) -> None:
        """What was committed is in the log of every leader."""
        self.replicate(member)
        self.leader, member.upkeep = member, Maintenance()

    def retain(self) -> None:
        """What the leader does once a second; nothing young may go."""
        leader = self.leader
        part = leader.site.machine.part(LogTime)
        standing = leader.clocks.among([each.name for each in self.members])
        now = None
        if standing.confirmed_ns is not None:
            log_ns = leader.log_clock.now_ns(part, leader.clocks.boot_ns(), standing.confirmed_ns)
            now = Now(log_ns, standing.confirmed_ns)
        before_ns = part.now_ns
        replica = SimpleNamespace(machine=leader.site.machine, journal=None)
        due = leader.upkeep.due(cast(Any, replica), self.retention, confirmed=now)
        for kind, payload in due:
            assert now is not None or kind not in (Kind.TRIM, Kind.ADVANCE_TIME), "by a wrong clock"
            start = leader.site.topic.start
            leader.site.put(kind, payload)
            leader.saw()
            for offset in range(start, leader.site.topic.start):
                age = (self.now_ns - self.committed[offset - 1]) / SECOND
                assert age >= RETENTION_SECONDS - SLACK_SECONDS, f"{offset} was trimmed {age} s after it came"
        assert part.now_ns >= before_ns
        self.most_marks = max(self.most_marks, len(part._marks))

    def second(self) -> None:
        self.pass_time(self.random.choice((0.5, 1, 5, 60)))
        if self.random.random() < 0.5:
            self.compare()
        if self.random.random() < 0.5:
            self.publish()
        self.retain()

    def settle(self) -> None:
        """The clocks are right again: what is there goes when its time has come, and not much later."""
        for member in self.members:
            member.wrong_ns = 0
        for _ in range(round(1.1 * RETENTION_SECONDS / 10) + 10):
            self.pass_time(10)
            self.compare()
            self.retain()
        topic = self.leader.site.topic
        assert topic.count == 0


@pytest.fixture(autouse=True)
def monotonic(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The world whose time `Maintenance` goes by."""
    worlds: list[World] = []
    clock = SimpleNamespace(monotonic=lambda: worlds[-1].now_ns / SECOND if worlds else 0.0)
    monkeypatch.setattr("hawser.cluster.node.maintenance.time", clock)
    return worlds


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_a_clock_that_steps_by_hours_removes_nothing_young(
    seed: int, members: int, monotonic: list[World]
) -> None:
    world = World(seed, members)
    monotonic.append(world)
    wrong = world.members[seed % members]
    for _ in range(600):
        world.second()
        for member in world.members:
            if world.random.random() < 0.7:
                world.replicate(member)
        if world.random.random() < 0.05:
            wrong.wrong_ns = round(world.random.uniform(-50, 50) * HOUR)
        if world.random.random() < 0.03:
            world.lead(world.random.choice(world.members))
        if world.random.random() < 0.03:
            world.random.choice(world.members).restart()
    world.settle()
    assert world.leader.site.topic.start > 100, "retention did something"
    assert world.most_marks <= MOST_MARKS


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_clocks_that_all_step_by_hours_remove_nothing_young(
    seed: int, members: int, monotonic: list[World]
) -> None:
    """One after the other, or together; leaders change, and one of those who were there goes on counting."""
    world = World(seed, members)
    monotonic.append(world)
    for _ in range(600):
        world.second()
        for member in world.members:
            world.replicate(member)
        if world.random.random() < 0.05:
            step_ns = round(world.random.uniform(-50, 50) * HOUR)
            for member in world.members:
                member.wrong_ns = step_ns
        if world.random.random() < 0.05:
            wrong_ns = world.random.choice(world.members).wrong_ns
            world.random.choice(world.members).wrong_ns = wrong_ns + round(world.random.uniform(-5, 5) * HOUR)
        if world.random.random() < 0.05:
            world.lead(world.random.choice(world.members))
    world.settle()
    assert world.leader.site.topic.start > 100, "retention did something"


@pytest.mark.parametrize("seed", range(6))
def test_clocks_that_all_step_and_members_that_restart_remove_nothing_young(
    seed: int, monotonic: list[World]
) -> None:
    """A restarted member knows how old records are from the log and the time of day. So the leader that saw
    the clocks step writes the new time of day into the log at once."""
    world = World(seed, 3)
    monotonic.append(world)
    for _ in range(600):
        world.second()
        for member in world.members:
            world.replicate(member)
        if world.random.random() < 0.1:
            step_ns = round(world.random.uniform(-50, 50) * HOUR)
            for member in world.members:
                member.wrong_ns = step_ns
            world.pass_time(2)
            world.compare()
            world.retain()
            for member in world.members:
                world.replicate(member)
        if world.random.random() < 0.1:
            member = world.random.choice(world.members)
            member.restart()
            world.compare()
            if world.random.random() < 0.7:
                world.lead(member)
                world.retain()
    world.settle()
    assert world.leader.site.topic.start > 100, "retention did something"


@pytest.mark.parametrize("kept_days", [7, 90, 365])
def test_few_marks_are_enough_for_a_year(kept_days: int, monotonic: list[World]) -> None:
    """The time of the log moves in small steps while a producer is known, whatever the retention is."""
    world = World(1, 1)
    world.retention = Retention(None, kept_days * 86_400)
    monotonic.append(world)
    oldest_days = 0.0
    for sequence in range(1, round(kept_days * 2.2 * 24 / 4)):
        world.pass_time(4 * 3600)
        of_producer(world, b"named", sequence)
        world.retain()
        age = (world.now_ns - world.committed[world.leader.site.topic.start - 1]) / SECOND / 86_400
        oldest_days = max(oldest_days, age)
    assert oldest_days <= kept_days * 65 / 64 + 0.5
    assert world.most_marks <= MOST_MARKS


def test_leaders_that_change_all_the_time_still_forget(monotonic: list[World]) -> None:
    """Each of them has just started and was never there for as long as records are kept."""
    world = World(1, 3)
    monotonic.append(world)
    for number in range(2000):
        world.pass_time(5)
        world.compare()
        world.publish()
        if number % 20 == 0:
            member = world.members[number // 20 % 3]
            member.restart()
            world.compare()
            world.lead(member)
        world.retain()
    oldest = world.committed[world.leader.site.topic.start - 1]
    assert (world.now_ns - oldest) / SECOND <= RETENTION_SECONDS + 2 * STEP_SECONDS + SLACK_SECONDS


def of_producer(world: World, name: bytes, sequence: int) -> None:
    """A batch of it."""
    site = world.leader.site
    site.put(Kind.BATCH, bytes(Batch.of([Record(b"x")], Stamp(name, 1, sequence)).data))
    world.committed.append(world.now_ns)
    world.leader.saw()


@pytest.mark.parametrize("kept_seconds", [None, RETENTION_SECONDS])
@pytest.mark.parametrize("seed", range(3))
def test_leaders_that_change_every_few_minutes_forget_idle_producers(
    seed: int, kept_seconds: int | None, monotonic: list[World]
) -> None:
    """Not before their week is over, whatever clocks say; a node is started anew now and then."""
    world = World(seed, 3)
    world.retention = Retention(None, kept_seconds)
    monotonic.append(world)
    of_producer(world, b"idle", 1)
    began_ns, sequence, forgotten_days = world.now_ns, 0, 0.0
    while world.now_ns < began_ns + 8 * 24 * HOUR:
        world.pass_time(world.random.uniform(60, 300))
        if world.random.random() < 0.02:
            world.random.choice(world.members).wrong_ns = round(world.random.uniform(-50, 50) * HOUR)
        elif world.random.random() < 0.1:
            for each in world.members:
                each.wrong_ns = 0
        world.compare()
        if world.random.random() < 0.05:
            sequence += 1
            of_producer(world, b"busy", sequence)
        world.retain()
        for each in world.members:
            world.replicate(each)
        member = world.random.choice(world.members)
        if world.random.random() < 0.05:
            member.restart()
            world.compare()
        world.lead(member)
        known = {name for name, _, _ in world.leader.site.machine.part(Producers)}
        if sequence:
            assert b"busy" in known
        if not forgotten_days and b"idle" not in known:
            forgotten_days = (world.now_ns - began_ns) / (24 * HOUR)
    assert 7 - SLACK_SECONDS / 86_400 < forgotten_days < 7.5
