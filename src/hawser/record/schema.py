"""Typed topics: how values of a schema become bytes and come back.

A codec's fingerprint is stored with the topic. It names the kind and a digest of the structure, so two
programs agree on it exactly when they would read each other's bytes alike.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from hawser.errors import Corrupt, UsageError
from hawser.limits import MAX_SCHEMA_BYTES
from hawser.record.payload import arrow_bytes, as_arrow
from hawser.record.sql_fields import fields_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


__all__ = [
    "Codec",
    "codec_of",
    "described",
]

T = TypeVar("T")

# Descriptions in a structure that do not change its bytes.
_DESCRIPTIVE = frozenset({"title", "description", "examples", "default"})

_STRUCTURES = (inspect.StructType, inspect.DataclassType, inspect.NamedTupleType, inspect.TypedDictType)
# Results of `inspect` that are not types of msgspec.
_VALUES = frozenset({"cls", "default", "default_factory"})


class Codec(NamedTuple, Generic[T]):
    """Encodes and decodes the values of one schema. `fields` names its fields in SQL, if possible."""

    fingerprint: str
    fields: str | None
    encode: Callable[[T], "Buffer"]
    decode: Callable[[Any], T]


def codec_of(schema: Any) -> Codec[Any]:
    """The codec of a `msgspec.Struct` type, a dataclass or a `pyarrow.Schema`; UsageError for others."""
    if isinstance(schema, type) and (issubclass(schema, msgspec.Struct) or dataclasses.is_dataclass(schema)):
        return _structure_codec(schema)
    if type(schema).__module__.partition(".")[0] == "pyarrow" and type(schema).__name__ == "Schema":
        return _arrow_codec(schema)
    raise UsageError(f"schema={schema!r} is not a msgspec.Struct type, a dataclass or a pyarrow.Schema")


def _structure_codec(schema: type[T]) -> Codec[T]:
    encoder = msgspec.msgpack.Encoder()
    try:
        decoder = msgspec.msgpack.Decoder(schema)
        structure = msgspec.json.schema(schema)
    except (TypeError, NameError) as error:
        raise UsageError(f"{schema.__name__} cannot be a schema: {error}") from error

    def encode(value: T) -> bytes:
        if not isinstance(value, schema):
            raise UsageError(f"this topic carries {schema.__name__}, not {type(value).__name__}")
        try:
            return encoder.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"this {schema.__name__} cannot be encoded: {error}") from error

    def decode(sample: Any) -> T:
        try:
            return decoder.decode(sample.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(
                f"message {sample.offset} from {sample.publisher!r} is not a {schema.__name__} ({error}); "
                "its publisher did not use the schema"
            ) from error

    digest = msgspec.json.encode(_bare(structure), order="sorted")
    if implied := _implied(schema):
        digest += msgspec.json.encode(implied, order="sorted", enc_hook=lambda value: type(value).__name__)
    fingerprint = _fingerprint("msgpack", schema.__name__, digest)
    return Codec(fingerprint, fields_of(schema), encode, decode)


def _arrow_codec(schema: Any) -> Codec[Any]:
    def encode(value: Any) -> "Buffer":
        given = getattr(value, "schema", None)
        if given is None or not schema.equals(given):
            what = type(value).__name__ if given is None else f"one with {given.names}"
            raise UsageError(f"this topic carries Arrow data with columns {schema.names}, not {what}")
        return arrow_bytes(value)

    fields = "\n".join(f"{field.name!r} {field.type} {field.nullable}" for field in schema)
    fingerprint = _fingerprint("arrow", ",".join(schema.names), fields.encode())
    return Codec(fingerprint, fields_of(schema), encode, as_arrow)


def _bare(structure: Any) -> Any:
    """The structure without descriptions."""
    if isinstance(structure, list):
        return [_bare(item) for item in structure]
    if not isinstance(structure, dict):
        return structure
    bare: dict[str, Any] = {}
    for key, value in structure.items():
        if key == "properties":
            # The keys below it are the user's field names, in the declared order.
            bare[key] = [[name, _bare(field)] for name, field in value.items()]
        elif key == "$defs":
            bare[key] = {name: _bare(definition) for name, definition in value.items()}
        elif key not in _DESCRIPTIVE:
            bare[key] = _bare(value)
    return bare


def _implied(schema: Any) -> list[Any]:
    """Properties of the encoding that a JSON schema lacks: the names of fields written by position, and the
    values of omitted fields."""
    found: dict[type, list[Any]] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tuple):
            for each in node:
                visit(each)
        if not isinstance(node, inspect.Type | inspect.Field):
            return
        if isinstance(node, _STRUCTURES):
            if node.cls in found:
                return
            found[node.cls] = _implied_by(node)
        for name in node.__struct_fields__:
            if name not in _VALUES:
                visit(getattr(node, name))

    visit(inspect.type_info(schema))
    # Sorted, because the order of a union's members has no effect.
    return sorted(([kind.__name__, *said] for kind, said in found.items() if said), key=repr)


def _implied_by(kind: Any) -> list[Any]:
    if isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False):
        return [[each.encode_name for each in kind.fields]]
    config = getattr(kind.cls, "__struct_config__", None)
    if config is None or not config.omit_defaults:
        return []
    return [[each.encode_name, each.default] for each in kind.fields if each.default is not msgspec.NODEFAULT]


def _fingerprint(kind: str, name: str, structure: bytes) -> str:
    digest = hashlib.sha256(structure).hexdigest()[:32]
    room = MAX_SCHEMA_BYTES - len(kind) - len(digest) - 2
    short = name.encode()[:room].decode(errors="ignore")
    return f"{kind}:{short}:{digest}"


def described(kind: type[Any]) -> type[Any]:
    """The same type, prepared for use by several threads.

    msgspec makes a description of a type at its first use. If a second thread uses the type before the
    description is complete, the process crashes. A module that passes a type to `msgspec.convert` or to
    `decode(type=...)` calls this at import; a module-level decoder has the same effect.
    """
    msgspec.msgpack.Decoder(kind)
    return kind
