"""Which records a batch reads, by the options that say where it begins and ends: the same as a filter over
everything. The planning of the source against a cluster; no Spark job."""

import json
import random
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.spark.source import factory
from tests.support.cluster import RunningCluster

NOON_MS = 1_767_268_800_000
SCHEMA = "topic, partition, offset, timestamp"

Row = tuple[str, int, int, int]
"""Topic, partition, offset and the time in milliseconds."""


def fill(
    cluster: RunningCluster, bus: hawser.Bus, name: str, partitions: int, chance: random.Random
) -> list[Row]:
    """Records whose times never go back in a partition, in batches of any size; partitions may be empty."""
    topic, rows = bus.topic(name, partitions=partitions), []
    for info in topic.info().partitions:
        at, offset = NOON_MS, 1
        for _ in range(chance.randint(0, 6)):
            times = [at := at + chance.choice([0, 0, 1, 7, 500]) for _ in range(chance.randint(1, 30))]
            records = [Record(b"", timestamp_ns=each * 1_000_000) for each in times]
            answer = cluster.ask(
                wire.Publish(info.shard, bytes(Batch.of(records, Stamp()).data)), info.leader
            )
            assert isinstance(answer, wire.Executed), answer
            rows += [(name, info.partition, offset + place, each) for place, each in enumerate(times)]
            offset += len(times)
    return rows


def rows_of(url: str, **options: Any) -> list[Row]:
    """What the tasks of a batch read."""
    return [row for task in tasks_of(url, **options) for row in task]


def tasks_of(url: str, **options: Any) -> list[list[Row]]:
    from pyspark.sql.types import StructType

    given = {"endpoints": url, **{name: str(value) for name, value in options.items()}}
    full = factory.schema(given)
    assert isinstance(full, StructType)
    reader: Any = factory.reader(given, StructType([full[name] for name in SCHEMA.split(", ")]))
    found = []
    for partition in reader.partitions():
        batches = [batch.to_pylist() for batch in reader.read(partition)]
        found.append(
            [
                (row["topic"], row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000))
                for batch in batches
                for row in batch
            ]
        )
    return found


def test_every_way_to_say_where_reads_what_a_filter_keeps(cluster: RunningCluster, bus: hawser.Bus) -> None:
    chance = random.Random(25)
    sizes = {"filter/a": 3, "filter/b": 1}
    everything = [row for name, count in sizes.items() for row in fill(cluster, bus, name, count, chance)]
    places = [(name, number) for name, count in sizes.items() for number in range(count)]
    assert sorted(rows_of(cluster.url, subscribe=",".join(sizes))) == sorted(everything)
    for turn in range(60):
        asked: dict[str, Any] = {}
        chosen = chance.sample(places, chance.randint(1, len(places)))
        if chance.random() < 0.5:
            asked["assign"] = as_json(dict.fromkeys(chosen))
        else:
            asked["subscribePattern" if chance.random() < 0.5 else "subscribe"] = "filter/a"
            chosen = [place for place in places if place[0] == "filter/a"]
        if "subscribePattern" in asked:
            asked["subscribePattern"] = "filter/[a]"
        kept = [row for row in everything if row[:2] in chosen]
        kept = bounded("starting", chosen, kept, asked, chance)
        kept = bounded("ending", chosen, kept, asked, chance)
        most = asked["maxRecordsPerPartition"] = chance.choice([1, 7, 1000])
        tasks = tasks_of(cluster.url, **asked)
        assert sorted(row for task in tasks for row in task) == sorted(kept), (turn, asked)
        assert all(len(task) <= most for task in tasks), (turn, asked)


def as_json(places: dict[tuple[str, int], int | None]) -> str:
    """Of each topic, of each partition, a number; or the partitions alone."""
    names = {name for name, _ in places}
    if None in places.values():
        return json.dumps({name: [each for topic, each in places if topic == name] for name in names})
    return json.dumps(
        {name: {str(each): at for (topic, each), at in places.items() if topic == name} for name in names}
    )


def bounded(
    end: str, chosen: list[tuple[str, int]], rows: list[Row], asked: dict[str, Any], chance: random.Random
) -> list[Row]:
    """Give an option for one end of a batch, by a time or by offsets; the rows that are left."""
    word = chance.choice(["all", "times", "offsets", "time"])
    some = chance.sample(chosen, chance.randint(1, len(chosen)))
    if word == "all":
        return rows
    if word == "offsets":
        last = {place: max((row[2] for row in rows if row[:2] == place), default=0) for place in some}
        least = {place: min((row[2] for row in rows if row[:2] == place), default=1) for place in some}
        limits = {place: chance.randint(least[place], last[place] + 1) for place in some if last[place]}
        if not limits:
            return rows
        asked[f"{end}Offsets"] = as_json(dict(limits))
    else:
        limits = {place: NOON_MS + chance.randint(-10, 9000) for place in some}
        asked[f"{end}OffsetsByTimestamp"] = as_json(dict(limits))
        if word == "time":
            del asked[f"{end}OffsetsByTimestamp"]
            moment = asked[f"{end}Timestamp"] = NOON_MS + chance.randint(-10, 9000)
            limits = dict.fromkeys(chosen, moment)
        if end == "starting":
            asked["startingOffsetsByTimestampStrategy"] = "latest"

    def is_kept(row: Row) -> bool:
        if row[:2] not in limits:
            return True
        at = row[2] if word == "offsets" else row[3]
        return at >= limits[row[:2]] if end == "starting" else at < limits[row[:2]]

    return list(filter(is_kept, rows))


def test_a_time_that_nothing_has_reached(cluster: RunningCluster, bus: hawser.Bus) -> None:
    rows = fill(cluster, bus, "future", 1, random.Random(1))
    assert rows
    later = rows[-1][3] + 1
    with pytest.raises(
        hawser.UsageError, match=r"startingTimestamp: no record is so new in future/0; give an"
    ):
        rows_of(cluster.url, subscribe="future", startingTimestamp=later)
    each = json.dumps({"future": {"0": later}})
    with pytest.raises(
        hawser.UsageError, match="startingOffsetsByTimestamp: no record is so new in future/0"
    ):
        rows_of(cluster.url, subscribe="future", startingOffsetsByTimestamp=each)
    latest = {"subscribe": "future", "startingOffsetsByTimestampStrategy": "latest"}
    assert rows_of(cluster.url, startingTimestamp=later, **latest) == []
    assert rows_of(cluster.url, subscribe="future", endingTimestamp=later) == rows


def test_what_is_not_there_is_not_assigned(cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.topic("assigned", partitions=2)
    for options, words in (
        ({"assign": '{"assigned":[0,2]}'}, "assign names partition 2 of topic 'assigned'"),
        ({"assign": '{"nowhere":[0]}'}, "there is no topic 'nowhere'"),
        (
            {"assign": '{"assigned":[1]}', "startingOffsets": '{"assigned":{"0":1}}'},
            "startingOffsets names assigned/0, which this query does not read",
        ),
    ):
        with pytest.raises(hawser.HawserError, match=words):
            rows_of(cluster.url, **options)
