"""Queues on a cluster through the public API: every call, as it is promised."""

import gc
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.log.entry import Kind
from hawser.log.queue.claims import Token
from hawser.log.state.commands import ExpireProducers, encode_command
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.transaction.identity import Label
from tests.support.cluster import RunningCluster
from tests.support.transactions import entry, lane

SECONDS = 60.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    # Long, because cluster and consumer share a process here: what holds up one holds up the other.
    return cluster.connect("tester", session_seconds=60.0)


@pytest.fixture
def queue(bus: hawser.Bus) -> hawser.Queue[Any]:
    return new_queue(bus)


def unused_name() -> str:
    return f"queue{next(_numbers)}"


def new_queue(bus: hawser.Bus, **settings: Any) -> hawser.Queue[Any]:
    opened: hawser.Queue[Any] = bus.queue(unused_name(), **settings)
    return opened


def got(queue: hawser.Queue[Any]) -> hawser.Message:
    message = queue.get(timeout=SECONDS)
    assert message is not None, "no message came"
    return message


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_a_message_goes_in_and_to_one_consumer(bus: hawser.Bus, queue: hawser.Queue[Any]) -> None:
    receipt = queue.put(b"one", key=b"k", headers={"a": b"b"})
    assert receipt == hawser.Receipt(queue.name, 0, 1, 1, "majority")
    message = got(queue)
    assert isinstance(message, hawser.Sample)
    assert (bytes(message), bytes(message.data), len(message)) == (b"one", b"one", 3)
    assert (message.key, message.headers, message.offset, message.partition) == (b"k", {"a": b"b"}, 1, 0)
    assert (message.publisher, message.delivery_count, message.redelivered) == ("tester", 1, False)
    assert message.array().tolist() == list(b"one")
    assert queue.get(timeout=0) is None
    message.accept()
    message.accept()
    with pytest.raises(hawser.UsageError, match="settled only once"), message:
        message.release()
    assert queue.get(timeout=0) is None
    assert isinstance(bus.queue(queue.name), hawser.Queue) and bus.queue(queue.name) is queue


def test_messages_come_in_order_and_come_back_in_their_place(queue: hawser.Queue[Any]) -> None:
    receipt = queue.put_many([b"1", b"2", b"3"], keys=[b"a", None, b"c"])
    assert (receipt.first_offset, receipt.count) == (1, 3)
    first, second = got(queue), got(queue)
    first.release()
    again = got(queue)
    assert (bytes(again), again.delivery_count, again.redelivered) == (b"1", 2, True)
    assert bytes(got(queue)) == b"3"
    second.accept()
    again.accept()


def test_a_block_settles(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2"])
    with got(queue) as message:
        assert bytes(message) == b"1"
    with pytest.raises(KeyError), got(queue) as message:
        raise KeyError(bytes(message))
    with got(queue) as message:
        assert (bytes(message), message.delivery_count) == (b"2", 2)
    assert queue.get(timeout=0) is None


def test_a_dropped_message_is_released(queue: hawser.Queue[Any]) -> None:
    queue.put(b"x")
    assert got(queue).delivery_count == 1
    gc.collect()
    assert got(queue).delivery_count == 2


def test_many_are_settled_together(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"x"] * 100)
    messages = queue.get_many(60, timeout=SECONDS)
    assert len(messages) == 60
    messages[0].accept()
    messages[1].release()
    messages.accept()
    messages.release()
    assert queue.info().ready == 41
    with queue.get_many(1000, timeout=SECONDS) as rest:
        assert len(rest) == 41 and rest[0].delivery_count == 2
    assert queue.get_many(3, timeout=0) == []
    queue.put_many([b"y"] * 3)
    with pytest.raises(KeyError), queue.get_many(3, timeout=SECONDS):
        raise KeyError
    assert [each.delivery_count for each in queue.get_many(3, timeout=SECONDS)] == [2, 2, 2]


def test_iteration_releases_what_was_not_settled(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2", b"3"])
    seen = []
    with queue.consume(prefetch=2) as consumer:
        for job in consumer:
            seen.append((bytes(job), job.delivery_count))
            if len(seen) != 2:
                job.accept()
            if len(seen) == 4:
                consumer.close()
    assert seen[:2] == [(b"1", 1), (b"2", 1)]
    assert sorted(seen[2:]) == [(b"2", 2), (b"3", 1)]
    assert next(iter(consumer), None) is None


def test_what_was_got_ahead_is_given_back_uncounted(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"1", b"2", b"3"])
    with queue.consume(prefetch=8) as consumer:
        next(consumer).accept()
        wait_until(lambda: queue.info().claimed == 2)
    assert [(bytes(each), each.delivery_count) for each in queue.get_many(9, timeout=SECONDS)] == [
        (b"2", 1),
        (b"3", 1),
    ]


def test_nobody_waits_for_nothing(queue: hawser.Queue[Any]) -> None:
    waiting = threading.Thread(target=queue.get, kwargs={"timeout": SECONDS})
    waiting.start()
    assert queue.get(timeout=0) is None
    assert queue.get(timeout=0.01) is None
    queue.put_many([b"for the one who waits", b"for us"])
    assert queue.get(timeout=SECONDS) is not None
    waiting.join()


def test_a_waiting_consumer_gets_what_is_put_and_what_comes_back(
    cluster: RunningCluster, queue: hawser.Queue[Any]
) -> None:
    other: hawser.Queue[Any] = cluster.connect("other").queue(queue.name)
    found: list[hawser.Message | None] = []

    def wait() -> None:
        found.append(other.get(timeout=SECONDS))

    for delivery in (1, 2):
        thread = threading.Thread(target=wait)
        thread.start()
        if delivery == 1:
            queue.put(b"new")
        elif found[0] is not None:
            found[0].release()
        thread.join()
        held = found[-1]
        assert held is not None and (bytes(held), held.delivery_count) == (b"new", delivery)


def test_rejected_messages_are_dead_letters(queue: hawser.Queue[Any]) -> None:
    queue.put_many([b"good", b"bad"])
    got(queue).accept()
    got(queue).reject()
    assert queue.get(timeout=0) is None
    dead_letters = queue.dead_letters()
    assert dead_letters is queue.dead_letters() and dead_letters.dead_letters() is dead_letters
    assert (queue.info().dead, dead_letters.info().ready, dead_letters.name) == (1, 1, f"{queue.name}.dead")
    (copy,) = dead_letters.peek(5)
    letter = got(dead_letters)
    assert bytes(copy) == bytes(letter) == b"bad"
    origin = msgspec.json.decode(letter.headers["hawser-dead-letter"])
    assert origin == {"queue": queue.name, "offset": 2, "deliveries": 1}
    letter.reject()
    assert got(dead_letters).delivery_count == 2
    gc.collect()
    wait_until(lambda: dead_letters.info().ready == 1)
    assert queue.retry_dead_letters() == 1
    again = got(queue)
    assert (bytes(again), again.headers, again.delivery_count) == (b"bad", {}, 1)
    with pytest.raises(hawser.UsageError, match="take no new messages"):
        dead_letters.put(b"x")
    with pytest.raises(hawser.UsageError, match="deleted with it"):
        dead_letters.delete()


def test_the_name_of_dead_letters_is_no_other_queues(queue: hawser.Queue[Any], bus: hawser.Bus) -> None:
    name = queue.dead_letters().name
    how = rf"bus\.queue\('{queue.name}'\)\.dead_letters\(\)"
    for create in (True, False):
        with pytest.raises(hawser.UsageError, match=how):
            bus.queue(name, create=create)
    with pytest.raises(hawser.UsageError, match=how):
        bus.queue(unused_name(), dead_letter=name)
    assert name not in bus.queues()


def test_the_last_delivery_ends_among_the_dead_letters(bus: hawser.Bus) -> None:
    queue = new_queue(bus, max_deliveries=3)
    queue.put_many([b"poison", b"fine"])
    for delivery in range(1, 4):
        message = got(queue)
        assert (bytes(message), message.delivery_count) == (b"poison", delivery)
        message.release()
    assert bytes(got(queue)) == b"fine"
    assert [bytes(each) for each in queue.dead_letters().peek(9)] == [b"poison"]


def test_as_many_letters_as_asked_for_are_retried(queue: hawser.Queue[Any]) -> None:
    queue.put_many([str(number).encode() for number in range(5)])
    queue.get_many(5, timeout=SECONDS).reject()
    assert queue.retry_dead_letters(2) == 2
    assert [bytes(each) for each in queue.get_many(9, timeout=SECONDS)] == [b"0", b"1"]
    assert queue.retry_dead_letters(0) == 0
    assert queue.retry_dead_letters() == 3
    assert queue.retry_dead_letters() == 0


def test_letters_go_to_a_queue_of_another_name(bus: hawser.Bus) -> None:
    morgue = unused_name()
    queue = new_queue(bus, dead_letter=morgue, max_deliveries=1)
    other = new_queue(bus, dead_letter=morgue)
    queue.put_many([b"1", b"2"])
    other.put(b"3")
    queue.get_many(2, timeout=SECONDS).release()
    dead_letters = queue.dead_letters()
    assert dead_letters.name == morgue
    wait_until(lambda: dead_letters.info().ready == 2)
    got(other).reject()
    wait_until(lambda: dead_letters.info().ready == 3)
    assert morgue in bus.queues()
    assert [bytes(each) for each in dead_letters.peek(9)] == [b"1", b"2", b"3"]
    assert queue.retry_dead_letters(1) == 1
    # Held: one that is dropped is a letter again, and goes back there.
    first = got(queue)
    assert bytes(first) == b"1"
    assert other.retry_dead_letters() == 1
    assert bytes(got(other)) == b"3"
    assert [(bytes(each), list(each.headers)) for each in dead_letters.peek(9)] == [
        (b"2", ["hawser-dead-letter"])
    ]


def test_a_full_queue_makes_producers_wait(bus: hawser.Bus) -> None:
    queue = new_queue(bus, capacity_bytes=2000)
    with pytest.raises(hawser.Full, match="has no room") as full:
        for _ in range(100):
            queue.put(b"x" * 100, timeout=0)
    assert full.value.retryable and full.value.outcome == "none"
    with pytest.raises(hawser.Full, match="has no room"):
        queue.put(b"x", timeout=0.05)
    waiting = threading.Thread(target=queue.put, args=(b"waited",))
    waiting.start()
    before = len(queue.get_many(1000, timeout=SECONDS))
    assert before < 20
    wait_until(lambda: queue.info().used_bytes < 2000)
    with queue.get_many(1000, timeout=SECONDS) as messages:
        assert len(messages) >= before
    waiting.join()
    wait_until(lambda: queue.info().head == before + 1)


def test_dead_letters_have_the_room_of_their_queue(bus: hawser.Bus) -> None:
    queue = new_queue(bus, capacity_bytes=2000)
    for _ in range(3):
        queue.put(b"x" * 400)
        got(queue).reject()
    assert (queue.info().ready, queue.info().claimed, queue.info().dead) == (0, 0, 3)
    with pytest.raises(hawser.Full, match="dead letters"):
        queue.put(b"x" * 1000, timeout=0)
    queue.dead_letters().get_many(3, timeout=SECONDS).accept()
    queue.put(b"x" * 1000, timeout=SECONDS)


def test_a_queue_that_is_full_is_not_written_to(cluster: RunningCluster, bus: hawser.Bus) -> None:
    queue = new_queue(bus, capacity_bytes=500)
    queue.put(b"x" * 400)
    shard = queue.info().partitions[0].shard
    heads = [node.shards[shard].replica.node.head.index for node in cluster._nodes.values()]
    for _ in range(5):
        with pytest.raises(hawser.Full):
            queue.put(b"x" * 400, timeout=0)
    after = [node.shards[shard].replica.node.head.index for node in cluster._nodes.values()]
    assert max(after) <= max(heads) + 1, "only the entry that sets the capacity may have come"


def test_a_bus_that_closes_waits_for_no_room(cluster: RunningCluster) -> None:
    bus = hawser.connect(cluster.url, name="closing")
    queue = new_queue(bus, capacity_bytes=500)
    queue.put(b"x" * 400)
    failed: list[BaseException] = []

    def put() -> None:
        with pytest.raises(hawser.Closed) as closed:
            queue.put(b"y" * 400)
        failed.append(closed.value)

    waiting = threading.Thread(target=put)
    waiting.start()
    publisher = queue._queue.publisher  # type: ignore[attr-defined]
    wait_until(lambda: publisher._producers[0]._pause is not None)
    bus.close()
    waiting.join()
    assert failed


def test_a_lease_bounds_how_long_a_message_is_held(bus: hawser.Bus) -> None:
    queue = new_queue(bus, lease=0.2)
    queue.put(b"x")
    first = got(queue)
    second = got(queue)
    assert second.delivery_count == 2
    with pytest.raises(hawser.Fenced, match="not held here any more"):
        first.accept()
    with pytest.raises(hawser.Fenced):
        first.release()


def test_of_two_accepts_one_wins(bus: hawser.Bus) -> None:
    queue = new_queue(bus, lease=1.5)
    queue.put_many([b"x"] * 20)
    first = queue.get_many(20, timeout=SECONDS)
    second = queue.get_many(20, timeout=SECONDS)
    assert second
    with pytest.raises(hawser.Fenced):
        first.accept()
    second.accept()
    wait_until(lambda: queue.info().ready + queue.info().claimed == 20 - len(second))


def test_a_lost_session_gives_back(cluster: RunningCluster, queue: hawser.Queue[Any]) -> None:
    lost = cluster.connect("lost", session_seconds=3.0)
    theirs: Any = lost.queue(queue.name)
    queue.put(b"x")
    held = got(theirs)
    assert queue.get(timeout=0) is None
    # It is kept while its process lives, however long that takes.
    assert queue.get(timeout=4.0) is None
    client, loop = lost._client, lost._thread.loop  # type: ignore[attr-defined]
    stopped = threading.Event()
    loop.call_soon_threadsafe(stopped.wait)
    assert got(queue).delivery_count == 2
    stopped.set()
    with pytest.raises(hawser.Fenced):
        held.accept()
    assert client.name == "lost"


def test_a_closed_queue_gives_back_at_once(cluster: RunningCluster, queue: hawser.Queue[Any]) -> None:
    queue.put(b"x")
    with hawser.connect(cluster.url, name="leaving", session_seconds=600.0) as bus:
        held: Any = got(bus.queue(queue.name))
    assert got(queue).delivery_count == 2
    with pytest.raises(hawser.Closed):
        held.accept()


def test_a_transfer_of_leadership_voids_what_is_held(
    cluster: RunningCluster, queue: hawser.Queue[Any]
) -> None:
    queue.put_many([b"1", b"2"])
    held = got(queue)
    partition = queue.info().partitions[0]
    cluster.transfer(partition.shard, next(each for each in cluster.nodes if each != partition.leader))
    with pytest.raises(hawser.Fenced):
        held.accept()
    again = got(queue)
    assert (bytes(again), again.delivery_count, again.redelivered) == (b"1", 1, True)
    again.accept()


def test_what_there_is_to_know(bus: hawser.Bus) -> None:
    queue = new_queue(bus, max_deliveries=5, lease=60, slot_size=100, capacity=9)
    assert queue.info().oldest_age_seconds is None
    queue.put_many([b"1", b"2", b"3"])
    held = got(queue)
    info = queue.info()
    assert (info.name, info.ready, info.claimed, info.dead, info.head) == (queue.name, 2, 1, 0, 3)
    assert [(each.name, each.claimed) for each in info.owners] == [("tester", 1)]
    assert info.owners[0].session.startswith("tester#")
    assert info.oldest_age_seconds is not None and 0 <= info.oldest_age_seconds < 60
    assert info.unused == {"slot_size": 100, "capacity": 9}
    assert (info.settings["max_deliveries"], info.settings["lease"], info.settings["replication"]) == (
        5,
        60,
        3,
    )
    assert 0 < info.used_bytes < info.settings["capacity_bytes"]
    assert [each.leader is not None for each in info.partitions] == [True]
    assert [bytes(each) for each in queue.peek(2)] == [b"1", b"2"]
    assert queue.peek(0) == []
    assert (queue.name, "consumer", 1) in {(each.topic, each.kind, each.held) for each in bus.participants()}
    assert msgspec.json.encode(info)
    held.accept()


def test_names_are_those_of_topics_or_of_queues(bus: hawser.Bus, queue: hawser.Queue[Any]) -> None:
    topic = bus.topic(f"{queue.name}-topic")
    assert queue.name in bus.queues() and queue.name not in bus.topics()
    assert topic.name in bus.topics() and topic.name not in bus.queues()
    with pytest.raises(hawser.UsageError, match=r"is a queue, not a topic; open it with bus.queue\(\)"):
        bus.topic(queue.name)
    with pytest.raises(hawser.UsageError, match=r"is a topic, not a queue; open it with bus.topic\(\)"):
        bus.queue(topic.name)
    with pytest.raises(hawser.Rejected, match="is a topic, not a queue"):
        new_queue(bus, dead_letter=topic.name)
    with pytest.raises(hawser.NotFound, match="no queue 'nowhere'"):
        bus.queue("nowhere", create=False)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_deliveries": 0}, "outside 1 to"),
        ({"max_deliveries": "x"}, "not a whole number"),
        ({"lease": -1}, "number of seconds"),
        ({"lease": float("nan")}, "number of seconds"),
        ({"dead_letter": "x//y"}, "dead_letter 'x//y' has an empty part"),
        ({"capacity_bytes": 0}, "outside 1 to"),
        ({"replication": None}, "not a whole number"),
        ({"partitions": 2}, "a queue has no setting 'partitions'"),
        ({"schema_": 1}, "a queue has no setting"),
    ],
)
def test_wrong_settings_are_named(bus: hawser.Bus, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(hawser.UsageError, match=text):
        new_queue(bus, **settings)


def test_other_settings_are_a_mismatch(bus: hawser.Bus) -> None:
    queue = new_queue(bus, lease=1.5, capacity_bytes=None)
    assert bus.queue(queue.name, lease=1.5) is queue
    with pytest.raises(hawser.SettingsMismatch, match=r"lease=2 was asked for but it has lease=1\.5"):
        bus.queue(queue.name, lease=2)


def test_wrong_calls_are_told(queue: hawser.Queue[Any]) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: queue.put(b"x", timeout=-1), "timeout is seconds"),
        (lambda: queue.get(timeout=-1), "timeout is seconds"),
        (lambda: queue.get_many(0), "count=0"),
        (lambda: queue.peek(-1), "count=-1"),
        (lambda: queue.consume(prefetch=-1), "prefetch=-1"),
        (lambda: queue.retry_dead_letters(-1), "count=-1"),
        (lambda: queue.put_many([]), "nothing to put"),
        (lambda: queue.put_many([b"a"], keys=[b"a", b"b"]), "2 keys for 1 messages"),
        (lambda: queue.put("text"), "bytes"),
    ]
    for call, text in calls:
        with pytest.raises((hawser.UsageError, TypeError), match=text):
            call()
    assert not queue.forget("anybody")


def test_a_deleted_queue_is_closed_for_everybody(cluster: RunningCluster, queue: hawser.Queue[Any]) -> None:
    other: Any = cluster.connect("bystander").queue(queue.name)
    queue.put(b"x")
    held = got(other)
    failed: list[Exception] = []

    def wait() -> None:
        with pytest.raises(hawser.Closed, match="was deleted") as closed:
            other.get(timeout=SECONDS)
        failed.append(closed.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    queue.delete()
    waiting.join()
    assert failed
    with pytest.raises(hawser.HawserError):
        held.accept()
    with pytest.raises(hawser.Closed):
        other.put(b"x")
    with pytest.raises(hawser.Closed):
        queue.put(b"x")


class Job(msgspec.Struct):
    number: int


class Other(msgspec.Struct):
    text: str


def test_a_queue_with_a_schema(bus: hawser.Bus) -> None:
    queue: hawser.Queue[Job] = bus.queue(unused_name(), schema=Job)
    queue.put(Job(7))
    queue.put_many([Job(8)])
    with got(queue) as message:
        assert message.value == Job(7)
    got(queue).reject()
    assert got(queue.dead_letters()).value == Job(8)
    with pytest.raises(hawser.SettingsMismatch):
        bus.queue(queue.name, schema=Other)


def test_threads_share_a_queue(queue: hawser.Queue[Any]) -> None:
    taken: list[bytes] = []

    def work() -> None:
        while len(taken) < 200:
            message = queue.get(timeout=0.5)
            if message is not None:
                taken.append(bytes(message))
                message.accept()

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    queue.put_many([str(number).encode() for number in range(200)])
    for worker in workers:
        worker.join()
    assert sorted(map(int, taken)) == list(range(200))


def test_large_messages_come_in_parts(cluster: RunningCluster) -> None:
    queue = new_queue(cluster.connect("large", fetch_bytes=1 << 20))
    queue.put_many([bytes([number]) * (300 << 10) for number in range(10)])
    found: list[int] = []
    while len(found) < 10:
        with queue.get_many(10, timeout=SECONDS) as messages:
            assert 1 <= len(messages) <= 5
            found += [bytes(each)[0] for each in messages]
    assert found == list(range(10))
    queue.put_many([b"z" * (5 << 20), b"small"])
    held = [got(queue), got(queue)]
    assert [len(each) for each in held] == [5 << 20, 5]


def test_nodes_take_no_nonsense(cluster: RunningCluster, bus: hawser.Bus, queue: hawser.Queue[Any]) -> None:
    queue.put(b"x")
    leader, shard = queue.info().partitions[0].leader, queue.info().partitions[0].shard
    no_token = Token(0, 0)
    topic = bus.topic(f"{queue.name}-topic").info().partitions[0]
    too_many = ((1, 1, 1 << 40),)
    forged = [
        bytes(Batch.of([Record(b"forged")], Stamp(producer.encode() + shard.encode(), 1 << 40, 1)).data)
        for producer in ("letters:", "consumer:")
    ]
    label = Label(lane("forger"), 1, 0, 1, 60)
    expiry = encode_command(ExpireProducers(((b"letters:" + shard.encode(), 1, 1),)))
    requests: list[tuple[Any, str | None, str]] = [
        (wire.QueueSettle(shard, 0, "me", 1, 1, too_many), leader, "name at most"),
        (wire.QueueGet(shard, 0, "me", 1, no_token, 1, 1, 1.0, 0.0, too_many), leader, "name at most"),
        (wire.QueueGet(topic.shard, 0, "me", 1, no_token, 1, 1, 1.0), topic.leader, "holds a topic"),
        (wire.QueuePut(topic.shard, b"x"), topic.leader, "cannot be read"),
        (wire.Execute(shard, 33, b"x"), leader, "cannot ask for an entry of kind 33"),
        (wire.Execute(shard, Kind.EXPIRE_PRODUCERS, expiry), leader, "cannot ask for an entry of kind 3"),
        *((wire.QueuePut(shard, each), leader, "is reserved for nodes") for each in forged),
        *((wire.Publish(topic.shard, each), topic.leader, "is reserved for nodes") for each in forged),
        *(
            (wire.Transact(shard, (entry(Kind.QUEUE_PUT, each, label),)), leader, "is reserved for nodes")
            for each in forged
        ),
    ]
    for request, node, text in requests:
        answer = cluster.ask(request, node)
        assert isinstance(answer, wire.Failed) and text in answer.text, answer
    lies = (Token(0, 1), Token(1, 99))
    for number, lie in enumerate(lies, 1):
        runs = ((lie.epoch, lie.number, 1),)
        answer = cluster.ask(wire.QueueSettle(shard, 0, "liar", number, 1, runs), leader)
        assert isinstance(answer, wire.Turned) and answer.tokens == runs
    answer = cluster.ask(wire.QueueSettle(shard, 0, "liar", 9, 1, ((99, 1, 1),)), leader)
    assert isinstance(answer, wire.Failed) and answer.code is wire.Code.NOT_LEADER
    with got(queue) as message:
        assert message.delivery_count == 1
