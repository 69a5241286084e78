"""What a client says became of a request when several things go wrong, or an answer makes no sense."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.client.client import TopicHandle
from hawser.cluster.client.errors import joint_error
from hawser.cluster.client.publish import partition_producer as producer_module
from hawser.cluster.client.publish.batch import Item
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from hawser.cluster.client.queue.acknowledger import Acknowledger, HeldMessage
from hawser.cluster.client.router import Router
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.client.subscribe.group_member import GroupMember
from hawser.cluster.client.subscribe.subscription import Consumer
from hawser.cluster.transport import LinkClosed
from hawser.log.entry import Kind
from hawser.log.state.producers import Producers as Judge
from hawser.log.state.results import Accepted, Joined, encode_result
from hawser.record.batch import Batch, Compression
from hawser.record.record import Record, Stamp

SETTINGS = ClientSettings(
    timeout=0.2,
    attempt_seconds=0.05,
    fetch_wait_seconds=0.01,
    backoff_least_seconds=0.001,
    backoff_most_seconds=0.004,
)
BAD = wire.encode(wire.Failed(wire.Code.BAD_REQUEST, "the clock is wrong", False))
FULL = wire.encode(wire.Failed(wire.Code.FULL, "the disk is full", False))
BUSY = wire.encode(wire.Failed(wire.Code.BUSY, "ask again", True))
UNREADABLE = b"\x93\xa6failed\xa6strange\xa4text"
ODD = wire.encode(wire.AdminDone(True, "odd"))


class Cluster:
    """Stands for the router and its links: each shard answers what it was told to, then does its work."""

    def __init__(self, **answers: list[bytes | None]) -> None:
        self.settings = SETTINGS
        self.loop = asyncio.get_running_loop()
        self.post = self.loop.call_soon_threadsafe
        self.address = "n1:7400"
        self.logs: dict[str, list[bytes]] = {}
        self.sizes: list[int] = []
        self._judges: dict[str, Judge] = {}
        self._answers = answers

    def leader_link(self, _: str) -> Any:
        return self

    reading_link = leader_link

    async def ask(self, body: bytes, _: float) -> bytes:
        request = wire.decode_request(body)
        answers = self._answers.get("shard" + request.shard[-1], [])  # type: ignore[union-attr]
        await asyncio.sleep(0)
        if not answers:
            return self._work(request)
        answer = answers.pop(0)
        if answer is None:
            self._work(request)
            raise LinkClosed("the answer was lost", was_sent=True)
        return answer

    def _work(self, request: Any) -> bytes:
        log = self.logs.setdefault(request.shard, [])
        if isinstance(request, wire.Fetch):
            values = [Record(value) for value in log[request.offset - 1 :]]
            found = (
                ((request.offset, memoryview(Batch.of(values, Stamp(b"p#1", 1, 1)).data)),) if values else ()
            )
            return wire.encode(wire.Batches(found, 1, len(log) + 1))
        assert isinstance(request, wire.Publish)
        batch = Batch.read(request.batch)
        judge = self._judges.setdefault(request.shard, Judge())
        verdict = judge.judge(*batch.stamp)
        if verdict is None:
            verdict = Accepted(len(log) + 1, batch.count)
            judge.accept(*batch.stamp, len(log) + 1, batch.count)
            log += [record.value for record in batch.records()]
            self.sizes.append(batch.count)
        return wire.encode(wire.Executed(encode_result(verdict)))

    async def refresh(self, _: str, __: float) -> bool:
        return True

    async def look_after(self, _: str, __: str) -> None: ...

    def note(self, _: str, __: wire.Failed) -> bool:
        return False

    def check_topic(self, _: str, __: str) -> None: ...

    ask_once = Router.ask_once
    version = 1

    def close_malformed(self, _: Exception) -> None: ...


def topic_of(cluster: Cluster, partitions: int = 1) -> TopicHandle:
    client = SimpleNamespace(router=cluster, name="c", settings=SETTINGS, seconds=lambda _: SETTINGS.timeout)
    return TopicHandle(client, "t", wire.TopicEntry(1, "u", partitions, {}), None)  # type: ignore[arg-type]


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


async def error_of_many(**answers: list[bytes | None]) -> hawser.HawserError:
    """That of a batch for two partitions."""
    topic = topic_of(Cluster(**answers), 2)
    # By the documented hash one of them is in each partition.
    records = [Record(b"x", key) for key in (b"0", b"1", b"2", b"3", b"4", b"5")]
    assert set(topic.partitioner.split(records)) == {0, 1}
    with pytest.raises(hawser.HawserError) as caught:
        await topic.publish_many(topic.partitioner, records, None)
    await topic.close()
    return caught.value


def test_a_batch_of_which_something_is_unknown_is_not_said_to_be_refused() -> None:
    async def story() -> None:
        for unknown, refused in (("shard0", "shard1"), ("shard1", "shard0")):
            answers: dict[str, list[bytes | None]] = {unknown: [None, BAD], refused: [FULL]}
            error = await error_of_many(**answers)
            assert (type(error), error.outcome) == (hawser.OutcomeUnknown, "unknown")
            assert not error.retryable
            assert "the disk is full" in str(error) and "the clock is wrong" in str(error)

    run(story)


def test_a_batch_that_is_partly_published_is_not_retryable() -> None:
    async def story() -> None:
        error = await error_of_many(shard0=[FULL])
        assert (type(error), error.outcome, error.retryable) == (hawser.Full, "applied", False)
        assert 0 < error.published < 6

    run(story)
    assert joint_error([hawser.Full("no room")], 0).retryable
    assert not joint_error([hawser.Full("no room")], 1).retryable
    assert not joint_error([hawser.Full("no room"), hawser.UsageError("too large")], 0).retryable


def test_everybody_gets_an_error_of_his_own() -> None:
    async def story() -> None:
        cluster = Cluster(shard0=[FULL])
        topic = topic_of(cluster)
        futures = [cluster.loop.create_future() for _ in range(3)]
        topic.partitioner._producers[0]._is_due = True
        for future in futures:
            topic.partitioner.submit([Record(b"x")], future, 1.0)
        topic.partitioner._producers[0]._send_due()
        await asyncio.wait(futures)
        errors = [future.exception() for future in futures]
        assert {type(error) for error in errors} == {hawser.Full}
        assert len({id(error) for error in errors}) == 3
        await topic.close()

    run(story)


def test_a_refusal_after_an_attempt_in_doubt_leaves_it_in_doubt() -> None:
    async def story() -> None:
        cluster = Cluster(shard0=[None, BAD])
        topic = topic_of(cluster)
        with pytest.raises(hawser.OutcomeUnknown, match="the clock is wrong") as caught:
            await topic.publish(topic.partitioner, Record(b"x"), None)
        assert caught.value.outcome == "unknown"
        assert list(cluster.logs.values()) == [[b"x"]]
        await topic.close()

    run(story)


class Routed(Router):
    """One whose leaders are always there."""

    cluster: Cluster

    def leader_link(self, _: str) -> Any:
        return self.cluster

    async def look_after(self, _: str, __: str, ___: float = 0) -> None: ...


@pytest.mark.parametrize("answers", [[None, BAD], [UNREADABLE, BAD]])
def test_a_command_in_doubt_stays_in_doubt_and_a_question_does_not(answers: list[bytes | None]) -> None:
    async def story() -> None:
        router = Routed([], "c", SETTINGS)
        deadline = router.loop.time() + 10
        for request, expected in (
            (wire.Execute("t@u/0", Kind.GROUP_JOIN, b""), hawser.OutcomeUnknown),
            (wire.Inspect("t@u/0"), hawser.UsageError),
        ):
            router.cluster = Cluster(shard0=list(answers))
            router.cluster._work = lambda request: b""  # type: ignore[method-assign]
            with pytest.raises(expected, match="the clock is wrong"):
                await router.ask_leader("t", "t@u/0", request, "asking", deadline)

    run(story)


def gone(*_: object) -> None:
    raise hawser.Closed("topic 't' was deleted")


def test_a_command_in_doubt_whose_topic_is_deleted_is_unknown() -> None:
    """And a question is Closed, as is a command that certainly was not carried out."""

    async def story() -> None:
        router = Routed([], "c", SETTINGS)
        router.check_topic = gone  # type: ignore[method-assign, assignment]
        router.look_after = look_after  # type: ignore[method-assign, assignment]
        join, look = wire.Execute("t@u/0", Kind.GROUP_JOIN, b""), wire.Inspect("t@u/0")
        for request, answer, expected in (
            (join, None, hawser.OutcomeUnknown),
            (look, None, hawser.Closed),
            (join, BUSY, hawser.Closed),
        ):
            router.cluster = Cluster(shard0=[answer])
            router.cluster._work = lambda request: b""  # type: ignore[method-assign]
            with pytest.raises(expected, match="was deleted"):
                await router.ask_leader("t", "t@u/0", request, "asking", router.loop.time() + 10)

    run(story)


async def look_after(*_: object) -> None:
    gone()


def test_a_settlement_in_doubt_whose_queue_is_deleted_is_unknown() -> None:
    async def story() -> None:
        for answer, expected in ((None, hawser.OutcomeUnknown), (BUSY, hawser.Closed)):
            cluster = Cluster(shard0=[answer])
            cluster.look_after = look_after  # type: ignore[method-assign, assignment]
            cluster._work = lambda request: b""  # type: ignore[method-assign]
            settler = Acknowledger(cluster, "q", "q@u/0", 0, "s#1", lambda _: None)  # type: ignore[arg-type]
            with pytest.raises(expected, match="was deleted"):
                await settler.settle([HeldMessage(1, 1, 1, 10)], "accept")
            await settler.close(0)

    run(story)


@pytest.mark.parametrize("answer", [UNREADABLE, ODD, wire.encode(wire.Executed(b"\xc1"))])
def test_answers_that_make_no_sense_end_in_an_error_in_time(answer: bytes) -> None:
    async def story() -> None:
        cluster = Cluster(shard0=[answer] * 10_000)
        topic = topic_of(cluster)
        with pytest.raises(hawser.OutcomeUnknown):
            await topic.publish(topic.partitioner, Record(b"x"), None)
        cluster._answers.clear()
        assert (await topic.publish(topic.partitioner, Record(b"y"), None)).count == 1
        await topic.close()

    run(story)


def test_a_refusal_of_a_newer_node_is_told_at_once() -> None:
    """Its code is not known here, but the rest of the answer is."""

    async def story() -> None:
        refusal = [*msgspec.msgpack.decode(FULL)]
        assert refusal[1] == wire.Code.FULL
        newer = msgspec.msgpack.encode([refusal[0], "on a strange day", "not on a Tuesday", *refusal[3:]])
        cluster = Cluster(shard0=[newer])
        topic = topic_of(cluster)
        with pytest.raises(hawser.Rejected, match="not on a Tuesday") as caught:
            await topic.publish(topic.partitioner, Record(b"x"), 1000.0)
        assert caught.value.outcome == "none" and not caught.value.retryable
        assert cluster._answers == {"shard0": []} and not any(cluster.logs.values())
        await topic.close()

    run(story)


def test_a_producer_that_cannot_send_again_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        topic = topic_of(Cluster(shard0=[None]))
        monkeypatch.setattr(PartitionProducer, "_expire", lambda _: 1 / 0)
        with pytest.raises(hawser.OutcomeUnknown, match="ZeroDivisionError"):
            await topic.publish(topic.partitioner, Record(b"x"), None)
        await topic.close()

    run(story)


def test_a_subscription_survives_what_it_cannot_read_and_what_makes_no_sense() -> None:
    async def story() -> None:
        cluster = Cluster(shard0=[UNREADABLE, UNREADABLE])
        cluster.logs["t@u/0"] = [b"x"]
        consumer = Consumer(cluster, "t", "u", None)  # type: ignore[arg-type]
        consumer.read(0, 1)
        await consumer.ready(None, consumer.arrived)
        sample = consumer.next_sample()
        assert sample is not None and bytes(sample) == b"x"
        cluster._answers["shard0"] = [ODD, ODD]
        cluster.logs["t@u/0"].append(b"y")
        await consumer.ready(None, consumer.arrived)
        sample = consumer.next_sample()
        assert sample is not None and bytes(sample) == b"y"
        await consumer.close()

    run(story)


def test_a_batch_does_not_overtake_what_was_handed_over_before() -> None:
    async def story() -> None:
        cluster = Cluster()
        topic = topic_of(cluster)
        first = cluster.loop.create_future()
        topic.partitioner.hand_over([Record(b"1")], first, 1.0)
        await topic.publish_many(topic.partitioner, [Record(b"2")], None)
        await first
        assert list(cluster.logs.values()) == [[b"1", b"2"]]
        await topic.close()

    run(story)


@pytest.mark.parametrize("record", [Record(b"", b"k" * 300_000), Record(b"", None, {"h": b"v" * 300_000})])
def test_keys_and_headers_count(record: Record) -> None:
    async def story() -> None:
        cluster = Cluster()
        topic = topic_of(cluster)
        futures = [cluster.loop.create_future() for _ in range(12)]
        for future in futures:
            topic.partitioner.submit([record], future, 10.0)
        await asyncio.gather(*futures)
        assert sum(cluster.sizes) == 12
        assert max(cluster.sizes) <= 3, "more than batch_bytes went together"
        await topic.close()

    run(story)


def test_what_cannot_go_together_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Small(Batch):
        @classmethod
        def of(cls, records: Any, *others: Any) -> Batch:
            if len(records) > 1:
                raise hawser.UsageError("too large together")
            return Batch.of(records, *others)

    async def story() -> None:
        monkeypatch.setattr(producer_module, "Batch", Small)
        cluster = Cluster()
        producer = PartitionProducer(cluster, "t", 0, "t@u/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
        futures = [cluster.loop.create_future() for _ in range(5)]
        for number, future in enumerate(futures):
            producer.submit(Item([Record(b"%d" % number)], future, 10.0, cluster.loop.time()))
        await asyncio.gather(*futures)
        assert cluster.logs["t@u/0"] == [b"0", b"1", b"2", b"3", b"4"]
        lone = cluster.loop.create_future()
        producer.submit(Item([Record(b""), Record(b"")], lone, 10.0, cluster.loop.time()))
        with pytest.raises(hawser.UsageError, match="too large together"):
            await lone
        await producer.close()

    run(story)


def test_many_partitions_do_not_storm_a_node_that_is_away() -> None:
    async def story() -> None:
        router = Router([], "c", SETTINGS)
        hurried: list[str] = []
        for name in ("a:1", "b:1"):
            dialer = SimpleNamespace(link=None, hurry=lambda name=name: hurried.append(name))
            router._dialers[name] = dialer  # type: ignore[assignment]
        for _ in range(64):
            assert router.link("a:1") is None
        assert hurried == ["a:1"]
        router.link("b:1")
        assert hurried == ["a:1", "b:1"]
        router._hurried["a:1"] -= 1.0
        assert await router.refresh(None) is False
        assert hurried == ["a:1", "b:1", "a:1"]

    run(story)


def test_a_member_without_a_home_asks_less_and_less_often() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.leader_link = lambda _: None  # type: ignore[method-assign]
        entry = wire.TopicEntry(1, "u", 1, {})
        member = GroupMember(cluster, "t", entry, None, "g", "m", (None, 0))  # type: ignore[arg-type]
        for _ in range(4):
            await member._wait_for_change()
        assert member._backoff.next() >= SETTINGS.backoff_most_seconds / 2
        assert SETTINGS.backoff_most_seconds / 2 > SETTINGS.backoff_least_seconds

    run(story)


def test_a_member_does_not_go_back_to_an_earlier_generation() -> None:
    """A deposed leader, or an answer to an earlier request, has an earlier generation. The member asks by a
    join, which is an entry, and stays as it is if the generation is still there."""

    async def story() -> None:
        cluster = Cluster()
        joins: list[wire.Execute] = []

        async def ask_leader(_: str, __: str, request: wire.Execute, *___: object) -> wire.Executed:
            joins.append(request)
            return wire.Executed(encode_result(Joined(3, "a", ("a", "b"), 0)))

        cluster.ask_leader = ask_leader  # type: ignore[attr-defined]
        entry = wire.TopicEntry(1, "u", 1, {})
        member = GroupMember(cluster, "t", entry, None, "g", "m", (None, 0))  # type: ignore[arg-type]
        member._learn(3, ("a", "b"))
        member._known_settled = 1
        cluster.ask = lambda *_: answer  # type: ignore[assignment, method-assign]
        for number, expected in ((2, (3, ("a", "b"), 1)), (4, (4, ("a",), 1))):
            answer = asyncio.ensure_future(
                asyncio.sleep(0, wire.encode(wire.GroupState(number, ("a",), ("a",))))
            )
            await member._wait_for_change()
            assert (member._generation, member._members, member._known_settled) == expected
            assert not member._is_out
        assert [each.kind for each in joins] == [Kind.GROUP_JOIN]

    run(story)


def test_what_is_given_up_with_another_says_why() -> None:
    async def story() -> None:
        cluster = Cluster()
        producer = PartitionProducer(cluster, "t", 0, "t@u/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
        future = cluster.loop.create_future()
        producer.submit(Item([Record(b"x")], future, 10.0, cluster.loop.time()))
        (sent,) = producer._in_flight
        sent.doubt, producer._open_requests, producer._trouble = True, 0, "sent away"
        producer._renew()
        producer._open_requests = 1
        with pytest.raises(hawser.OutcomeUnknown, match=r"one before it was given up \(sent away\)"):
            await future
        await producer.close()

    run(story)


def test_what_leaves_a_member_keeps_its_place_until_it_is_committed() -> None:
    async def story() -> None:
        entry = wire.TopicEntry(1, "u", 2, {})
        member = GroupMember(Cluster(), "t", entry, None, "g", "m", (None, 0))  # type: ignore[arg-type]
        member._owned, member._committed = {0: 1, 1: 1}, {0: 1, 1: 1}
        member.read(0, 5)
        member.read(1, 5)
        member._learn(2, tuple(sorted(["a", member.member])))
        for _ in range(2):
            await member._leave_revoked()
            assert (member._leaving, member.partitions, member._settled) == ({0: 5}, [1], 0)
        await Consumer.close(member)

    run(story)
