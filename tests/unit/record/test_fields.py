"""The fields of a schema as SQL names them."""

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass
from typing import Any, Literal, Optional

import msgspec
import pyarrow
import pytest

from hawser.limits import MAX_FIELDS_BYTES
from hawser.record.sql_fields import fields_of


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Inner:
    x: float


class Everything(msgspec.Struct):
    yes: bool
    count: int
    ratio: float
    name: str
    raw: bytes
    at: datetime.datetime
    day: datetime.date
    who: uuid.UUID
    price: decimal.Decimal
    color: Color
    level: Level
    word: Literal["a", "b"]
    perhaps: int | None
    many: list[Inner]
    few: tuple[int, ...]
    by_name: dict[str, set[int]]
    inner: Inner


class Odd(msgspec.Struct):
    first: int = msgspec.field(name="the `first`")


class Node(msgspec.Struct):
    next: Optional["Node"] = None


class Flat(msgspec.Struct, array_like=True):
    x: int


class Holder(msgspec.Struct):
    flat: Flat


class Either(msgspec.Struct):
    what: int | str


class Unknown(msgspec.Struct):
    what: Any


class Nothing(msgspec.Struct):
    pass


def test_every_type_that_has_a_name() -> None:
    assert fields_of(Everything) == (
        "yes boolean, count bigint, ratio double, name string, raw binary, at timestamp, day date, "
        "who string, price string, color string, level bigint, word string, perhaps bigint, "
        "many array<struct<x: double>>, few array<bigint>, by_name map<string, array<bigint>>, "
        "inner struct<x: double>"
    )
    assert fields_of(Odd) == "`the ``first``` bigint"
    assert fields_of(Inner) == "x double"


class LeftOut(msgspec.Struct, omit_defaults=True):
    level: int = 1


class LeftOutWhenEmpty(msgspec.Struct, omit_defaults=True):
    tags: list[str] = []


class HoldsLeftOut(msgspec.Struct):
    inner: list[LeftOut]


class LeftOutWhenNone(msgspec.Struct, omit_defaults=True, frozen=True):
    first: int
    level: int | None = None


class LeftOutOfManyKinds(msgspec.Struct, omit_defaults=True):
    text: str = 'it\'s \\ "so"'
    pair: tuple[int, ...] = (1, 2)
    raw: bytes = b"\0"
    inner: LeftOutWhenNone = LeftOutWhenNone(3)
    made: list[int] = msgspec.field(default_factory=lambda: [1])
    rest: int | msgspec.UnsetType = msgspec.UNSET


class LeftOutWhenNan(msgspec.Struct, omit_defaults=True):
    ratio: float = float("nan")


def test_a_default_that_is_not_written_is_a_comment() -> None:
    assert fields_of(LeftOutWhenNone) == "first bigint, level bigint"
    assert fields_of(LeftOut) == "level bigint COMMENT 'if left out: 1'"
    assert fields_of(LeftOutWhenEmpty) == "tags array<string> COMMENT 'if left out: []'"
    assert fields_of(HoldsLeftOut) == "inner array<struct<level: bigint COMMENT 'if left out: 1'>>"
    assert fields_of(LeftOutOfManyKinds) == (
        r"""text string COMMENT 'if left out: "it\'s \\\\ \\"so\\""', """
        "pair array<bigint> COMMENT 'if left out: [1,2]', "
        "raw binary COMMENT 'if left out: \"AA==\"', "
        "inner struct<first: bigint, level: bigint> COMMENT 'if left out: {\"first\":3}', "
        "made array<bigint>, rest bigint"
    )
    assert fields_of(LeftOutWhenNan) is None


@pytest.mark.parametrize("schema", [Node, Flat, Holder, Either, Unknown, Nothing])
def test_what_has_no_name(schema: type) -> None:
    assert fields_of(schema) is None


def test_too_many_fields() -> None:
    wide = msgspec.defstruct("Wide", [(f"field_{number}", int) for number in range(MAX_FIELDS_BYTES // 16)])
    assert fields_of(wide) is None


def test_columns_of_arrow() -> None:
    inner = pyarrow.struct([("x", pyarrow.float32()), ("odd name", pyarrow.uint32())])
    schema = pyarrow.schema(
        [
            ("small", pyarrow.int8()),
            ("at", pyarrow.timestamp("us", tz="UTC")),
            ("local", pyarrow.timestamp("ns")),
            ("price", pyarrow.decimal128(10, 2)),
            ("rows", pyarrow.list_(inner)),
            ("day", pyarrow.date32()),
        ]
    )
    assert fields_of(schema) == (
        "small tinyint, at timestamp, local timestamp_ntz, price decimal(10, 2), "
        "rows array<struct<x: float, `odd name`: bigint>>, day date"
    )
    assert fields_of(pyarrow.schema([("far", pyarrow.uint64())])) is None
