"""What a topic of a cluster holds: values, maybe with keys and headers, and the times of their producers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from hawser.errors import Corrupt

__all__ = [
    "NO_HEADERS",
    "NO_STAMP",
    "NULL_HEADER",
    "BadBatch",
    "Record",
    "Stamp",
    "Receipt",
]

NO_HEADERS: Final[Mapping[str, bytes]] = MappingProxyType({})
# With an empty value it says that the record has none, such as a tombstone of Kafka.
NULL_HEADER: Final = "hawser-null"


class Record(NamedTuple):
    """One record. An empty key is a key; None is none. Empty headers are no headers."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    timestamp_ns: int = 0


class Stamp(NamedTuple):
    """Whose batch it is, and the how-manieth of this incarnation, from 1: what makes a repeat harmless.

    Without a producer the other two are 0, and a batch that is sent twice is in the log twice.
    """

    producer: bytes = b""
    incarnation: int = 0
    sequence: int = 0


NO_STAMP: Final = Stamp()


class BadBatch(Corrupt):
    """These bytes are not a batch; the reason says why."""


class Receipt(NamedTuple):
    """Proof that `count` messages are in the topic, from `first_offset` on, as safe as `durability` says.

    On one host others may publish in between the messages of a batch; their own order is kept.
    """

    topic: str
    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides the tuple's method of that name
    durability: Literal["process", "majority"]
