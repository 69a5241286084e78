"""The fields of a schema as SQL writes them, for readers that know no Python: `id bigint, name string`.

They are stored with a topic of a cluster beside the schema's fingerprint, and Spark decodes values by them
unless it is given a schema. A schema has no fields here if one of its types has no name in SQL, if two
columns have one name, or if it leaves out values that SQL would then read as null (`omit_defaults` with a
default other than None).
"""

from typing import Any, Final

import msgspec
from msgspec import inspect

from hawser.limits import MAX_FIELDS_BYTES

__all__ = ["fields_of"]

# A value as its format writes it: what JSON and MessagePack write as text is text.
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
    """There is something that SQL has no name for."""


def fields_of(schema: Any) -> str | None:
    """Of a `msgspec.Struct` type, a dataclass or a `pyarrow.Schema`; None if SQL cannot name them all."""
    try:
        if isinstance(schema, type):
            text = _struct(inspect.type_info(schema), ())
        else:
            text = _of_columns(schema, " ")
    except _Unnamed:
        return None
    return text if text and len(text.encode()) <= MAX_FIELDS_BYTES else None


def _struct(kind: inspect.Type, above: tuple[type, ...], between: str = " ") -> str:
    """Its fields; a structure that contains itself has no end, and so no name."""
    if not isinstance(kind, inspect.StructType | inspect.DataclassType) or kind.cls in above:
        raise _Unnamed
    if isinstance(kind, inspect.StructType) and (kind.array_like or _leaves_out_values(kind)):
        raise _Unnamed
    inside = (*above, kind.cls)
    return ", ".join(_field(each.encode_name, _type(each.type, inside), between) for each in kind.fields)


def _leaves_out_values(kind: inspect.StructType) -> bool:
    """Whether a value other than null may be left out: SQL knows no defaults and would read null."""
    if not kind.cls.__struct_config__.omit_defaults:
        return False
    nulls = (None, msgspec.UNSET)
    return any(
        not each.required
        and (each.default is msgspec.NODEFAULT or all(each.default is not it for it in nulls))
        for each in kind.fields
    )


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
