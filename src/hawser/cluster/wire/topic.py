"""Requests of clients about topics and groups, and their answers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hawser.cluster.wire.messages import MAX_SESSION_SECONDS, MAX_WAIT_SECONDS, Body, Count

__all__ = [
    "Batches",
    "Execute",
    "Executed",
    "Fetch",
    "GroupEntry",
    "GroupState",
    "Inspect",
    "Inspected",
    "KeepAlive",
    "Publish",
    "Runs",
]


class Publish(Body, frozen=True, tag="publish"):
    """A batch for the leader of a shard. Answered when it is on the disks of a majority. A recorder says
    which sample it `follows`: a new batch is refused as a gap unless the newest one ends before that."""

    shard: str
    batch: bytes
    follows: Count = 0


class Execute(Body, frozen=True, tag="execute"):
    """Any other entry, such as a trim or a change of a group. The payload is one of
    `hawser.log.state.commands`."""

    shard: str
    kind: Count
    payload: bytes


class Executed(Body, frozen=True, tag="executed"):
    """The result of the entry, encoded as in `hawser.log.state.results`."""

    result: bytes


class Fetch(Body, frozen=True, tag="fetch"):
    """Asks any replica for the committed batches from `offset` on that it has applied. If there are none yet,
    it waits for them up to `wait_seconds` and then answers with none. Refused with OTHER_LOG if the record
    before `offset` is not of this `term`; with 0 that is not known."""

    shard: str
    offset: Count
    max_bytes: Annotated[int, Meta(gt=0)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]
    term: Count = 0


# The terms of records: runs of offsets, each from a first one on.
Runs = tuple[tuple[Count, Count], ...]


class Batches(Body, frozen=True, tag="batches"):
    """For each batch the offset of its first record and the payload of its entry; then the bounds of the
    partition as this replica has applied them, and the terms from the record before the first batch on."""

    batches: tuple[tuple[int, memoryview], ...]
    start: int
    end: int
    terms: Runs = ()


class Inspect(Body, frozen=True, tag="inspect"):
    """Asks the leader for the current state: the bounds of the partition, or of the queue on the shard, the
    first offset at a time, the groups, the newest batch of a producer, and the terms from an offset on."""

    shard: str
    at_ns: int | None = None
    groups: bool = False
    producer: bytes | None = None
    queue: bool = False
    terms_from: Count | None = None


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    """A group on one shard."""

    generation: int
    position: int
    members: tuple[str, ...]


class Inspected(Body, frozen=True, tag="inspected"):
    """`groups` are those of the shard, if the request asked for them. `newest` is (incarnation, first offset,
    records) of the producer's newest batch, or None if the shard knows none."""

    start: int
    end: int
    at: int | None = None
    groups: dict[str, GroupEntry] = msgspec.field(default_factory=dict)
    newest: tuple[int, int, int] | None = None
    terms: Runs = ()


class KeepAlive(Body, frozen=True, tag="keep alive"):
    """A heartbeat of a group member, which extends its session by `session_seconds` after the answer. The
    member knows the group in `generation`, in which `known_settled` members have settled, and has itself
    settled in generation `settled`. Answered when the group differs from that, or after `wait_seconds`;
    REJECTED if it is not a member."""

    shard: str
    group: str
    member: str
    generation: Count
    known_settled: Count
    settled: Count
    session_seconds: Annotated[float, Meta(gt=0, le=MAX_SESSION_SECONDS)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]


class GroupState(Body, frozen=True, tag="alive"):
    """The state of a group: its members, sorted, and those of them that have settled in this generation."""

    generation: int
    members: tuple[str, ...]
    settled: tuple[str, ...]
