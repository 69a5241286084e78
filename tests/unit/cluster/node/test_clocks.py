"""The time of a log, what a member knows of it, and the comparison of clocks."""

import asyncio
import logging
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hawser.cluster import wire
from hawser.cluster.node.clock_monitor import ClockMonitor
from hawser.cluster.node.clock_quorum import ClockQuorum
from hawser.limits import CLOCK_BOUND_SECONDS
from hawser.log.clock import LogClock
from hawser.log.state.commands import AdvanceTime, TrimTo
from hawser.log.state.log_time import MOST_MARKS, LogTime
from hawser.log.state.part import BadState
from hawser.log.state.results import Advanced, Reason, Rejected
from tests.stateful.log_shard import Shard
from tests.stateful.transaction_shard import Site, lane

SECOND = 10**9
HOUR = 3600 * SECOND


def advance(shard: Shard, by_ns: int = SECOND, wall_ns: int = 0) -> object:
    now_ns = shard.machine.part(LogTime).now_ns
    return shard.do(AdvanceTime(now_ns, now_ns + by_ns, wall_ns))


def test_a_record_is_as_old_as_the_first_mark_behind_it() -> None:
    shard = Shard()
    assert advance(shard) == Advanced(SECOND)
    shard.publish(3)
    assert advance(shard) == Advanced(2 * SECOND)
    assert advance(shard) == Advanced(3 * SECOND)
    shard.publish(2)
    log_time = shard.machine.part(LogTime)
    assert [log_time.end_at(each * SECOND) for each in range(5)] == [0, 0, 4, 4, 4]
    advance(shard)
    assert log_time.end_at(4 * SECOND) == 6


def test_what_is_committed_late_is_young() -> None:
    """A transaction has staged it long before."""
    site = Site()
    site.stage(lane(), 2)
    site.publish(1)
    advance(site)
    site.commit(lane(), 1)
    log_time = site.machine.part(LogTime)
    assert log_time.end_at(SECOND) == 2
    advance(site)
    assert log_time.end_at(2 * SECOND) == 4


def test_the_time_never_falls_and_passes_once() -> None:
    shard = Shard()
    advance(shard)
    assert shard.do(AdvanceTime(0, 5, 0)) == Rejected(Reason.OTHER_TIME, SECOND, 0)
    assert shard.do(AdvanceTime(SECOND, SECOND - 1, 0)) == Rejected(Reason.BAD_PAYLOAD)
    assert shard.do(AdvanceTime(SECOND, SECOND, 0)) == Advanced(SECOND)


def test_marks_are_few_and_saved() -> None:
    shard = Shard()
    for _ in range(3 * MOST_MARKS):
        shard.publish(1)
        advance(shard)
        if shard.topic.end == 500:
            shard.do(TrimTo(100))
    log_time = shard.machine.part(LogTime)
    ends = [log_time.end_at(number * SECOND) for number in range(1, 3 * MOST_MARKS + 1)]
    assert ends == sorted(ends) and ends[-1] == shard.topic.end
    # A mark that is left out makes records look younger.
    assert all(end <= number + 1 for number, end in enumerate(ends, 1))
    assert len(log_time._marks) <= MOST_MARKS
    before = shard.machine.digest()
    shard.save()
    shard.restart()
    assert shard.machine.digest() == before
    with pytest.raises(BadState):
        LogTime().load(b"\x93\x01\x01\x92\x92\x02\x02\x92\x01\x01")
    with pytest.raises(BadState):
        LogTime().load(b"\x93\x01")


def test_who_was_there_counts_by_itself_and_who_was_not_asks_for_the_time_of_day() -> None:
    shard = Shard()
    log_time = shard.machine.part(LogTime)
    clock = LogClock(log_time, 7)
    advance(shard, wall_ns=100 * HOUR)
    clock.saw(log_time, lambda: 10, lambda: [HOUR, 100 * HOUR + SECOND])
    assert clock.now_ns(log_time, 15, 500 * HOUR) == SECOND + 5
    clock.saw(log_time, lambda: 20, list)
    assert clock.now_ns(log_time, 25, 0) == SECOND + 15, "nothing was new"
    restarted = LogClock(log_time, 7)
    assert restarted.now_ns(log_time, 8, 101 * HOUR) == SECOND + HOUR
    assert restarted.now_ns(log_time, 8, 99 * HOUR) == SECOND + 1
    advance(shard, wall_ns=101 * HOUR)
    restarted.saw(log_time, lambda: 10, lambda: [150 * HOUR])
    assert restarted.now_ns(log_time, 11, 102 * HOUR) == 2 * SECOND + HOUR


class Node:
    """One that has heard of others."""

    def __init__(self, ahead: float = 0.0, **others: float) -> None:
        self.ahead = ahead
        self.now = 1000 * HOUR
        self.clocks = ClockQuorum(
            "a", lambda: self.now + round(self.ahead * SECOND), lambda: self.now - 5 * HOUR
        )
        for name, seconds in others.items():
            self.hear(name, seconds)

    def hear(self, name: str, ahead: float) -> None:
        self.clocks.heard(name, self.now + round(ahead * SECOND), self.clocks.boot_ns())

    def confirmed(self, nodes: str) -> float | None:
        """How far the confirmed time is ahead of the truth."""
        found = self.clocks.among(nodes).confirmed_ns
        return None if found is None else (found - self.now) / SECOND


def test_a_majority_confirms_a_clock() -> None:
    assert Node(1.0).confirmed("a") == 1.0
    assert Node(1.0).confirmed("ab") is None
    assert Node(1.0, b=3.0).confirmed("ab") == 1.0
    assert Node(3.0, b=1.0, c=2.0).confirmed("abc") == 2.0
    assert Node(3.0, b=1.0).confirmed("abc") == 1.0
    assert Node(3.0, b=-7200.0, c=2.0).confirmed("abc") == 2.0
    assert Node(7200.0, b=1.0, c=2.0).confirmed("abc") is None
    assert Node(0.0, b=CLOCK_BOUND_SECONDS + 1.0).confirmed("ab") is None
    assert Node(0.0, b=0.0, c=9000.0, d=9000.0, e=9000.0).confirmed("abcde") is None


def test_a_wrong_clock_knows_a_better_one() -> None:
    assert Node(7200.0, b=1.0, c=2.0).clocks.among("abc").better == ("b", "c")
    assert Node(7200.0, b=1.0, c=-7200.0).clocks.among("abc").better == ()
    assert Node(7200.0, b=1.0).clocks.among("abc").better == ()
    assert Node(0.0, b=1.0, c=7200.0).clocks.among("abc").better == ()


def test_how_far_a_clock_is_off_is_known() -> None:
    assert Node(7200.0).clocks.ahead_seconds() is None
    assert Node(7200.0, b=0.0, c=0.0).clocks.ahead_seconds() == 7200.0
    assert Node(-7200.0, b=0.0, c=0.0).clocks.ahead_seconds() == -7200.0
    assert Node(0.0, b=-7200.0, c=1.0).clocks.ahead_seconds() == 0.0
    assert Node(7200.0, b=0.0, c=0.0).clocks.is_wrong()
    assert not Node(7200.0).clocks.is_wrong()
    assert not Node(0.0, b=0.0, c=7200.0).clocks.is_wrong()


def test_an_own_step_shows_at_once_and_what_is_old_or_took_long_does_not_count() -> None:
    node = Node(0.0, b=0.0, c=0.0)
    node.ahead = 7200.0
    assert node.confirmed("abc") is None
    node.ahead = 0.0
    node.now += 61 * SECOND
    assert node.confirmed("abc") is None, "nobody was heard for so long"
    asked_ns = node.clocks.boot_ns()
    node.now += 3 * SECOND
    node.clocks.heard("b", node.now, asked_ns)
    assert node.confirmed("abc") is None, "the answer took long"
    node.hear("b", 0.0)
    assert node.confirmed("abc") == 0.0


class Watched:
    """The watch of a node that leads shards with members on a, b and c."""

    def __init__(self, node: Node, *shards: str) -> None:
        self.node = node
        self.asked: list[tuple[str, ...]] = []
        self.answer: wire.Answer = wire.AdminDone(True, "")
        led = SimpleNamespace(leads=True, standing=lambda: node.clocks.among("abc"))
        hosted = {**dict.fromkeys(shards, led), "led elsewhere": SimpleNamespace(leads=False)}
        self.watch = ClockMonitor(node.clocks, {}, cast(Any, hosted), self.administer, self.run)

    async def administer(self, request: wire.Admin) -> wire.Answer:
        assert request.kind is wire.AdminKind.TRANSFER
        self.asked.append((request.name, *request.nodes))
        return self.answer

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.watch._judge()


def test_a_node_whose_clock_is_wrong_says_so_once_and_hands_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = Node(7200.0, b=0.0, c=0.0)
    watched = Watched(node, "s", "t")
    watched.rounds(1)
    assert not watched.asked and not caplog.messages, "the others may have been set, too"
    watched.answer = wire.AdminDone(False, "it did not catch up")
    watched.rounds(60)
    assert set(watched.asked) == {("s", "b"), ("s", "c"), ("t", "b"), ("t", "c")}, "each is tried"
    assert [each for each in caplog.messages if "no majority of the nodes" in each and "7200.0 s" in each]
    assert len(caplog.messages) == 1
    node.ahead = 0.0
    before = len(watched.asked)
    watched.rounds(3)
    assert len(watched.asked) == before
    assert "confirmed by other nodes again" in caplog.messages[-1] and len(caplog.messages) == 2


def test_clocks_that_are_all_set_at_once_are_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(0.0, b=0.0, c=0.0)
    watched = Watched(node, "s")
    node.ahead = 7200.0
    watched.rounds(1)
    node.hear("b", 7200.0)
    watched.rounds(5)
    assert not watched.asked and not caplog.messages


def test_without_a_better_clock_nothing_is_handed_over() -> None:
    watched = Watched(Node(7200.0, b=0.0, c=-7200.0), "s")
    watched.rounds(5)
    assert not watched.asked
