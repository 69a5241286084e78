"""Codecs: what goes in comes out, and what cannot is refused with advice."""

import dataclasses
from typing import Any, NamedTuple

import msgspec
import numpy
import pyarrow
import pytest

from hawser.errors import Corrupt, UsageError
from hawser.record.metadata import DEAD_LETTER_HEADER, dead_letter_origin, decode_metadata, encode_metadata
from hawser.record.payload import array_layout, arrow_bytes, as_array, as_arrow, as_payload, as_payloads
from hawser.record.schema import codec_of


class Order(msgspec.Struct):
    identity: int
    title: str = ""


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Taken:
    """What a decoder sees of a sample."""

    offset = 1
    publisher = "somebody"

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)


@pytest.mark.parametrize(
    ("key", "headers"),
    [(b"k", {}), (b"", {}), (None, {"a": b"1"}), (b"\xff" * 1000, {"": b"", "é": bytes(range(256))})],
)
def test_metadata_comes_back(key: bytes | None, headers: dict[str, bytes]) -> None:
    data = encode_metadata(key, headers)
    assert data is not None
    assert decode_metadata(data) == (key, headers)


def test_no_metadata_is_none() -> None:
    assert encode_metadata(None, None) is None
    assert encode_metadata(None, {}) is None
    assert decode_metadata(b"") == (None, {})


class Tagged(bytes):
    """Bytes with more to them, which no encoder takes for bytes."""


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        ("k", None),
        (1, None),
        (Tagged(b"k"), None),
        (None, {"a": "1"}),
        (None, {1: b""}),
        (None, {"a": Tagged(b"1")}),
        (None, {"\ud800": b""}),
        (None, [("a", b"")]),
    ],
)
def test_metadata_that_is_no_bytes_is_refused(key: Any, headers: Any) -> None:
    with pytest.raises(UsageError):
        encode_metadata(key, headers)


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\x01", b"\x92\xc0\xc0", b"\x92\xc0\x81\xa1\xff\xc4\x00", b"\x93\xc0\x80\xc0"]
)
def test_foreign_metadata_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_metadata(data)


@pytest.mark.parametrize("data", [b"ab", bytearray(b"ab"), memoryview(b"ab"), numpy.frombuffer(b"ab", "u1")])
def test_bytes_like_data_is_not_copied(data: Any) -> None:
    assert as_payload(data) is data


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ("text", "encode"),
        (7, "schema="),
        (None, "schema="),
        (["a"], "schema="),
        (numpy.zeros((4, 4))[:, ::2], "ascontiguousarray"),
        (numpy.zeros((4, 4), order="F"), "ascontiguousarray"),
        (numpy.array([object()]), "dtype"),
        (numpy.zeros(2, "M8[s]"), "view"),
    ],
)
def test_data_without_plain_bytes_is_refused(data: Any, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        as_payload(data)


def test_batches_are_made_one_by_one() -> None:
    plain = [b"a", b"b"]
    assert as_payloads(plain, None) is plain
    assert list(as_payloads(iter(plain), None)) == plain
    assert list(as_payloads((), None)) == list(as_payloads(iter(()), None)) == []
    assert list(as_payloads([1, 2], lambda number: bytes([number]))) == [b"\1", b"\2"]
    for single in (b"ab", "ab", memoryview(b"ab")):
        with pytest.raises(UsageError, match="iterable"):
            as_payloads(single, None)


def test_arrays_are_read_only_and_not_copied() -> None:
    data = bytes(range(24))
    array = as_array(data, "<u2", (3, 4))
    assert array.shape == (3, 4)
    assert not array.flags.writeable
    assert array.__array_interface__["data"][0] == numpy.frombuffer(data, "u1").__array_interface__["data"][0]
    assert as_array(b"").shape == (0,)
    assert as_array(b"", "f8", (0, 3)).shape == (0, 3)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (b"abc", "u2", None),
        (b"abcd", "u1", (3,)),
        (b"abcd", "u1", (-2, -2)),
        (b"12345678", "O", None),
        (b"a", "nothing", None),
    ],
)
def test_arrays_that_do_not_fit_are_refused(data: bytes, dtype: str, shape: Any) -> None:
    with pytest.raises(UsageError):
        as_array(data, dtype, shape)


def test_the_size_of_an_array_is_known_before_it_is_made() -> None:
    assert array_layout((2, 3), "f4") == ((2, 3), numpy.dtype("f4"), 24)
    assert array_layout(5, "u1")[2] == 5
    assert array_layout((), "f8")[2] == 8
    assert array_layout((0, 9), "f8")[2] == 0
    for shape in ((-1,), "ab", None, (1.5j,)):
        with pytest.raises(UsageError):
            array_layout(shape, "u1")


def test_arrow_data_comes_back_without_a_copy() -> None:
    batch = pyarrow.record_batch({"a": [1, 2, 3], "b": ["x", None, "z"]})
    stream = bytes(memoryview(arrow_bytes(batch)))
    back = as_arrow(stream)
    assert back.equals(batch)
    start = pyarrow.py_buffer(stream).address
    assert start < back.column(0).buffers()[1].address < start + len(stream)


def test_arrow_tables_keep_their_batches() -> None:
    batch = pyarrow.record_batch({"a": [1]})
    table = pyarrow.Table.from_batches([batch, batch])
    assert as_arrow(arrow_bytes(table)).equals(table)
    empty = table.slice(0, 0)
    assert as_arrow(arrow_bytes(empty)).schema == table.schema
    with pytest.raises(UsageError, match="Arrow"):
        as_arrow(b"something else")


@pytest.mark.parametrize("value", [Order(1, "a"), Point(1.0, 2.0)])
def test_structures_come_back(value: Any) -> None:
    codec = codec_of(type(value))
    assert codec.decode(Taken(bytes(codec.encode(value)))) == value
    with pytest.raises(UsageError, match=type(value).__name__):
        codec.encode(b"raw")
    with pytest.raises(Corrupt, match="somebody"):
        codec.decode(Taken(b"\xc0"))


def test_a_fingerprint_follows_the_structure_and_nothing_else() -> None:
    documented = msgspec.defstruct(
        "Order", [("identity", int), ("title", str, "")], namespace={"__doc__": "An order."}
    )
    assert codec_of(documented).fingerprint == codec_of(Order).fingerprint
    others = [
        msgspec.defstruct("Order", [("identity", int), ("title", bytes, b"")]),
        msgspec.defstruct("Order", [("identity", int), ("name", str, "")]),
        msgspec.defstruct("Order", [("title", str), ("identity", int)]),
        msgspec.defstruct("Order", [("identity", int)]),
        msgspec.defstruct("Order", [("identity", int), ("title", str, "")], array_like=True),
    ]
    fingerprints = {codec_of(each).fingerprint for each in [Order, Point, *others]}
    assert len(fingerprints) == len(others) + 2
    long = msgspec.defstruct("é" * 300, [("a", int)])
    assert len(codec_of(long).fingerprint.encode()) <= 200


@pytest.mark.parametrize("nested", [False, True])
def test_fields_known_by_their_places_are_in_the_fingerprint(nested: bool) -> None:
    fingerprints = set()
    for names in (("x", "y"), ("y", "x")):
        fields: list[Any] = [(name, int) for name in names]
        kind: Any = msgspec.defstruct("Point", fields, array_like=True)
        used = msgspec.defstruct("Path", [("points", list[kind])]) if nested else kind
        fingerprints.add(codec_of(used).fingerprint)
    assert len(fingerprints) == 2


def test_the_fields_of_a_named_tuple_are_in_the_fingerprint() -> None:
    kinds: list[Any] = [NamedTuple("Point", [(name, int) for name in names]) for names in ("xy", "yx")]
    paths = [msgspec.defstruct("Path", [("points", list[kind])]) for kind in kinds]  # type: ignore[valid-type]
    first, second = (codec_of(path).fingerprint for path in paths)
    assert first != second


def test_defaults_that_are_not_written_are_in_the_fingerprint() -> None:
    def made(default: Any, *, omitted: bool) -> str:
        fields = [("level", int, default), ("tags", list[str], msgspec.field(default_factory=list))]
        return codec_of(msgspec.defstruct("Event", fields, omit_defaults=omitted)).fingerprint

    assert made(1, omitted=True) == made(1, omitted=True) != made(2, omitted=True)
    assert made(1, omitted=False) == made(2, omitted=False)
    assert made(msgspec.UNSET, omitted=True) != made(1, omitted=True)


class Tree(msgspec.Struct, array_like=True):
    value: int
    branches: "list[Tree]" = []


def test_a_structure_that_contains_itself_has_a_fingerprint() -> None:
    assert codec_of(Tree).fingerprint == codec_of(Tree).fingerprint


def test_bytes_that_no_encoder_writes_are_corrupt() -> None:
    text = msgspec.msgpack.encode({"identity": 1, "title": "x"})[:-1] + b"\xff"
    deep = b"\x81\xa1x" + b"\x91" * 99_999
    for data in (text, deep):
        with pytest.raises(Corrupt, match="somebody"):
            codec_of(Order).decode(Taken(data))


def test_a_foreign_origin_of_a_dead_letter_is_none() -> None:
    for value in (b'{"queue":"\xff","offset":1,"deliveries":1}', b"", b"\xff", b"{}", b"[" * 99_999):
        metadata = encode_metadata(None, {DEAD_LETTER_HEADER: value})
        assert metadata is not None
        assert dead_letter_origin(metadata) is None


def test_arrow_schemas_are_checked() -> None:
    schema = pyarrow.schema({"a": pyarrow.int64()})
    codec = codec_of(schema)
    batch = pyarrow.record_batch({"a": [1, 2]})
    assert codec.decode(codec.encode(batch)).equals(batch)
    assert codec.fingerprint == codec_of(schema.with_metadata({"k": "v"})).fingerprint
    assert codec.fingerprint != codec_of(pyarrow.schema({"a": pyarrow.int32()})).fingerprint
    for other in (pyarrow.record_batch({"b": [1]}), pyarrow.record_batch({"a": ["x"]}), b"raw"):
        with pytest.raises(UsageError, match="columns"):
            codec.encode(other)


@pytest.mark.parametrize("schema", [int, dict, Order(1), "Order", Point(0, 0), object()])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError, match="schema"):
        codec_of(schema)
