"""Batches: what goes in comes out, in either format, and Arrow reads the very bytes."""

import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hawser
from hawser.record import arrow, batch_body
from hawser.record.batch import MAX_RECORDS, BadBatch, Batch, Compression, Format, Header
from hawser.record.ipc_size import unpacked_bytes
from hawser.record.record import NO_STAMP, Record, Stamp

STAMP = Stamp(b"producer", 3, 7)
NANOSECONDS = st.integers(-(1 << 63), (1 << 63) - 1)
RECORDS = st.lists(
    st.builds(
        Record,
        st.binary(max_size=20),
        st.none() | st.binary(max_size=5),
        st.dictionaries(st.text(max_size=3), st.binary(max_size=5), max_size=2),
        NANOSECONDS | st.just(5),
    ),
    min_size=1,
    max_size=20,
)
STAMPS = st.just(NO_STAMP) | st.builds(
    Stamp, st.binary(min_size=1, max_size=255), st.integers(1, (1 << 63) - 1), st.integers(1, (1 << 63) - 1)
)
MIXED = [
    Record(b"one", b"", {"a": b"1", "b": b""}, 9),
    Record(b"", None, {}, -3),
    Record(b"three", b"key", {}, 5),
]


@given(RECORDS, STAMPS, st.sampled_from(Compression))
def test_what_goes_in_comes_out(records: list[Record], stamp: Stamp, compression: Compression) -> None:
    batch = Batch.read(Batch.of(records, stamp, compression).data)
    batch.check()
    assert list(batch.records()) == records
    assert batch.stamp == stamp
    assert batch.count == len(records)
    times = [record.timestamp_ns for record in records]
    assert (batch.header.earliest_ns, batch.header.latest_ns) == (min(times), max(times))


@given(st.binary(max_size=20), NANOSECONDS, STAMPS)
def test_one_plain_record_has_the_bytes_of_its_columns(value: bytes, timestamp_ns: int, stamp: Stamp) -> None:
    batch = Batch.of([Record(value, timestamp_ns=timestamp_ns)], stamp)
    columns, earliest, latest, body = batch_body.encode([value], [None], [{}], [timestamp_ns])
    fields = (Format.BARE, Compression.NONE, columns, 1, earliest, latest)
    assert batch.data == Batch._assemble(fields, stamp, body).data
    assert batch.header == Header.read(batch.data)


@given(RECORDS, STAMPS, st.sampled_from(Compression))
def test_arrow_is_the_same_from_either_format(
    records: list[Record], stamp: Stamp, compression: Compression
) -> None:
    data = Batch.of(records, stamp).to_arrow()
    assert data.schema.equals(arrow.schema())
    batch = Batch.read(Batch.of_arrow(data, stamp, compression).data)
    assert batch.header.format == Format.ARROW
    assert batch.to_arrow().equals(data)
    assert list(arrow.records(data)) == list(batch.records()) == records


def addresses(data: pa.RecordBatch) -> list[int]:
    return [buffer.address for column in data.columns for buffer in column.buffers() if buffer is not None]


@pytest.mark.parametrize("make", [Batch.of, lambda records: Batch.of_arrow(Batch.of(records).to_arrow())])
def test_arrow_lies_in_the_bytes_of_the_batch(make: Callable[[list[Record]], Batch]) -> None:
    batch = make(MIXED * 20)
    begin = pa.py_buffer(batch.data).address
    found = addresses(batch.to_arrow())
    assert len(found) == 9
    assert all(begin <= address <= begin + len(batch.data) for address in found)


def test_a_bare_batch_is_small_and_aligned() -> None:
    batch = Batch.of([Record(b"x" * 100)], Stamp(b"p", 1, 1))
    assert len(batch.data) == 48 + 8 + 8 + 100
    batch = Batch.of(MIXED, Stamp(b"p", 1, 1))
    begin = pa.py_buffer(batch.data).address
    timestamps = batch.to_arrow().column("timestamp").buffers()[1].address
    assert (timestamps - begin) % 8 == 0


def test_an_arrow_batch_of_a_slice_is_the_slice() -> None:
    data = Batch.of(MIXED).to_arrow()
    assert list(Batch.of_arrow(data.slice(1, 1)).records()) == MIXED[1:2]


@given(RECORDS, st.data())
def test_a_bare_batch_of_arrow_is_that_of_its_records(records: list[Record], choice: st.DataObject) -> None:
    """Also of a part of it, which begins anywhere in the bytes of its buffers."""
    first = choice.draw(st.integers(0, len(records) - 1))
    count = choice.draw(st.integers(1, len(records) - first))
    part = Batch.of(records).to_arrow().slice(first, count)
    assert Batch.bare_of_arrow(part, STAMP).data == Batch.of(records[first : first + count], STAMP).data


def test_the_same_records_with_another_stamp() -> None:
    for compression in Compression:
        batch = Batch.of(MIXED, STAMP, compression).stamped(Stamp(b"somebody else", 1, 2))
        assert batch.stamp == Stamp(b"somebody else", 1, 2)
        assert list(batch.records()) == MIXED


@pytest.mark.parametrize(("time", "place"), [(-9, 0), (6, 0), (9, 0), (10, None)])
def test_the_first_record_of_a_time_is_found(time: int, place: int | None) -> None:
    assert Batch.of(MIXED).first_at(time) == place


def test_first_at_skips_what_is_earlier() -> None:
    assert Batch.of(MIXED[1:]).first_at(0) == 1


def test_the_count_is_read_without_the_body() -> None:
    batch = Batch.of(MIXED)
    damaged = bytes(batch.data[: batch.header.body]) + bytes(len(batch.data) - batch.header.body)
    assert Batch.read(damaged).count == 3


def test_a_batch_needs_no_pyarrow() -> None:
    program = (
        "import sys; from hawser.record.batch import Batch; from hawser.record.record import Record\n"
        "batch = Batch.read(Batch.of([Record(b'x')] * 9).data); batch.check(); list(batch.records())\n"
        "sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "record",
    [
        Record("text"),  # type: ignore[arg-type]
        Record(b"", "text"),  # type: ignore[arg-type]
        Record(b"", None, {"a": 1}),  # type: ignore[dict-item]
        Record(b"", None, {1: b""}),  # type: ignore[dict-item]
        Record(b"", None, {}, 1 << 63),
        Record(b"", None, {}, 0.5),  # type: ignore[arg-type]
        Record(None),  # type: ignore[arg-type]
        (b"a value only",),
    ],
)
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_what_is_no_record_is_refused(record: Record, compression: Compression) -> None:
    with pytest.raises(hawser.UsageError, match=r"at least|value and key are bytes"):
        Batch.of([record, Record(b"", None, {}, 1)], compression=compression)
    with pytest.raises(hawser.UsageError, match=r"at least|value and key are bytes"):
        Batch.of([record], compression=compression)


def test_an_array_of_larger_items_is_no_value() -> None:
    with pytest.raises(hawser.UsageError, match="larger than bytes"):
        Batch.of([Record(memoryview(bytes(8)).cast("I"))])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "stamp",
    [
        Stamp(b"", 1, 1),
        Stamp(b"p", 0, 1),
        Stamp(b"p", 1, 0),
        Stamp(b"p" * 256, 1, 1),
        Stamp(b"p", 1 << 63, 1),
    ],
)
def test_what_is_no_stamp_is_refused(stamp: Stamp) -> None:
    with pytest.raises(hawser.UsageError, match="producer"):
        Batch.of(MIXED, stamp)


def test_no_record_and_too_many_are_refused() -> None:
    with pytest.raises(hawser.UsageError, match="at least one"):
        Batch.of([])
    with pytest.raises(hawser.UsageError, match="send them as several"):
        Batch.of([Record(b"")] * (MAX_RECORDS + 1))
    with pytest.raises(hawser.UsageError, match="send them as several"):
        Batch.of([Record(bytes(65 << 20))])


@pytest.mark.parametrize(
    "data",
    [
        "no batch",
        pa.record_batch({"value": [b"x"]}),
        pa.RecordBatch.from_pylist([], schema=arrow.schema()),
        pa.RecordBatch.from_arrays(
            [pa.nulls(1, kind) for kind in arrow.schema().types],
            schema=pa.schema([field.with_nullable(True) for field in arrow.schema()]),
        ),
    ],
)
def test_other_arrow_data_is_refused(data: Any) -> None:
    with pytest.raises(hawser.UsageError, match="a batch"):
        Batch.of_arrow(data)
    with pytest.raises(hawser.UsageError, match="a batch"):
        Batch.bare_of_arrow(data)


def test_values_with_holes_are_refused_both_ways() -> None:
    whole = Batch.of([Record(b"")]).to_arrow()
    hole = pa.nulls(1, pa.binary())
    holes = pa.RecordBatch.from_arrays([hole, hole, hole, whole.column("timestamp")], schema=arrow.schema())
    with pytest.raises(hawser.UsageError, match="has a value"):
        Batch.of_arrow(holes)
    with pytest.raises(BadBatch, match="no value"):
        arrow.decode(memoryview(holes.serialize()), 1, Compression.NONE)


def changed(data: bytes | memoryview, place: int, form: str, value: int) -> bytes:
    copy = bytearray(data)
    struct.pack_into(form, copy, place, value)
    return bytes(copy)


@pytest.mark.parametrize(
    ("place", "form", "value", "reason"),
    [
        (0, "<B", 3, "no batch of format 3"),
        (0, "<B", 0, "no batch of format 0"),
        (1, "<B", 1, "do not fit"),
        (2, "<B", 2, "columns 0x2"),
        (2, "<B", 16, "columns 0x10"),
        (3, "<B", 17, "says that it has"),
        (3, "<B", 0, "says that it has"),
        (4, "<I", 0, "0 records"),
        (4, "<I", MAX_RECORDS + 1, "impossible"),
        (4, "<I", 60, "do not fit"),
        (8, "<I", 7, "says that it has"),
        (12, "<I", 1, "impossible"),
        (16, "<q", 10, "impossible"),
        (32, "<q", 0, "come together"),
        (32, "<q", -1, "come together"),
        (40, "<q", 0, "come together"),
    ],
)
def test_an_impossible_header_is_named(place: int, form: str, value: int, reason: str) -> None:
    batch = Batch.of(MIXED, Stamp(b"p", 1, 1))
    with pytest.raises(BadBatch, match=reason):
        Header.read(changed(batch.data, place, form, value))


def test_a_header_that_is_cut_off_is_named() -> None:
    with pytest.raises(BadBatch, match="cut off"):
        Header.read(b"x" * 47)


def body_place(offset: int) -> int:
    """Where a byte of the body of MIXED lies: 24 of timestamps, three times 16 of offsets, two validities."""
    return 48 + offset


@pytest.mark.parametrize(
    ("place", "form", "value", "reason"),
    [
        (24, "<i", 1, "run from 1"),
        (28, "<i", 9, "go back|offset"),
        (36, "<i", -1, "to -1"),
        (36, "<i", 9, "not the|go back|offset|left"),
        (36, "<i", 7, "not the"),
        (72, "<B", 0xFF, "bits behind"),
    ],
)
@pytest.mark.parametrize("read", [lambda batch: list(batch.records()), Batch.to_arrow, Batch.check])
def test_a_body_that_does_not_fit_is_named(
    place: int, form: str, value: int, reason: str, read: Callable[[Batch], object]
) -> None:
    data = changed(Batch.of(MIXED).data, body_place(place), form, value)
    with pytest.raises(BadBatch, match=reason):
        read(Batch.read(data))


@given(
    st.binary(max_size=20),
    st.lists(st.integers(-3, 20), min_size=2, max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_one_value_is_read_as_many_are(
    value: bytes, offsets: list[int], is_view: bool, has_two_times: bool
) -> None:
    """It has a way of its own, which takes and refuses the same."""
    batch = Batch.of([Record(value, timestamp_ns=7)])
    data = bytearray(batch.data)
    struct.pack_into("<2i", data, batch.header.body, *offsets)
    if has_two_times and len(value) >= 8:
        data[16:24] = struct.pack("<q", 6)
    again = Batch.read(memoryview(data) if is_view else bytes(data))
    try:
        expected = list(batch_body.records(again._columns()))
    except BadBatch:
        with pytest.raises(BadBatch):
            again.records()
        with pytest.raises(BadBatch):
            again.check()
    else:
        assert list(again.records()) == expected


def test_headers_that_are_something_else_are_named() -> None:
    batch = Batch.of([Record(b"", None, {"a": b"1"})])
    data = bytes(batch.data[:-5]) + b"\xc1" * 5
    with pytest.raises(BadBatch, match="headers"):
        batch = Batch.read(data)
        batch.check()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_check_compares_the_timestamps_with_the_header(compression: Compression) -> None:
    batch = Batch.of(MIXED, compression=compression)
    batch.check()
    with pytest.raises(BadBatch, match="timestamps"):
        Batch.read(changed(batch.data, 24, "<q", 10)).check()


def test_an_arrow_body_of_another_length_is_named() -> None:
    batch = Batch.of_arrow(Batch.of(MIXED).to_arrow())
    with pytest.raises(BadBatch, match="has 3 records, its header says 2"):
        Batch.read(changed(batch.data, 4, "<I", 2)).to_arrow()


def test_split_is_safe_without_a_header() -> None:
    with pytest.raises(BadBatch, match="do not fit"):
        batch_body.split(memoryview(b"abc"), 0, 5, 1)


@pytest.mark.parametrize("compression", Compression)
def test_the_size_of_an_arrow_body_is_known_before_it_is_read(compression: Compression) -> None:
    data = Batch.of([Record(bytes(1000), b"key", {"a": b"1"}, time) for time in range(50)]).to_arrow()
    batch = Batch.of_arrow(data, STAMP, compression)
    size, compressed = unpacked_bytes(memoryview(batch.data)[batch.header.body :])
    assert compressed == (compression is not Compression.NONE)
    buffers = [
        buffer for column in batch.to_arrow().columns for buffer in column.buffers() if buffer is not None
    ]
    assert sum(buffer.size for buffer in buffers) <= size <= 2 * sum(buffer.size for buffer in buffers)


def test_what_becomes_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [Record(bytes(100_000))]
    batch = Batch.of(records, STAMP, Compression.ZSTD)
    assert len(batch.data) < 1000
    monkeypatch.setattr(arrow, "MAX_UNPACKED_BYTES", 99_999)
    with pytest.raises(BadBatch, match="becomes 1000"):
        batch.to_arrow()
    with pytest.raises(hawser.UsageError, match="send it as several"):
        Batch.of(records, STAMP, Compression.ZSTD)


def test_compression_must_be_the_headers() -> None:
    batch = Batch.of(MIXED, STAMP, Compression.LZ4)
    with pytest.raises(BadBatch, match="header says"):
        Batch.read(changed(batch.data, 1, "<B", 0)).to_arrow()


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_have_a_size_or_are_refused(data: bytes, begins: bool) -> None:
    message = struct.pack("<ii", -1, len(data) // 2) + data if begins else data
    try:
        size, _ = unpacked_bytes(memoryview(message))
    except BadBatch:
        return
    assert size >= 0
