"""Messages as runs: what numpy makes of columns against what is said of each message, one by one."""

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hawser.errors import Corrupt
from hawser.record.recording import Gap, recorder_id
from hawser.record.trace import TraceKind, region_number, trace_key
from hawser.spark.pipelines.auditing.evidence import BLOCK_MESSAGES, Group, Messages, mixed, ranges_of
from hawser.spark.pipelines.auditing.log_evidence import landed_evidence, log_evidence
from hawser.spark.pipelines.auditing.trace_evidence import trace_evidence

REGION = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
RING = recorder_id("agent", "a9a8a7a6-0000-0000-0000-000000000000").decode()
MASK = (1 << 64) - 1
MINUTE_US = 60_000_000
NOW_US = 1_800_000_000 * 10**6


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(-2, 3), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=60,
    )
)
def test_runs_say_of_their_messages_what_is_true_of_each(steps: list[tuple[int, int, int, bool]]) -> None:
    """Around the end of a block, of two groups and three minutes."""
    steps = sorted(steps, key=lambda each: each[0])
    group = numpy.array([each[0] for each in steps])
    number = BLOCK_MESSAGES - 20 + numpy.cumsum([each[1] for each in steps])
    times = NOW_US + numpy.array([each[2] for each in steps]) * MINUTE_US
    latency = numpy.array([each[3] for each in steps]) * 100 + 5
    at = numpy.arange(len(steps)) + 7
    hashes = mixed(number, times)
    sizes = numpy.arange(len(steps))
    groups = [Group("taken", "camera", who="a"), Group("taken", "camera", who="b")]
    rows = ranges_of(Messages(group, number, times, at, hashes, sizes, latency, 50), groups).to_pylist()
    place = 0
    for row in rows:
        count = row["last"] - row["first"] + 1
        mine = slice(place, place + count)
        assert number[mine].tolist() == list(range(row["first"], row["last"] + 1))
        assert {groups[each].who for each in group[mine]} == {row["who"]}
        assert (row["at_first"], row["at_last"]) == (at[mine][0], at[mine][-1])
        assert {
            max(times[: each + 1][group[: each + 1] == group[each]]) // MINUTE_US * 60
            for each in range(place, place + count)
        } == {row["minute"]}
        assert {each > 50 for each in latency[mine].tolist()} == {row["is_late"]}
        assert row["first"] // BLOCK_MESSAGES == row["last"] // BLOCK_MESSAGES
        assert row["hash"] & MASK == sum(map(int, hashes[mine])) & MASK
        assert row["hashes"] == hashes[mine].astype("<u8").tobytes() and row["sizes"] is None
        assert row["sized_hash"] is None
        assert row["bytes"] == sizes[mine].sum() and sum(row["counts"]) == count
        assert row["slowest_ns"] == latency[mine].max()
        place += count
    assert place == len(steps), "each message is in one run"


def test_the_hash_depends_on_every_bit() -> None:
    numbers = numpy.array([1, 2, 1, 1 << 40], "i8")
    times = numpy.array([5, 5, 6, 5], "i8")
    assert len(set(mixed(numbers, times).tolist())) == 4


def _trace(records: Sequence[tuple[int, ...]], key: bytes, first: int = 1) -> Any:
    """(kind, time, sequence, owner, value) of each."""
    words = numpy.zeros((len(records), 8), "<u8")
    for place, (kind, time_ns, sequence, owner, value) in enumerate(records):
        facts = kind | 77 << 32
        words[place, :7] = first + place, time_ns, region_number(REGION), sequence, owner, facts, value
    values = [row.tobytes() for row in words]
    return pyarrow.RecordBatch.from_pydict(
        {
            "key": pyarrow.array([key] * len(records), pyarrow.binary()),
            "value": pyarrow.array(values, pyarrow.binary()),
            "producer": [RING] * len(records),
            "producer_sequence": list(range(first, first + len(records))),
        }
    )


def test_a_trace() -> None:
    now = NOW_US * 1000
    key = trace_key("camera", "view")
    # Two publishers at once: their records are not in the order of their messages.
    sent = [(TraceKind.PUBLISH, now + number, number, 9, 100) for number in (2, 1, 3)]
    took = [(TraceKind.TAKE, now + number + 500, number, 8, now + number) for number in (1, 3, 2)]
    told = [
        (TraceKind.MISSED, now, 9, 8, 4),
        (TraceKind.RECOVER, now, 0, 0, 8),
        (TraceKind.RELEASE, now, 1, 8, 0),
    ]
    rows = rows_of(trace_evidence("trace", 10**9)([_trace([*sent, *took, *told], key)]))
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        found[row["what"]].append((row["first"], row["last"]))
        assert row["what"] == "traced" or (row["topic"], row["region"]) == ("camera", "0f1e2d3c4b5a6978")
    assert found == {
        "traced": [(1, 9)],
        "published": [(1, 3)],
        "taken": [(1, 1), (3, 3), (2, 2)],
        "missed": [(6, 9)],
        "recovered": [(0, 0)],
    }
    (published,) = [row for row in rows if row["what"] == "published"]
    assert published["sizes"] == 3 * (100).to_bytes(4, "little")
    assert published["bytes"] == 300 and (published["at_first"], published["at_last"]) == (1, 3)
    assert [row["slowest_ns"] for row in rows if row["what"] == "taken"] == [500] * 3
    (dead,) = [row for row in rows if row["what"] == "recovered"]
    assert (dead["owner"], dead["process"], dead["who"]) == (8, 77, "view")


def test_no_run_reaches_across_what_was_lost_or_switched() -> None:
    now = NOW_US * 1000
    first = [(TraceKind.PUBLISH, now, 1, 9, 100), (TraceKind.SWITCHED, now, 0, 0, 1)]
    then = [(TraceKind.PUBLISH, now, 2, 9, 100), (TraceKind.PUBLISH, now, 3, 9, 100)]
    key = trace_key("camera", "")
    batches = [_trace([*first, *then[:1]], key), _trace(then[1:], key, first=5)]
    whole = pyarrow.Table.from_batches(batches).combine_chunks().to_batches()[0]
    rows = rows_of(trace_evidence("trace", 1)([whole]))
    published = {(row["first"], row["last"], row["at_first"]) for row in rows if row["what"] == "published"}
    assert published == {(1, 1, 1), (2, 2, 3), (3, 3, 5)}
    assert [(row["at_first"], row["at_last"]) for row in rows if row["what"] == "traced"] == [(1, 3), (5, 5)]


def test_many_consumers_split_no_run() -> None:
    now = NOW_US * 1000
    records = [(TraceKind.ACCEPT, now, number, number % 4 + 1, now) for number in range(1, 101)]
    random.Random(1).shuffle(records)
    rows = rows_of(trace_evidence("trace", 1)([_trace(records, trace_key("jobs", "worker"))]))
    assert [(row["first"], row["last"]) for row in rows if row["what"] == "accepted"] == [(1, 100)]


def test_what_is_no_trace_is_refused() -> None:
    good = _trace([(TraceKind.PUBLISH, 5, 1, 1, 1)], trace_key("a", "b"))
    short = good.set_column(1, "value", pyarrow.array([b"short"], pyarrow.binary()))
    with pytest.raises(Corrupt, match="not of 64 bytes"):
        rows_of(trace_evidence("orders", 1)([short]))
    stranger = good.set_column(2, "producer", pyarrow.array(["somebody"]))
    with pytest.raises(Corrupt, match="records of somebody"):
        rows_of(trace_evidence("orders", 1)([stranger]))
    elsewhere = good.set_column(3, "producer_sequence", pyarrow.array([2]))
    with pytest.raises(Corrupt, match="not where they say"):
        rows_of(trace_evidence("orders", 1)([elsewhere]))


def test_a_log() -> None:
    recorder = recorder_id("agent", REGION).decode()
    times = pyarrow.array([NOW_US] * 6, pyarrow.int64()).view(pyarrow.timestamp("us", "UTC"))
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "topic": ["orders"] * 6,
            "partition": pyarrow.array([1] * 6, pyarrow.int32()),
            "offset": [11, 12, 13, 14, 15, 16],
            "timestamp": times,
            "producer": [recorder, recorder, None, recorder, recorder, "somebody"],
            "producer_sequence": [5, 6, None, 9, 10, 1],
            "hash": [1, 2, 3, 4, 5, -6],
            "bytes": pyarrow.array([7] * 6, pyarrow.int32()),
            "gap": [None, None, None, Gap(7, 9).encode(), None, None],
        }
    )
    rows = rows_of(log_evidence([batch]))
    told = [
        (row["what"], row["who"], row["region"], row["first"], row["last"], row["at_first"]) for row in rows
    ]
    region = "0f1e2d3c4b5a6978"
    assert told == [
        ("replicated", "", "", 11, 16, 11),
        ("recorded", "agent", region, 5, 6, 11),
        ("recorded", "agent", region, 10, 10, 15),
        ("gap", "agent", region, 7, 9, 14),
    ]
    assert (rows[0]["hash"], rows[0]["bytes"], rows[0]["partition"]) == (9, 42, 1)


def test_who_only_calls_himself_a_recorder_and_what_only_looks_like_a_gap() -> None:
    recorder = recorder_id("agent", REGION).decode()
    count = 3
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "topic": ["orders"] * count,
            "partition": pyarrow.array([0] * count, pyarrow.int32()),
            "offset": [1, 2, 3],
            "timestamp": pyarrow.array([NOW_US] * count).view(pyarrow.timestamp("us", "UTC")),
            "producer": ["recorder:cam#314e/1", recorder, recorder],
            "producer_sequence": [1, 5, 6],
            "hash": [1] * count,
            "bytes": pyarrow.array([0] * count, pyarrow.int32()),
            "gap": [None, b"\xff nonsense", Gap(7, 9).encode()],
        }
    )
    rows = rows_of(log_evidence([batch]))
    assert [(row["what"], row["first"], row["last"]) for row in rows] == [
        ("replicated", 1, 3), ("recorded", 5, 6),
    ]  # fmt: skip


def test_clocks_that_differ_do_not_cut_runs() -> None:
    count = 1000
    numbers = numpy.arange(1, count + 1)
    times = NOW_US + numbers * 100_000 + numbers % 2 * 10_000_000
    nothing = numpy.zeros(count, "i8")
    runs = ranges_of(
        Messages(nothing, numbers, times, numbers, mixed(numbers, times), nothing), [Group("taken", "x")]
    )
    assert len(runs) <= count * 100_000 // MINUTE_US + 2


def test_a_table() -> None:
    """Whatever the order of its rows."""
    offsets = [3, 1, 2, 4, 6]
    landed = [0, 0, 0, 700, 700]
    times = pyarrow.array([NOW_US] * 5, pyarrow.int64()).view(pyarrow.timestamp("us", "UTC"))
    batch = pyarrow.RecordBatch.from_pydict(
        {
            "topic": ["orders"] * 5,
            "partition": pyarrow.array([0] * 5, pyarrow.int32()),
            "offset": offsets,
            "timestamp": times,
            "landed_at": pyarrow.array([NOW_US + each * 10**6 for each in landed]).view(times.type),
            "hash": [1] * 5,
            "bytes": pyarrow.array([1] * 5, pyarrow.int32()),
        }
    )
    rows = rows_of(landed_evidence(600 * 10**9)([batch]))
    assert [(row["first"], row["last"], row["is_late"]) for row in rows] == [
        (1, 3, False), (4, 4, True), (6, 6, True),
    ]  # fmt: skip


def test_progress_of_a_landing(tmp_path: Any) -> None:
    from hawser.spark.pipelines.ranges import Range
    from hawser.spark.pipelines.stream_progress import progress_of

    (tmp_path / "tables" / "raw").mkdir(parents=True)
    assert progress_of(tmp_path).committed == {}
    place = tmp_path / "checkpoints" / "_checkpoints" / "spark_catalog" / "db" / "raw" / "raw" / "0"
    for name in ("offsets", "commits"):
        (place / name).mkdir(parents=True)

    def begin(batch: int, **partitions: Any) -> None:
        told = msgspec.json.encode({"orders": {"uuid": "u", **partitions}}).decode()
        (place / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs": {batch * 1000}}}\n{told}')

    begin(0, **{"0": 11, "began": {"0": 5}})
    (place / "commits" / "0").write_text("v1\n{}")
    begin(1, **{"0": 21, "1": 3})
    progress = progress_of(tmp_path)
    assert progress.committed == {"orders": {0: Range(5, 10)}}
    assert [tuple(each) for each in progress.batches] == [(0, 0.0, True), (1, 1.0, False)]
    (place / "commits" / "1").write_text("v1\n{}")
    assert progress_of(tmp_path).committed == {"orders": {0: Range(5, 20), 1: Range(3, 2)}}
    (place / "offsets" / "1").write_text("v1\nnothing")
    with pytest.raises(Corrupt, match="offsets/1"):
        progress_of(tmp_path)
    # Deleted and created anew: what was committed of the former one says nothing of it.
    begin(1, **{"0": 21, "1": 3})
    assert progress_of(tmp_path).committed_of({"orders": "v"}) == {}
    for batch, end in (2, 1), (3, 5):
        begin(batch, uuid="v", **{"0": end})
        (place / "commits" / str(batch)).write_text("v1\n{}")
    assert progress_of(tmp_path).committed_of({"orders": "v"}) == {"orders": {0: Range(1, 4)}}
    assert progress_of(tmp_path).committed_of({"orders": "u"}) == {}


def test_how_far_a_stream_is_to_go(tmp_path: Any) -> None:
    """By its last batch, committed or not: a run that goes on reads as far."""
    from hawser.spark.pipelines.stream_progress import reached_by
    from hawser.spark.source.offsets import Place

    assert reached_by(tmp_path, "log_runs") == {}
    place = tmp_path / "checkpoints" / "_checkpoints" / "spark_catalog" / "db" / "log_runs" / "log_runs"
    for run, batch, end in ((0, 9, 99), (1, 9, 11), (1, 10, 21)):
        (place / str(run) / "offsets").mkdir(parents=True, exist_ok=True)
        told = msgspec.json.encode({"orders": {"uuid": "u", "0": end}}).decode()
        (place / str(run) / "offsets" / str(batch)).write_text(f'v1\n{{"batchTimestampMs": 1}}\n{told}')
    assert reached_by(tmp_path, "log_runs") == {"orders": Place("u", {0: 21})}
    assert reached_by(tmp_path, "trace_runs") == {}
