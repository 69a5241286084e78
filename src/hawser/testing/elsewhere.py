"""Dead letters of a simulated queue that go to a queue of another name, and what becomes of them there.

The other queue is on another shard. Here it is the state machine of one, which is never down: what is tried
is the journey (`hawser.log.queue.dead_letters`), on which leaders change, messages come late, twice or not at
all, and at the end of which there may be no room.
"""

from typing import TYPE_CHECKING, Final

from hawser.log.entry import Entry, Kind
from hawser.log.protocol.events import Command
from hawser.log.queue.dead_letters import next_dead_letters, sent
from hawser.log.replica import Replica
from hawser.log.state.commands import QueueLimit, QueueSettle, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.queue import MESSAGES, Queue
from hawser.log.state.results import Accepted, Reason, Rejected, Repeated, Result
from hawser.log.state.topic import PAGE_PLACES
from hawser.record.batch import Batch
from hawser.testing.checks import Violation
from hawser.testing.clients import Reply, Request
from hawser.testing.truth import Blocks, shard_parts

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["Elsewhere", "Forwarding", "ForwardedBatch"]

_HOST: Final = "elsewhere"
_SHARD: Final = "shard"
_PATIENCE: Final = 10_000
_ACCEPTING_INTERVAL: Final = 60_000
_CAPACITY_BYTES: Final = 300


class Elsewhere:
    """The other queue. `values` are all letters that it ever got; now and then somebody accepts them.
    `fenced` counts those that came from leaders that were deposed, and are there."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self._machine = Machine(Blocks(), shard_parts(PAGE_PLACES))
        self._index = 0
        self.values: list[bytes] = []
        self.fenced = 0
        self._apply(Kind.QUEUE_LIMIT, encode_command(QueueLimit(_CAPACITY_BYTES)))
        cluster.network.attach(_HOST, self._receive)
        cluster.clock.after(_ACCEPTING_INTERVAL, self._accept_all)

    def _apply(self, kind: Kind, payload: bytes) -> Result:
        self._index += 1
        return self._machine.apply(Entry.make(1, self._index, kind, payload))

    def _receive(self, sender: str, to: str, payload: object) -> None:
        assert isinstance(payload, Request)
        (command,) = payload.commands
        result = self._apply(Kind.QUEUE_PUT, command.payload)
        if isinstance(result, Accepted):
            self.values += [record.value for record in Batch.read(command.payload).records()]
        probes = self._cluster.probes
        probes.count("letter went to another queue", isinstance(result, Accepted))
        probes.count("letter was there already", isinstance(result, Repeated))
        self.fenced += _has(result, Reason.FENCED)
        probes.count("no room for a letter", _has(result, Reason.QUEUE_FULL))
        self._cluster.network.send(_HOST, sender, Reply(payload.tag, result))

    def _accept_all(self) -> None:
        self._cluster.clock.after(_ACCEPTING_INTERVAL, self._accept_all)
        subqueue = self._machine.part(Queue).messages
        if subqueue.start < subqueue.end:
            run = (subqueue.start, subqueue.end - subqueue.start, 0)
            self._apply(Kind.QUEUE_SETTLE, encode_command(QueueSettle(MESSAGES, accepted=(run,))))


class ForwardedBatch:
    """The tag of the entry that accepts forwarded dead letters. No two are the same."""

    tag = None

    def __init__(self, batch: Batch, count: int) -> None:
        self._payload = sent(batch, count)

    def __repr__(self) -> str:
        return "ForwardedBatch()"

    def resolve(self) -> None:
        """The subqueue shows its result."""

    def command(self) -> Command:
        return Command(Kind.QUEUE_SETTLE, self._payload, self)


class Forwarding:
    """What a process that leads does about letters; one batch is under way at a time."""

    def __init__(self, cluster: "Cluster", host: str) -> None:
        self._cluster = cluster
        self._host = host
        self._number = 0
        self._until = 0
        self._batch: Batch | None = None

    def forget(self) -> None:
        """The process ended."""
        self._batch = None
        self._until = 0

    def tick(self, replica: Replica) -> None:
        """Send the next dead letters, or the same again without an answer."""
        leading, now = replica.node.leadership, self._cluster.clock.now
        if leading is None or not leading.ready or now < self._until:
            return
        self._batch = next_dead_letters(
            replica.machine, lambda index: replica.journal.read(index, index, 1)[0], _SHARD
        )
        if self._batch is None:
            return
        self._number += 1
        self._until = now + _PATIENCE
        command = Command(Kind.QUEUE_PUT, bytes(self._batch.data))
        self._cluster.network.send(self._host, _HOST, Request((self._host, self._number, 0), (command,)))

    def receive(self, reply: Reply) -> ForwardedBatch | None:
        """What to propose now that the other queue has answered."""
        batch, result = self._batch, reply.outcome
        if batch is None or reply.tag[1] != self._number:
            return None
        self._batch = None
        if _has(result, Reason.QUEUE_FULL):
            return None
        self._until = 0
        if isinstance(result, Accepted | Repeated):
            return ForwardedBatch(batch, result.count)
        if not _has(result, Reason.FENCED):
            raise Violation(0, f"{batch.stamp} was sent to another queue and got {result}")
        return ForwardedBatch(batch, batch.count)


def _has(result: object, reason: Reason) -> bool:
    return isinstance(result, Rejected) and result.reason is reason
