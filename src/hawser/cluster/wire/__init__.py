"""Messages between processes: requests, answers and the map of the shards, beside the log protocol.

One link carries all of them. A request has one answer, and answers come in any order. A message of `Told`
has no answer and may be lost. docs/formats/wire.md lists every message with its fields.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from hawser.cluster.wire.control import (
    Admin,
    AdminDone,
    AdminKind,
    AskClock,
    ClockReading,
    Deliver,
    Host,
    Hosted,
    MapPushed,
    RollCall,
    Rolled,
    ShardReport,
)
from hawser.cluster.wire.map import (
    HOMES,
    GetMap,
    Map,
    NodeEntry,
    Setting,
    ShardEntry,
    TopicEntry,
    TopicKind,
    has_shard,
    shard_of,
    shards_of,
)
from hawser.cluster.wire.messages import MAX_SESSION_SECONDS, MAX_WAIT_SECONDS, Code, Failed
from hawser.cluster.wire.queue import (
    Delivered,
    Looked,
    QueueGet,
    QueueLock,
    QueueLook,
    QueuePut,
    QueueSettle,
    TokenRun,
    Turned,
)
from hawser.cluster.wire.topic import (
    Batches,
    Execute,
    Executed,
    Fetch,
    GroupEntry,
    GroupState,
    Inspect,
    Inspected,
    KeepAlive,
    Publish,
    Runs,
)
from hawser.cluster.wire.transaction import (
    BranchSeen,
    Labelled,
    RecordSeen,
    Transact,
    Transacted,
    TransactionLook,
    TransactionsSeen,
    XidFields,
)

__all__ = [
    "HOMES",
    "MAX_SESSION_SECONDS",
    "MAX_WAIT_SECONDS",
    "Admin",
    "AdminDone",
    "AdminKind",
    "Answer",
    "AskClock",
    "Batches",
    "BranchSeen",
    "ClockReading",
    "Code",
    "Deliver",
    "Execute",
    "Executed",
    "Failed",
    "Fetch",
    "GetMap",
    "GroupEntry",
    "GroupState",
    "Host",
    "Hosted",
    "Inspect",
    "Inspected",
    "KeepAlive",
    "Labelled",
    "Delivered",
    "Looked",
    "Map",
    "MapPushed",
    "NodeEntry",
    "Publish",
    "Runs",
    "QueueGet",
    "QueueLock",
    "QueueLook",
    "QueuePut",
    "QueueSettle",
    "RecordSeen",
    "Request",
    "RollCall",
    "Rolled",
    "Setting",
    "ShardEntry",
    "ShardReport",
    "TokenRun",
    "Told",
    "TopicEntry",
    "TopicKind",
    "Transact",
    "Transacted",
    "TransactionLook",
    "TransactionsSeen",
    "Turned",
    "XidFields",
    "decode_answer",
    "decode_request",
    "decode_told",
    "encode",
    "has_shard",
    "shard_of",
    "shards_of",
]

Told = Deliver | MapPushed
Request = (
    GetMap | Publish | Execute | Fetch | Inspect | KeepAlive | QueuePut | QueueGet | QueueSettle | QueueLook
    | Transact | TransactionLook | Admin | RollCall | Host | AskClock
)  # fmt: skip
Answer = (
    Map | Batches | Executed | Inspected | GroupState | AdminDone | Rolled | Hosted | ClockReading | Failed
    | Delivered | Turned | Looked | Transacted | TransactionsSeen
)  # fmt: skip

encode: Final = msgspec.msgpack.Encoder().encode


def _decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    """A decoder that raises nothing but msgspec.DecodeError, whatever the bytes are."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(data: bytes | bytearray) -> Any:
        try:
            return decode(data)
        except (UnicodeDecodeError, RecursionError) as error:
            raise msgspec.DecodeError(f"not a message: {error}") from error

    return read


decode_told: Final[Callable[[bytes | bytearray], Told]] = _decoder(Told)
decode_request: Final[Callable[[bytes | bytearray], Request]] = _decoder(Request)
decode_answer: Final[Callable[[bytes | bytearray], Answer]] = _decoder(Answer)
