"""The fields of a schema in SQL, for readers without Python: `id bigint, name string`.

They are stored with a topic of a cluster beside the schema's fingerprint, and Spark decodes values by them
unless it is given a schema. A schema has no fields here if one of its types has no name in SQL, or if two
columns have one name. A field that values may leave out (`omit_defaults`) has a comment with what it is
then, as JSON: `level bigint COMMENT 'if left out: 1'`. If JSON cannot hold that, as it cannot hold NaN, the
schema has no fields.
"""

from typing import Any, Final

import msgspec
from msgspec import inspect

from hawser.limits import MAX_FIELDS_BYTES

__all__ = ["IF_LEFT_OUT", "fields_of"]

# The prefix of the comment of a field that a value may leave out.
IF_LEFT_OUT: Final = "if left out: "

# Types by their encoding: types that JSON and MessagePack write as text are strings.
_PLAIN: Final[dict[type, str]] = {
    inspect.BoolType: "boolean",
    inspect.IntType: "bigint",
    inspect.FloatType: "double",
    inspect.StrType: "string",
    inspect.BytesType: "binary",
    inspect.ByteArrayType: "binary",
    inspect.DateType: "date",
    inspect.UUIDType: "string",
    inspect.DecimalType: "string",
}
# msgspec leaves out defaults that these factories made, and no others.
_EMPTY: Final = (list, dict, set)
_LISTS: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)
_ARROW: Final = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
}


class _Unnamed(Exception):
    """A type has no name in SQL."""


def fields_of(schema: Any) -> str | None:
    """The fields of a `msgspec.Struct` type, a dataclass or a `pyarrow.Schema`; None if SQL cannot name them
    all."""
    try:
        if isinstance(schema, type):
            text = _struct(inspect.type_info(schema), ())
        else:
            text = _of_columns(schema, " ")
    except _Unnamed:
        return None
    return text if text and len(text.encode()) <= MAX_FIELDS_BYTES else None


def _struct(kind: inspect.Type, above: tuple[type, ...], between: str = " ") -> str:
    """The fields of a structure; one that contains itself has no name in SQL."""
    if not isinstance(kind, inspect.StructType | inspect.DataclassType) or kind.cls in above:
        raise _Unnamed
    if isinstance(kind, inspect.StructType) and kind.array_like:
        raise _Unnamed
    inside = (*above, kind.cls)
    omits = isinstance(kind, inspect.StructType) and kind.cls.__struct_config__.omit_defaults
    return ", ".join(
        _field(each.encode_name, _type(each.type, inside), between) + (_comment(each) if omits else "")
        for each in kind.fields
    )


def _comment(field: inspect.Field) -> str:
    """The comment with the value of an omitted field, unless that is null."""
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory in _EMPTY:
        default = field.default_factory()
    if any(default is nothing for nothing in (None, msgspec.UNSET, msgspec.NODEFAULT)):
        return ""
    text = msgspec.json.encode(default).decode()
    # As lists where there are tuples and sets.
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(msgspec.to_builtins(default)))
    if msgspec.json.decode(text) != plain:
        raise _Unnamed
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f" COMMENT '{IF_LEFT_OUT}{escaped}'"


def _field(name: str, kind: str, between: str) -> str:
    quoted = name if name.isidentifier() and name.isascii() else "`" + name.replace("`", "``") + "`"
    return f"{quoted}{between}{kind}"


def _type(kind: inspect.Type, above: tuple[type, ...]) -> str:
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, inspect.DateTimeType):
        return "timestamp_ntz" if kind.tz is False else "timestamp"
    if isinstance(kind, _LISTS):
        return f"array<{_type(kind.item_type, above)}>"
    if isinstance(kind, inspect.DictType) and isinstance(kind.key_type, inspect.StrType):
        return f"map<string, {_type(kind.value_type, above)}>"
    if isinstance(kind, inspect.UnionType):
        others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        if len(others) == 1:
            return _type(others[0], above)
    if isinstance(kind, inspect.EnumType):
        return _of_values([each.value for each in kind.cls])
    if isinstance(kind, inspect.LiteralType):
        return _of_values(list(kind.values))
    return f"struct<{_struct(kind, above, ': ')}>"


def _of_values(values: list[Any]) -> str:
    if all(isinstance(each, str) for each in values):
        return "string"
    if all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        return "bigint"
    raise _Unnamed


def _of_columns(fields: Any, between: str) -> str:
    names = [each.name for each in fields]
    if not names or len(set(names)) < len(names):
        raise _Unnamed
    return ", ".join(_field(each.name, _of_arrow(each.type), between) for each in fields)


def _of_arrow(kind: Any) -> str:
    name = str(kind)
    if name in _ARROW:
        return _ARROW[name]
    if name.startswith("timestamp["):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if name.startswith("decimal128(") and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision}, {kind.scale})"
    if name.startswith(("list<", "large_list<")):
        return f"array<{_of_arrow(kind.value_type)}>"
    if name.startswith("struct<"):
        return f"struct<{_of_columns(kind, ': ')}>"
    if name.startswith("map<"):
        return f"map<{_of_arrow(kind.key_type)}, {_of_arrow(kind.item_type)}>"
    raise _Unnamed
