"""What the bus tells about itself: plain records, ready for JSON."""

from typing import Any, Literal, NamedTuple

import msgspec

from hawser.memory import Sample

__all__ = ["DomainFile", "KeptPosition", "Participant", "ReadResult", "Recovered", "TopicInfo"]


class ReadResult(NamedTuple):
    """Copies read from a topic's history, oldest first.

    `last` is the offset read up to: pass it as `after` to go on. `missed` counts the samples between
    `after` and the first one here that are no longer kept.
    """

    samples: list[Sample]
    last: int
    missed: int


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher or subscriber of a topic, alive or not yet recovered."""

    topic: str
    kind: Literal["publisher", "subscriber"]
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
    """What recovery returned of one dead participant; not `complete` while another one is at it."""

    topic: str
    kind: Literal["publisher", "subscriber"]
    name: str
    pid: int
    incarnation: int
    slots: int
    references: int
    complete: bool


class DomainFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in a domain's directory.

    `state`: "topic"; "leftover", an ephemeral topic nobody uses any more; "earlier boot"; "other version";
    "lock", the domain's own; "foreign", none of Hawser's; "unreadable". `in_use` while somebody alive has
    it open."""

    file: str
    topic: str | None
    state: Literal["topic", "leftover", "earlier boot", "other version", "lock", "foreign", "unreadable"]
    in_use: bool
    uid: int
    mode: int


class KeptPosition(msgspec.Struct, frozen=True, kw_only=True):
    """A position kept under a name: everything up to offset `mark` is done."""

    name: str
    mark: int
    durable: bool
    max_lag: int
    held: bool


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it is now. `unused` are the settings given here that have no meaning on one host.

    `configured_bytes` is what its settings allow, `resident_bytes` what it takes now; `recoveries` counts
    how often dead participants were recovered.
    """

    name: str
    path: str
    uuid: str
    settings: dict[str, Any]
    unused: dict[str, Any]
    head: int
    oldest: int
    ring: int
    slots: int
    slots_lent: int
    slots_referenced: int
    slots_carried: int
    slots_free: int
    slots_leaked: int
    configured_bytes: int
    resident_bytes: int
    created_ns: int
    recoveries: int
    participants: list[Participant]
    records: list[KeptPosition]
