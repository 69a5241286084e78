"""The public API on a cluster: every call, as it is promised."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

import hawser
from hawser.cluster import wire
from hawser.cluster.client.client import TopicHandle
from hawser.log.entry import Kind
from hawser.log.state.commands import TrimTo, encode_command
from tests.support.cluster import RunningCluster

SECONDS = 20.0


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("tester")


@pytest.fixture
def topic(bus: hawser.Bus, request: pytest.FixtureRequest) -> hawser.Topic[Any]:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    opened: hawser.Topic[Any] = bus.topic(name[:60])
    return opened


def rest(subscription: hawser.Subscription[Any], count: int) -> list[hawser.Sample]:
    """The next `count` samples, which must come."""
    found: list[hawser.Sample] = []
    while len(found) < count:
        more = subscription.take_many(count - len(found), timeout=SECONDS)
        assert more, f"only {len(found)} of {count} samples came"
        found += more
    return found


def test_a_message_goes_in_and_comes_out(topic: hawser.Topic[Any]) -> None:
    receipt = topic.publish(b"one", key=b"k", headers={"a": b"b"})
    assert receipt == hawser.Receipt(topic.name, 0, 1, 1, "majority")
    with topic.subscribe(start="earliest") as subscription:
        sample = subscription.take(timeout=SECONDS)
        assert sample is not None
        assert isinstance(sample, hawser.Sample)
        assert (bytes(sample), bytes(sample.data), len(sample)) == (b"one", b"one", 3)
        assert (sample.key, sample.headers, sample.partition, sample.offset) == (b"k", {"a": b"b"}, 0, 1)
        assert (sample.publisher, sample.lost_before) == ("tester", 0)
        assert abs(sample.timestamp_ns / 1e9 - datetime.now(UTC).timestamp()) < 60
        assert sample.array().tolist() == list(b"one")
        with sample:
            sample.release()
        assert subscription.take(timeout=0) is None
        assert (subscription.received, subscription.missed, subscription.position) == (1, 0, 1)


def test_both_scopes_have_the_same_types(bus: hawser.Bus, topic: hawser.Topic[Any]) -> None:
    assert isinstance(bus, hawser.Bus)
    assert isinstance(topic, hawser.Topic)
    assert isinstance(topic.publisher(), hawser.Publisher)
    assert isinstance(topic.subscribe(), hawser.Subscription)
    assert bus.topic(topic.name) is topic


def test_keys_choose_partitions_by_the_documented_hash(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("keyed", partitions=3)
    keys = [str(number).encode() for number in range(30)]
    receipts = topic.publish_many(keys, keys=keys)
    assert sum(receipt.count for receipt in receipts) == 30
    assert len({receipt.partition for receipt in receipts}) == len(receipts) == 3
    with topic.subscribe(start="earliest") as subscription:
        samples = rest(subscription, 30)
    for sample in samples:
        assert sample.partition == xxh3_64_intdigest(sample.key or b"") % 3
    for partition in range(3):
        mine = [sample for sample in samples if sample.partition == partition]
        assert [sample.offset for sample in mine] == list(range(1, len(mine) + 1))
        assert [int(bytes(sample)) for sample in mine] == sorted(int(bytes(sample)) for sample in mine)
    with pytest.raises(hawser.UsageError, match="1 keys for 2 messages"):
        topic.publish_many([b"a", b"b"], keys=[b"a"])


def test_messages_without_keys_use_all_partitions(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("spread", partitions=3)
    assert {topic.publish(b"x").partition for _ in range(6)} == {0, 1, 2}


def test_a_batch_is_one_receipt(topic: hawser.Topic[Any]) -> None:
    topic.publish(b"first")
    (receipt,) = topic.publish_many(str(number).encode() for number in range(1000))
    assert (receipt.first_offset, receipt.count) == (2, 1000)
    with pytest.raises(hawser.UsageError, match="nothing to publish"):
        topic.publish_many([])
    with pytest.raises(hawser.UsageError, match="not one bytes"):
        topic.publish_many(b"abc")


def test_pipelined_messages_keep_their_order(topic: hawser.Topic[Any]) -> None:
    futures = [topic.publish_nowait(str(number).encode()) for number in range(3000)]
    topic.flush()
    assert all(future.done() for future in futures)
    assert not topic.publish_nowait(b"3000").cancel()
    assert [future.result().first_offset for future in futures] == list(range(1, 3001))
    with topic.subscribe(start="earliest") as subscription:
        assert [int(bytes(sample)) for sample in rest(subscription, 3001)] == list(range(3001))


def test_threads_share_a_topic(topic: hawser.Topic[Any]) -> None:
    def publish(name: int) -> None:
        for number in range(50):
            topic.publish(f"{name} {number}".encode())

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with topic.subscribe(start="earliest") as subscription:
        words = [bytes(sample).decode().split() for sample in rest(subscription, 200)]
    for name in range(4):
        assert [int(number) for who, number in words if int(who) == name] == list(range(50))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"start": "earliest"}, [1, 2, 3, 4, 5, 6]),
        ({"start": 3}, [3, 4, 5, 6]),
        ({"start": 6}, [6]),
        ({"history": 2}, [4, 5, 6]),
        ({"history": 100}, [1, 2, 3, 4, 5, 6]),
        ({"start": "latest"}, [6]),
        ({}, [6]),
    ],
)
def test_where_subscriptions_begin(
    topic: hawser.Topic[Any], options: dict[str, Any], expected: list[int]
) -> None:
    for number in range(1, 6):
        topic.publish(str(number).encode())
    with topic.subscribe(**options) as subscription:
        topic.publish(b"6")
        assert [sample.offset for sample in rest(subscription, len(expected))] == expected


def test_a_time_is_between_two_messages_of_a_batch(topic: hawser.Topic[Any]) -> None:
    topic.publish_many([b"a", b"b"])
    late: list[hawser.Sample] = []
    topic.publish_many([b"c", b"d", b"e"])
    with topic.subscribe(start="earliest") as subscription:
        late = rest(subscription, 5)
    moment = late[3].timestamp_ns
    first = next(sample for sample in late if sample.timestamp_ns // 1000 >= moment // 1000)
    with topic.subscribe(start=datetime.fromtimestamp(moment // 1000 / 1e6, UTC)) as subscription:
        taken = rest(subscription, 5 - late.index(first))
        assert taken[-1].offset == 5
        assert taken[0].timestamp_ns >= moment // 1000 * 1000 - 1000
    with topic.subscribe(start=datetime(2100, 1, 1, tzinfo=UTC)) as subscription:
        topic.publish(b"f")
        assert rest(subscription, 1)[0].offset == 6


@pytest.mark.parametrize(
    "options", [{"start": 0}, {"start": -1}, {"start": "now"}, {"history": -1}, {"history": 1, "start": 1}]
)
def test_options_that_make_no_sense_are_refused(topic: hawser.Topic[Any], options: dict[str, Any]) -> None:
    with pytest.raises(hawser.UsageError):
        topic.subscribe(**options)


@pytest.mark.parametrize("options", [{"resume": True}, {"group": ""}, {"group": "g" * 201}])
def test_options_that_a_cluster_has_not_are_refused(
    topic: hawser.Topic[Any], options: dict[str, Any]
) -> None:
    with pytest.raises(hawser.UsageError):
        topic.subscribe(**options)


def test_an_offset_that_is_not_there_is_refused(topic: hawser.Topic[Any]) -> None:
    topic.publish(b"x")
    with pytest.raises(hawser.OffsetOutOfRange, match="2 is next"):
        topic.subscribe(start=3)


def test_wrong_counts_and_times_are_refused(topic: hawser.Topic[Any]) -> None:
    with topic.subscribe() as subscription:
        for take in (subscription.take_many, subscription.take_values, subscription.take_batches):
            with pytest.raises(hawser.UsageError, match="count=0 is not a whole number from 1"):
                take(0)
        for timeout in (-1, float("nan")):
            with pytest.raises(hawser.UsageError, match="0 or more"):
                subscription.take(timeout)


def test_only_groups_commit(topic: hawser.Topic[Any]) -> None:
    with topic.subscribe() as subscription, pytest.raises(hawser.UsageError, match="group"):
        subscription.commit()


def test_reading_goes_on_where_it_was(topic: hawser.Topic[Any]) -> None:
    assert topic.read_oldest(5) == ([], 0, 0)
    topic.publish_many(str(number).encode() for number in range(1, 8))
    first = topic.read_oldest(3)
    assert ([bytes(each) for each in first.samples], first.last, first.missed) == ([b"1", b"2", b"3"], 3, 0)
    second = topic.read_oldest(10, after=first.last)
    assert ([each.offset for each in second.samples], second.last) == ([4, 5, 6, 7], 7)
    assert topic.read_oldest(10, after=7) == ([], 7, 0)
    assert [each.offset for each in topic.read_newest(2).samples] == [6, 7]
    assert [each.offset for each in topic.read_newest(5, after=6).samples] == [7]
    with pytest.raises(hawser.UsageError, match="no partition 1"):
        topic.read_oldest(1, partition=1)
    with pytest.raises(hawser.UsageError, match="whole number"):
        topic.read_newest(-1)


def test_what_retention_took_is_counted(cluster: RunningCluster, topic: hawser.Topic[Any]) -> None:
    for number in range(1, 11):
        topic.publish(str(number).encode())
    subscription = topic.subscribe(start="earliest")
    info = topic.info().partitions[0]
    trim(cluster, info, 5)
    # Already fetched ahead, or not: from the first one on, nothing is missing without being counted.
    other = topic.subscribe(start="earliest")
    assert [sample.offset for sample in rest(other, 6)] == [5, 6, 7, 8, 9, 10]
    assert other.missed == 0
    seen = 0
    while subscription.position < 10:
        sample = subscription.take(timeout=SECONDS)
        assert sample is not None
        assert sample.offset == seen + 1 + sample.lost_before
        seen = sample.offset
    assert topic.read_oldest(1).missed == 4
    with pytest.raises(hawser.OffsetOutOfRange):
        topic.subscribe(start=4)


def test_what_retention_takes_from_a_slow_reader_is_counted_exactly(cluster: RunningCluster) -> None:
    """It reads one batch ahead, no more; the others are trimmed away under it."""
    bus = cluster.connect("slow", read_ahead_bytes=1, fetch_bytes=1)
    topic: Any = bus.topic("overtaken")
    for number in range(1, 21):
        topic.publish(str(number).encode())
    with topic.subscribe(start="earliest") as subscription:
        assert subscription.take(timeout=SECONDS).offset == 1
        trim(cluster, topic.info().partitions[0], 11)
        taken = []
        while subscription.position < 20:
            taken.append(subscription.take(timeout=SECONDS))
        lost = {sample.offset: sample.lost_before for sample in taken if sample.lost_before}
        assert list(lost) == [11]
        assert lost[11] == subscription.missed == 19 - len(taken) > 5
        assert [sample.offset for sample in taken][-10:] == list(range(11, 21))


def test_a_subscription_that_nobody_has_any_more_ends(topic: hawser.Topic[Any]) -> None:
    subscription = topic.subscribe(group="g")
    assert len(topic.info().participants) == 1
    del subscription
    pause = threading.Event()
    while topic.info().participants:
        pause.wait(0.01)


def test_a_publisher_that_nobody_has_any_more_ends_after_what_it_has_to_publish(topic: Any) -> None:
    users = topic._topic._dependents
    futures = [topic.publisher().publish_nowait(b"x") for _ in range(10)]
    assert sorted(future.result().first_offset for future in futures) == list(range(1, 11))
    pause = threading.Event()
    while len(users) > 1:
        pause.wait(0.01)
    bus: Any = hawser.connect(topic._bus.url)
    last = bus.topic(topic.name).publisher().publish_nowait(b"y")
    bus.close()
    assert last.result(timeout=0).first_offset == 11


def test_looking_for_participants_opens_no_topic(cluster: RunningCluster, topic: hawser.Topic[Any]) -> None:
    with topic.subscribe(group="g"), hawser.connect(cluster.url, name="looker") as bus:
        assert ("group g", topic.name) in {(each.state, each.topic) for each in bus.participants()}
        assert not bus._topics and not bus._client._handles  # type: ignore[attr-defined]


def test_a_topic_that_is_deleted_meanwhile_has_no_participants(
    bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topics() -> list[str]:
        return ["gone"]

    monkeypatch.setattr(bus._client, "topics", topics)
    assert bus.participants() == []


def test_a_compression_of_a_newer_version_is_named(bus: Any) -> None:
    topic = bus.topic("newer")
    entry = topic._topic.entry
    newer = msgspec.structs.replace(entry, settings={**entry.settings, "compression": "brotli"})
    with pytest.raises(hawser.SettingsMismatch, match="'newer' has compression 'brotli'"):
        TopicHandle(bus._client, "newer", newer, None)


def trim(cluster: RunningCluster, partition: hawser.PartitionInfo, offset: int) -> None:
    request = wire.Execute(partition.shard, Kind.TRIM, encode_command(TrimTo(offset)))
    assert isinstance(cluster.ask(request, partition.leader), wire.Executed)


def test_batches_come_as_arrow(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("as-arrow", compression="zstd")
    topic.publish_many([b"a", b"b"])
    topic.publish(b"c", key=b"k", headers={"h": b"1"})
    with topic.subscribe(start=2) as subscription:
        rows: list[dict[str, Any]] = []
        while len(rows) < 2:
            for batch in subscription.take_batches(8, timeout=SECONDS):
                assert batch.schema.names == ["key", "value", "headers", "timestamp", "partition", "offset"]
                rows += batch.drop_columns(["timestamp"]).to_pylist()
        assert [(row["value"], row["key"], row["partition"], row["offset"]) for row in rows] == [
            (b"b", None, 0, 2),
            (b"c", b"k", 0, 3),
        ]
        assert subscription.take_batches(timeout=0) == []
        assert (subscription.received, subscription.position) == (2, 3)


class Order(msgspec.Struct):
    number: int
    what: str


def test_typed_topics_carry_values(bus: hawser.Bus) -> None:
    orders = bus.topic("orders", schema=Order)
    orders.publish(Order(1, "tea"))
    orders.publish_many([Order(2, "salt")])
    with orders.subscribe(start="earliest") as subscription:
        assert subscription.take_value(timeout=SECONDS) == Order(1, "tea")
        assert subscription.take_values(5, timeout=SECONDS) == [Order(2, "salt")]
    with pytest.raises(hawser.UsageError, match="carries Order"):
        orders.publish(b"raw")  # type: ignore[arg-type]

    class Other(msgspec.Struct):
        text: str

    with pytest.raises(hawser.SettingsMismatch, match="schema"):
        bus.topic("orders", schema=Other)


def test_settings_must_not_contradict(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("settings", partitions=2, retention_bytes=1 << 30, slot_size=4096)
    assert bus.topic("settings") is topic
    assert bus.topic("settings", partitions=2) is topic
    info = topic.info()
    assert (info.settings["partitions"], info.settings["replication"]) == (2, 3)
    assert info.settings["retention_bytes"] == 1 << 30
    assert info.unused == {"slot_size": 4096}
    with pytest.raises(hawser.SettingsMismatch, match=r"partitions=3 was asked for but it has partitions=2"):
        bus.topic("settings", partitions=3)
    for wrong in ({"partitions": 0}, {"replication": 8}, {"compression": "gzip"}, {"colour": "red"}):
        with pytest.raises(hawser.UsageError):
            bus.topic("settings", **wrong)
    with pytest.raises(hawser.UsageError, match="empty part"):
        bus.topic("a//b")


def test_info_tells_of_partitions(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("informed", partitions=2)
    topic.publish_many([b"a", b"b", b"c"])
    info = topic.info()
    assert len(info.partitions) == 2
    assert sorted((each.start, each.end) for each in info.partitions) == [(1, 1), (1, 4)]
    assert all(each.leader in each.members == ["n1", "n2", "n3"] for each in info.partitions)
    assert (info.head, info.oldest) == (3, 1)
    assert (bus.recover(), bus.files()) == ([], [])


def test_topics_are_listed_deleted_and_made_anew(bus: hawser.Bus) -> None:
    topic: Any = bus.topic("short-lived")
    topic.publish(b"x")
    subscription = topic.subscribe(start="earliest")
    rest(subscription, 1)
    assert "short-lived" in bus.topics()
    publisher = topic.publisher()
    topic.delete()
    assert "short-lived" not in bus.topics()
    with pytest.raises(hawser.NotFound, match="short-lived"):
        bus.topic("short-lived", create=False)
    with pytest.raises(hawser.Closed):
        publisher.publish(b"y")
    again: Any = bus.topic("short-lived")
    assert again is not topic
    assert again.publish(b"y").first_offset == 1


def test_who_uses_a_topic_that_others_delete_gets_closed(cluster: RunningCluster, bus: hawser.Bus) -> None:
    topic: Any = bus.topic("deleted-by-others")
    topic.publish(b"x")
    subscription = topic.subscribe()
    cluster.connect("deleter").topic("deleted-by-others").delete()
    with pytest.raises(hawser.Closed, match="deleted"):
        subscription.take(timeout=SECONDS)
    with pytest.raises(hawser.Closed, match="deleted"):
        topic.publish(b"y")


def test_publishers_have_their_own_sequence(topic: hawser.Topic[Any]) -> None:
    with topic.publisher() as publisher:
        assert publisher.publish(b"a").first_offset == 1
        assert publisher.incarnation == 1
        assert topic.publish(b"b").first_offset == 2
        assert publisher.publish_many([b"c"])[0].first_offset == 3
    with pytest.raises(hawser.Closed):
        publisher.publish(b"d")
    with pytest.raises(hawser.UsageError, match="exclusive"):
        topic.publisher(exclusive=True)


def test_loans_are_ordinary_buffers(topic: hawser.Topic[Any]) -> None:
    with topic.loan(4, key=b"k") as buffer:
        buffer[:] = b"abcd"
    with topic.loan_array((2, 2), "<u2") as array:
        array[:] = [[1, 2], [3, 4]]
    with pytest.raises(ZeroDivisionError), topic.loan(1):
        raise ZeroDivisionError
    with topic.subscribe(start="earliest") as subscription:
        first, second = rest(subscription, 2)
        assert (bytes(first), first.key) == (b"abcd", b"k")
        assert second.array("<u2", (2, 2)).tolist() == [[1, 2], [3, 4]]
        assert subscription.take(timeout=0) is None


@pytest.mark.parametrize("data", ["text", 1, None, object()])
def test_what_has_no_bytes_is_refused(topic: hawser.Topic[Any], data: Any) -> None:
    with pytest.raises(hawser.UsageError):
        topic.publish(data)
    with pytest.raises(hawser.UsageError):
        topic.publish(b"x", key="key" if data is None else data)  # type: ignore[arg-type]
    assert topic.info().head == 0


def test_a_message_too_large_fails_alone(topic: hawser.Topic[Any]) -> None:
    small = topic.publish_nowait(b"small")
    large = topic.publish_nowait(bytes(70 << 20))
    after = topic.publish_nowait(b"after")
    topic.flush()
    assert (small.result().first_offset, after.result().first_offset) == (1, 2)
    with pytest.raises(hawser.UsageError, match="too much for one batch"):
        large.result()


def test_too_much_at_once_is_refused_not_hoarded(cluster: RunningCluster) -> None:
    topic: Any = cluster.connect("eager", queue_bytes=10_000).topic("eager")
    futures = [topic.publish_nowait(bytes(1000)) for _ in range(500)]
    topic.flush()
    refused = [future for future in futures if future.exception() is not None]
    for future in refused:
        with pytest.raises(hawser.Full, match="wait for receipts"):
            future.result()
    assert 0 < len(refused) < 500
    assert topic.info().head == 500 - len(refused)


def test_iteration_ends_with_the_subscription(topic: hawser.Topic[Any]) -> None:
    topic.publish_many([b"a", b"b"])
    subscription = topic.subscribe(start="earliest")
    seen = []
    for sample in subscription:
        seen.append(bytes(sample))
        if len(seen) == 2:
            subscription.close()
    assert seen == [b"a", b"b"]
    with pytest.raises(hawser.Closed):
        subscription.take(timeout=0)


def test_closing_publishes_what_was_begun(cluster: RunningCluster) -> None:
    bus = cluster.connect("leaver")
    topic: Any = bus.topic("left-behind")
    futures = [topic.publish_nowait(str(number).encode()) for number in range(500)]
    bus.close()
    bus.close()
    assert [future.result().first_offset for future in futures] == list(range(1, 501))
    for call in (bus.topics, topic.info, lambda: topic.publish(b"x"), topic.subscribe):
        with pytest.raises(hawser.Closed):
            call()


def test_a_call_from_the_callback_of_a_future_is_refused(bus: hawser.Bus, topic: hawser.Topic[Any]) -> None:
    """A call that waited there would wait for itself, and all others with it."""
    queue, subscription = bus.queue("called-back"), topic.subscribe()
    transaction = bus.transaction()

    def loan() -> None:
        with topic.loan(1):
            pass

    calls: list[Callable[[], object]] = [
        topic.info,
        topic.flush,
        lambda: topic.publish(b"x"),
        lambda: topic.publish_many([b"x"]),
        loan,
        lambda: queue.put(b"x"),
        lambda: queue.put_many([b"x"]),
        lambda: queue.get(timeout=1),
        lambda: subscription.take(1),
        transaction.commit,
    ]
    refused: Queue[str] = Queue()

    def call_all(_: object) -> None:
        for call in calls:
            try:
                call()
            except hawser.UsageError as error:
                refused.put(str(error))
            else:
                refused.put(f"{call} was not refused")

    topic.publish_nowait(b"x").add_done_callback(call_all)
    for _ in calls:
        assert "in another thread" in refused.get(timeout=SECONDS)
    assert topic.info().head == 1
    assert queue.info().ready == 0


def test_a_forked_child_must_connect_again(bus: hawser.Bus, topic: hawser.Topic[Any]) -> None:
    topic.publish(b"before")
    child = os.fork()
    if child == 0:
        try:
            topic.publish(b"x")
        except hawser.UsageError as error:
            bus.close()
            os._exit(0 if "fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert topic.publish(b"after").first_offset == 2


@pytest.mark.parametrize(
    "url", ["hawser://", "hawser://host", "hawser://:7400", "hawser://h:1,", "hawser://h:0", "hawser://h:x"]
)
def test_wrong_urls_are_explained(url: str) -> None:
    with pytest.raises(hawser.UsageError, match=r"hawser://host:port|port 0"):
        hawser.connect(url)


def test_wrong_options_are_explained(cluster: RunningCluster) -> None:
    for options in ({"colour": "red"}, {"timeout": -1.0}, {"timeout": "long"}):
        with pytest.raises(hawser.UsageError, match="option"):
            hawser.connect(cluster.url, **options)


def test_an_unreachable_cluster_is_told_in_time() -> None:
    with pytest.raises(hawser.Unavailable, match=r"127\.0\.0\.1:1 cannot be reached") as caught:
        hawser.connect("hawser://127.0.0.1:1", connect_timeout=0.2)
    assert (caught.value.retryable, caught.value.outcome) == (True, "none")


LIGHT = """
import sys
import hawser
with hawser.connect({url!r}) as bus:
    bus.topic("t").publish(b"x")
heavy = {{"asyncio", "xxhash", "crc32c", "hawser.cluster"}} & sys.modules.keys()
assert not heavy, heavy
print("light")
"""


def test_one_host_needs_nothing_of_clusters(tmp_path: Path) -> None:
    program = LIGHT.format(url=f"shm://{tmp_path}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("light\n", "")
