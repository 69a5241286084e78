"""The messages of the protocol.

A shard has members. A member is a node together with one of its disks; a node that lost its disk becomes
another member, so no member relies on lost data. Messages concern one shard, which their envelope names.

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
    """The role of a node in a shard. Only the epoch, and whether the node led in it, survive a restart."""

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
        """The ensemble after the change."""
        kept = tuple(member for member in members if member != self.old)
        return kept if self.new is None else (*kept, self.new)


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages."""

    epoch: Number


# Elections: the operator with every node of the fencing ensemble, then with the leader it chose.


class FenceRequest(Message, frozen=True, tag="fence"):
    """Operator to node: ignore earlier epochs from now on."""


class FenceResponse(Message, frozen=True, tag="fenced"):
    head: EntryId


class BecomeLeaderRequest(Message, frozen=True, tag="lead"):
    """Operator to the chosen node: lead. `members` is the final ensemble, `followers` are the known heads."""

    members: tuple[Member, ...]
    followers: dict[Member, EntryId]


class BecomeLeaderResponse(Message, frozen=True, tag="leads"):
    pass


class AddFollowerRequest(Message, frozen=True, tag="add"):
    """Operator to leader: attach this member, which was fenced later."""

    follower: Member
    head: EntryId


class AddFollowerResponse(Message, frozen=True, tag="added"):
    follower: Member


# Replication: the leader with its followers.


class TruncateRequest(Message, frozen=True, tag="truncate"):
    """Leader to a follower whose head is not in the leader's log: drop the entries above `target`.

    `head` is the follower's head that the leader knows; a follower with another head by now only reports it.
    """

    head: EntryId
    target: EntryId


class TruncateResponse(Message, frozen=True, tag="truncated"):
    head: EntryId


class SnapshotNeeded(Message, frozen=True, tag="snapshot needed"):
    """Leader to a follower whose next entry was removed: pull a snapshot. Answered by a TruncateResponse with
    the new head. `head` as in TruncateRequest."""

    head: EntryId


class AddEntriesRequest(Message, frozen=True, tag="entries"):
    """Leader to follower: these follow the entry `previous`; `commit` is the leader's commit index."""

    previous: EntryId
    entries: tuple[Entry, ...]
    commit: Number


class AddEntriesResponse(Message, frozen=True, tag="have"):
    """Everything up to `head` is on the follower's disk. `accepted` is false if `previous` was missing; the
    leader then continues from `head`. `current` is above `epoch` if the leader was deposed."""

    head: EntryId
    accepted: bool
    current: Number


class HeartbeatRequest(Message, frozen=True, tag="beat"):
    """Leader to follower: a numbered heartbeat, which confirms leadership for reads and carries the commit
    index."""

    number: Number
    commit: Number


class HeartbeatResponse(Message, frozen=True, tag="beaten"):
    """`head` is set if everything the follower has is on its disk; `commit` is its commit index; `current` as
    in AddEntriesResponse."""

    number: Number
    head: EntryId | None
    commit: Number
    current: Number


# Reconfigurations: the operator with the leader and the new node, which pulls its snapshot from the leader.


class PrepareReconfigurationRequest(Message, frozen=True, tag="prepare"):
    """Operator to leader: enter this epoch and stop sending to the old member."""

    change: Change


class PrepareReconfigurationResponse(Message, frozen=True, tag="prepared"):
    change: Change


class SnapshotRequest(Message, frozen=True, tag="snapshot"):
    """Operator to the new node: install a snapshot of `leader`."""

    leader: Member


class SnapshotResponse(Message, frozen=True, tag="installed"):
    head: EntryId


class CommitReconfigurationRequest(Message, frozen=True, tag="commit"):
    """Operator to leader: use the changed ensemble from now on. `head` is the new member's."""

    change: Change
    head: EntryId


class CommitReconfigurationResponse(Message, frozen=True, tag="committed"):
    """`safe` is false if removing the old member now could lose a committed entry; the operator asks
    again."""

    change: Change
    safe: bool


class AbortReconfigurationRequest(Message, frozen=True, tag="abort"):
    """Operator to leader: drop the prepared change."""

    change: Change


class AbortReconfigurationResponse(Message, frozen=True, tag="aborted"):
    change: Change


# Care: handing over, retirement, probes.


class HandOverRequest(Message, frozen=True, tag="hand over"):
    """Operator to leader: take no more writes, and report when `successor` has everything. Without a
    successor: take writes again."""

    successor: Member | None


class HandOverResponse(Message, frozen=True, tag="ready"):
    successor: Member | None


class RetireRequest(Message, frozen=True, tag="retire"):
    """Operator to a member that was removed in this epoch or earlier: delete all data."""


class RetireResponse(Message, frozen=True, tag="retired"):
    pass


class StatusRequest(Message, frozen=True, tag="ask"):
    """Operator to node: report the status. Answered in any role, without a change. The epoch is the
    operator's."""


class StatusResponse(Message, frozen=True, tag="status"):
    """The epoch is the node's. `incarnation` is that of its process; `pulled` counts the bytes of a snapshot
    being pulled; `reading` is the heartbeat that a leader's reads wait for, or 0; `lag` has the entries that
    each follower lacks."""

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


# Snapshots: a member pulls one from the leader, piece by piece.


class ReadSnapshotRequest(Message, frozen=True, tag="read"):
    """Requests the piece at `part` and `position`; `snapshot` 0 requests a new snapshot."""

    snapshot: Number
    part: Number
    position: Number


class ReadSnapshotResponse(Message, frozen=True, tag="piece"):
    """A piece of a part. `snapshot` 0 means that the snapshot is gone and the pull must start again. `last`
    ends the part, `done` the snapshot."""

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
    """The message in these bytes; msgspec.DecodeError for any other bytes."""
    try:
        return _decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a message: {error}") from error
