"""The requests of clients to a node. The leader of a shard answers them; other nodes say which node leads it.

Handlers in `_begin` get the `Request` and answer it themselves, so that a write needs no task: the apply of
its entry answers it. Handlers in `_serve` return the answer, or a coroutine that gives it. The long batches
of an answer are sent from where they lie, because copying them would cost more than the rest of a fetch.
"""

import asyncio
import struct
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from hawser.cluster import wire
from hawser.cluster.node.queue.delivery import TOO_EARLY, QueueDelivery
from hawser.cluster.node.shard import Shard
from hawser.cluster.node.transaction.admission import admit, of_another_kind, read_batch
from hawser.cluster.shard_map import ShardMap, topic_of
from hawser.cluster.transport import Body, PeerRole, Request
from hawser.log.entry import Kind
from hawser.log.state.producers import Producers
from hawser.log.state.results import Reason, Rejected, encode_result
from hawser.transaction.identity import Xid, coordinator_number

__all__ = ["ClientRequests", "encode_answer"]

# The kinds of entries that a client may propose with `Execute`.
_KINDS = frozenset(
    {
        Kind.TRIM,
        Kind.GROUP_JOIN,
        Kind.GROUP_LEAVE,
        Kind.GROUP_COMMIT,
        Kind.GROUP_DELETE,
    }
)
# An answer has to fit into a frame, and must not delay the answers behind it for long.
_MOST_FETCHED_BYTES = 16 << 20
_NOT_READY = wire.Failed(
    wire.Code.BUSY, "the new leader of the shard has not applied all earlier entries yet; ask again", True
)

_Answering = Coroutine[Any, Any, wire.Answer] | wire.Answer


class _Publishing:
    """A publish or put in flight: the tag of its entry. The shard sets its result like that of a future, and
    this sends the answer."""

    __slots__ = ("_helpful", "_request")

    def __init__(self, request: Request, helpful: Callable[[wire.Answer], wire.Answer]) -> None:
        self._request = request
        self._helpful = helpful

    def done(self) -> bool:
        """Whether the client no longer waits."""
        return not self._request.is_waiting

    def set_result(self, result: Any) -> None:
        answer = result if isinstance(result, wire.Failed) else wire.Executed(encode_result(result))
        self._request.answer(wire.encode(self._helpful(answer)))


class ClientRequests:
    """The requests about one node's shards."""

    def __init__(self, node: str, shards: Mapping[str, Shard], shard_map: ShardMap) -> None:
        self._node = node
        self._shards = shards
        self._map = shard_map
        self._begin: dict[type, Callable[[PeerRole, Request, Any], None]] = {
            wire.Publish: self._publish,
            wire.QueuePut: self._publish,
            wire.QueueGet: self._queue_get,
            wire.QueueSettle: self._queue_settle,
            wire.Transact: self._transact,
        }
        self._serve: dict[type, Callable[[Any], _Answering]] = {
            wire.Execute: self._execute,
            wire.Fetch: self._fetch,
            wire.Inspect: self._inspect,
            wire.KeepAlive: self._keep_alive,
            wire.QueueLook: self._queue_look,
            wire.TransactionLook: self.look,
        }

    def begin(
        self, role: PeerRole, request: Request, message: wire.Request
    ) -> Coroutine[Any, Any, Body] | None:
        """Serves a request; a returned coroutine gives the answer and is still to be awaited."""
        begin = self._begin.get(type(message))
        if begin is None:
            return self._answered(message)
        begin(role, request, message)
        return None

    async def _answered(self, message: wire.Request) -> Body:
        # Begun only here: a request that is dropped before its turn leaves nothing undone.
        answer = self._serve[type(message)](message)
        return encode_answer(await answer if asyncio.iscoroutine(answer) else answer)

    def _answer(self, request: Request, shard: str, answer: wire.Answer) -> None:
        request.answer(wire.encode(self._helpful(shard, answer)))

    # Leadership.

    def led(self, name: str) -> Shard | None:
        """The shard, if this node leads it."""
        shard = self._shards.get(name)
        return shard if shard is not None and shard.leads else None

    async def _helped(self, shard: str, work: Coroutine[Any, Any, wire.Answer]) -> wire.Answer:
        """The answer of this work; see `_helpful`."""
        return self._helpful(shard, await work)

    def _helpful(self, shard: str, answer: wire.Answer) -> wire.Answer:
        """The same answer; a refusal because this node does not lead names the leader if it is known."""
        if isinstance(answer, wire.Failed) and answer.code is wire.Code.NOT_LEADER:
            return self._not_leader(shard)
        return answer

    def _not_leader(self, shard: str) -> wire.Failed:
        entry = self._map.shards.get(shard)
        leader = self._map.address(entry.leader) if entry is not None else None
        if entry is None and shard not in self._shards:
            return wire.Failed(wire.Code.NOT_FOUND, f"this node knows no shard {shard!r}", True)
        where = (
            f"node {leader[0]} does" if leader and leader[0] != self._node else "it has no leader just now"
        )
        return wire.Failed(
            wire.Code.NOT_LEADER,
            f"node {self._node} does not lead shard {shard}; {where}",
            True,
            leader=leader,
        )

    # Topics.

    def _publish(self, role: PeerRole, request: Request, message: wire.Publish | wire.QueuePut) -> None:
        """Answers when the batch is committed and applied, or at once if it is refused."""
        refused = self._propose(role, request, message)
        if refused is not None:
            request.answer(wire.encode(refused))

    def _propose(
        self, role: PeerRole, request: Request, message: wire.Publish | wire.QueuePut
    ) -> wire.Failed | None:
        """Proposes the batch, or gives the refusal. After None the request is or will be answered."""
        wanted: wire.TopicKind = "queue" if isinstance(message, wire.QueuePut) else "topic"
        batch = read_batch(message.batch, wanted == "queue", role is PeerRole.NODE)
        if isinstance(batch, wire.Failed):
            return batch
        shard = self.led(message.shard)
        if shard is None:
            return self._not_leader(message.shard)
        residents = self._map.on(message.shard)
        if residents and wanted not in residents:
            return of_another_kind(message.shard, residents, wanted)
        publishing = _Publishing(request, partial(self._helpful, message.shard))
        if message.follows:
            # The incarnation of a recorder's batch is the number of its first sample. A new batch is refused
            # if samples between it and the newest one would be left out.
            newest = shard.replica.machine.part(Producers).newest(batch.header.producer) or (0, 0, 0)
            end = newest[0] + newest[2]
            if newest[0] < batch.header.incarnation and end != message.follows:
                publishing.set_result(Rejected(Reason.GAP, end, message.follows))
                return None
        if wanted == "topic":
            shard.propose(Kind.BATCH, message.batch, publishing)
            return None
        # The delivery has to exist before the first message: it then knows that no consumer holds any, and
        # the capacity.
        delivery = shard.delivery(residents.get("queue"))
        if delivery is None:
            return TOO_EARLY
        delivery.limit()
        shard.put(batch.header, message.batch, publishing)
        return None

    def _execute(self, request: wire.Execute) -> _Answering:
        if request.kind not in _KINDS or topic_of(request.shard) == wire.HOMES:
            return wire.Failed(
                wire.Code.BAD_REQUEST, f"a client cannot ask for an entry of kind {request.kind}", False
            )
        shard = self.led(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.execute(request.kind, request.payload))

    def _fetch(self, request: wire.Fetch) -> _Answering:
        shard = self._shards.get(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return shard.fetch(
            request.offset, min(request.max_bytes, _MOST_FETCHED_BYTES), request.wait_seconds, request.term
        )

    def _inspect(self, request: wire.Inspect) -> _Answering:
        shard = self.led(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.inspect(request))

    def _keep_alive(self, request: wire.KeepAlive) -> _Answering:
        shard = self.led(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.keep_alive(request))

    # Queues.

    def _queue_get(self, _: PeerRole, request: Request, message: wire.QueueGet) -> None:
        delivery = self._delivery_of(message.shard)
        if isinstance(delivery, wire.Failed):
            request.answer(wire.encode(delivery))
        else:
            delivery.get(message, request, partial(self._answer, request, message.shard))

    def _queue_settle(self, _: PeerRole, request: Request, message: wire.QueueSettle) -> None:
        delivery = self._delivery_of(message.shard)
        if isinstance(delivery, wire.Failed):
            request.answer(wire.encode(delivery))
        else:
            delivery.settle(message, partial(self._answer, request, message.shard))

    def _queue_look(self, request: wire.QueueLook) -> _Answering:
        delivery = self._delivery_of(request.shard)
        if isinstance(delivery, wire.Failed):
            return delivery
        shard = self._shards[request.shard]
        return self._helped(request.shard, shard.look(self._map.on(request.shard).get("queue"), request))

    def _delivery_of(self, name: str) -> QueueDelivery | wire.Failed:
        """The delivery of the queue on this shard, if this node leads it; else the refusal."""
        shard = self.led(name)
        if shard is None:
            return self._not_leader(name)
        residents = self._map.on(name)
        if residents and "queue" not in residents:
            return of_another_kind(name, residents, "queue")
        return shard.delivery(residents.get("queue")) or TOO_EARLY

    # Transactions.

    def _transact(self, role: PeerRole, request: Request, message: wire.Transact) -> None:
        self.transact(role, message, partial(self._answer, request, message.shard))

    def transact(self, role: PeerRole, message: wire.Transact, answer: Callable[[wire.Answer], None]) -> None:
        """Calls `answer` once, now or when every entry has a result."""
        shard = self.led(message.shard)
        if shard is None:
            answer(self._not_leader(message.shard))
            return
        residents = self._map.on(message.shard)
        entries = admit(message, role, residents)
        if isinstance(entries, wire.Failed):
            answer(entries)
        elif shard.transactions is None:
            answer(_NOT_READY)
        else:
            shard.transactions.transact(entries, shard.delivery(residents.get("queue")), answer)

    def coordinator_of(self, xid: Xid) -> str | None:
        """The shard that decides the transaction, if this node knows it."""
        entry = self._map.topics.get(wire.HOMES)
        if entry is None:
            return None
        return wire.shards_of(wire.HOMES, entry)[coordinator_number(xid, entry.partitions)]

    def look(self, request: wire.TransactionLook) -> _Answering:
        """The transactions of a shard."""
        shard = self.led(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.transactions_now(request))


# Copying a shorter batch is faster than sending it separately.
_LONG_BYTES: Final = 16 << 10

# MessagePack: an array of five, then arrays, a number and a binary in their longest forms.
_FIVE: Final = b"\x95"
_MANY: Final = struct.Struct(">BI")
_PLACE: Final = struct.Struct(">BBQBI")
_ARRAY, _PAIR, _NUMBER, _BINARY = 0xDD, 0x92, 0xCF, 0xC6


def encode_answer(answer: wire.Answer) -> Body:
    """Encodes an answer. Its batches must not change until it is sent."""
    if isinstance(answer, wire.Batches) and answer.batches:
        size = sum(len(payload) for _, payload in answer.batches)
        if size >= _LONG_BYTES * len(answer.batches):
            return _pieces(answer)
    return wire.encode(answer)


def _pieces(answer: wire.Batches) -> Body:
    """The answer in pieces, so that no batch is copied; it decodes to the same as that of `wire.encode`."""
    batches = answer.batches
    head = _FIVE + wire.encode("batches") + _MANY.pack(_ARRAY, len(batches))
    pieces: list[bytes | memoryview] = []
    for first_offset, payload in batches:
        pieces.append(head + _PLACE.pack(_PAIR, _NUMBER, first_offset, _BINARY, len(payload)))
        pieces.append(payload)
        head = b""
    return (*pieces, b"".join(map(wire.encode, (answer.start, answer.end, answer.terms))))
