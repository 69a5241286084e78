"""What processes say to each other beside the log protocol: requests, answers, and the map of the shards.

One link carries all of it. A request has an answer, in any order; what is told has none and may be lost. The
map is a hint and decides nothing: a client that follows an old one is sent on by the node it asked.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from hawser.log.queue.claims import Token
from hawser.log.queue.dispatcher import Parcel

__all__ = [
    "HOMES",
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
    "Lent",
    "Looked",
    "Map",
    "MapPushed",
    "NodeEntry",
    "Publish",
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

Count = Annotated[int, Meta(ge=0)]
Setting = int | float | str | bool | None
# A name is one or the other; the homes of transactions are the partitions of one that is neither.
TopicKind = Literal["topic", "queue", "homes"]
HOMES: Final = "__tx"
MAX_WAIT_SECONDS: Final = 60.0
MAX_SESSION_SECONDS: Final = 3600.0


def shard_of(topic: str, uuid: str, partition: int) -> str:
    """The name of the shard that holds a partition of a topic, for those who know no more of it. A topic made
    anew under an old name has other shards."""
    return f"{topic}@{uuid[:8]}/{partition}"


def shards_of(name: str, entry: "TopicEntry") -> list[str]:
    """The shards of a topic or queue, by partition."""
    if entry.shard:
        return [entry.shard]
    return [shard_of(name, entry.uuid, partition) for partition in range(entry.partitions)]


def has_shard(name: str, entry: "TopicEntry", shard: str) -> bool:
    """Whether it is one of those, and not that of another one of this name."""
    if entry.shard:
        return shard == entry.shard
    partition = shard.removeprefix(f"{name}@{entry.uuid[:8]}/")
    return partition != shard and partition.isdecimal() and int(partition) < entry.partitions


class _Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What all of them are."""


# The map.


class NodeEntry(msgspec.Struct, frozen=True, array_like=True):
    """A node as the operator knows it; clients reach it at `address`."""

    address: str
    alive: bool


class TopicEntry(msgspec.Struct, frozen=True, array_like=True):
    """A topic of the cluster, or a queue, and its settings; one that is deleted is kept as such. A queue has
    one partition. If it lives with a topic, `shard` is the topic's only one, and the topic has it as `guest`.
    """

    version: Count
    uuid: str
    partitions: int
    settings: dict[str, Setting]
    deleted: bool = False
    kind: TopicKind = "topic"
    shard: str = ""
    guest: str = ""


class ShardEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard: its members, each named after its node, its leader, and how many copies are wanted."""

    version: Count
    epoch: Count
    status: str
    leader: str | None
    members: tuple[str, ...]
    change: str | None = None
    copies: Count = 0


class Map(_Body, frozen=True, tag="map"):
    """Everything an operator has told. The entry with the higher version is true; all nodes have one."""

    cluster: str
    nodes: dict[str, NodeEntry]
    topics: dict[str, TopicEntry]
    shards: dict[str, ShardEntry]
    nodes_version: Count = 0


# What is told, without an answer.


class Deliver(_Body, frozen=True, tag="deliver"):
    """A message of the log protocol, from `sender` to the member `to` of `shard`."""

    shard: str
    to: str
    sender: str
    message: bytes


class MapPushed(_Body, frozen=True, tag="pushed"):
    """Operator to node: what has changed in the map."""

    map: Map


# Requests of clients to nodes.


class GetMap(_Body, frozen=True, tag="get map"):
    """Asks for the map of one topic, or of all; with an empty name, only of the nodes."""

    topic: str | None = None


class Publish(_Body, frozen=True, tag="publish"):
    """A batch for the leader of a shard: answered when a majority has it on disk."""

    shard: str
    batch: bytes


class Execute(_Body, frozen=True, tag="execute"):
    """Any other entry: trimming, groups. The payload is one of `hawser.log.state.commands`."""

    shard: str
    kind: Count
    payload: bytes


class Fetch(_Body, frozen=True, tag="fetch"):
    """Committed batches from `offset` on, from any replica that has applied them. If there are none yet it
    waits for them, up to `wait_seconds`, and then answers with none."""

    shard: str
    offset: Count
    max_bytes: Annotated[int, Meta(gt=0)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]


class Inspect(_Body, frozen=True, tag="inspect"):
    """What the leader knows to be true now: where the partition begins and ends, or the queue that is there,
    the first offset at a time, and the newest batch of a producer."""

    shard: str
    at_ns: int | None = None
    groups: bool = False
    producer: bytes | None = None
    queue: bool = False


class KeepAlive(_Body, frozen=True, tag="keep alive"):
    """A member of a group lives, for another `session_seconds` behind the answer. It knows the group in
    `generation`, of which `known_settled` members have settled, and has itself settled in `settled`. Answered
    when there is something else to know, or after `wait_seconds`; REJECTED if it is no member."""

    shard: str
    group: str
    member: str
    generation: Count
    known_settled: Count
    settled: Count
    session_seconds: Annotated[float, Meta(gt=0, le=MAX_SESSION_SECONDS)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]


# Tokens of a queue's claims, one behind the other: epoch, number of the first, how many.
TokenRun = tuple[Count, Count, Annotated[int, Meta(ge=1)]]


class QueuePut(_Body, frozen=True, tag="put"):
    """As `Publish`, for the shard of a queue."""

    shard: str
    batch: bytes


class QueueGet(_Body, frozen=True, tag="get"):
    """Messages for a session, as `hawser.log.queue.dispatcher.Get` has it; if there are none it waits up to
    `wait_seconds`, and then answers with none. The session is there for another `session_seconds` behind
    the answer, unless this is the last of it: then what it holds is given back. It has shown all but `ahead`
    of what it holds. For transactions it is lent what is there as far as the leader knows: their commits show
    whether it knew best."""

    shard: str
    shelf: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    request: Annotated[int, Meta(ge=1)]
    received: Token
    most: Count
    most_bytes: Annotated[int, Meta(gt=0)]
    session_seconds: Annotated[float, Meta(gt=0, le=MAX_SESSION_SECONDS)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    unseen: tuple[TokenRun, ...] = ()
    is_last: bool = False
    for_transactions: bool = False
    ahead: Count = 0


class QueueSettle(_Body, frozen=True, tag="settle"):
    """Ends deliveries of messages that the session holds, as `hawser.log.queue.dispatcher.Settlement`."""

    shard: str
    shelf: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    incarnation: Annotated[int, Meta(ge=1)]
    sequence: Annotated[int, Meta(ge=1)]
    accepted: tuple[TokenRun, ...] = ()
    released: tuple[TokenRun, ...] = ()
    rejected: tuple[TokenRun, ...] = ()


class QueueLook(_Body, frozen=True, tag="look"):
    """What the leader of a queue knows to be true now, and its oldest messages from an offset on, up to so
    many; or those from one offset up to another, also the ones that transactions have."""

    shard: str
    shelf: Annotated[int, Meta(ge=0, le=1)] = 0
    most: Count = 0
    most_bytes: Annotated[int, Meta(gt=0)] = 1
    between: tuple[Count, Count] | None = None
    first: Count = 0


class Labelled(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a transaction, with its label (`hawser.transaction.identity`); those of home have none."""

    kind: Count
    payload: bytes
    label: bytes = b""


class QueueLock(msgspec.Struct, frozen=True, array_like=True):
    """The payload with which a session accepts messages that it holds in a transaction. The leader that lent
    them proposes what they are; so an entry of this kind, QUEUE_SETTLE, has another payload on its way."""

    shelf: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    tokens: tuple[TokenRun, ...]


class Transact(_Body, frozen=True, tag="transact"):
    """Entries of transactions for the leader of a shard, in this order: operations, the end of a branch, or
    what home is told. Answered when all of them are applied; of home, when there is something to say. Asking
    again costs nothing."""

    shard: str
    entries: Annotated[tuple[Labelled, ...], Meta(min_length=1, max_length=10_000)]


XidFields = tuple[Count, bytes, bytes]


class TransactionLook(_Body, frozen=True, tag="look at transactions"):
    """What the leader of a shard knows to be true now of the transactions there: of all that are not over, or
    of one, also if it is over. Without an incarnation that is the latest. An application has the xid of its
    branches without a branch."""

    shard: str
    xid: XidFields | None = None
    incarnation: Count = 0


class AdminKind(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    ELECT = "elect"
    TRANSFER = "transfer"
    SWAP = "swap"
    EXPAND = "expand"
    CONTRACT = "contract"
    DRAIN = "drain"


class Admin(_Body, frozen=True, tag="admin"):
    """For an operator; the node passes it on. `name` is a topic or queue for create and delete, a node that
    wants to lead nothing any more for drain, else a shard; `nodes` are those it is about, as on the command
    line. Delete affects only the topic or queue with this `uuid`, not a newer one of its name, so it may be
    repeated."""

    kind: AdminKind
    name: str
    nodes: tuple[str, ...] = ()
    partitions: int = 1
    settings: dict[str, Setting] = {}
    topic_kind: TopicKind = "topic"
    uuid: str = ""


# Requests of operators to nodes.


class RollCall(_Body, frozen=True, tag="roll call"):
    """How are you, and each of your shards? A node belongs to the first cluster whose operator asks; others
    ask without one."""

    cluster: str = ""


class AskClock(_Body, frozen=True, tag="ask clock"):
    """Node to node: asks for the time of day."""


class Host(_Body, frozen=True, tag="host"):
    """Be ready to become a member of this shard: answered with the name this node has, or now gets, in it."""

    shard: str


# Answers.


class Batches(_Body, frozen=True, tag="batches"):
    """(offset of the first record, payload of the entry) for each batch; the partition's bounds as this
    replica has applied them."""

    batches: tuple[tuple[int, memoryview], ...]
    start: int
    end: int


class Executed(_Body, frozen=True, tag="executed"):
    """What the state machine made of it: an encoded result of `hawser.log.state.results`."""

    result: bytes


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    """A group on one shard."""

    generation: int
    position: int
    members: tuple[str, ...]


class Inspected(_Body, frozen=True, tag="inspected"):
    """`groups` are all of the shard, if they were asked for. `newest` is (incarnation, first offset, records)
    of the producer's newest batch; None if nothing is known of that producer."""

    start: int
    end: int
    at: int | None = None
    groups: dict[str, GroupEntry] = {}
    newest: tuple[int, int, int] | None = None


class GroupState(_Body, frozen=True, tag="alive"):
    """A group as it is: its members, sorted, and those of them that have settled in this generation."""

    generation: int
    members: tuple[str, ...]
    settled: tuple[str, ...]


class Lent(_Body, frozen=True, tag="lent"):
    """What a session is lent."""

    parcels: tuple[Parcel, ...] = ()


class Turned(_Body, frozen=True, tag="turned"):
    """Nothing of a settlement was done, nor will be, because of these of its tokens."""

    text: str
    tokens: tuple[TokenRun, ...]


class Looked(_Body, frozen=True, tag="looked"):
    """One shelf of a queue: how many messages are not done, how many of those are lent, and to which session
    how many, by a digest of its id; the offset behind the newest, and when the oldest came. `letters` are all
    dead letters at home, and the bytes are those of the whole queue. `parcels` have no tokens."""

    count: int
    lent: int
    holders: dict[str, int]
    end: int
    oldest_ns: int | None
    letters: int
    used_bytes: int
    capacity_bytes: int
    parcels: tuple[Parcel, ...] = ()


class Transacted(_Body, frozen=True, tag="transacted"):
    """What became of each entry: encoded results of `hawser.log.state.results`."""

    results: tuple[bytes, ...]


class BranchSeen(msgspec.Struct, frozen=True, array_like=True):
    """What a transaction has on a shard; `home` decides, once it is prepared. Its age is counted by whoever
    leads: since it began to, or if somebody wrote down when it was prepared, since then."""

    xid: XidFields
    incarnation: int
    prepared: bool
    home: str
    operations: int
    size_bytes: int
    age_seconds: float


class RecordSeen(msgspec.Struct, frozen=True, array_like=True):
    """What home knows of a transaction: its `hawser.transaction.xa.table.State`; once decided `Outcome`, and
    why if a person did; how many operations each shard has; the shards that have not heard the outcome."""

    xid: XidFields
    incarnation: int
    state: str
    outcome: int | None
    heuristic: str
    participants: dict[str, int]
    waiting: tuple[str, ...]
    timeout_seconds: int
    age_seconds: float


class TransactionsSeen(_Body, frozen=True, tag="transactions"):
    """Those with branches on a shard, and those that it decides. Of the one that was asked about: outcome, if
    it is decided (of home as `Ledger.outcome` has it), and incarnation; 0 if nothing is known of it here.
    Of an application: the first batch that is not decided, and the source of the one before."""

    branches: tuple[BranchSeen, ...]
    records: tuple[RecordSeen, ...]
    outcome: int | None = None
    incarnation: int = 0
    source: bytes = b""


class AdminDone(_Body, frozen=True, tag="done"):
    done: bool
    text: str


class ShardReport(msgspec.Struct, frozen=True, array_like=True):
    """A shard on a node: its member's name there, its status as the log protocol encodes it, and why it
    halted, if it did."""

    member: str
    status: bytes
    halted: str | None


class Rolled(_Body, frozen=True, tag="rolled"):
    """The seconds by which the node's wall clock is ahead of the time that half of the nodes' clocks have
    reached, if it knows any, and whether no majority confirms it."""

    cluster: str
    incarnation: int
    free_bytes: int
    shards: dict[str, ShardReport]
    clock_ahead_seconds: float | None = None
    clock_is_wrong: bool = False


class ClockReading(_Body, frozen=True, tag="clock"):
    """The wall clock of the node, in nanoseconds."""

    time_ns: int


class Hosted(_Body, frozen=True, tag="hosted"):
    member: str


class Code(StrEnum):
    """Why a request was not carried out."""

    NOT_LEADER = "not leader"
    NOT_FOUND = "not found"
    BUSY = "busy"
    FULL = "disk full"
    QUEUE_FULL = "queue full"
    OUT_OF_RANGE = "out of range"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    BAD_REQUEST = "bad request"
    DAMAGED = "damaged"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "Code":
        """That of a newer node: the rest of its answer says what to do."""
        return cls.OTHER


class Failed(_Body, frozen=True, tag="failed"):
    """`outcome` is "unknown" if it may have taken effect. `leader` is the node to ask instead, with its
    address; `start` and `end` are the bounds that the request was out of."""

    code: Code
    text: str
    retryable: bool
    outcome: Literal["none", "applied", "unknown"] = "none"
    leader: tuple[str, str] | None = None
    start: int = 0
    end: int = 0


Told = Deliver | MapPushed
Request = (
    GetMap | Publish | Execute | Fetch | Inspect | KeepAlive | QueuePut | QueueGet | QueueSettle | QueueLook
    | Transact | TransactionLook | Admin | RollCall | Host | AskClock
)  # fmt: skip
Answer = (
    Map | Batches | Executed | Inspected | GroupState | AdminDone | Rolled | Hosted | ClockReading | Failed
    | Lent | Turned | Looked | Transacted | TransactionsSeen
)  # fmt: skip

encode: Final = msgspec.msgpack.Encoder().encode


def _decoder(kind: Any) -> Callable[[bytes | bytearray], Any]:
    """Raises msgspec.DecodeError, whatever the bytes are."""
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
