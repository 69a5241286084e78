"""A node: the shards it hosts, and its links to the other nodes, to operators and to clients.

Of two nodes the one whose id comes first dials. What an operator says of the cluster is kept as the map, for
clients to follow and to find the other nodes by; the node decides nothing from it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hawser.cluster import wire
from hawser.cluster.background import Background
from hawser.cluster.maps import ShardMap, node_of, topic_of
from hawser.cluster.node.answers import encode_answer
from hawser.cluster.node.directory import NodeDirectory
from hawser.cluster.node.forwarding import Forwarder
from hawser.cluster.node.lending import Lender
from hawser.cluster.node.retention import Retention
from hawser.cluster.node.shard import Shard
from hawser.cluster.node.threads import DiskThreads
from hawser.cluster.transport import (
    Body,
    Counters,
    Dialer,
    Handler,
    Identity,
    Link,
    Malformed,
    PeerRole,
    Request,
    Server,
    TransportError,
    listen,
)
from hawser.errors import UsageError
from hawser.log.entry import Kind
from hawser.log.journal.failures import Damaged, NotFormatted, OtherVersion
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.node import Limits
from hawser.log.queue.letters import shard_of_letters
from hawser.log.replica import Replica, Settings
from hawser.log.state.results import encode_result
from hawser.record.batch import BadBatch, Batch

__all__ = ["Node", "NodeSettings"]

_log = logging.getLogger("hawser.cluster.node")

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_CLIENT_KINDS = frozenset(
    {
        Kind.TRIM,
        Kind.EXPIRE_PRODUCERS,
        Kind.GROUP_JOIN,
        Kind.GROUP_LEAVE,
        Kind.GROUP_COMMIT,
        Kind.GROUP_DELETE,
    }
)

_MOST_AHEAD_NS = 3600 * 10**9
# An answer has to fit into a frame, and not to hold up what comes behind it.
_MOST_FETCHED_BYTES = 16 << 20

# Requests that are answered without waiting for anything.
_AT_ONCE = frozenset({wire.GetMap, wire.RollCall, wire.Host})
_TOO_EARLY = wire.Failed(
    wire.Code.BUSY, "this node leads the queue and does not know its settings yet; ask again", True
)


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node works. Shards that rest are looked after once in `resting_ticks` ticks."""

    tick_seconds: float = 0.1
    resting_ticks: int = 10
    sync_threads: int = 8
    admin_seconds: float = 3600.0
    drain_seconds: float = 10.0
    # A shard takes the room of a segment on the disk as soon as it is there.
    replica: Settings = Settings(journal=JournalSettings(segment_bytes=8 << 20), limits=Limits(idle_ticks=2))


class _Publishing:
    """A publish or a put whose entry is under way: settled as a future would be, with no task that waits for
    it."""

    __slots__ = ("_helpful", "_request")

    def __init__(self, request: Request, helpful: Callable[[wire.Answer], wire.Answer]) -> None:
        self._request = request
        self._helpful = helpful

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return not self._request.is_waiting

    def set_result(self, result: Any) -> None:
        answer = result if isinstance(result, wire.Failed) else wire.Executed(encode_result(result))
        self._request.answer(wire.encode(self._helpful(answer)))


class Node(Handler):
    """One node in one event loop: `start`, then `stop`."""

    def __init__(self, name: str, directory: Path, settings: NodeSettings | None = None) -> None:
        if not name or not _LETTERS.issuperset(name):
            raise UsageError(f"{name!r} is not a node's id: use letters, digits, '-' and '_'")
        self.name = name
        self.settings = settings or NodeSettings()
        self.counters = Counters()
        self.map = ShardMap()
        self.shards: dict[str, Shard] = {}
        self._directory = NodeDirectory(directory, name)
        self.disk_counters = self._directory.counters
        self._run = secrets.token_hex(8)
        self._incarnation = secrets.randbits(62)
        self._threads = DiskThreads(self.settings.sync_threads, f"{name}-disk")
        self._server: Server | None = None
        self._dialers: dict[str, Dialer] = {}
        self._peers: dict[str, Link] = {}
        self._operators: dict[str, Link] = {}
        self._background = Background()
        self._forwarder = Forwarder(name, lambda: [each.address for each in self.map.nodes.values()])
        self._requests: dict[type, Callable[[Link, Any], Coroutine[Any, Any, wire.Answer] | wire.Answer]] = {
            wire.GetMap: self._get_map,
            wire.Execute: self._execute,
            wire.Fetch: self._fetch,
            wire.Inspect: self._inspect,
            wire.KeepAlive: self._keep_alive,
            wire.QueueLook: self._queue_look,
            wire.Admin: self._admin,
            wire.RollCall: self._roll_call,
            wire.Host: self._host,
        }

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    async def start(self, address: str) -> None:
        """Open what is on the disk, then listen."""
        for shard in list(self._directory.shards()):
            self._open(shard)
        self._server = await listen(address, self, self._identity(), counters=self.counters)
        self._background.start(self._tick())
        _log.info("node %s serves %d shards at %s", self.name, len(self.shards), self.address)

    async def stop(self, drain: bool = True) -> None:
        """Hand over what it leads, if there is an operator to arrange it; then close everything."""
        if drain:
            await self._drain()
        self._background.cancel()
        await self._forwarder.close()
        await asyncio.gather(*(dialer.close("the node stops") for dialer in self._dialers.values()))
        if self._server is not None:
            await self._server.close("the node stops")
        await asyncio.gather(*(shard.close() for shard in self.shards.values()))
        self._threads.close()
        self._directory.close()

    async def _drain(self) -> None:
        leading = [name for name, shard in self.shards.items() if shard.leads]
        if not leading or not self._operators:
            return
        _log.info("handing over %d shards", len(leading))
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self._admin(None, wire.Admin(wire.AdminKind.DRAIN, self.name))
        except TimeoutError:
            _log.warning("stopping while it leads: the operator did not arrange for others in time")

    def _identity(self) -> Identity:
        return Identity(role=PeerRole.NODE, name=self.name, run=self._run, cluster=self._directory.cluster)

    # The disk.

    def _open(self, shard: str) -> None:
        disk = self._directory.disk(shard)
        try:
            replica = Replica.open(disk, self._incarnation, self.settings.replica)
        except NotFormatted:
            disk.close()
            self._directory.remove(shard)
        except Damaged as damaged:
            disk.close()
            path = self._directory.put_aside(shard)
            _log.error("shard %s: %s It was put aside to %s.", shard, damaged, path)
        except OtherVersion:
            disk.close()
            raise
        else:
            self.shards[shard] = Shard(shard, replica, disk, self._threads, self._route, self._gone)

    def _gone(self, shard: Shard, disk_lost: bool) -> None:
        del self.shards[shard.name]
        self._background.start(self._forget(shard, disk_lost))

    async def _forget(self, shard: Shard, disk_lost: bool) -> None:
        await shard.close()
        if disk_lost:
            path = self._directory.put_aside(shard.name)
            _log.error("shard %s waits for a new disk; the old one was put aside to %s", shard.name, path)
        else:
            self._directory.remove(shard.name)
            _log.info("shard %s was removed from this node", shard.name)

    # Time.

    async def _tick(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            number += 1
            for shard in list(self.shards.values()):
                # Shards that rest take their turns.
                turn = (number + hash(shard.name)) % self.settings.resting_ticks == 0
                try:
                    if turn or shard.restless:
                        shard.tick()
                    if turn:
                        shard.retain(self._retention(shard.name), self._is_needed)
                        shard.lender(self._entry(shard.name))
                    if shard.tick_queue():
                        self._forwarder.send(shard)
                except Exception:
                    _log.exception("shard %s: a tick failed", shard.name)

    def _retention(self, shard: str) -> Retention:
        """What the topic of a shard is to keep."""
        entry = self._entry(shard)
        settings = entry.settings if entry is not None else {}
        return Retention(settings.get("retention_bytes"), settings.get("retention_seconds"))

    def _is_needed(self, producer: bytes) -> bool:
        """Whether it puts the dead letters of a queue that there is on another one: without the place that is
        kept for it some would be put twice."""
        shard = shard_of_letters(producer)
        return shard is not None and shard in self.map.shards

    def _entry(self, shard: str) -> wire.TopicEntry | None:
        """The topic or queue that this shard is of, and not one of the same name before it or behind it; None
        if that is not known, or deleted."""
        topic = topic_of(shard)
        entry = self.map.topics.get(topic)
        is_that = entry is not None and shard.startswith(wire.shard_of(topic, entry.uuid, 0)[:-1])
        return entry if entry is not None and is_that and not entry.deleted else None

    # Links.

    def opened(self, link: Link) -> None:
        peer = link.peer
        assert peer is not None
        if peer.role is PeerRole.NODE:
            self._peers[peer.name] = link
        elif peer.role is PeerRole.OPERATOR:
            self._operators[peer.run] = link

    def closed(self, link: Link, reason: str) -> None:
        peer = link.peer
        assert peer is not None
        if self._peers.get(peer.name) is link:
            del self._peers[peer.name]
        if self._operators.get(peer.run) is link:
            del self._operators[peer.run]

    def told(self, link: Link, body: bytes | bytearray) -> None:
        message = wire.decode_told(body)
        if link.peer is None or link.peer.role is PeerRole.CLIENT:
            raise Malformed("a client does not speak the protocol of nodes")
        if isinstance(message, wire.Deliver):
            self._deliver(message)
        else:
            self._learn(message.map)

    def asked(self, link: Link, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        message = wire.decode_request(request.body)
        if isinstance(message, wire.Publish | wire.QueuePut):
            return self._publish(request, message)
        if isinstance(message, wire.QueueGet):
            return self._queue_get(request, message)
        if isinstance(message, wire.QueueSettle):
            return self._queue_settle(request, message)
        if type(message) in _AT_ONCE:
            return wire.encode(self._requests[type(message)](link, message))
        return self._answered(link, message)

    async def _answered(self, link: Link, message: Any) -> Body:
        # Begun here and not before: a request that is dropped before its turn then leaves nothing undone.
        answer = self._requests[type(message)](link, message)
        return encode_answer(await answer if asyncio.iscoroutine(answer) else answer)

    def _learn(self, pushed: wire.Map) -> None:
        self.map.merge(pushed)
        for name, entry in pushed.nodes.items():
            dialer = self._dialers.get(name)
            if dialer is not None and dialer.address != entry.address:
                del self._dialers[name]
                self._background.start(dialer.close("the node has another address"))
                dialer = None
            if dialer is None and self.name < name:
                dialer = Dialer(entry.address, self._identity, self, counters=self.counters)
                self._dialers[name] = dialer
                dialer.start()

    # The log protocol.

    def _route(self, shard: str, to: str, message: m.Message) -> None:
        """To an operator by its run, else to the node that the member is on. Lost if there is no link."""
        link = self._operators.get(to) or self._peers.get(node_of(to))
        if link is not None:
            link.tell(wire.encode(wire.Deliver(shard, to, self.shards[shard].member, m.encode(message))))

    def _deliver(self, envelope: wire.Deliver) -> None:
        message = m.decode(envelope.message)
        shard = self.shards.get(envelope.shard)
        if shard is not None and shard.member == envelope.to:
            shard.receive(envelope.sender, message)
        elif isinstance(message, m.RetireRequest) and envelope.sender in self._operators:
            # It is not here any more, which is what was asked for.
            answer = m.encode(m.RetireResponse(message.epoch))
            told = wire.Deliver(envelope.shard, envelope.sender, envelope.to, answer)
            self._operators[envelope.sender].tell(wire.encode(told))

    # Requests of clients.

    def _get_map(self, _: Link, request: wire.GetMap) -> wire.Answer:
        return self.map.extract(request.topic)

    def _publish(self, request: Request, message: wire.Publish | wire.QueuePut) -> Body | None:
        """Answered when the batch is committed and applied, or now if it cannot be."""
        try:
            batch = Batch.read(message.batch)
            batch.check()
        except BadBatch as error:
            text = f"the batch cannot be read: {error}"
            return wire.encode(wire.Failed(wire.Code.BAD_REQUEST, text, False))
        if batch.header.latest_ns > time.time_ns() + _MOST_AHEAD_NS:
            # Retention by age would keep everything behind it until then.
            text = "a timestamp is more than an hour ahead of this node's clock; set the clocks"
            return wire.encode(wire.Failed(wire.Code.BAD_REQUEST, text, False))
        shard = self.shards.get(message.shard)
        if shard is None or not shard.leads:
            return wire.encode(self._not_leader(message.shard))
        entry = self._entry(message.shard)
        wanted = "queue" if isinstance(message, wire.QueuePut) else "topic"
        if entry is not None and entry.kind != wanted:
            text = f"shard {message.shard} is that of a {entry.kind}, not of a {wanted}"
            return wire.encode(wire.Failed(wire.Code.BAD_REQUEST, text, False))
        publishing = _Publishing(request, partial(self._helpful, message.shard))
        if wanted == "topic":
            shard.propose(Kind.BATCH, message.batch, publishing)
        elif batch.header.compression:
            text = "a queue takes messages one by one out of a batch; send it without compression"
            return wire.encode(wire.Failed(wire.Code.BAD_REQUEST, text, False))
        else:
            # Here before the first message is, or it would not know that nobody can have had it, nor how many
            # the queue holds.
            lender = shard.lender(entry)
            if lender is None:
                return wire.encode(_TOO_EARLY)
            lender.limit()
            shard.put(batch.header, message.batch, publishing)
        return None

    def _queue_get(self, request: Request, message: wire.QueueGet) -> Body | None:
        lender = self._lender_of(message.shard)
        if isinstance(lender, wire.Failed):
            return wire.encode(lender)
        lender.get(message, request, partial(self._answer, request, message.shard))
        return None

    def _queue_settle(self, request: Request, message: wire.QueueSettle) -> Body | None:
        lender = self._lender_of(message.shard)
        if isinstance(lender, wire.Failed):
            return wire.encode(lender)
        lender.settle(message, partial(self._answer, request, message.shard))
        return None

    def _answer(self, request: Request, shard: str, answer: wire.Answer) -> None:
        request.answer(wire.encode(self._helpful(shard, answer)))

    def _queue_look(
        self, _: Link, request: wire.QueueLook
    ) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        lender = self._lender_of(request.shard)
        if isinstance(lender, wire.Failed):
            return lender
        shard = self.shards[request.shard]
        return self._helped(request.shard, shard.look(self._entry(request.shard), request))

    def _lender_of(self, name: str) -> Lender | wire.Failed:
        shard = self.shards.get(name)
        if shard is None or not shard.leads:
            return self._not_leader(name)
        entry = self._entry(name)
        if entry is not None and entry.kind != "queue":
            text = f"shard {name} is that of a topic, not of a queue"
            return wire.Failed(wire.Code.BAD_REQUEST, text, False)
        return shard.lender(entry) or _TOO_EARLY

    def _execute(self, _: Link, request: wire.Execute) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        if request.kind not in _CLIENT_KINDS:
            return wire.Failed(
                wire.Code.BAD_REQUEST, f"a client cannot ask for an entry of kind {request.kind}", False
            )
        return self._propose(request.shard, request.kind, request.payload)

    def _propose(
        self, name: str, kind: int, payload: bytes
    ) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        shard = self.shards.get(name)
        if shard is None or not shard.leads:
            return self._not_leader(name)
        return self._helped(name, shard.execute(kind, payload))

    def _fetch(self, _: Link, request: wire.Fetch) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        shard = self.shards.get(request.shard)
        if shard is None:
            return self._not_leader(request.shard)
        return shard.fetch(request.offset, min(request.max_bytes, _MOST_FETCHED_BYTES), request.wait_seconds)

    def _inspect(self, _: Link, request: wire.Inspect) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        shard = self.shards.get(request.shard)
        if shard is None or not shard.leads:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.inspect(request))

    def _keep_alive(
        self, _: Link, request: wire.KeepAlive
    ) -> "Coroutine[Any, Any, wire.Answer] | wire.Answer":
        shard = self.shards.get(request.shard)
        if shard is None or not shard.leads:
            return self._not_leader(request.shard)
        return self._helped(request.shard, shard.keep_alive(request))

    async def _helped(self, shard: str, work: Coroutine[Any, Any, wire.Answer]) -> wire.Answer:
        """Tell whoever was refused where to go."""
        return self._helpful(shard, await work)

    def _helpful(self, shard: str, answer: wire.Answer) -> wire.Answer:
        if isinstance(answer, wire.Failed) and answer.code is wire.Code.NOT_LEADER:
            return self._not_leader(shard)
        return answer

    def _not_leader(self, shard: str) -> wire.Failed:
        entry = self.map.shards.get(shard)
        leader = self.map.address(entry.leader) if entry is not None else None
        if entry is None and shard not in self.shards:
            return wire.Failed(wire.Code.NOT_FOUND, f"this node knows no shard {shard!r}", True)
        where = f"node {leader[0]} does" if leader and leader[0] != self.name else "nobody does just now"
        return wire.Failed(
            wire.Code.NOT_LEADER,
            f"node {self.name} does not lead shard {shard}; {where}",
            True,
            leader=leader,
        )

    async def _admin(self, _: Link | None, request: wire.Admin) -> wire.Answer:
        """Pass it on to an operator."""
        links = list(self._operators.values())
        text = "no operator is connected to this node; start one with `hawser operator`"
        for link in links:
            try:
                answer = await link.ask(wire.encode(request), self.settings.admin_seconds)
            except TransportError as error:
                text = f"the operator did not answer: {error}"
                if error.was_sent:
                    return wire.Failed(wire.Code.UNKNOWN, text, True, "unknown")
            else:
                return wire.decode_answer(answer)
        return wire.Failed(wire.Code.UNAVAILABLE, text, True)

    # Requests of operators.

    def _roll_call(self, link: Link, request: wire.RollCall) -> wire.Answer:
        if link.peer is not None and link.peer.role is PeerRole.OPERATOR:
            if request.cluster and not self._directory.cluster:
                self._directory.join(request.cluster)
                assert self._server is not None
                self._server.identity = self._identity()
            if request.cluster != self._directory.cluster:
                text = (
                    f"node {self.name} holds data of cluster {self._directory.cluster}, not of "
                    f"{request.cluster}; start it with another directory"
                )
                return wire.Failed(wire.Code.REJECTED, text, False)
        reports = {name: shard.report for name, shard in self.shards.items()}
        return wire.Rolled(self._directory.cluster, self._incarnation, self._directory.free_bytes, reports)

    def _host(self, link: Link, request: wire.Host) -> wire.Answer:
        if link.peer is None or link.peer.role is not PeerRole.OPERATOR:
            raise Malformed("only an operator places shards")
        if request.shard not in self.shards:
            disk = self._directory.disk(request.shard)
            replica = Replica.create(
                disk, request.shard, self._directory.new_member(), self._incarnation, self.settings.replica
            )
            self.shards[request.shard] = Shard(
                request.shard, replica, disk, self._threads, self._route, self._gone
            )
        return wire.Hosted(self.shards[request.shard].member)
