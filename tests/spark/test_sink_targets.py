"""Which message goes to which partition, and in how large batches: without Spark, against one message at a
time."""

import random
from collections import defaultdict
from typing import Any

import pyarrow
import pytest
from xxhash import xxh3_64_intdigest

from hawser.cluster import wire
from hawser.cluster.client.transaction.application_batch import Operation
from hawser.errors import UsageError
from hawser.record.batch import Batch, Compression
from hawser.record.record import Record
from hawser.spark.sink import targets
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import payloads, rows_of
from hawser.spark.sink.targets import Targets, _Target

OPTIONS = Options.of({"endpoints": "hawser://127.0.0.1:1", "topic": "t"}, streaming=False)
Rows = list[tuple[bytes | None, bytes, int | None]]


def target_of(partitions: int) -> _Target:
    return _Target("t", wire.TopicEntry(1, "u", partitions, {}))


def batch_of(rows: Rows) -> Any:
    """As Spark hands it over."""
    keys, values, partitions = zip(*rows, strict=True)
    return pyarrow.record_batch(
        {
            "key": pyarrow.array(keys, pyarrow.binary()),
            "value": pyarrow.array(values, pyarrow.binary()),
            "partition": pyarrow.array(partitions, pyarrow.int32()),
        }
    )


def some_rows(generator: random.Random, first: int, kinds: str, partitions: int) -> Rows:
    """Numbered from `first` on, with keys or partitions or both."""
    return [
        (
            b"%d" % generator.randrange(20) if "k" in kinds and generator.random() < 0.8 else None,
            b"%d" % number,
            generator.randrange(partitions) if "p" in kinds and generator.random() < 0.5 else None,
        )
        for number in range(first, first + generator.randrange(1, 40))
    ]


def written(target: _Target, parts: list[Rows]) -> tuple[dict[int, list[Record]], int]:
    """What is staged for each partition, in how many batches."""
    found: dict[int, list[Record]] = defaultdict(list)
    operations: list[Operation] = []
    for part in parts:
        partitions = targets._partitions(batch_of(part))
        operations += target.operations(rows_of(batch_of(part), OPTIONS), partitions)
    operations += target.rest()
    for operation in operations:
        batch = Batch.read(operation.payload)
        batch.check()
        found[target._shards.index(operation.shard)] += batch.records()
    return found, len(operations)


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("bytes_each", [1, 300, 1 << 20])
@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_its_partition_and_those_of_a_key_in_order(
    seed: int, bytes_each: int, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "_BYTES_EACH", bytes_each)
    generator = random.Random(seed)
    parts: list[Rows] = []
    for _ in range(8):
        kinds = generator.choice(["", "k", "p", "kp"])
        parts.append(some_rows(generator, sum(map(len, parts)), kinds, partitions))
    found, _ = written(target_of(partitions), parts)
    rows = [row for part in parts for row in part]
    places = {record.value: place for place, records in found.items() for record in records}
    assert sorted(int(value) for value in places) == list(range(len(rows)))
    assert sum(map(len, found.values())) == len(rows)
    for key, value, partition in rows:
        if partition is not None:
            assert places[value] == partition
        elif key is not None:
            assert places[value] == xxh3_64_intdigest(key) % partitions
    for records in found.values():
        keyed: dict[bytes | None, list[int]] = defaultdict(list)
        for record in records:
            assert rows[int(record.value)][0] == record.key
            keyed[record.key].append(int(record.value))
        assert all(numbers == sorted(numbers) for key, numbers in keyed.items() if key is not None)


def test_many_partitions_get_large_batches() -> None:
    """As many as rows that came all at once would be."""
    parts: list[Rows] = [
        [(b"%d" % (number % 977), bytes(100), None) for number in range(1000)] for _ in range(20)
    ]
    _, count = written(target_of(50), parts)
    assert count == 50


class Everywhere:
    """A cluster that has every topic."""

    def open(self, name: str, kind: wire.TopicKind) -> wire.TopicEntry:
        return wire.TopicEntry(1, "u", 8, {})


def test_so_much_waits_for_however_many_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one part brings is on top of it."""
    monkeypatch.setattr(targets, "_MOST_BYTES", 200_000)
    cluster: Any = Everywhere()
    all_of_them = Targets(cluster, OPTIONS._replace(topic=None))
    numbers = range(1000)
    part = pyarrow.record_batch(
        {
            "key": [b"%d" % number for number in numbers],
            "value": [bytes(100)] * len(numbers),
            "topic": [f"{number % 50}" for number in numbers],
        }
    )
    counts = []
    for _ in range(4):
        operations = list(all_of_them.operations(part))
        counts.append(sum(Batch.read(each.payload).count for each in operations))
        assert sum(each.waiting_bytes for each in all_of_them._targets.values()) < 200_000
    assert counts == [0, 2000, 0, 2000] and not list(all_of_them.rest())


class WithASchema:
    """A cluster in which every topic but `plain` was made with a schema."""

    def open(self, name: str, kind: wire.TopicKind) -> wire.TopicEntry:
        schema = None if name == "plain" else "msgpack:Order:1"
        return wire.TopicEntry(1, "u", 1, {"schema": schema}, kind=kind)


@pytest.mark.parametrize("value_format", ["raw", "msgpack"])
def test_a_topic_with_a_schema_takes_no_null_value(value_format: str) -> None:
    """Python's readers decode each value by the schema, and an empty one is corrupt: they stopped there."""
    cluster: Any = WithASchema()
    rows: list[Any] = [{"id": 1}, None, {"id": 2}] if value_format == "msgpack" else [b"\x80", None, b"\x80"]
    values = pyarrow.array(rows)
    given = OPTIONS._replace(value_format=value_format)
    words = "row for {} has null in the column value.*where\\('value IS NOT NULL'\\)"
    with pytest.raises(UsageError, match=words.format("topic 't'")):
        list(Targets(cluster, given).operations(pyarrow.record_batch({"value": values})))
    with pytest.raises(UsageError, match=words.format("queue 'q'")):
        to_queue = given._replace(topic=None, queue="q")
        list(Targets(cluster, to_queue).operations(pyarrow.record_batch({"value": values})))

    def named(*topics: str) -> list[Operation]:
        to_all = Targets(cluster, given._replace(topic=None))
        return list(to_all.operations(pyarrow.record_batch({"value": values, "topic": topics})))

    with pytest.raises(UsageError, match=words.format("topic 't'")):
        named("plain", "t", "plain")
    assert [Batch.read(each.payload).count for each in named("t", "plain", "t")] == [1, 2]
    whole = values.drop_null()
    assert len(list(Targets(cluster, given).operations(pyarrow.record_batch({"value": whole})))) == 1


def test_a_batch_is_cut_by_all_that_is_in_it() -> None:
    """By keys and headers, too, and by the mere number of rows that are empty."""
    large = pyarrow.record_batch({"key": [bytes(400_000)] * 7, "value": [b""] * 7})
    assert [Batch.read(each).count for each in payloads(rows_of(large, OPTIONS), Compression.NONE)] == [
        2
    ] * 3 + [1]
    empty = pyarrow.record_batch({"value": [b""] * 600_000})
    counts = [Batch.read(each).count for each in payloads(rows_of(empty, OPTIONS), Compression.NONE)]
    assert len(counts) == 3 and sum(counts) == 600_000
    huge = pyarrow.record_batch({"value": [bytes(3 << 20), b"x"]})
    assert [Batch.read(each).count for each in payloads(rows_of(huge, OPTIONS), Compression.ZSTD)] == [1, 1]
