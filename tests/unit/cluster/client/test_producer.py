"""Producers against a shard that loses, delays, refuses and forgets: every message once, in order, or the
truth about it."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import hawser
from hawser.cluster.client.publish.batch import Item
from hawser.cluster.client.publish.partition_producer import PartitionProducer
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.transport import LinkClosed
from hawser.cluster.wire import Code, Executed, Failed, Publish, decode_request, encode
from hawser.errors import HawserError
from hawser.log.state.producers import Producers
from hawser.log.state.results import Accepted, encode_result
from hawser.record.batch import Batch, Compression
from hawser.record.record import Record

SETTINGS = ClientSettings(
    timeout=0.2,
    attempt_seconds=0.05,
    backoff_least_seconds=0.001,
    backoff_most_seconds=0.004,
    batch_bytes=400,
    in_flight=4,
)


class Shard:
    """What a leader does with batches, with the real rules for producers."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.producers = Producers()

    def publish(self, request: Publish) -> bytes:
        batch = Batch.read(request.batch)
        name, incarnation, sequence = batch.stamp
        verdict = self.producers.judge(name, incarnation, sequence)
        if verdict is None:
            first = len(self.log) + 1
            self.producers.accept(name, incarnation, sequence, first, batch.count)
            self.log += [record.value for record in batch.records()]
            verdict = Accepted(first, batch.count)
        return encode(Executed(encode_result(verdict)))


class Trouble:
    """Stands for the router and its links. Each fault has its chance, in percent."""

    def __init__(self, shard: Shard, seed: int, **faults: int) -> None:
        self.settings = SETTINGS
        self.loop = asyncio.get_running_loop()
        self.shard = shard
        self.counts: dict[str, int] = {}
        self._chance = random.Random(seed)
        self._faults = faults
        self._late: list[Publish] = []

    def leader_link(self, _: str) -> Any:
        return None if self._happens("no_leader") else self

    async def ask(self, body: bytes, seconds: float) -> bytes:
        request = decode_request(body)
        assert isinstance(request, Publish)
        if self._happens("refuse"):
            return encode(Failed(Code.NOT_LEADER, "not here", True))
        if self._happens("reject"):
            return encode(Failed(Code.BAD_REQUEST, "never", False))
        if self._happens("lose"):
            raise LinkClosed("lost on the way", was_sent=True)
        if self._happens("depose"):
            return encode(Failed(Code.UNKNOWN, "deposed", True, "unknown"))
        if self._happens("delay"):
            self._late.append(request)
            raise LinkClosed("somewhere in a queue", was_sent=True)
        if self._late and self._chance.random() < 0.3:
            self.shard.publish(self._late.pop(self._chance.randrange(len(self._late))))
        # As on a link: those that are not lost arrive in order.
        answer = self.shard.publish(request)
        await asyncio.sleep(0)
        if self._happens("lose_answer"):
            raise LinkClosed("the answer was lost", was_sent=True)
        return answer

    def deliver_late(self) -> None:
        """What lay in queues arrives at last."""
        while self._late:
            self.shard.publish(self._late.pop())

    async def refresh(self, _: str, __: float) -> bool:
        return True

    def note(self, _: str, failed: Failed) -> bool:
        return False

    def check_topic(self, _: str, __: str) -> None: ...

    def _happens(self, fault: str) -> bool:
        happened = self._chance.randrange(100) < self._faults.get(fault, 0)
        self.counts[fault] = self.counts.get(fault, 0) + happened
        return happened


class Careless(PartitionProducer):
    """Takes "perhaps" for "no"."""

    def _failed(self, trouble: str | Failed) -> None:
        for sent in self._in_flight:
            sent.doubt = False
        self._first_skipped = 0
        super()._failed(trouble)


FAULTS = {"refuse": 10, "lose": 8, "delay": 6, "lose_answer": 10, "depose": 4, "no_leader": 10}


async def attack(
    kind: type[PartitionProducer], seed: int, faults: dict[str, int], seconds: float = SETTINGS.timeout
) -> dict[str, int]:
    """Publish 600 messages through trouble and judge what became of each."""
    shard = Shard()
    trouble = Trouble(shard, seed, **faults)
    producer = kind(trouble, "t", 0, "t@1/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
    chance = random.Random(seed)
    futures: list[asyncio.Future[hawser.Receipt]] = []
    for number in range(600):
        futures.append(trouble.loop.create_future())
        record = Record(str(number).encode())
        producer.submit(Item([record], futures[-1], seconds, trouble.loop.time()))
        if chance.random() < 0.1:
            await asyncio.sleep(0)
    await producer.flush()
    trouble.deliver_late()
    judged = judge(futures, [int(value) for value in shard.log])
    await producer.close()
    return {**judged, **trouble.counts, "incarnations": producer.incarnation}


def judge(futures: "list[asyncio.Future[hawser.Receipt]]", log: list[int]) -> dict[str, int]:
    assert log == sorted(set(log)), "a message is there twice, or out of order"
    counts = {"acknowledged": 0, "unknown": 0, "refused": 0}
    for number, future in enumerate(futures):
        error = future.exception()
        if error is None:
            assert log[future.result().first_offset - 1] == number, "a receipt for another message"
            counts["acknowledged"] += 1
        elif isinstance(error, hawser.OutcomeUnknown):
            assert error.outcome == "unknown"
            counts["unknown"] += 1
        else:
            assert isinstance(error, HawserError) and error.outcome == "none", error
            assert number not in log, "refused, and there all the same"
            counts["refused"] += 1
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_every_message_is_there_once_and_in_order(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    # With so much time, whatever else the machine does, all of them land.
    counts = asyncio.run(attack(PartitionProducer, seed, FAULTS, seconds=60.0))
    for name, count in counts.items():
        record_property(name, count)
    assert counts["acknowledged"] == 600


def test_what_cannot_be_known_is_said_to_be_unknown(record_property: Callable[[str, object], None]) -> None:
    faults = {"lose": 30, "delay": 30, "lose_answer": 30, "refuse": 5}
    total: Counter[str] = Counter()
    for seed in range(6):
        total.update(asyncio.run(attack(PartitionProducer, seed, faults)))
    for name, count in total.items():
        record_property(name, count)
    assert total["unknown"] > 0
    assert total["incarnations"] > 6


def test_refusals_for_good_between_all_else(
    record_property: Callable[[str, object], None],
) -> None:
    """Refusals among losses: nothing is there twice, out of order, or though it was said not to be."""
    total: Counter[str] = Counter()
    for seed in range(6):
        total.update(asyncio.run(attack(PartitionProducer, seed, {**FAULTS, "reject": 8}, seconds=60.0)))
    for name, count in total.items():
        record_property(name, count)
    assert total["refused"] > 0 and total["acknowledged"] > 0


class Scripted(Trouble):
    """Does with each request what comes next: lose it, lose its answer, refuse it for good, or serve it."""

    def __init__(self, shard: Shard, *script: str) -> None:
        super().__init__(shard, 0)
        self._script = list(script)

    async def ask(self, body: bytes, seconds: float) -> bytes:
        deed = self._script.pop(0) if self._script else "serve"
        request = decode_request(body)
        assert isinstance(request, Publish)
        if deed == "reject":
            return encode(Failed(Code.BAD_REQUEST, "never", False))
        if deed == "lose":
            raise LinkClosed("lost on the way", was_sent=True)
        answer = self.shard.publish(request)
        if deed == "lose answer":
            raise LinkClosed("the answer was lost", was_sent=True)
        return answer


async def outcomes_of(*script: str, seconds: Sequence[float] = (60.0, 60.0)) -> tuple[list[str], list[bytes]]:
    """What two batches that are under way together are told, and what is in the log then."""
    shard = Shard()
    trouble = Scripted(shard, *script)
    producer = PartitionProducer(trouble, "t", 0, "t@1/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
    futures: list[asyncio.Future[hawser.Receipt]] = []
    for letter, left in zip((b"1", b"2"), seconds, strict=True):
        futures.append(trouble.loop.create_future())
        producer.submit(Item([Record(letter * SETTINGS.batch_bytes)], futures[-1], left, trouble.loop.time()))
    assert producer.sent_batches == 2
    await producer.flush()
    told = [
        f"at {future.result().first_offset}"
        if future.exception() is None
        else type(future.exception()).__name__
        for future in futures
    ]
    await producer.close()
    return told, [value[:1] for value in shard.log]


@pytest.mark.parametrize(
    ("script", "told", "log"),
    [
        # Without the first the second cannot have landed, though its answer is lost.
        (("reject", "lose"), ["UsageError", "at 1"], [b"2"]),
        (("reject", "lose answer"), ["UsageError", "at 1"], [b"2"]),
        # The first can be asked for again, though the second is refused.
        (("lose answer", "reject"), ["at 1", "UsageError"], [b"1"]),
        (("lose", "reject"), ["at 1", "UsageError"], [b"1"]),
        # The first is perhaps there; the second was perhaps taken for the one behind it.
        (("lose answer", "lose answer", "reject"), ["OutcomeUnknown", "at 2"], [b"1", b"2"]),
    ],
)
def test_a_refusal_says_nothing_of_those_beside_it(
    script: tuple[str, ...], told: list[str], log: list[bytes]
) -> None:
    assert asyncio.run(outcomes_of(*script)) == (told, log)


def test_the_attack_finds_a_careless_producer() -> None:
    found = 0
    for seed in range(4):
        try:
            asyncio.run(attack(Careless, seed, FAULTS))
        except AssertionError as error:
            assert "twice" in str(error)
            found += 1
    assert found == 4


async def forgotten() -> tuple[list[hawser.Receipt], int]:
    shard = Shard()
    trouble = Trouble(shard, 0)
    producer = PartitionProducer(trouble, "t", 0, "t@1/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
    receipts = []
    for number in range(4):
        if number == 2:
            shard.producers = Producers()
        future: asyncio.Future[hawser.Receipt] = trouble.loop.create_future()
        producer.submit(Item([Record(b"x")], future, 1.0, trouble.loop.time()))
        receipts.append(await future)
    return receipts, producer.incarnation


def test_a_producer_that_was_forgotten_begins_anew() -> None:
    receipts, incarnation = asyncio.run(forgotten())
    assert [receipt.first_offset for receipt in receipts] == [1, 2, 3, 4]
    assert incarnation == 2


async def fenced() -> None:
    shard = Shard()
    trouble = Trouble(shard, 0)
    producer = PartitionProducer(trouble, "t", 0, "t@1/0", b"p#1", Compression.NONE)  # type: ignore[arg-type]
    shard.producers.accept(b"p#1", 7, 1, 1, 1)
    for _ in range(2):
        future: asyncio.Future[hawser.Receipt] = trouble.loop.create_future()
        producer.submit(Item([Record(b"x")], future, 1.0, trouble.loop.time()))
        await future


def test_a_producer_that_was_replaced_stops() -> None:
    with pytest.raises(hawser.Fenced, match="7 has taken its place"):
        asyncio.run(fenced())
