"""What a person or a placement asks an operator to do with a shard; each is answered by one Report."""

import msgspec

from hawser.log.protocol.doors import Tag
from hawser.log.protocol.messages import Change, ChangeKind, Member

__all__ = ["Contract", "Elect", "Expand", "Order", "Reconfigure", "Swap", "Transfer"]


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
