"""The state of a shard against its twin: random entries, saved, loaded and applied again at any point."""

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hawser.log.state import groups, log_time, offset_index, producers
from hawser.log.state import topic as topic_module
from hawser.log.state.commands import (
    AdvanceTime,
    ExpireProducers,
    GroupCommit,
    GroupDelete,
    GroupJoin,
    GroupLeave,
    TrimTo,
)
from hawser.log.state.log_time import LogTime
from hawser.log.state.machine import Machine, topic_parts
from hawser.log.state.part import BadState
from hawser.log.state.results import Accepted, Committed, Expired, Reason, Rejected, Repeated, Result
from hawser.record.record import NO_STAMP, Stamp

from .log_shard import MemoryBlocks, Shard
from .log_twin import Twin

Record_property = Callable[[str, object], None]
EXAMPLES, STEPS = 150, 60
GROUPS, MEMBERS = st.sampled_from("gh"), st.sampled_from("abc")
NEAR = st.integers(-3, 3)
reached: Counter[str] = Counter()


class Pair:
    """A shard and its twin, which must agree on every result and every look-up."""

    def __init__(self) -> None:
        self.shard = Shard()
        self.twin = Twin()
        self.seen: list[tuple[bytes, int, int]] = []

    def agree(self, result: Result, expected: Result) -> None:
        name = type(result).__name__
        reached[result.reason.name if isinstance(result, Rejected) else name] += 1
        assert result == expected

    def publish(self, count: int, stamp: Stamp, timestamp_ns: int) -> None:
        index = self.shard.machine.applied + 1
        self.agree(
            self.shard.publish(count, stamp, timestamp_ns),
            self.twin.publish(index, count, stamp, timestamp_ns),
        )

    def stamp(self, producer: bytes, incarnation: int, step: int) -> Stamp:
        """A sequence so many from the next one of this incarnation."""
        known = self.twin.producers.get(producer)
        last = len(known.receipts) if known and known.incarnation == incarnation else 0
        return Stamp(producer, incarnation, max(1, last + 1 + step))

    def trim(self, offset: int, floor: int) -> None:
        self.agree(self.shard.do(TrimTo(offset, floor)), self.twin.trim(offset, floor))

    def advance(self, before: int, by: int) -> None:
        before_ns = max(0, self.twin.now_ns + before)
        command = AdvanceTime(before_ns, max(0, before_ns + by), 0)
        self.agree(self.shard.do(command), self.twin.advance(command.before_ns, command.after_ns))

    def join(self, group: str, member: str, position: int) -> None:
        self.agree(self.shard.do(GroupJoin(group, member, position)), self.twin.join(group, member, position))

    def leave(self, group: str, member: str) -> None:
        self.agree(self.shard.do(GroupLeave(group, member)), self.twin.leave(group, member))

    def delete(self, group: str) -> None:
        self.agree(self.shard.do(GroupDelete(group)), self.twin.delete(group))

    def commit(self, group: str, member: str, generation: int, before: int, after: int) -> None:
        """Each number is so many from the rightful one."""
        known = self.twin.groups.get(group)
        position = known.position if known else 1
        arguments = (
            group,
            member,
            max(0, (known.generation if known else 0) + generation),
            max(0, position + before),
            max(0, position + after),
        )
        self.agree(self.shard.do(GroupCommit(*arguments)), self.twin.commit(*arguments))

    def expire(self) -> None:
        self.agree(self.shard.do(ExpireProducers(tuple(self.seen))), self.twin.expire(self.seen))
        self.seen = []

    def look(self) -> None:
        """Who could be expired, as of now."""
        self.seen = list(self.shard.producers)

    def restart(self) -> None:
        before = self.shard.machine.hash, self.shard.machine.digest()
        self.shard.restart()
        assert (self.shard.machine.hash, self.shard.machine.digest()) == before

    def replay(self) -> None:
        """Another member, with runs of another length, applies the whole log."""
        machine = Machine(MemoryBlocks(), topic_parts(2))
        for entry in self.shard.log:
            machine.apply(entry)
        mine = self.shard.machine
        assert (machine.hash, machine.digest(), machine.needed) == (mine.hash, mine.digest(), mine.needed)

    def compare(self) -> None:
        topic, twin = self.shard.topic, self.twin
        assert (topic.start, topic.end, topic.count) == (twin.start, twin.end, twin.end - twin.start)
        assert self.shard.machine.needed == twin.needed(self.shard.machine.applied)
        for offset in range(max(0, twin.start - 2), twin.end + 2):
            assert topic.locate(offset) == twin.locate(offset)

    def compare_ages(self, time_ns: int) -> None:
        end = self.shard.machine.part(LogTime).end_at(time_ns)
        assert max(end, self.twin.start) == max(self.twin.end_at(time_ns), self.twin.start)

    def compare_time(self, timestamp_ns: int) -> None:
        assert self.shard.topic.at_time(timestamp_ns) == self.twin.at_time(timestamp_ns)


class LogState(RuleBasedStateMachine):
    """Hypothesis chooses the entries, and where to save and to restart."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(count=st.integers(1, 3), timestamp_ns=st.integers(0, 50))
    def publish(self, count: int, timestamp_ns: int) -> None:
        self.pair.publish(count, NO_STAMP, timestamp_ns)

    @rule(
        count=st.integers(1, 3),
        producer=st.sampled_from([b"p", b"q"]),
        incarnation=st.integers(1, 3),
        step=st.just(0) | NEAR,
    )
    def publish_stamped(self, count: int, producer: bytes, incarnation: int, step: int) -> None:
        self.pair.publish(count, self.pair.stamp(producer, incarnation, step), 7)

    @rule(offset=st.integers(0, 8), floor=st.integers(0, 8), plain=st.booleans())
    def trim(self, offset: int, floor: int, plain: bool) -> None:
        start = self.pair.twin.start
        self.pair.trim(start + offset - 1, 0 if plain else start + floor - 1)

    @rule(before=st.just(0) | NEAR, by=st.integers(-1, 5))
    def advance(self, before: int, by: int) -> None:
        self.pair.advance(before, by)

    @rule(time_ns=st.integers(0, 60))
    def find_age(self, time_ns: int) -> None:
        self.pair.compare_ages(time_ns)

    @rule(group=GROUPS, member=MEMBERS, position=st.integers(0, 30))
    def join(self, group: str, member: str, position: int) -> None:
        self.pair.join(group, member, position)

    @rule(group=GROUPS, member=MEMBERS)
    def leave(self, group: str, member: str) -> None:
        self.pair.leave(group, member)

    @rule(
        group=GROUPS,
        member=MEMBERS,
        generation=st.just(0) | st.integers(-1, 1),
        before=st.just(0) | NEAR,
        after=NEAR,
    )
    def commit(self, group: str, member: str, generation: int, before: int, after: int) -> None:
        self.pair.commit(group, member, generation, before, after)

    @rule(group=GROUPS)
    def delete(self, group: str) -> None:
        self.pair.delete(group)

    @rule()
    def look_at_producers(self) -> None:
        self.pair.look()

    @rule()
    def expire(self) -> None:
        self.pair.expire()

    @rule()
    def save(self) -> None:
        self.pair.shard.save()

    @rule()
    def restart(self) -> None:
        self.pair.restart()

    @rule()
    def replay(self) -> None:
        self.pair.replay()

    @rule(timestamp_ns=st.integers(-1, 60))
    def find_time(self, timestamp_ns: int) -> None:
        self.pair.compare_time(timestamp_ns)

    @invariant()
    def agrees(self) -> None:
        self.pair.compare()


def attack(examples: int) -> None:
    options = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(LogState, settings=options)


def walk(seed: int, steps: int) -> Pair:
    """The same by plain chance, far longer than Hypothesis goes: receipts grow too old, runs are evicted."""
    chance = random.Random(seed)
    pair = Pair()

    def near() -> int:
        return chance.choice([0, 0, 0, chance.randrange(-3, 4)])

    def far() -> int:
        return 3 * near() + chance.choice([0] * 9 + [10_000])

    def publish_stamped() -> None:
        step = chance.choice([0] * 20 + [1, -1, -5, -64, -65, -70, chance.randrange(-80, 3)])
        incarnation = chance.choice([1] * 200 + [2])
        pair.publish(chance.randrange(1, 4), pair.stamp(chance.choice([b"p", b"q"]), incarnation, step), 7)

    moves: list[Callable[[], Any]] = [
        lambda: pair.publish(chance.randrange(1, 4), NO_STAMP, pair.twin.end + chance.randrange(20)),
        *[publish_stamped] * 6,
        lambda: pair.trim(pair.twin.start + chance.randrange(6), pair.twin.start + chance.randrange(4)),
        lambda: pair.advance(near(), chance.randrange(-1, 6)),
        lambda: pair.compare_ages(chance.randrange(pair.twin.now_ns + 5)),
        lambda: pair.join(chance.choice("gh"), chance.choice("abc"), chance.randrange(pair.twin.end + 3)),
        lambda: pair.leave(chance.choice("gh"), chance.choice("abc")),
        *[lambda: pair.commit(chance.choice("gh"), chance.choice("abc"), near(), near(), far())] * 3,
        lambda: pair.compare_time(chance.randrange(pair.twin.end + 30)),
        pair.shard.save,
        pair.look,
    ]
    rare: list[Callable[[], Any]] = [pair.restart, pair.replay, pair.expire, lambda: pair.delete("g")]
    for step in range(steps):
        chance.choice(rare if chance.random() < 0.01 else moves)()
        if step % 10 == 0:
            pair.compare()
    pair.replay()
    return pair


def test_the_state_is_its_twin(record_property: Record_property) -> None:
    reached.clear()
    attack(EXAMPLES)
    for name, count in sorted(reached.items()):
        record_property(name, count)
    assert reached["Accepted"] > 0


def test_long_walks(record_property: Record_property) -> None:
    reached.clear()
    pairs = [walk(seed, 1500) for seed in range(10)]
    record_property("entries", sum(len(pair.shard.log) for pair in pairs))
    record_property("blocks written", sum(pair.shard.blocks.writes for pair in pairs))
    record_property("blocks read", sum(pair.shard.blocks.reads for pair in pairs))
    for name, count in sorted(reached.items()):
        record_property(name, count)
    of_topics = {reason.name for reason in Reason if Reason.BAD_PAYLOAD < reason < Reason.QUEUE_FULL}
    assert of_topics <= set(reached)
    assert sum(pair.shard.blocks.reads for pair in pairs) > 0


@pytest.mark.soak
@pytest.mark.slow
def test_soak(soak_seconds: float, record_property: Record_property) -> None:
    seeds = max(1, int(soak_seconds / 2))
    entries = sum(len(walk(seed, 1500).shard.log) for seed in range(100, 100 + seeds))
    record_property("entries", entries)
    assert entries > 0


# Canaries: each is a bug that one could write.


def test_canary_a_mark_before_what_is_new(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = log_time.LogTime.apply

    def apply(self: Any, entry: Any, context: Any) -> Result:
        before_ns = self.now_ns
        result = real(self, entry, context)
        self._marks = [(min(at, before_ns) if at == self.now_ns else at, end) for at, end in self._marks]
        return result

    monkeypatch.setattr(log_time.LogTime, "apply", apply)
    must_be_caught(record_property)


def must_be_caught(record_property: Record_property) -> None:
    """What was planted is found by a few walks."""
    for seed in range(20):
        try:
            walk(seed, 1500)
        except (AssertionError, KeyError, BadState) as error:
            record_property("caught in walk", seed)
            record_property("as", type(error).__name__)
            return
    pytest.fail("the planted bug was not caught")


def test_canary_offsets_counted_for_what_was_rejected(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = topic_module.Topic.publish

    def publish(self: Any, header: Any, index: int, context: Any) -> Result:
        result = real(self, header, index, context)
        if isinstance(result, Rejected):
            self._index.end += header.records
        return result

    monkeypatch.setattr(topic_module.Topic, "publish", publish)
    must_be_caught(record_property)


def test_canary_a_repeat_applied_again(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = topic_module.Topic.publish

    def publish(self: Any, header: Any, index: int, context: Any) -> Result:
        result = real(self, header, index, context)
        if isinstance(result, Repeated):
            return Accepted(self._index.append(index, header.records, header.latest_ns), header.records)
        return result

    monkeypatch.setattr(topic_module.Topic, "publish", publish)
    must_be_caught(record_property)


def test_canary_one_receipt_too_few(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    monkeypatch.setattr(producers, "RECEIPTS", 63)
    must_be_caught(record_property)


def test_canary_a_stale_expiry(monkeypatch: pytest.MonkeyPatch, record_property: Record_property) -> None:
    real = producers.Producers.apply

    def apply(self: Any, entry: Any, context: Any) -> Result:
        command = producers._read_expiry(entry)
        assert command is not None
        before = len(self._producers)
        for name, _, _ in command.producers:
            self._producers.pop(name, None)
        real(self, entry, context)
        return Expired(before - len(self._producers))

    monkeypatch.setattr(producers.Producers, "apply", apply)
    must_be_caught(record_property)


def test_canary_a_rewind(monkeypatch: pytest.MonkeyPatch, record_property: Record_property) -> None:
    def commit(self: Any, entry: Any, context: Any) -> Result:
        command = groups._read_commit(entry)
        assert command is not None
        group = self._groups.get(command.group)
        if group is None or command.member not in group.members:
            return Rejected(Reason.NO_GROUP if group is None else Reason.NOT_MEMBER)
        self._groups[command.group] = groups.Group(group.generation, command.after, group.members)
        return Committed(command.after)

    monkeypatch.setattr(groups.Groups, "_commit", commit)
    must_be_caught(record_property)


def test_canary_a_search_one_place_off_at_the_edge_of_a_block(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    monkeypatch.setattr(offset_index, "bisect_right", lambda items, item: bisect_left(items, item) or 1)
    must_be_caught(record_property)


def test_canary_a_run_given_up_too_early(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = offset_index.Index.trim

    def trim(self: Any, start: int) -> None:
        real(self, start)
        if len(self._firsts) > 1:
            self._first_run += 1
            del self._firsts[:1], self._latests[:1], self._lowests[:1]

    monkeypatch.setattr(offset_index.Index, "trim", trim)
    must_be_caught(record_property)


def test_canary_the_latest_time_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    real = offset_index.Index.load

    def load(self: Any, data: bytes) -> None:
        real(self, data)
        self.latest_ns = 0

    monkeypatch.setattr(offset_index.Index, "load", load)
    must_be_caught(record_property)


def test_canary_needed_looks_at_the_first_batch_only(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    def lowest(self: Any) -> int | None:
        return None if self.start == self.end else int(self.locate(self.start).index + 1)

    monkeypatch.setattr(offset_index.Index, "lowest", property(lowest))
    must_be_caught(record_property)
