"""Blocks: what is copied out of a region at once, and the batches made of it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import hawser
from hawser.agent.recording.blocks import Block
from hawser.errors import Corrupt, UsageError
from hawser.memory import Domain, Subscriber
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import GAP_HEADER, Gap, is_recorder, recorder_id
from hawser.testing import LocalBus

STAMP = Stamp(b"p", 3, 1)


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


def joined(local: LocalBus, **settings: Any) -> tuple[hawser.Topic[Any], Subscriber]:
    topic: hawser.Topic[Any] = local.connect("p").topic("t", **settings)
    region = Domain.of_url(local.url).open("t")
    return topic, region.subscriber("reader")


def block(subscriber: Subscriber, count: int = 1000, nbytes: int = 1 << 20) -> Block:
    columns = subscriber.take_columns(count, nbytes, 0)
    assert columns is not None
    return Block.of(columns)


def records_of(topic: hawser.Topic[Any]) -> list[Record]:
    samples = topic.read_oldest(1000).samples
    return [Record(bytes(each), each.key, each.headers, each.timestamp_ns) for each in samples]


def test_a_block_is_the_batch_that_its_records_would_be(local: LocalBus) -> None:
    chance = random.Random(1)
    topic, subscriber = joined(local, history=200, depth=100)
    for number in range(200):
        topic.publish(
            chance.randbytes(chance.choice([0, 1, 7, 100])),
            key=chance.choice([None, b"", b"key"]) if number > 50 else None,
            headers=chance.choice([{}, {"a": b"1", "b": b""}]) if number > 100 else None,
        )
    records = records_of(topic)
    taken = 0
    while taken < 200:
        # Blocks without, with some and with other metadata.
        found = block(subscriber, chance.randint(1, 60))
        assert found.first == taken + 1
        mine = records[taken : found.last]
        assert found.batch(STAMP).data == Batch.of(mine, STAMP).data
        position = chance.randint(found.first, found.last)
        rest = found.starting_at(position)
        assert (rest.first, rest.last) == (position, found.last)
        assert rest.batch(STAMP).data == Batch.of(records[position - 1 : found.last], STAMP).data
        taken = found.last
    assert subscriber.take_columns(1, 1, 0) is None


def test_a_block_ends_where_its_room_does(local: LocalBus) -> None:
    topic, subscriber = joined(local)
    topic.publish(b"abc")
    topic.publish(b"def", key=b"k")
    topic.publish(b"ghi")
    assert [block(subscriber, nbytes=8).last, block(subscriber, nbytes=8).last] == [1, 2]
    assert block(subscriber, nbytes=3).value_data == b"ghi"
    topic.publish(b"abcd")
    topic.publish(b"")
    assert subscriber.take_columns(10, 3, 0) == (0, b"", bytes(4), b"", None)
    sample = subscriber.take(0)
    assert sample is not None and sample.offset == 4
    sample.release()
    found = block(subscriber, nbytes=1)
    assert (found.first, found.value_data, found.value_offsets) == (5, b"", bytes(8))


def test_a_block_ends_before_what_is_missing(local: LocalBus) -> None:
    topic, subscriber = joined(local, history=0, depth=10)
    topic.publish_many([b"x"] * 3)
    assert (block(subscriber, count=2).first, subscriber.position) == (1, 2)
    topic.publish_many([b"y"] * 30)
    found = block(subscriber)
    assert (found.first, found.last) == (24, 33)
    assert subscriber.missed == 21


def test_impossible_blocks_are_refused(local: LocalBus) -> None:
    _, subscriber = joined(local)
    for count, nbytes in ((0, 1), (1, 0), (-1, 1), (1, 1 << 31)):
        with pytest.raises(UsageError, match="take_columns"):
            subscriber.take_columns(count, nbytes, 0)


def test_a_deleted_topic_ends_the_taking(local: LocalBus) -> None:
    topic, subscriber = joined(local)
    topic.publish(b"x")
    assert block(subscriber).last == 1
    topic.delete(force=True)
    with pytest.raises(hawser.Closed):
        subscriber.take_columns(1, 1, 0)


def test_metadata_that_cannot_be_read_is_an_error(local: LocalBus) -> None:
    topic, subscriber = joined(local)
    topic.publish(b"x", key=b"k")
    found = block(subscriber)._replace(metadata=[b"\xc1"])
    with pytest.raises(Corrupt, match="key and headers"):
        found.batch(STAMP)


def test_a_gap_is_read_as_it_was_written() -> None:
    gap = Gap(3, 17)
    record = gap.record(5)
    assert (record.value, record.key, record.timestamp_ns, gap.lost) == (b"", None, 5, 15)
    assert Gap.decode(record.headers[GAP_HEADER]) == gap
    assert record.headers[GAP_HEADER] == b'{"first":3,"last":17}'


@pytest.mark.parametrize(
    "data", [b"", b"{}", b'{"first":1}', b'{"first":0,"last":1}', b'{"first":2,"last":1}', b"[1,2]", b"\xff"]
)
def test_what_is_no_gap_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="gap"):
        Gap.decode(data)


def test_recorders_are_told_from_other_producers() -> None:
    assert recorder_id("host-1", "abc") == b"recorder:host-1/abc"
    assert is_recorder(recorder_id("n", "u"))
    assert not is_recorder(b"publisher#0123")
