"""The state of topics, queues and domains as plain records, ready for JSON."""

from typing import Any, Literal, NamedTuple

import msgspec

from hawser.api.sample import Sample
from hawser.record.schema import described

__all__ = [
    "DomainFile",
    "KeptPosition",
    "Participant",
    "PartitionInfo",
    "QueueInfo",
    "QueueOwner",
    "ReadResult",
    "Recovered",
    "TopicInfo",
]


class ReadResult(NamedTuple):
    """Copies read from a topic's history, oldest first.

    `last` is the offset up to which was read: pass it as `after` to continue. `missed` counts the samples
    behind `after` and up to `last` that are no longer kept.
    """

    samples: list[Sample]
    last: int
    missed: int


ParticipantKind = Literal["publisher", "subscriber", "producer", "consumer"]


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher or subscriber of a topic, or a producer or consumer of a queue, alive or not yet recovered.
    `topic` is the name of either."""

    topic: str
    kind: ParticipantKind
    name: str
    pid: int
    uid: int
    incarnation: int
    state: str
    alive: bool
    started_ns: int
    joined_ns: int
    reliable: str
    cursor: int
    count: int
    missed: int
    held: int
    index: int


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What recovery returned of one dead participant: slots it had to write into, samples it read, messages
    it had claimed; not `complete` while another one is at it."""

    topic: str
    kind: ParticipantKind
    name: str
    pid: int
    incarnation: int
    slots: int
    references: int
    complete: bool
    claims: int = 0


class DomainFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a domain's directory.

    `state`: "topic" or "queue"; "leftover", an ephemeral one without users; "earlier boot"; "other
    version"; "lock" and "trace", the domain's own; "foreign", none of Hawser's; "unreadable". `topic` is the
    name of what is in it. `in_use` while a living process has it open."""

    file: str
    topic: str | None
    state: Literal[
        "topic",
        "queue",
        "leftover",
        "earlier boot",
        "other version",
        "lock",
        "trace",
        "foreign",
        "unreadable",
    ]
    in_use: bool
    uid: int
    mode: int


class KeptPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A position saved under a name: everything up to offset `mark` is done."""

    name: str
    mark: int
    durable: bool
    max_lag: int
    held: bool


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a topic on a cluster: it has the offsets from `start` up to but not including `end`.
    `leader` and `members` are nodes; without a leader nothing is known of the offsets, and both are 0."""

    partition: int
    shard: str
    epoch: int
    status: str
    leader: str | None
    members: list[str]
    start: int
    end: int


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a topic. `unused` are the settings given here that have no meaning in this scope.

    `head` and `oldest` are the newest and the oldest offset. On a cluster they cover all partitions that
    answer (one that does not has `end` 0 in `partitions`), and `participants` are the members of groups.
    `partitions` is empty on one host; every field behind it is about one host only: `configured_bytes` is
    what its settings allow, `resident_bytes` what it takes now; `recoveries` counts how often dead
    participants were recovered.
    """

    name: str
    uuid: str
    settings: dict[str, Any]
    unused: dict[str, Any]
    head: int
    oldest: int
    participants: list[Participant]
    partitions: list[PartitionInfo] = []
    path: str = ""
    ring: int = 0
    slots: int = 0
    slots_lent: int = 0
    slots_referenced: int = 0
    slots_carried: int = 0
    slots_free: int = 0
    slots_leaked: int = 0
    configured_bytes: int = 0
    resident_bytes: int = 0
    created_ns: int = 0
    recoveries: int = 0
    records: list[KeptPosition] = []


class QueueOwner(msgspec.Struct, frozen=True, kw_only=True):
    """A holder of messages of a queue: a process on one host; on a cluster a session, by a digest of its
    id."""

    name: str
    pid: int = 0
    session: str = ""
    claimed: int


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue. `unused` are the settings given here that have no meaning in this scope.

    `ready` messages wait for a consumer, `claimed` ones are held, and `dead` counts its dead letters, those
    that are yet to be moved included; what was moved to the queue that `dead_letter` names is a message of
    that one, and counted there only. `oldest_age_seconds` is that of the oldest message, held or not.
    `head` is the offset of the newest message. `used_bytes`, of `capacity_bytes`, and `partitions`, which has
    one, are about a cluster only; everything behind them is about one host only, as in `TopicInfo`.
    """

    name: str
    uuid: str
    settings: dict[str, Any]
    unused: dict[str, Any]
    ready: int
    claimed: int
    dead: int
    oldest_age_seconds: float | None
    head: int
    owners: list[QueueOwner]
    participants: list[Participant] = []
    used_bytes: int = 0
    partitions: list[PartitionInfo] = []
    path: str = ""
    slots: int = 0
    slots_lent: int = 0
    slots_referenced: int = 0
    slots_free: int = 0
    slots_leaked: int = 0
    configured_bytes: int = 0
    resident_bytes: int = 0
    created_ns: int = 0
    recoveries: int = 0
    records: list[KeptPosition] = []


for _kind in (Participant, Recovered, DomainFile, KeptPosition, TopicInfo, QueueInfo):
    described(_kind)
