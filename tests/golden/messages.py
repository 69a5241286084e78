"""One frame of every message that processes send to each other, made from the types of its fields."""

from typing import Any, get_args

import msgspec
from msgspec import inspect

from hawser.cluster import wire
from hawser.log.entry import Entry
from hawser.log.protocol import messages as protocol

FAMILIES = {
    "told": (get_args(wire.Told), wire.encode, wire.decode_told),
    "request": (get_args(wire.Request), wire.encode, wire.decode_request),
    "answer": (get_args(wire.Answer), wire.encode, wire.decode_answer),
    "protocol": (get_args(protocol.AnyMessage), protocol.encode, protocol.decode),
}
# A text is the name of its field when the sample was written. Fields that were renamed since:
_NAMES_THEN = {"coordinator": "home"}


def frames() -> str:
    """A line for each message: its family, its tag, its bytes in hexadecimal digits."""
    return "".join(
        f"{family}\t{kind.__struct_config__.tag}\t{encode(example_of(kind)).hex()}\n"
        for family, (kinds, encode, _) in FAMILIES.items()
        for kind in kinds
    )


def example_of(kind: Any) -> Any:
    """A message whose fields all have a value, no optional one left out."""
    return made(inspect.type_info(kind), "")


def made(kind: Any, name: str) -> Any:
    match kind:
        case inspect.StructType():
            return kind.cls(**{field.name: made(field.type, field.name) for field in kind.fields})
        case inspect.NamedTupleType():
            return kind.cls(*(made(field.type, field.name) for field in kind.fields))
        case inspect.UnionType():
            return made(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), name)
        case inspect.IntType():
            return 7 if kind.le is None else min(7, kind.le)
        case inspect.FloatType():
            return 1.5
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return _NAMES_THEN.get(name, name) or "name"
        case inspect.BytesType():
            return name.encode()
        case inspect.MemoryViewType():
            return memoryview(name.encode())
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.TupleType():
            return tuple(made(each, name) for each in kind.item_types)
        case inspect.VarTupleType() | inspect.ListType():
            return (made(kind.item_type, name),)
        case inspect.DictType():
            return {made(kind.key_type, "key"): made(kind.value_type, name)}
        case inspect.CustomType() if kind.cls is Entry:
            return Entry.make(3, 4, 1, b"payload", transaction=b"transaction")
    raise AssertionError(f"no example of {kind}; add one")


def read(line: str) -> tuple[str, str, Any, bytes]:
    """Family, tag, the message that is read, and the bytes that it is written as."""
    family, tag, text = line.split("\t")
    _, encode, decode = FAMILIES[family]
    message = decode(bytes.fromhex(text))
    assert isinstance(message, msgspec.Struct)
    return family, tag, message, encode(message)
