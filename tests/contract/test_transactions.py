"""Transactions through the public API, in threads and in event loops: one suite for both."""

import asyncio
import gc
import itertools
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import hawser
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit
from hawser.testing import LocalBus
from tests.support.looped import Loop

SECONDS = 60.0
_numbers = itertools.count()


class Order(msgspec.Struct):
    identity: int


@pytest.fixture
def bus(connect: Callable[..., Any]) -> Any:
    return connect(name="worker")


def named(kind: str) -> str:
    return f"{kind} {next(_numbers)}"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def counts(queue: Any) -> tuple[int, int]:
    info = queue.info()
    return info.ready, info.claimed


def contents(topic: Any, partitions: int = 1) -> list[bytes]:
    read = [topic.read_oldest(1000, partition=each) for each in range(partitions)]
    return [bytes(sample) for found in read for sample in found.samples]


def messages_in(queue: Any) -> list[bytes]:
    return [bytes(each) for each in queue.peek(1000)]


# The whole of it, or nothing.


def test_what_is_done_in_one_happens_at_its_end(bus: Any, connect: Callable[..., Any]) -> None:
    other = connect()
    names = named("topic"), named("jobs"), named("results")
    topic, jobs, results = bus.topic(names[0], partitions=3), bus.queue(names[1]), bus.queue(names[2])
    seen = other.topic(names[0]), other.queue(names[1]), other.queue(names[2])
    jobs.put_many([b"1", b"2", b"3"])
    with bus.transaction(timeout=30) as tx:
        job = tx.get(jobs, SECONDS)
        tx.accept(job)
        tx.accept(tx.get_many(jobs, 1, SECONDS))
        for number in range(20):
            tx.publish(topic, b"%d" % number, key=b"key %d" % number, headers={"h": b"v"})
        tx.publish_many(results, [b"a", b"b"], keys=[b"k", None])
        assert tx.state == "open" and tx.id
        assert contents(seen[0], 3) == [] and messages_in(seen[2]) == []
        assert job.delivery_count == 1
    assert tx.state == "committed"
    assert sorted(map(int, contents(seen[0], 3))) == list(range(20))
    assert messages_in(seen[2]) == [b"a", b"b"]
    assert (counts(seen[1]), messages_in(seen[1])) == ((1, 0), [b"3"])
    sample = topic.read_oldest(1, partition=0).samples[0]
    assert (sample.headers, sample.key) == ({"h": b"v"}, b"key " + bytes(sample))


def test_an_exception_rolls_it_back(bus: Any) -> None:
    topic, jobs, results = bus.topic(named("topic")), bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put_many([b"1", b"2"])
    with pytest.raises(ZeroDivisionError), bus.transaction() as tx:
        accepted, _ = tx.get_many(jobs, 2, SECONDS)
        tx.accept(accepted)
        tx.publish(topic, b"no")
        tx.publish(results, b"no")
        _ = 1 / 0
    assert tx.state == "rolled back"
    again = jobs.get_many(2, SECONDS)
    assert [(bytes(each), each.delivery_count) for each in again] == [(b"1", 2), (b"2", 2)]
    with pytest.raises(hawser.Fenced, match="not held here any more"):
        accepted.accept()
    assert contents(topic) == [] and messages_in(results) == []


def test_what_is_rolled_back_is_back_in_its_place_before_anybody_goes_on(bus: Any) -> None:
    """Whichever of them the transaction had already, and by whichever way it goes back."""
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put_many([b"1", b"2", b"3", b"4"])
    for turn in range(1, 21):
        tx = bus.transaction()
        got = tx.get_many(jobs, 4, SECONDS)
        assert [(bytes(each), each.delivery_count) for each in got] == [
            (b"%d" % number, turn) for number in range(1, 5)
        ]
        tx.accept([got[turn % 4]])
        if turn % 2:
            # Everything so far has reached the leaders.
            tx.publish(results, b"no")
            tx.get(jobs, 0.02)
        tx.accept([got[(turn + 2) % 4]])
        tx.rollback()
    assert counts(jobs) == (4, 0) and messages_in(results) == []


def test_a_message_that_was_got_and_not_accepted_is_released_at_the_end(bus: Any) -> None:
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put_many([b"1", b"2"])
    with bus.transaction() as tx:
        first, second = tx.get_many(jobs, 2, SECONDS)
        tx.accept(second)
        tx.publish(results, b"done")
    assert tx.state == "committed" and messages_in(results) == [b"done"]
    again = jobs.get(SECONDS)
    assert (bytes(again), again.delivery_count) == (b"1", 2)
    with pytest.raises(hawser.UsageError, match="was released already"):
        first.accept()
    with pytest.raises(hawser.UsageError, match="was accepted already"):
        second.release()
    second.accept()


def test_one_without_operations_costs_nothing(bus: Any) -> None:
    with bus.transaction() as tx:
        pass
    assert tx.state == "committed"
    tx = bus.transaction()
    tx.rollback()
    tx.rollback()
    assert tx.state == "rolled back"


def test_a_thousand_in_order_and_one_behind_the_other(bus: Any) -> None:
    topic, jobs = bus.topic(named("topic")), bus.queue(named("jobs"))
    for turn in range(3):
        with bus.transaction() as tx:
            for number in range(500):
                tx.publish(topic, b"%d" % (1000 * turn + number))
            tx.publish_many(topic, [b"%d" % (1000 * turn + number) for number in range(500, 1000)])
            tx.publish(jobs, b"%d" % turn)
    found = [int(bytes(each)) for each in topic.read_oldest(5000).samples]
    assert found == list(range(3000))
    assert messages_in(jobs) == [b"0", b"1", b"2"]


def test_more_than_goes_in_one_batch(bus: Any) -> None:
    topic = bus.topic(named("topic"), compression="zstd")
    with bus.transaction() as tx:
        for number in range(40):
            tx.publish(topic, bytes([number]) * 100_000)
    assert [len(each) for each in contents(topic)] == [100_000] * 40
    assert [each[0] for each in contents(topic)] == list(range(40))


def test_more_than_may_be_on_its_way(connect: Callable[..., Any]) -> None:
    bus = connect(queue_bytes=300_000)
    topic = bus.topic(named("topic"))
    with bus.transaction() as tx:
        for number in range(100):
            tx.publish(topic, bytes([number]) * 20_000)
    assert [each[0] for each in contents(topic)] == list(range(100))


def test_values_of_a_schema(bus: Any) -> None:
    orders, jobs = bus.topic(named("orders"), schema=Order), bus.queue(named("jobs"), schema=Order)
    with bus.transaction() as tx:
        tx.publish(orders, Order(1))
        tx.publish_many(jobs, [Order(2), Order(3)])
    assert orders.read_oldest(9).samples[0].value == Order(1)
    assert [each.value for each in jobs.peek(9)] == [Order(2), Order(3)]


def test_a_queue_beside_its_topic_is_one_shard(bus: Any) -> None:
    name = named("results")
    results = bus.topic(name)
    jobs = bus.queue(named("jobs"), colocate=name)
    jobs.put(b"1")
    with bus.transaction() as tx:
        job = tx.get(jobs, SECONDS)
        tx.publish(results, bytes(job))
        tx.publish(jobs, b"2")
        tx.accept(job)
        work = getattr(tx, "inner", tx)._work
    assert len(work.inner.shards) == 1 and work.inner.coordinator == ""
    assert (contents(results), messages_in(jobs)) == ([b"1"], [b"2"])


# Messages that a transaction has.


def test_of_two_that_accept_one_message_one_is_rolled_back(bus: Any, connect: Callable[..., Any]) -> None:
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put(b"1")
    first, second = bus.transaction(), bus.transaction()
    job = first.get(jobs, SECONDS)
    first.accept(job)
    first.accept(job)
    first.publish(results, b"first")
    with pytest.raises(
        (hawser.TransactionAborted, hawser.UsageError), match="accepted in another transaction"
    ):
        second.publish(results, b"second")
        second.accept(job)
        second.commit()
    second.rollback()
    for settle in (job.accept, job.release, job.reject):
        with pytest.raises(hawser.UsageError, match="accepted in a transaction"):
            settle()
    first.commit()
    assert messages_in(results) == [b"first"] and counts(jobs) == (0, 0)


def test_a_message_that_was_lost_meanwhile_rolls_it_back(bus: Any, connect: Callable[..., Any]) -> None:
    name, results = named("jobs"), bus.queue(named("results"))
    jobs = bus.queue(name, lease=0.2)
    jobs.put(b"1")
    tx = bus.transaction()
    job = tx.get(jobs, SECONDS)
    other = connect().queue(name)
    thief = other.get(SECONDS)
    assert thief.delivery_count == 2
    tx.publish(results, b"no")
    with pytest.raises(hawser.TransactionAborted, match=r"jobs \d+' \(1\) are not held") as raised:
        tx.accept(job)
        tx.commit()
    assert (raised.value.outcome, raised.value.retryable) == ("none", True)
    tx.rollback()
    assert messages_in(results) == []


def test_nobody_else_settles_what_a_transaction_has(bus: Any) -> None:
    jobs = bus.queue(named("jobs"))
    jobs.put_many([b"1", b"2", b"3"])
    with bus.transaction() as tx:
        with tx.get(jobs, SECONDS) as job:
            tx.accept(job)
        several = tx.get_many(jobs, 2, SECONDS)
        tx.accept(several)
        del job, several
        gc.collect()
        assert jobs.get(0) is None
    assert counts(jobs) == (0, 0)
    assert messages_in(jobs) == []


def test_dead_letters_are_taken_as_any_message(bus: Any) -> None:
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put_many([b"1", b"2"])
    jobs.get(SECONDS).reject()
    with bus.transaction() as tx:
        letter = tx.get(jobs.dead_letters(), SECONDS)
        tx.accept([letter, tx.get(jobs, SECONDS)])
        tx.publish(results, b"buried " + bytes(letter))
    info = jobs.info()
    assert (info.ready, info.claimed, info.dead) == (0, 0, 0)
    assert messages_in(results) == [b"buried 1"]


def test_one_that_nobody_refers_to_is_rolled_back(bus: Any) -> None:
    jobs = bus.queue(named("jobs"))
    jobs.put(b"1")
    tx = bus.transaction()
    tx.accept(tx.get(jobs, SECONDS))
    del tx
    gc.collect()
    assert jobs.get(SECONDS).delivery_count == 2


def test_a_bus_that_closes_rolls_back(connect: Callable[..., Any]) -> None:
    name = named("jobs")
    leaving, staying = connect(), connect()
    jobs, results = leaving.queue(name), staying.queue(named("results"))
    jobs.put(b"1")
    tx = leaving.transaction()
    tx.accept(tx.get(jobs, SECONDS))
    tx.publish(leaving.queue(results.name), b"no")
    leaving.close()
    assert staying.queue(name).get(SECONDS).delivery_count == 2
    assert messages_in(results) == []
    with pytest.raises((hawser.Closed, hawser.UsageError)):
        tx.commit()
    tx.rollback()


def test_time_ends_what_is_not_committed(bus: Any) -> None:
    jobs = bus.queue(named("jobs"))
    jobs.put(b"1")
    tx = bus.transaction(timeout=0.5)
    tx.accept(tx.get(jobs, SECONDS))
    again = jobs.get(SECONDS)
    assert again.delivery_count == 2
    with pytest.raises(hawser.TransactionAborted, match="not prepared in time"):
        tx.publish(jobs, b"late")
        tx.commit()
    assert messages_in(jobs) == [b"1"]


# Run until it is done.


def test_running_one_gives_its_result(bus: Any) -> None:
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put_many([b"1", b"2"])

    def move(tx: Any) -> bytes:
        job = tx.get(jobs, SECONDS)
        tx.accept(job)
        tx.publish(results, bytes(job))
        return bytes(job)

    assert [bus.run_transaction(fn=move), bus.run_transaction(move, 0, timeout=20)] == [b"1", b"2"]
    assert messages_in(results) == [b"1", b"2"] and counts(jobs) == (0, 0)


def test_running_one_again_only_when_that_is_safe(bus: Any) -> None:
    jobs, results = bus.queue(named("jobs")), bus.queue(named("results"))
    jobs.put(b"1")
    runs: list[int] = []

    def work(error: Exception, times: int) -> Callable[[Any], int]:
        runs.clear()

        def run(tx: Any) -> int:
            job = tx.get(jobs, SECONDS)
            tx.accept(job)
            tx.publish(results, b"%d" % len(runs))
            runs.append(job.delivery_count)
            if len(runs) <= times:
                raise error
            return len(runs)

        return run

    with pytest.raises(ZeroDivisionError):
        bus.run_transaction(work(ZeroDivisionError(), 1))
    assert runs == [1]
    with pytest.raises(hawser.OutcomeUnknown):
        bus.run_transaction(work(hawser.OutcomeUnknown("of something else"), 1))
    assert runs == [2]
    with pytest.raises(hawser.Unavailable):
        bus.run_transaction(work(hawser.Unavailable("three times"), 3), retries=2)
    assert runs == [3, 4, 5]
    assert messages_in(results) == []
    assert bus.run_transaction(work(hawser.TransactionAborted("twice"), 2)) == 3
    assert runs == [6, 7, 8] and messages_in(results) == [b"2"]
    with pytest.raises(hawser.UsageError, match="retries=-1"):
        bus.run_transaction(work(ZeroDivisionError(), 1), retries=-1)


def test_a_queue_without_room_rolls_it_back_until_there_is(bus: Any) -> None:
    small, results = bus.queue(named("small"), capacity_bytes=1000), bus.queue(named("results"))
    small.put(bytes(900))
    runs: list[int] = []

    def run(tx: Any) -> None:
        if len(runs) == 1:
            small.get(SECONDS).accept()
        runs.append(1)
        tx.publish(small, bytes(500))
        tx.publish(results, b"done")

    bus.run_transaction(run)
    assert len(runs) == 2
    assert messages_in(results) == [b"done"] and [len(each) for each in messages_in(small)] == [500]


# Groups.


def test_what_a_group_takes_is_handled_exactly_once(bus: Any, record_property: Any) -> None:
    source, target = bus.topic(named("source"), partitions=2), bus.topic(named("target"), partitions=2)
    keys = [b"%d" % number for number in range(60)]
    source.publish_many(keys, keys=keys)
    subscription = source.subscribe(group="g", start="earliest")
    rolled_back = turns = 0
    while len(contents(target, 2)) < 60:
        turns += 1
        try:
            with bus.transaction() as tx:
                samples = subscription.take_many(7, SECONDS)
                tx.commit_offsets(subscription)
                for sample in samples:
                    tx.publish(target, b"seen " + bytes(sample), key=sample.key)
                if turns % 3 == 0:
                    rolled_back += 1
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert tx.state == "rolled back"
        if turns % 5 == 0:
            # Another member goes on where this one was.
            subscription.close()
            subscription = source.subscribe(group="g")
    subscription.close()
    record_property("transactions", turns)
    record_property("rolled back", rolled_back)
    assert rolled_back > 2
    assert sorted(contents(target, 2)) == sorted(b"seen " + key for key in keys)
    positions = [each.mark for each in source.info().records]
    assert sum(positions) == 60


def test_a_group_that_somebody_moved_rolls_it_back(bus: Any, connect: Callable[..., Any]) -> None:
    source, target = bus.topic(named("source")), bus.topic(named("target"))
    source.publish_many([b"1", b"2", b"3"])
    subscription = source.subscribe(group="g", start="earliest")
    tx = bus.transaction()
    assert bytes(subscription.take(SECONDS)) == b"1"
    tx.commit_offsets(subscription)
    tx.publish(target, b"no")
    with pytest.raises(hawser.UsageError, match="an unfinished transaction moves partitions 0"):
        subscription.commit()
    member = getattr(subscription, "inner", subscription)._consumer
    before = member._committed[0]
    move = GroupCommit("g", member.member, member._generation, before, before + 1)
    moving = member._execute(0, Kind.GROUP_COMMIT, move)
    asyncio.run_coroutine_threadsafe(moving, member.router.loop).result(SECONDS)
    with pytest.raises(hawser.TransactionAborted, match=r"is at|another client moved"):
        tx.commit()
    with bus.transaction() as tx:
        assert bytes(subscription.take(SECONDS)) == b"2"
        tx.commit_offsets(subscription)
        assert bytes(subscription.take(SECONDS)) == b"3"
        tx.commit_offsets(subscription)
        tx.publish(target, b"yes")
    assert contents(target) == [b"yes"]
    assert [each.mark for each in source.info().records] == [3]


# Mistakes.


def test_once_it_has_ended_nothing_can_be_done_in_it(bus: Any) -> None:
    topic, jobs = bus.topic(named("topic")), bus.queue(named("jobs"))
    jobs.put(b"1")
    tx = bus.transaction()
    tx.publish(topic, b"1")
    tx.commit()
    held = jobs.get(SECONDS)
    calls: list[Callable[[], Any]] = [
        tx.commit,
        lambda: tx.publish(topic, b"2"),
        lambda: tx.get(jobs, 0),
        lambda: tx.accept(held),
    ]
    for call in calls:
        with pytest.raises(hawser.UsageError, match="has ended: it is committed"):
            call()
    tx.rollback()
    assert tx.state == "committed" and contents(topic) == [b"1"]
    held.accept()


def test_what_does_not_belong_to_its_bus_is_refused(bus: Any, connect: Callable[..., Any]) -> None:
    other = connect()
    name = named("jobs")
    topic, jobs = other.topic(named("topic")), other.queue(name)
    jobs.put(b"1")
    message = jobs.get(SECONDS)
    with LocalBus() as host, hawser.connect(host.url) as local:
        here = local.topic("here")
        for wrong in (topic, jobs, here, local.queue("queue"), "name"):
            with (
                pytest.raises(hawser.UsageError, match="does not belong to the bus"),
                bus.transaction() as tx,
            ):
                tx.publish(wrong, b"1")
        with pytest.raises(hawser.UsageError, match="does not belong to the bus"), bus.transaction() as tx:
            tx.commit_offsets(here.subscribe())
    with pytest.raises(hawser.UsageError, match="does not belong to the bus"), bus.transaction() as tx:
        tx.get(jobs, 0)
    with pytest.raises(hawser.UsageError, match="was received by another bus"), bus.transaction() as tx:
        tx.accept(message)
    with pytest.raises(hawser.UsageError, match="cannot be accepted"), bus.transaction() as tx:
        tx.accept(b"1")
    subscription = bus.topic(topic.name).subscribe(start="earliest")
    with pytest.raises(hawser.UsageError, match="only a subscription with a group"), bus.transaction() as tx:
        tx.commit_offsets(subscription)
    with pytest.raises(hawser.UsageError, match="dead letters"), bus.transaction() as tx:
        tx.publish(bus.queue(name).dead_letters(), b"1")
    with pytest.raises(hawser.UsageError, match="at least one message"), bus.transaction() as tx:
        tx.publish_many(bus.queue(name), [])
    message.accept()


@pytest.mark.parametrize("timeout", [-1, 3601, "soon", float("nan")])
def test_a_time_that_it_cannot_have(bus: Any, timeout: Any) -> None:
    with pytest.raises(hawser.UsageError, match="at most 3600"):
        bus.transaction(timeout=timeout)


def test_a_topic_that_was_deleted_rolls_it_back(bus: Any, connect: Callable[..., Any]) -> None:
    name, kept = named("topic"), bus.topic(named("kept"))
    topic = bus.topic(name)
    connect().topic(name).delete()
    with pytest.raises(hawser.TransactionAborted) as raised, bus.transaction() as tx:
        tx.publish(topic, b"1")
        tx.publish(kept, b"1")
    assert raised.value.outcome == "none" and contents(kept) == []


def test_one_host_has_none() -> None:
    with LocalBus() as host, Loop() as loop:
        for connect in (hawser.connect, loop.connect):
            bus: Any = connect(host.url)
            with pytest.raises(hawser.UsageError, match="hawser://host:port"):
                bus.transaction()
            with pytest.raises(hawser.UsageError, match="hawser://host:port"):
                bus.run_transaction(print)
            with pytest.raises(hawser.UsageError, match="hawser://host:port"):
                _ = bus.xa
            bus.close()
