"""What goes into the state machines of the protocol and what comes out.

`step(event) -> effects`. The caller carries the effects out in their order and may rely on nothing else:

1. `Persist` and `Truncate` are on disk before the next effect is looked at.
2. `Append` is written before the next effect; the caller syncs it when it likes, one sync for all that waits,
   and reports `Synced`. A node acknowledges nothing, its own share included, that was not reported.
3. `Send` may be lost, repeated, delayed.
4. `Apply` brings the state machine to an index, whose entries are all on the local disk.
5. `Answer`, `Serve` and `Refuse` end a request of a client. They come last.
"""

from enum import StrEnum

import msgspec

from hawser.log.entry import Entry, EntryId
from hawser.log.epochs import Epochs
from hawser.log.protocol.messages import Change, ChangeKind, Member, Message
from hawser.log.protocol.metadata import Metadata

__all__ = [
    "Abandoned",
    "Answer",
    "Append",
    "Apply",
    "Command",
    "Effect",
    "Event",
    "Halt",
    "Installed",
    "Load",
    "Loaded",
    "Persist",
    "Propose",
    "Pull",
    "Read",
    "Reason",
    "Receive",
    "Refuse",
    "Report",
    "Retire",
    "Send",
    "Serve",
    "Store",
    "Synced",
    "Tag",
    "Tick",
    "Truncate",
    "Promise",
    "Contract",
    "Elect",
    "Expand",
    "Order",
    "Reconfigure",
    "Swap",
    "Transfer",
]

# Whatever the caller finds a request by; the state machines only hand it back.
Tag = object


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """What a member has bound itself to, durably.

    It does nothing for an epoch below `epoch`; it never begins to lead in `epoch` again if it `led`; the
    snapshot of epoch `installed` is in its log, so it will not replace that log for this epoch again.
    """

    epoch: int = 0
    led: bool = False
    installed: int = 0


class Command(msgspec.Struct, frozen=True):
    """What a client wants to have in the log."""

    kind: int
    payload: bytes
    tag: Tag = None
    version: int = 1
    transaction: bytes = b""


# Events of both machines.


class Receive(msgspec.Struct, frozen=True):
    """A message arrived. Nodes hear from members and operators, operators from members."""

    sender: str
    message: Message


class Tick(msgspec.Struct, frozen=True):
    """Time passes; what was not answered is asked again."""


# Events of a node.


class Propose(msgspec.Struct, frozen=True):
    """Clients want these in the log, in this order."""

    commands: tuple[Command, ...]


class Read(msgspec.Struct, frozen=True):
    """A client wants to read what is certainly the newest state."""

    tag: Tag


class Synced(msgspec.Struct, frozen=True):
    """The log through `index` is on disk."""

    index: int


class Installed(msgspec.Struct, frozen=True):
    """A pulled snapshot is on disk in place of the log: whole, with this vow. `epochs` are those of the new
    log, which ends at the entry that the snapshot's state has applied."""

    promise: Promise
    epochs: Epochs


class Abandoned(msgspec.Struct, frozen=True):
    """The pull ended without a snapshot."""


# Effects of both.


class Send(msgspec.Struct, frozen=True):
    to: str
    message: Message


# Effects of a node.


class Persist(msgspec.Struct, frozen=True):
    promise: Promise


class Append(msgspec.Struct, frozen=True):
    entries: tuple[Entry, ...]


class Truncate(msgspec.Struct, frozen=True):
    """`to` is the head from now on."""

    to: EntryId


class Apply(msgspec.Struct, frozen=True):
    """Everything through `index` is committed and on the local disk."""

    index: int


class Pull(msgspec.Struct, frozen=True):
    """Pull a snapshot from `leader`, in place of any pull under way; the result is `Installed` with this vow,
    or `Abandoned`. It must end above entry `above`: pieces of an earlier one may still be on their way.
    Without a leader: stop pulling."""

    leader: Member | None
    promise: Promise
    above: int = 0


class Retire(msgspec.Struct, frozen=True):
    """Delete the log and everything with it; the member is no more."""


class Answer(msgspec.Struct, frozen=True):
    """The command is committed and applied: its result is the one of entry `index`."""

    tag: Tag
    index: int


class Serve(msgspec.Struct, frozen=True):
    """The applied state is now as new as the read asks for."""

    tag: Tag


class Reason(StrEnum):
    """Why a request of a client was not carried out."""

    NOT_LEADER = "not leader"  # certainly not done; ask the leader
    BUSY = "busy"  # certainly not done; ask again
    FULL = "disk full"  # certainly not done; the leader has no room
    TOO_LARGE = "too large"  # certainly not done; no entry can hold it
    UNSUPPORTED = "unsupported"  # certainly not done; this version does not know what it is
    UNKNOWN = "unknown"  # a write that may or may not come through


class Refuse(msgspec.Struct, frozen=True):
    tag: Tag
    reason: Reason


class Halt(msgspec.Struct, frozen=True):
    """The member does nothing any more: an invariant is broken or, if `disk_lost`, its disk is of no use."""

    reason: str
    disk_lost: bool = False


# Events and effects of an operator.


class Loaded(msgspec.Struct, frozen=True):
    """The metadata as the store has it: the answer to `Load`, and to `Store`, whether it took effect or
    came too late."""

    metadata: Metadata


class Load(msgspec.Struct, frozen=True):
    """Read the metadata."""


class Store(msgspec.Struct, frozen=True):
    """Compare-and-set: write it if the store has the version before it."""

    metadata: Metadata


class Report(msgspec.Struct, frozen=True):
    """The order with this tag is done, or is not and will not be, and why."""

    tag: Tag
    done: bool
    text: str


Event = Receive | Tick | Propose | Read | Synced | Installed | Abandoned | Loaded
Effect = (
    Send | Persist | Append | Truncate | Apply | Pull | Retire | Answer | Serve | Refuse | Halt
    | Load | Store | Report
)  # fmt: skip


class Elect(msgspec.Struct, frozen=True):
    """Hold an election now."""

    tag: Tag = None


class Transfer(msgspec.Struct, frozen=True):
    """Make `to` the leader, without losing a write or the time of a failure."""

    to: Member
    tag: Tag = None


class Reconfigure(msgspec.Struct, frozen=True):
    """Change the ensemble; a leader that is to go hands over first. An order sets how many copies are wanted.
    A repair does not: after its contraction it expands the shard again, and never beyond that number."""

    change: Change
    tag: Tag = None
    is_repair: bool = False


Order = Elect | Transfer | Reconfigure


def Swap(old: Member, new: Member, tag: Tag = None) -> Reconfigure:  # noqa: N802 - reads like its siblings
    return Reconfigure(Change(ChangeKind.SWAP, old, new), tag)


def Expand(new: Member, tag: Tag = None, is_repair: bool = False) -> Reconfigure:  # noqa: N802
    return Reconfigure(Change(ChangeKind.EXPAND, None, new), tag, is_repair)


def Contract(old: Member, tag: Tag = None, is_repair: bool = False) -> Reconfigure:  # noqa: N802
    return Reconfigure(Change(ChangeKind.CONTRACT, old, None), tag, is_repair)
