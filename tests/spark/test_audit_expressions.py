"""What Spark computes for an audit, on rows of a test."""

from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from hawser.record.recording import GAP_HEADER
from hawser.spark.pipelines.auditing.evidence import COLUMNS
from hawser.spark.pipelines.auditing.flows import (
    content_hash,
    gap_header,
    judged,
    with_hashes_where_needed,
)
from hawser.spark.pipelines.decoding import is_gap
from tests.support.audits import World, verdicts_of
from tests.unit.spark.auditing.test_adversary import FAULTS, recorder_swaps_sizes_of_two, world_of

SCHEMA = "id int, key binary, value binary, headers array<struct<key: string, value: binary>>"


def test_an_ordinary_message_is_no_gap_and_stops_no_audit(spark: SparkSession) -> None:
    """A message with headers, without a key and with an empty value ended every audit of its topic."""
    gap = (GAP_HEADER, b'{"first":7,"last":9}')
    rows: list[tuple[Any, ...]] = [
        (1, None, b"", [("trace-id", b"1")]),
        (2, None, b"", []),
        (3, None, b"", None),
        (4, None, None, [gap]),
        (5, b"key", b"", [gap]),
        (6, None, b"value", [gap]),
        (7, None, b"", [("trace-id", b"1"), gap]),
        (8, None, b"", [(GAP_HEADER, b"\xff")]),
        (9, None, b"", [(GAP_HEADER, None)]),
    ]
    found = spark.createDataFrame(rows, SCHEMA).select("id", gap_header(), is_gap().alias("is_gap")).collect()
    gaps = {row["id"]: bytes(row["gap"]) for row in found if row["gap"] is not None}
    assert gaps == {7: gap[1], 8: b"\xff"}
    # Each row is in one of the tables of a landing: null would be in none.
    assert {row["id"]: row["is_gap"] for row in found} == {row[0]: row[0] in (4, 7, 8, 9) for row in rows}


def test_the_hash_tells_records_apart(spark: SparkSession) -> None:
    """Without what is null, the content of a key could have been that of a value, and a header's name another
    header's value."""
    schema = (
        "offset bigint, timestamp timestamp, key binary, value binary, "
        "headers array<struct<key: string, value: binary>>"
    )
    contents: list[tuple[Any, ...]] = [
        (None, b"a", []), (b"a", None, []), (None, None, []), (b"", b"a", []), (b"a", b"", []),
        (None, b"a", [("b", None), ("c", None)]), (None, b"a", [("b", b"c")]), (None, b"a", [("bc", None)]),
    ]  # fmt: skip
    rows = spark.createDataFrame([(1, None, *each) for each in contents], schema)
    assert len({row["hash"] for row in rows.select(content_hash()).collect()}) == len(contents)
    same = spark.createDataFrame([(1, None, None, b"a", []), (1, None, None, b"a", None)], schema)
    assert len({row["hash"] for row in same.select(content_hash()).collect()}) == 1, "no headers are none"


def test_spark_judges_as_it_does_with_every_hash(spark: SparkSession, record_property: Any) -> None:
    """Faults in many topics, in one job: hashes that it does not read change no verdict."""
    worlds = []
    for seed, fault in enumerate([*FAULTS, *FAULTS]):
        world = world_of(seed, is_trimmed=seed >= len(FAULTS), topic=f"topic-{seed}")
        fault(world)
        worlds.append(world)
    # The trace and the log of a host have one block each. In the first of these worlds they are the same, but
    # cut into other runs; in the second one the sizes of two messages are exchanged.
    for name in ("even", "exchanged"):
        worlds.append(World(name, len(worlds)))
        worlds[-1].fill(9, subscribers=0)
    assert recorder_swaps_sizes_of_two(worlds[-1])
    rows = [row for world in worlds for row in world.evidence()]
    committed = {place: each for world in worlds for place, each in world.committed.items()}
    told: dict[str, dict[str, Any]] = {}
    for (topic, partition), each in committed.items():
        told.setdefault(topic, {})[str(partition)] = each
    expected = verdicts_of(rows, committed)
    found = frozenset(world.topic for world in worlds)
    names = [column.split()[0] for column in COLUMNS.split(", ")]
    evidence = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], COLUMNS)
    verdicts = judged(msgspec.json.encode(told).decode(), found)

    def of(frame: Any) -> list[dict[str, Any]]:
        whole = frame.agg(F.collect_list(F.struct(*names)).alias("runs")).select(verdicts.alias("judged"))
        return [row.asDict(recursive=True) for row in whole.select(F.inline("judged")).collect()]

    needed = with_hashes_where_needed(evidence, names).cache()
    assert of(needed) == expected
    read = needed.where("hashes is not null").select("topic", "region").collect()
    record_property("runs with hashes", f"{len(read)} of {len(rows)}")
    topics = {row["topic"] for row in read if row["region"]}
    assert "exchanged" in topics and "even" not in topics

    without = of(with_hashes_where_needed(evidence, names, most=0))
    words = [{each["word"] for each in row["findings"]} for row in without]
    assert any("uncompared" in each for each in words)
    for row, other in zip(without, expected, strict=True):
        unknown = sum(
            each["last"] - each["first"] + 1 for each in row["findings"] if each["word"] == "uncompared"
        )
        if row["tier"] in ("delivered", "recorded", "landed"):
            assert row["compared"] + unknown == row["found"] == other["found"]
