"""Events and effects of the protocol's state machines: the node and the operator.

`step(event) -> effects`. The caller carries the effects out in their order and may rely on nothing else:

1. `Persist` and `Truncate` are on disk before the next effect is carried out.
2. `Append` is written before the next effect. The caller syncs at any time, once for everything written, and
   reports `Synced`. A node acknowledges only reported entries, also for its own vote.
3. `Send` may be lost, repeated or delayed.
4. `Apply` brings the state machine to an index; all entries up to it are on the local disk.
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

# The caller's name for a request; the state machines return it unchanged.
Tag = object


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """What a member has durably promised.

    It ignores requests of epochs below `epoch`. If it `led` in `epoch`, it never becomes leader in it again.
    Its log contains the snapshot of epoch `installed`, so it does not replace the log for that epoch again.
    """

    epoch: int = 0
    led: bool = False
    installed: int = 0


class Command(msgspec.Struct, frozen=True):
    """An entry that a client proposes."""

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
    """Time has passed; unanswered requests are repeated."""


# Events of a node.


class Propose(msgspec.Struct, frozen=True):
    """Clients propose these entries, in this order."""

    commands: tuple[Command, ...]


class Read(msgspec.Struct, frozen=True):
    """A client requests a linearizable read."""

    tag: Tag


class Synced(msgspec.Struct, frozen=True):
    """The log through `index` is on disk."""

    index: int


class Installed(msgspec.Struct, frozen=True):
    """A pulled snapshot has replaced the log on disk, together with this promise. `epochs` are those of the
    new log, which ends at the last entry applied in the snapshot's state."""

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
    """Make `to` the head of the log."""

    to: EntryId


class Apply(msgspec.Struct, frozen=True):
    """Everything through `index` is committed and on the local disk."""

    index: int


class Pull(msgspec.Struct, frozen=True):
    """Pull a snapshot from `leader` instead of any pull in progress; the result is `Installed` with this
    promise, or `Abandoned`. The snapshot must end above entry `above`, because pieces of an earlier one may
    still arrive. Without a leader: stop pulling."""

    leader: Member | None
    promise: Promise
    above: int = 0


class Retire(msgspec.Struct, frozen=True):
    """Delete the log and all files of the member."""


class Answer(msgspec.Struct, frozen=True):
    """The command is committed and applied: its result is the one of entry `index`."""

    tag: Tag
    index: int


class Serve(msgspec.Struct, frozen=True):
    """The applied state is new enough for the read."""

    tag: Tag


class Reason(StrEnum):
    """Why a client's request was refused."""

    NOT_LEADER = "not leader"  # certainly not done; ask the leader
    BUSY = "busy"  # certainly not done; try again
    FULL = "disk full"  # certainly not done; the leader has no room
    TOO_LARGE = "too large"  # certainly not done; no entry can hold it
    UNSUPPORTED = "unsupported"  # certainly not done; this version does not know the kind of entry
    UNKNOWN = "unknown"  # a write that may or may not take effect


class Refuse(msgspec.Struct, frozen=True):
    tag: Tag
    reason: Reason


class Halt(msgspec.Struct, frozen=True):
    """Stop the member: an invariant is broken or, with `disk_lost`, its disk failed."""

    reason: str
    disk_lost: bool = False


# Events and effects of an operator.


class Loaded(msgspec.Struct, frozen=True):
    """The metadata in the store: the answer to `Load`, and to `Store` whether or not it took effect."""

    metadata: Metadata


class Load(msgspec.Struct, frozen=True):
    """Read the metadata."""


class Store(msgspec.Struct, frozen=True):
    """Write the metadata if the store has the version before it (compare-and-set)."""

    metadata: Metadata


class Report(msgspec.Struct, frozen=True):
    """The order with this tag is done, or has failed for this reason."""

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
    """Make `to` the leader without losing a write and without waiting for a failure to be detected."""

    to: Member
    tag: Tag = None


class Reconfigure(msgspec.Struct, frozen=True):
    """Change the ensemble; a leader that is to be removed hands over first. An order sets the number of
    copies. A repair does not: it contracts the shard, then expands it again up to that number."""

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
