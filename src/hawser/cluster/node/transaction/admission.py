"""Admission: which batches and entries of transactions a peer may have written, and the checks of their form.

| peer | may ask for |
|---|---|
| client | operations; on its lanes also prepares, and the end of the deciding branch; coordinator calls |
| node | the prepares, ends and deliveries of a coordinator; batches under producer names of nodes |
| operator | limits on new transactions, before it deletes a topic or queue |

A request is refused as a whole if one entry in it is not allowed or cannot be read.
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

# The operations, and the kind of shard that each is for.
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
    Kind.BRANCH_LIMIT: c.BranchLimitChange,
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
    """An entry that may be written. `command` is its decoded payload, None for a batch. `may_wait` says that
    the entry may wait for the client's operations: it came from another node, not from the client itself."""

    kind: int
    payload: bytes
    label: Label | None
    encoded_label: bytes
    command: Any
    may_wait: bool


def is_of_coordinator(kind: int) -> bool:
    """Whether entries of this kind are for a coordinator shard."""
    return kind in _OF_HOME


def read_batch(data: bytes, for_queue: bool, is_node: bool = False) -> Batch | Failed:
    """Reads a batch of a client or a node, or says what is wrong with it. Time stamps may have any value:
    retention does not use them, and a node cannot tell whether its own clock or the producer's is right."""
    try:
        batch = Batch.read(data)
        batch.check()
    except BadBatch as error:
        return _bad(f"the batch cannot be read: {error}")
    if not is_node and batch.header.producer.startswith(_PRODUCERS_OF_NODES):
        # A number under such a name would count as done.
        return _bad(
            f"producer name {batch.header.producer[:64]!r} is reserved for nodes; choose another name"
        )
    if for_queue and batch.header.compression:
        return _bad(
            "a queue delivers single messages, so its batches must not be compressed; send it uncompressed"
        )
    return batch


def of_another_kind(shard: str, residents: Collection[str], wanted: str) -> Failed:
    """The refusal of a request that is for another kind of shard."""
    kinds = " and ".join(
        "a transaction coordinator" if each == "homes" else f"a {each}" for each in residents
    )
    return _bad(f"shard {shard} holds {kinds}, not a {wanted}")


def admit(request: Transact, role: PeerRole, residents: Collection[str]) -> list[Admitted] | Failed:
    """The entries of a request that may be written, or the refusal. `residents` are what lives on the shard,
    if the node knows it."""
    # Judged by the shard's name, because a node may lead the shard before it has a map.
    at_home = topic_of(request.shard) == HOMES
    allowed = _OF_HOME if at_home else _OF_BRANCHES
    if role is PeerRole.OPERATOR:
        allowed |= {Kind.BRANCH_LIMIT}
    is_node = role is PeerRole.NODE
    admitted: list[Admitted] = []
    for each in request.entries:
        if each.kind not in allowed:
            where = "on a coordinator shard" if at_home else "on this shard"
            return _bad(f"a {role} cannot ask for an entry of kind {each.kind} {where}")
        found = _admit(each, is_node)
        if isinstance(found, Failed):
            return found
        wanted = OPERATIONS.get(found.kind)
        if wanted is not None and residents and wanted not in residents:
            return of_another_kind(request.shard, residents, wanted)
        if not is_node and _is_for_coordinator(found):
            return _bad("only the coordinator shard may prepare or commit this transaction; send it the call")
        if not is_node and _is_never_decided(found, request.shard):
            return _bad("another shard with a branch of the transaction has to decide it; name that shard")
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
        # The coordinator checked the batch before it decided, and cannot take the decision back.
        batch = None if is_node else read_batch(each.payload, OPERATIONS[kind] == "queue")
        if isinstance(batch, Failed):
            return batch
    else:
        try:
            command = read(each.payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _bad(f"an entry of kind {kind} cannot be read: {error}")
        if not is_node and _is_decision(command):
            return _bad("only the coordinator shard may send decisions; ask it to commit or roll back")
    if kind not in _OF_BRANCHES:
        return Admitted(kind, each.payload, None, b"", command, False)
    label = Label.read(each.label)
    is_operation = kind in OPERATIONS
    if label is None or label.carried or is_operation != bool(label.number) or label.last > is_operation:
        return _bad(f"the label does not fit an entry of kind {kind}")
    if is_operation and bool(label.delivery) != is_node:
        return _bad("operations come from clients, and deliveries from coordinator shards")
    return Admitted(kind, each.payload, label, each.label, command, is_node)


def _is_for_coordinator(asked: Admitted) -> bool:
    """Whether the entry prepares, commits or ends for others a branch that is not on a lane: only the
    coordinator may do that."""
    label = asked.label
    if label is None or label.id.xid.format == LANE_FORMAT:
        return False
    ends = asked.kind in (Kind.BRANCH_PREPARE, Kind.BRANCH_COMMIT)
    return label.last or ends or (asked.kind == Kind.BRANCH_ABORT and bool(asked.command.others))


def _is_never_decided(asked: Admitted, shard: str) -> bool:
    """Whether the entry on a lane names this shard or a coordinator shard as the one that decides: neither
    ever decides a lane."""
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
    """Why the batches that a commit carries cannot be delivered to topics; None if they can."""
    assert asked.label is not None
    command, deliveries = asked.command, asked.command.deliveries
    if asked.label.id.xid.format != LANE_FORMAT or command.counts is None:
        return _bad("only the commit of a lane may carry batches to deliver")
    is_much = sum(map(len, deliveries.values())) > c.MOST_DELIVERED_BYTES
    if is_much or not deliveries.keys().isdisjoint(command.others):
        return _bad(f"a commit may carry at most {c.MOST_DELIVERED_BYTES} bytes, for shards without a branch")
    for batch in deliveries.values():
        found = read_batch(batch, for_queue=False)
        if isinstance(found, Failed):
            return found
        if found.header.producer:
            return _bad("a batch that a commit carries must not name a producer")
    return None


def _is_decision(command: Any) -> bool:
    if isinstance(command, c.BranchCommit):
        return command.counts is None
    return isinstance(command, c.BranchAbort) and command.decided


def _bad(text: str) -> Failed:
    return Failed(Code.BAD_REQUEST, text, False)
