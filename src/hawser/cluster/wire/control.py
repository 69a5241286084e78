"""Messages between operators and nodes, requests to operators, and the envelope of the log protocol."""

from enum import StrEnum

import msgspec

from hawser.cluster.wire.map import Map, Setting, TopicKind
from hawser.cluster.wire.messages import Body

__all__ = [
    "Admin",
    "AdminDone",
    "AdminKind",
    "AskClock",
    "ClockReading",
    "Deliver",
    "Host",
    "Hosted",
    "MapPushed",
    "RollCall",
    "Rolled",
    "ShardReport",
]


class Deliver(Body, frozen=True, tag="deliver"):
    """A message of the log protocol, from `sender` to the member `to` of `shard`."""

    shard: str
    to: str
    sender: str
    message: bytes


class MapPushed(Body, frozen=True, tag="pushed"):
    """Operator to node: what has changed in the map."""

    map: Map


class RollCall(Body, frozen=True, tag="roll call"):
    """Asks a node for its state and that of its shards. A node joins the first cluster whose operator sends
    its name; clients leave the name empty."""

    cluster: str = ""


class ShardReport(msgspec.Struct, frozen=True, array_like=True):
    """A shard on a node: the name of the member, its status as the log protocol encodes it, and why it
    halted, if it did."""

    member: str
    status: bytes
    halted: str | None


class Rolled(Body, frozen=True, tag="rolled"):
    """The state of a node. `clock_ahead_seconds` says by how much its wall clock is ahead of the time that
    half of the nodes' clocks have reached, if it knows any; `clock_is_wrong` that no majority confirms its
    clock."""

    cluster: str
    incarnation: int
    free_bytes: int
    shards: dict[str, ShardReport]
    clock_ahead_seconds: float | None = None
    clock_is_wrong: bool = False


class AskClock(Body, frozen=True, tag="ask clock"):
    """Node to node: asks for the time of day."""


class ClockReading(Body, frozen=True, tag="clock"):
    """The wall clock of the node, in nanoseconds."""

    time_ns: int


class Host(Body, frozen=True, tag="host"):
    """Asks a node to prepare a member of this shard. Answered with the name of the member that the node has,
    or now creates."""

    shard: str


class Hosted(Body, frozen=True, tag="hosted"):
    member: str


class AdminKind(StrEnum):
    CREATE = "create"
    DELETE = "delete"
    ELECT = "elect"
    TRANSFER = "transfer"
    SWAP = "swap"
    EXPAND = "expand"
    CONTRACT = "contract"
    DRAIN = "drain"


class Admin(Body, frozen=True, tag="admin"):
    """Asks an operator for a change; a node passes the request on. `name` is a topic or queue for create and
    delete, for drain the node that is to give up all leadership, else a shard. `nodes` are the arguments
    of the command. Delete affects only the topic or queue with this `uuid`, not a newer one of its name,
    so it may be repeated."""

    kind: AdminKind
    name: str
    nodes: tuple[str, ...] = ()
    partitions: int = 1
    settings: dict[str, Setting] = msgspec.field(default_factory=dict)
    topic_kind: TopicKind = "topic"
    uuid: str = ""


class AdminDone(Body, frozen=True, tag="done"):
    done: bool
    text: str
