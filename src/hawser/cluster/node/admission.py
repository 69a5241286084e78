"""Who may have which entries written, as far as transactions go, and what they must look like.

Clients work in transactions, and ask home to end them. On lanes, which are their own, they also have branches
prepared, and end the one that decides about the others. That home has decided is said by the nodes that lead
it, and by nobody else. Operators close shards that are to be deleted.
A request with one entry that is not allowed, or that cannot be read, is refused whole.
"""

import time
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import msgspec

from hawser.cluster.maps import topic_of
from hawser.cluster.transport import PeerRole
from hawser.cluster.wire import HOMES, Code, Failed, Labelled, QueueLock, Transact
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit
from hawser.record.batch import BadBatch, Batch
from hawser.transaction import commands as c
from hawser.transaction.identity import LANE_FORMAT, Label

__all__ = ["OPERATIONS", "Admitted", "admit", "is_of_home", "of_another_kind", "read_batch"]

_MOST_AHEAD_NS: Final = 3600 * 10**9

# Operations, and whose shard each is for.
OPERATIONS: Final[dict[int, str]] = {
    Kind.BATCH: "topic",
    Kind.QUEUE_PUT: "queue",
    Kind.QUEUE_SETTLE: "queue",
    Kind.GROUP_COMMIT: "topic",
}
_OF_BRANCHES: Final = frozenset({*OPERATIONS, Kind.BRANCH_PREPARE, Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT})
_PAYLOADS: Final[dict[int, Any]] = {
    Kind.QUEUE_SETTLE: QueueLock,
    Kind.GROUP_COMMIT: GroupCommit,
    Kind.BRANCH_PREPARE: c.BranchPrepare,
    Kind.BRANCH_COMMIT: c.BranchCommit,
    Kind.BRANCH_ABORT: c.BranchAbort,
    Kind.BRANCH_LIMIT: c.BranchLimit,
    Kind.HOME_CALL: c.HomeCall,
    Kind.HOME_CLOSE: c.HomeClose,
    Kind.HOME_DECIDE: c.HomeDecide,
    Kind.HOME_BATCH: c.HomeBatch,
}
_OF_HOME: Final = frozenset(kind for kind in _PAYLOADS if kind >= Kind.HOME_CALL)
_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    kind: msgspec.msgpack.Decoder(payload).decode for kind, payload in _PAYLOADS.items()
}


class Admitted(NamedTuple):
    """An entry that may be written: `command` is its payload, read; of a batch, None. It `may_wait` for what
    a client sends, unless it is the client's itself."""

    kind: int
    payload: bytes
    label: Label | None
    encoded_label: bytes
    command: Any
    may_wait: bool


def is_of_home(kind: int) -> bool:
    """Whether entries of this kind are about what is decided on a shard that is there for it."""
    return kind in _OF_HOME


def read_batch(data: bytes, for_queue: bool) -> Batch | Failed:
    """A batch as a client may send it."""
    try:
        batch = Batch.read(data)
        batch.check()
    except BadBatch as error:
        return _bad(f"the batch cannot be read: {error}")
    if batch.header.latest_ns > time.time_ns() + _MOST_AHEAD_NS:
        # Retention by age would keep everything behind it until then.
        return _bad("a timestamp is more than an hour ahead of this node's clock; set the clocks")
    if for_queue and batch.header.compression:
        return _bad("a queue takes messages one by one out of a batch; send it without compression")
    return batch


def of_another_kind(shard: str, residents: Collection[str], wanted: str) -> Failed:
    """It was asked for something that whoever lives there does not do."""
    kinds = " and ".join(
        "the homes of transactions" if each == "homes" else f"a {each}" for each in residents
    )
    return _bad(f"shard {shard} is that of {kinds}, not of a {wanted}")


def admit(request: Transact, role: PeerRole, residents: Collection[str]) -> list[Admitted] | Failed:
    """The entries of a request of such a peer, for a shard where these live, if that is known."""
    # By its name: a node may lead it before it has a map.
    at_home = topic_of(request.shard) == HOMES
    admitted: list[Admitted] = []
    for each in request.entries:
        found = _admit(each, role, at_home)
        if isinstance(found, Failed):
            return found
        wanted = OPERATIONS.get(found.kind)
        if wanted is not None and residents and wanted not in residents:
            return of_another_kind(request.shard, residents, wanted)
        if role is not PeerRole.NODE and _is_for_home(found):
            return _bad("only home has this transaction prepared or committed; ask home to")
        if role is not PeerRole.NODE and _is_for_nobody(found, request.shard):
            return _bad("another shard that the transaction touches decides, and not a home apart")
        admitted.append(found)
    return admitted


def _admit(each: Labelled, role: PeerRole, at_home: bool) -> Admitted | Failed:
    kind = each.kind
    is_limit = kind == Kind.BRANCH_LIMIT and role is PeerRole.OPERATOR
    if not is_limit and kind not in (_OF_HOME if at_home else _OF_BRANCHES):
        where = "on a home of transactions" if at_home else "on this shard"
        return _bad(f"a {role} cannot ask for an entry of kind {kind} {where}")
    command = None
    if kind in (Kind.BATCH, Kind.QUEUE_PUT):
        batch = read_batch(each.payload, kind == Kind.QUEUE_PUT)
        if isinstance(batch, Failed):
            return batch
    else:
        try:
            command = _READERS[kind](each.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _bad(f"an entry of kind {kind} cannot be read: {error}")
    if role is not PeerRole.NODE and _is_word_of_home(command):
        return _bad("only home says what was decided; ask home to commit or roll back")
    if kind not in _OF_BRANCHES:
        return Admitted(kind, each.payload, None, b"", command, False)
    label = Label.read(each.label)
    is_operation = kind in OPERATIONS
    if label is None or label.carried or is_operation != bool(label.number) or label.last > is_operation:
        return _bad(f"an entry of kind {kind} has a label that no client gives it")
    return Admitted(kind, each.payload, label, each.label, command, role is PeerRole.NODE)


def _is_for_home(asked: Admitted) -> bool:
    """Whether it prepares or commits what is not on a lane, or ends it for others: home would not know."""
    label = asked.label
    if label is None or label.id.xid.format == LANE_FORMAT:
        return False
    ends = asked.kind in (Kind.BRANCH_PREPARE, Kind.BRANCH_COMMIT)
    return label.last or ends or (asked.kind == Kind.BRANCH_ABORT and bool(asked.command.others))


def _is_for_nobody(asked: Admitted, shard: str) -> bool:
    """Whether it would wait for what never decides, or be told to what never heeds it: on a lane neither this
    shard itself nor a home apart does."""
    label = asked.label
    if label is not None and label.last:
        named: tuple[str, ...] = (label.home, *label.others)
    elif asked.kind == Kind.BRANCH_PREPARE:
        named = (asked.command.home,)
    elif asked.kind in (Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT):
        named = asked.command.others
    else:
        return False
    return shard in named or any(topic_of(each) == HOMES for each in named)


def _is_word_of_home(command: Any) -> bool:
    if isinstance(command, c.BranchCommit):
        return command.counts is None
    return isinstance(command, c.BranchAbort) and command.decided


def _bad(text: str) -> Failed:
    return Failed(Code.BAD_REQUEST, text, False)
