"""Who may have which batches and entries of transactions written, and what they must look like.

Clients work in transactions, and ask home to end them. On lanes, which are their own, they also have branches
prepared, and end the one that decides about the others. What home has decided, and what it delivers, is said
by the nodes that lead it, and by nobody else; so is what nodes put under names of their own. Operators close
shards that are to be deleted.
A request with one entry that is not allowed, or that cannot be read, is refused whole.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from hawser.cluster.shard_map import topic_of
from hawser.cluster.transport import PeerRole
from hawser.cluster.wire import HOMES, Code, Failed, Labelled, QueueLock, Transact
from hawser.limits import CONSUMER_PREFIX, DEAD_LETTERS_PREFIX
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit
from hawser.record.batch import BadBatch, Batch
from hawser.transaction import commands as c
from hawser.transaction.identity import LANE_FORMAT, Label

__all__ = ["OPERATIONS", "Admitted", "admit", "is_of_coordinator", "of_another_kind", "read_batch"]

_PRODUCERS_OF_NODES: Final = (CONSUMER_PREFIX.encode(), DEAD_LETTERS_PREFIX.encode())

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
    Kind.HOME_CALL: c.CoordinatorCall,
    Kind.HOME_CLOSE: c.CoordinatorClose,
    Kind.HOME_DECIDE: c.CoordinatorDecide,
    Kind.HOME_BATCH: c.CoordinatorBatch,
}
_OF_HOME: Final = frozenset(kind for kind in _PAYLOADS if kind >= Kind.HOME_CALL)
_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    kind: msgspec.msgpack.Decoder(payload).decode for kind, payload in _PAYLOADS.items()
}


class Admitted(msgspec.Struct, frozen=True):
    """An entry that may be written: `command` is its payload, read; of a batch, None. It `may_wait` for what
    a client sends, unless it is the client's itself."""

    kind: int
    payload: bytes
    label: Label | None
    encoded_label: bytes
    command: Any
    may_wait: bool


def is_of_coordinator(kind: int) -> bool:
    """Whether entries of this kind are about what is decided on a shard that is there for it."""
    return kind in _OF_HOME


def read_batch(data: bytes, for_queue: bool, is_node: bool = False) -> Batch | Failed:
    """A batch as a client or a node may send it. Its time stamps may have any value: retention does not use
    them, and a node cannot tell whether its own clock or the producer's is right."""
    try:
        batch = Batch.read(data)
        batch.check()
    except BadBatch as error:
        return _bad(f"the batch cannot be read: {error}")
    if not is_node and batch.header.producer.startswith(_PRODUCERS_OF_NODES):
        # What is numbered there would be taken for done.
        return _bad(f"only nodes are producers like {batch.header.producer[:64]!r}; take another name")
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
    allowed = _OF_HOME if at_home else _OF_BRANCHES
    if role is PeerRole.OPERATOR:
        allowed |= {Kind.BRANCH_LIMIT}
    is_node = role is PeerRole.NODE
    admitted: list[Admitted] = []
    for each in request.entries:
        if each.kind not in allowed:
            where = "on a home of transactions" if at_home else "on this shard"
            return _bad(f"a {role} cannot ask for an entry of kind {each.kind} {where}")
        found = _admit(each, is_node)
        if isinstance(found, Failed):
            return found
        wanted = OPERATIONS.get(found.kind)
        if wanted is not None and residents and wanted not in residents:
            return of_another_kind(request.shard, residents, wanted)
        if not is_node and _is_for_coordinator(found):
            return _bad("only home has this transaction prepared or committed; ask home to")
        if not is_node and _is_for_nobody(found, request.shard):
            return _bad("another shard that the transaction touches decides, and not a home apart")
        if found.kind == Kind.BRANCH_COMMIT and found.command.deliveries:
            refused = _refuse_deliveries(found)
            if refused is not None:
                return refused
        admitted.append(found)
    return admitted


def _admit(each: Labelled, is_node: bool) -> Admitted | Failed:
    kind, command = each.kind, None
    read = _READERS.get(kind)
    if read is None:
        # Home has looked at what it delivers, and cannot take it back.
        batch = None if is_node else read_batch(each.payload, OPERATIONS[kind] == "queue")
        if isinstance(batch, Failed):
            return batch
    else:
        try:
            command = read(each.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _bad(f"an entry of kind {kind} cannot be read: {error}")
        if not is_node and _is_word_of_coordinator(command):
            return _bad("only home says what was decided; ask home to commit or roll back")
    if kind not in _OF_BRANCHES:
        return Admitted(kind, each.payload, None, b"", command, False)
    label = Label.read(each.label)
    is_operation = kind in OPERATIONS
    if label is None or label.carried or is_operation != bool(label.number) or label.last > is_operation:
        return _bad(f"an entry of kind {kind} has a label that no client gives it")
    if is_operation and bool(label.delivery) != is_node:
        return _bad("clients have operations staged, and homes what they deliver")
    return Admitted(kind, each.payload, label, each.label, command, is_node)


def _is_for_coordinator(asked: Admitted) -> bool:
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
        named: tuple[str, ...] = (label.coordinator,) if label.coordinator else label.others
    elif asked.kind == Kind.BRANCH_PREPARE:
        named = (asked.command.coordinator,)
    elif asked.kind == Kind.BRANCH_COMMIT:
        named = (*asked.command.others, *asked.command.deliveries)
    elif asked.kind == Kind.BRANCH_ABORT:
        named = asked.command.others
    else:
        return False
    return shard in named or HOMES in map(topic_of, named)


def _refuse_deliveries(asked: Admitted) -> Failed | None:
    """Why what goes with a commit cannot be for topics; None if it can."""
    assert asked.label is not None
    command, deliveries = asked.command, asked.command.deliveries
    if asked.label.id.xid.format != LANE_FORMAT or command.counts is None:
        return _bad("only the client of a lane has home deliver something")
    is_much = sum(map(len, deliveries.values())) > c.MOST_DELIVERED_BYTES
    if is_much or not deliveries.keys().isdisjoint(command.others):
        return _bad("what home delivers is small, and for shards that have not prepared anything")
    for batch in deliveries.values():
        found = read_batch(batch, for_queue=False)
        if isinstance(found, Failed):
            return found
        if found.header.producer:
            return _bad("what home delivers has no producer: home is one")
    return None


def _is_word_of_coordinator(command: Any) -> bool:
    if isinstance(command, c.BranchCommit):
        return command.counts is None
    return isinstance(command, c.BranchAbort) and command.decided


def _bad(text: str) -> Failed:
    return Failed(Code.BAD_REQUEST, text, False)
