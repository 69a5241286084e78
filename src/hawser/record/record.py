"""Records of a cluster's topics and queues: a value, optionally a key and headers, and the producer's
time."""

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
# With this header an empty value means that the record has no value, such as a tombstone of Kafka.
NULL_HEADER: Final = "hawser-null"


class Record(NamedTuple):
    """One record. An empty key is a key; None means no key. Empty headers mean no headers."""

    value: bytes
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    timestamp_ns: int = 0


class Stamp(NamedTuple):
    """Identifies a batch, so that a repeat has no effect: its producer, the producer's incarnation, and the
    number of the batch in it, from 1.

    Without a producer the other two are 0, and a batch that is sent twice is in the log twice.
    """

    producer: bytes = b""
    incarnation: int = 0
    sequence: int = 0


NO_STAMP: Final = Stamp()


class BadBatch(Corrupt):
    """These bytes are not a valid batch."""


class Receipt(NamedTuple):
    """Proof that `count` messages are in the topic, from `first_offset` on; `durability` says how safely.

    On one host, messages of others may lie between those of a batch; their own order is kept.
    """

    topic: str
    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides the tuple's method of that name
    durability: Literal["process", "majority"]
