"""Operations that a transaction has staged on a shard: how they are kept, committed and undone.

A batch stays in its log entry; memory holds the index of the entry. The batch takes its offsets when it is
committed. An accept locks its messages at once, with the number of their ended deliveries; undoing it returns
them with one more. A group position is checked when it is staged and again at prepare, and is locked from
then on.

After `obstacle` found nothing and `reserve` was called, a commit cannot fail.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hawser.log.entry import HEADER_BYTES, Entry, Kind
from hawser.log.state.commands import GroupCommit, QueueSettle, Run, decoder
from hawser.log.state.groups import Groups
from hawser.log.state.part import Context
from hawser.log.state.queue import Queue, is_sound, size_of
from hawser.log.state.results import Outcome, Reason, Rejected
from hawser.log.state.topic import Topic
from hawser.record.batch import BadBatch, Header

__all__ = [
    "Operation",
    "StagedAccept",
    "StagedBatch",
    "StagedMove",
    "commit",
    "is_deliverable",
    "obstacle",
    "reserve",
    "stage",
    "undo",
]

_read_settle = decoder(QueueSettle)
_read_move = decoder(GroupCommit)
_BAD = Rejected(Reason.BAD_PAYLOAD)
# Plain numbers, for the path on which every operation is applied.
_BATCH: Final = int(Kind.BATCH)
_PUT: Final = int(Kind.QUEUE_PUT)
_SETTLE: Final = int(Kind.QUEUE_SETTLE)
_MOVE: Final = int(Kind.GROUP_COMMIT)


class StagedBatch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """The records of entry `index`, for the topic or for the queue."""

    index: int
    records: int
    latest_ns: int
    size_bytes: int
    for_queue: bool


class StagedAccept(msgspec.Struct, frozen=True, array_like=True, tag="accept"):
    """Locked messages of a subqueue."""

    subqueue: int
    runs: tuple[Run, ...]


class StagedMove(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """A new position of a group."""

    command: GroupCommit


Operation = StagedBatch | StagedAccept | StagedMove


def stage(entry: Entry, before: Sequence[Operation], context: Context) -> Operation | Rejected:
    """Stage the operation of this entry behind earlier operations of its transaction; locks accepted
    messages."""
    kind = entry.kind
    if kind in (_BATCH, _PUT):
        return _stage_batch(entry)
    if kind == _SETTLE:
        return _stage_accept(entry, context)
    if kind == _MOVE:
        return _stage_move(entry, before, context)
    return _BAD


def _stage_batch(entry: Entry) -> Operation | Rejected:
    try:
        header = Header.read(entry.frame, HEADER_BYTES + entry.transaction_size)
    except BadBatch:
        return _BAD
    # The operation's number identifies a repeat; a producer's stamp could only make the commit fail.
    if header.producer:
        return _BAD
    size_bytes = size_of(entry, header.records)
    return StagedBatch(entry.index, header.records, header.latest_ns, size_bytes, entry.kind == _PUT)


def is_deliverable(batch: bytes) -> bool:
    """Whether a shard would stage this batch; if so, it can be delivered without a prepare."""
    try:
        return not Header.read(batch, 0).producer
    except BadBatch:
        return False


def carry(operation: Operation, entry: Entry) -> Operation | None:
    """The same operation with its batch in this later entry; None if the entry holds another batch.

    It keeps the size of the first entry, which is reserved. The first entry was larger if the operation
    prepared the branch, because its label also names the coordinator.
    """
    copy = _stage_batch(entry)
    if not isinstance(copy, StagedBatch) or not isinstance(operation, StagedBatch):
        return None
    moved = msgspec.structs.replace(operation, index=copy.index)
    return moved if msgspec.structs.replace(copy, size_bytes=operation.size_bytes) == moved else None


def _stage_accept(entry: Entry, context: Context) -> Operation | Rejected:
    command = _read_settle(entry)
    if command is None or not is_sound(command) or command.consumer or command.runs != command.accepted:
        return _BAD
    subqueue = context.part(Queue).subqueues[command.subqueue]
    for first, count, deliveries in sorted(command.accepted):
        if not subqueue.are_there(first, count, deliveries):
            return Rejected(Reason.LOCKED if subqueue.is_locked(first) else Reason.NOT_HELD, 0, first)
    for run in command.accepted:
        subqueue.lock(*run)
    return StagedAccept(command.subqueue, command.accepted)


def _stage_move(entry: Entry, before: Sequence[Operation], context: Context) -> Operation | Rejected:
    command = _read_move(entry)
    if command is None:
        return _BAD
    # The last move of a group is most often near the end.
    moves = (each.command for each in reversed(before) if isinstance(each, StagedMove))
    position = next((each.after for each in moves if each.group == command.group), None)
    return context.part(Groups).judge(command, context, position) or StagedMove(command)


def _positions(operations: Iterable[Operation]) -> dict[str, int]:
    """The final position of each group that these operations move."""
    return {each.command.group: each.command.after for each in operations if isinstance(each, StagedMove)}


def _put_bytes(operations: Iterable[Operation]) -> int:
    """The bytes that these operations put into the queue."""
    return sum(each.size_bytes for each in operations if isinstance(each, StagedBatch) and each.for_queue)


def obstacle(operations: Sequence[Operation], context: Context) -> Outcome | None:
    """The outcome that prevents a commit of these operations; None if they can be committed. Changes
    nothing."""
    put_bytes = 0
    positions: dict[str, int] = {}
    for each in operations:
        if isinstance(each, StagedBatch):
            put_bytes += each.size_bytes if each.for_queue else 0
        elif isinstance(each, StagedMove):
            command = each.command
            if context.part(Groups).judge(command, context, positions.get(command.group)) is not None:
                return Outcome.CONFLICT
            positions[command.group] = command.after
    if put_bytes and not context.part(Queue).has_room(put_bytes):
        return Outcome.NO_ROOM
    return None


def reserve(operations: Sequence[Operation], context: Context) -> None:
    """Reserve what the commit of these operations needs."""
    put_bytes = _put_bytes(operations)
    if put_bytes:
        context.part(Queue).reserved_bytes += put_bytes
    for group in _positions(operations):
        context.part(Groups).lock(group)


def release(operations: Sequence[Operation], context: Context) -> None:
    """Free what was reserved for these operations."""
    put_bytes = _put_bytes(operations)
    if put_bytes:
        context.part(Queue).reserved_bytes -= put_bytes
        assert context.part(Queue).reserved_bytes >= 0
    for group in _positions(operations):
        context.part(Groups).unlock(group)


def commit(operations: Sequence[Operation], context: Context, reserved: bool) -> None:
    """Apply these operations, in this order."""
    if reserved:
        release(operations, context)
    for each in operations:
        if isinstance(each, StagedBatch):
            _commit_batch(each, context)
        elif isinstance(each, StagedAccept):
            subqueue = context.part(Queue).subqueues[each.subqueue]
            for first, count, _ in each.runs:
                subqueue.settle(first, count)
        else:
            context.part(Groups).move(each.command)


def _commit_batch(batch: StagedBatch, context: Context) -> None:
    if batch.for_queue:
        subqueue = context.part(Queue).messages
        subqueue.append(batch.index, batch.records, batch.latest_ns, batch.size_bytes)
    else:
        context.part(Topic).commit_staged(batch.index, batch.records, batch.latest_ns)


def undo(operations: Sequence[Operation], context: Context, reserved: bool) -> None:
    """Discard these operations and unlock their messages."""
    if reserved:
        release(operations, context)
    for each in operations:
        if isinstance(each, StagedAccept):
            subqueue = context.part(Queue).subqueues[each.subqueue]
            for run in each.runs:
                subqueue.unlock(*run)
