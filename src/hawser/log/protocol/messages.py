"""Every message of the protocol, who sends it to whom, and what it says.

A shard has members. A member is a node together with one of its disks: a node that lost its disk is another
member, so nobody ever counts on what is gone. Messages are about one shard; the envelope that carries them
names it.

Every request may be lost, repeated and reordered. It carries the epoch it belongs to, and its answer echoes
that epoch.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from hawser.log.entry import Entry, EntryId, Number

__all__ = [
    "AbortReconfigurationRequest",
    "AbortReconfigurationResponse",
    "AddEntriesRequest",
    "AddEntriesResponse",
    "AddFollowerRequest",
    "AddFollowerResponse",
    "BecomeLeaderRequest",
    "BecomeLeaderResponse",
    "Change",
    "ChangeKind",
    "CommitReconfigurationRequest",
    "CommitReconfigurationResponse",
    "FenceRequest",
    "FenceResponse",
    "HandOverRequest",
    "HandOverResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "Member",
    "Message",
    "PrepareReconfigurationRequest",
    "PrepareReconfigurationResponse",
    "ReadSnapshotRequest",
    "ReadSnapshotResponse",
    "RetireRequest",
    "RetireResponse",
    "Role",
    "SnapshotNeeded",
    "SnapshotRequest",
    "SnapshotResponse",
    "StatusRequest",
    "StatusResponse",
    "TruncateRequest",
    "TruncateResponse",
    "decode",
    "encode",
]

# A node and the disk it stores the shard on: "node.disk".
Member = str


class Role(StrEnum):
    """What a node is for a shard. Only the epoch, and whether it led in it, outlive a restart."""

    NOT_MEMBER = "not member"
    FENCED = "fenced"
    FOLLOWER = "follower"
    LEADER = "leader"


class ChangeKind(StrEnum):
    SWAP = "swap"
    EXPAND = "expand"
    CONTRACT = "contract"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A reconfiguration: a swap has both members, an expansion `new`, a contraction `old`."""

    kind: ChangeKind
    old: Member | None = None
    new: Member | None = None

    def applied_to(self, members: tuple[Member, ...]) -> tuple[Member, ...]:
        """The ensemble after it."""
        kept = tuple(member for member in members if member != self.old)
        return kept if self.new is None else (*kept, self.new)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What all of them have."""

    epoch: Number


# Elections: the operator with every node of the fencing ensemble, then with the leader it chose.


class FenceRequest(Message, frozen=True, tag="fence"):
    """Operator to node: do no more for any earlier epoch."""


class FenceResponse(Message, frozen=True, tag="fenced"):
    head: EntryId


class BecomeLeaderRequest(Message, frozen=True, tag="lead"):
    """Operator to the chosen node: `members` is the final ensemble, `followers` the heads that are known."""

    members: tuple[Member, ...]
    followers: dict[Member, EntryId]


class BecomeLeaderResponse(Message, frozen=True, tag="leads"):
    pass


class AddFollowerRequest(Message, frozen=True, tag="add"):
    """Operator to leader: this member was fenced late."""

    follower: Member
    head: EntryId


class AddFollowerResponse(Message, frozen=True, tag="added"):
    follower: Member


# Replication: the leader with its followers.


class TruncateRequest(Message, frozen=True, tag="truncate"):
    """Leader to follower whose head is not in the leader's log: drop what is above `target`.

    `head` is the head this answers; a follower that has another one by now does nothing but say so.
    """

    head: EntryId
    target: EntryId


class TruncateResponse(Message, frozen=True, tag="truncated"):
    head: EntryId


class SnapshotNeeded(Message, frozen=True, tag="snapshot needed"):
    """Leader to follower whose next entry it no longer has: pull a snapshot. Answered by a TruncateResponse
    with the new head. `head` as in TruncateRequest."""

    head: EntryId


class AddEntriesRequest(Message, frozen=True, tag="entries"):
    """Leader to follower: these follow the entry `previous`; `commit` is the leader's commit index."""

    previous: EntryId
    entries: tuple[Entry, ...]
    commit: Number


class AddEntriesResponse(Message, frozen=True, tag="have"):
    """Everything up to `head` is on the follower's disk. `accepted` is false if `previous` was not there:
    `head` is then where the leader goes on. `current` is above `epoch` if the leader was deposed."""

    head: EntryId
    accepted: bool
    current: Number


class HeartbeatRequest(Message, frozen=True, tag="beat"):
    """Leader to follower, numbered: proof of leadership for reads, and news of the commit index."""

    number: Number
    commit: Number


class HeartbeatResponse(Message, frozen=True, tag="beaten"):
    """`head` is there when everything the follower has is on its disk; `commit` is its commit index by now;
    `current` as in AddEntriesResponse."""

    number: Number
    head: EntryId | None
    commit: Number
    current: Number


# Reconfigurations: the operator with the leader and the new node, which pulls its snapshot from the leader.


class PrepareReconfigurationRequest(Message, frozen=True, tag="prepare"):
    """Operator to leader: move to this epoch, stop sending to the old member."""

    change: Change


class PrepareReconfigurationResponse(Message, frozen=True, tag="prepared"):
    change: Change


class SnapshotRequest(Message, frozen=True, tag="snapshot"):
    """Operator to new node: become what `leader` is."""

    leader: Member


class SnapshotResponse(Message, frozen=True, tag="installed"):
    head: EntryId


class CommitReconfigurationRequest(Message, frozen=True, tag="commit"):
    """Operator to leader: from now on the ensemble is the changed one. `head` is the new member's."""

    change: Change
    head: EntryId


class CommitReconfigurationResponse(Message, frozen=True, tag="committed"):
    """`safe` is false if removing the old member now could lose a committed entry: ask again later."""

    change: Change
    safe: bool


class AbortReconfigurationRequest(Message, frozen=True, tag="abort"):
    """Operator to leader: the prepared change will not come."""

    change: Change


class AbortReconfigurationResponse(Message, frozen=True, tag="aborted"):
    change: Change


# Care: handing over, retirement, probes.


class HandOverRequest(Message, frozen=True, tag="hand over"):
    """Operator to leader: take no more writes and say when `successor` has everything. Without a successor:
    go on."""

    successor: Member | None


class HandOverResponse(Message, frozen=True, tag="ready"):
    successor: Member | None


class RetireRequest(Message, frozen=True, tag="retire"):
    """Operator to a member that was removed in this epoch or before: delete everything."""


class RetireResponse(Message, frozen=True, tag="retired"):
    pass


class StatusRequest(Message, frozen=True, tag="ask"):
    """Operator to node; answered in any role, changes nothing. The epoch is the operator's."""


class StatusResponse(Message, frozen=True, tag="status"):
    """The epoch is the node's. `incarnation` changes when its process does; `pulled` counts the bytes of the
    snapshot that is being pulled; `reading` is the heartbeat that a leader's reads wait for, 0 if none does;
    `lag` is what its followers miss."""

    incarnation: Number
    role: Role
    led: bool
    handing_over: bool
    head: EntryId
    commit: Number
    applied: Number
    pulled: Number
    reading: Number
    members: tuple[Member, ...]
    change: Change | None
    lag: dict[Member, Number]


# Snapshots: whoever needs one pulls it from the leader, piece by piece.


class ReadSnapshotRequest(Message, frozen=True, tag="read"):
    """`snapshot` 0 asks for a new one. `part` and `position` say which piece comes next."""

    snapshot: Number
    part: Number
    position: Number


class ReadSnapshotResponse(Message, frozen=True, tag="piece"):
    """A piece of a part. `snapshot` 0: there is no such snapshot (any more), start again. `last` closes the
    part, `done` the snapshot."""

    snapshot: Number
    part: Number
    position: Number
    data: bytes
    last: bool
    done: bool


def _to_wire(value: object) -> bytes:
    assert isinstance(value, Entry), value
    return value.frame


def _from_wire(kind: type, value: Any) -> Entry:
    assert kind is Entry
    if not isinstance(value, bytes):
        raise ValueError("an entry is a binary frame")
    entry = Entry.read(value)
    if len(entry.frame) != len(value):
        raise ValueError("bytes behind the frame of an entry")
    return entry


AnyMessage = (
    FenceRequest | FenceResponse | BecomeLeaderRequest | BecomeLeaderResponse
    | AddFollowerRequest | AddFollowerResponse | TruncateRequest | TruncateResponse
    | SnapshotNeeded | AddEntriesRequest | AddEntriesResponse | HeartbeatRequest | HeartbeatResponse
    | PrepareReconfigurationRequest | PrepareReconfigurationResponse | SnapshotRequest | SnapshotResponse
    | CommitReconfigurationRequest | CommitReconfigurationResponse
    | AbortReconfigurationRequest | AbortReconfigurationResponse | HandOverRequest | HandOverResponse
    | RetireRequest | RetireResponse | StatusRequest | StatusResponse
    | ReadSnapshotRequest | ReadSnapshotResponse
)  # fmt: skip

encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder(enc_hook=_to_wire).encode
_decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(AnyMessage, dec_hook=_from_wire).decode


def decode(data: bytes) -> Message:
    """The message in these bytes; msgspec.DecodeError if there is none, whatever else they are."""
    try:
        return _decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a message: {error}") from error
