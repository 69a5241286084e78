"""Operations of a transaction that wait to be sent: one ordered buffer for each shard.

Consecutive records become one batch; consecutive accepts of one session become one lock command.
"""

from collections.abc import Sequence
from typing import Final

from hawser.cluster.client.publish.batch import size_of
from hawser.cluster.client.queue.acknowledger import HeldMessage
from hawser.cluster.client.queue.session import QueueSession
from hawser.cluster.wire import encode
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit, encode_command
from hawser.record.batch import Batch, Compression
from hawser.record.rows import Records, Rows

__all__ = ["Accept", "OperationBuffer", "Move", "Put"]

# Approximate sizes on the wire.
_TOKEN_BYTES: Final = 16
_MOVE_BYTES: Final = 100


class Put:
    """Records for the topic or the queue of a shard."""

    def __init__(self, kind: Kind, compression: Compression, records: Records) -> None:
        self.kind = kind
        self.nbytes = size_of(records)
        self._compression = compression
        self._parts = [records]
        self._count = len(records)

    def take(self, other: "Operation", most_bytes: int, most_records: int) -> bool:
        """Absorb the operation that follows, if one entry can hold both; whether it did."""
        if not isinstance(other, Put) or (self.kind, self._compression) != (other.kind, other._compression):
            return False
        if self.nbytes + other.nbytes > most_bytes or self._count + other._count > most_records:
            return False
        self._parts += other._parts
        self._count += other._count
        self.nbytes += other.nbytes
        return True

    def payload(self) -> bytes:
        return bytes(Batch.of(Rows.joined(self._parts), compression=self._compression).data)


class Accept:
    """Messages of one session to accept."""

    kind: Final = Kind.QUEUE_SETTLE

    def __init__(self, queue_session: QueueSession, messages: Sequence[HeldMessage]) -> None:
        self.queue_session = queue_session
        self.messages = list(messages)

    @property
    def nbytes(self) -> int:
        return _TOKEN_BYTES * len(self.messages)

    def take(self, other: "Operation", most_bytes: int, most_records: int) -> bool:
        if not isinstance(other, Accept) or self.queue_session is not other.queue_session:
            return False
        self.messages += other.messages
        return True

    def payload(self) -> bytes:
        return encode(self.queue_session.lock_of(self.messages))


class Move:
    """A new position of a consumer group."""

    kind: Final = Kind.GROUP_COMMIT
    nbytes: Final = _MOVE_BYTES

    def __init__(self, command: GroupCommit) -> None:
        self._command = command

    def take(self, other: "Operation", most_bytes: int, most_records: int) -> bool:
        return False

    def payload(self) -> bytes:
        return encode_command(self._command)


Operation = Put | Accept | Move


class OperationBuffer:
    """The operations that wait for one shard."""

    def __init__(self, most_bytes: int, most_records: int) -> None:
        self.nbytes = 0
        self._bounds = most_bytes, most_records
        self._operations: list[Operation] = []

    def add(self, operation: Operation) -> None:
        self.nbytes += operation.nbytes
        if not self._operations or not self._operations[-1].take(operation, *self._bounds):
            self._operations.append(operation)

    def clear(self) -> list[Operation]:
        """Remove and return all operations, in order."""
        operations, self._operations, self.nbytes = self._operations, [], 0
        return operations
