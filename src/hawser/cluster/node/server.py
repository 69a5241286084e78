"""A node: the shards that it hosts, and its links to other nodes, operators and clients.

Of two nodes, the one whose id sorts first dials. Operators push the map; the node keeps it for clients and to
find other nodes, and decides nothing from it.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hawser.cluster import wire
from hawser.cluster.background import Background
from hawser.cluster.disk import Disk
from hawser.cluster.node.clock_monitor import ClockMonitor
from hawser.cluster.node.clock_quorum import ClockQuorum
from hawser.cluster.node.directory import NodeDirectory
from hawser.cluster.node.disk_steps import DiskSteps
from hawser.cluster.node.queue.dead_letter_forwarder import DeadLetterForwarder
from hawser.cluster.node.requests import ClientRequests
from hawser.cluster.node.retention import Retention
from hawser.cluster.node.shard import Shard
from hawser.cluster.node.sync_pool import SyncPool
from hawser.cluster.node.transaction.client_registry import ClientRegistry
from hawser.cluster.node.transaction.context import NodeServices
from hawser.cluster.node.transaction.observers import ObserverRegistry
from hawser.cluster.node.transaction.peer_client import PeerClient
from hawser.cluster.shard_map import ShardMap, node_of
from hawser.cluster.stall_watch import StallWatch
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
from hawser.log.journal.errors import Damaged, NotFormatted
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.journal.storage import StorageFailed, StorageFull, StorageRefused
from hawser.log.protocol import messages as m
from hawser.log.protocol.node import Limits
from hawser.log.queue.dead_letters import shard_of_dead_letters
from hawser.log.replica import Replica, Settings
from hawser.log.state.part import BadState, Unsupported
from hawser.transaction.participant.branches import DEFAULT_LIMIT, transactional_parts

__all__ = ["Node", "NodeSettings"]

_log = logging.getLogger("hawser.cluster.node")

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a node. A resting shard is served once in `resting_ticks` ticks. `observers` names
    observers of transactions, each as "module:factory". On each shard that the node leads, transactions may
    have `staged_bytes` staged."""

    tick_seconds: float = 0.1
    resting_ticks: int = 10
    sync_threads: int = 8
    admin_seconds: float = 3600.0
    drain_seconds: float = 10.0
    observers: tuple[str, ...] = ()
    staged_bytes: int = DEFAULT_LIMIT.most_bytes
    # A shard reserves one segment on the disk when it is created.
    replica: Settings = Settings(
        journal=JournalSettings(segment_bytes=8 << 20),
        limits=Limits(idle_ticks=2),
        parts=transactional_parts,
    )


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
        self.clocks = ClockQuorum(name)
        self.stalls = StallWatch(f"node {name}")
        self.observers = ObserverRegistry(self.settings.observers, self.map)
        self._sync_pool = SyncPool(self.settings.sync_threads)
        self._disk_steps = DiskSteps(self.settings.sync_threads)
        self._directory = NodeDirectory(directory, name)
        self.disk_counters = self._directory.counters
        self._run = secrets.token_hex(8)
        self._incarnation = secrets.randbits(62)
        self._server: Server | None = None
        self._dialers: dict[str, Dialer] = {}
        self._peers: dict[str, Link] = {}
        self._operators: dict[str, Link] = {}
        self._background = Background()
        # Shards that are being closed for good, and those whose files are not removed yet.
        self._leaving = Background()
        self._removing: set[str] = set()
        # Members that are being created.
        self._making: dict[str, asyncio.Task[wire.Answer]] = {}
        self._dead_letter_forwarder = DeadLetterForwarder(
            name, lambda: [each.address for each in self.map.nodes.values()]
        )
        self._requests = ClientRequests(name, self.shards, self.map)
        self._clients = ClientRegistry()
        self._services = NodeServices(
            self._clients,
            self.observers,
            PeerClient(self.map, self._peers, self._requests, self._background.start),
            self.clocks,
            msgspec.structs.replace(DEFAULT_LIMIT, most_bytes=self.settings.staged_bytes),
        )
        self._clock_monitor = ClockMonitor(
            self.clocks, self._peers, self.shards, self._admin, self._background.start
        )

    @property
    def address(self) -> str:
        assert self._server is not None
        return self._server.address

    async def start(self, address: str) -> None:
        """Opens the shards on the disk, then listens."""
        self._sync_pool.start()
        for shard in list(self._directory.shards()):
            self._open(shard)
        self._server = await listen(address, self, self._identity(), counters=self.counters)
        self.stalls.start(asyncio.get_running_loop())
        self._background.start(self._tick())
        self._background.start(self._clock_monitor.run())
        _log.info("node %s serves %d shards at %s", self.name, len(self.shards), self.address)

    async def stop(self, drain: bool = True) -> None:
        """Hands over leadership, if an operator is connected to arrange it, then closes everything."""
        if drain:
            await self._drain()
        self.stalls.stop()
        self._background.cancel()
        await self._dead_letter_forwarder.close()
        await asyncio.gather(*(dialer.close("the node stops") for dialer in self._dialers.values()))
        if self._server is not None:
            await self._server.close("the node stops")
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        await asyncio.gather(*(shard.close() for shard in self.shards.values()))
        await self._leaving.wait()
        # Shards may have started tasks while they closed.
        self._background.cancel()
        self._disk_steps.close()
        self._sync_pool.close()
        self._directory.close()

    async def _drain(self) -> None:
        leading = [name for name, shard in self.shards.items() if shard.leads]
        if not leading or not self._operators:
            return
        _log.info("handing over %d shards", len(leading))
        try:
            async with asyncio.timeout(self.settings.drain_seconds):
                await self._admin(wire.Admin(wire.AdminKind.DRAIN, self.name))
        except TimeoutError:
            _log.warning("stopping while this node leads shards: the operator did not hand them over in time")

    def _identity(self) -> Identity:
        return Identity(role=PeerRole.NODE, name=self.name, run=self._run, cluster=self._directory.cluster)

    # The disk.

    def _open(self, shard: str) -> None:
        try:
            replica, disk = self._opened(shard)
        except NotFormatted:
            self._clear(shard)
        except (StorageRefused, StorageFull, Unsupported) as reason:
            # Other shards may be refused as well; a node without the data of any shard must not start.
            raise UsageError(f"shard {shard} cannot be opened: {reason}") from reason
        except BadState as reason:
            # A newer build saved this state correctly; this one must not set it aside as damaged.
            raise UsageError(
                f"shard {shard} cannot be opened: {reason}. Start this node with the version of Hawser that "
                "saved it, or a newer one"
            ) from reason
        except (Damaged, StorageFailed) as reason:
            # As at run time: this member returns with a new disk, and the other shards are served.
            _log.error("shard %s cannot be opened: %s", shard, reason)
            self._clear(shard, disk_lost=True)
        else:
            self.shards[shard] = self._shard(shard, replica, disk)

    def _opened(self, shard: str) -> tuple[Replica, Disk]:
        disk = self._directory.disk(shard)
        try:
            return Replica.open(disk, self._incarnation, self.settings.replica), disk
        except BaseException:
            disk.close()
            raise

    def _clear(self, shard: str, disk_lost: bool = False) -> None:
        """Removes a shard's files, or puts a damaged journal aside. No new member is created while the files
        are there."""
        self._removing.add(shard)
        try:
            if disk_lost:
                text = "shard %s waits for a new member; its damaged journal was moved to %s"
                _log.error(text, shard, self._directory.put_aside(shard))
            else:
                self._directory.remove(shard)
                _log.info("shard %s was removed from this node", shard)
        except OSError as error:
            if self._directory.has(shard):
                text = "shard %s is not served: its files could not be removed: %s. Move them, then restart"
                _log.error(text, shard, error)
                return
            _log.error(
                "the files of shard %s were moved, but the directory could not be synced: %s", shard, error
            )
        self._removing.discard(shard)

    def _shard(self, name: str, replica: Replica, disk: Disk) -> Shard:
        return Shard(
            name, replica, disk, self._sync_pool, self._disk_steps, self._route, self._gone, self._services
        )

    def _gone(self, shard: Shard, disk_lost: bool) -> None:
        del self.shards[shard.name]
        self._removing.add(shard.name)
        self._leaving.start(self._forget(shard, disk_lost))

    async def _forget(self, shard: Shard, disk_lost: bool) -> None:
        try:
            await shard.close()
        finally:
            await asyncio.to_thread(self._clear, shard.name, disk_lost)

    # Time.

    async def _tick(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            number += 1
            if any(each.replica.was_full and each.replica.halted is None for each in self.shards.values()):
                for shard in list(self.shards.values()):
                    self._attempt(shard, shard.replica.make_room)
            for shard in list(self.shards.values()):
                # Resting shards are spread over the ticks.
                turn = (number + hash(shard.name)) % self.settings.resting_ticks == 0
                if turn or shard.restless:
                    self._attempt(shard, shard.tick)
                if turn:
                    self._attempt(shard, partial(self._retain, shard))
                    self._attempt(shard, shard.tick_transactions)
                self._attempt(shard, partial(self._look_after_queue, shard, turn))

    def _attempt(self, shard: Shard, duty: Callable[[], object]) -> None:
        """Runs one periodic task of a shard. A failing task must not block the others: transactions end in
        time even if an entry cannot be read."""
        try:
            duty()
        except Exception:
            _log.exception("shard %s: a tick failed", shard.name)

    def _retain(self, shard: Shard) -> None:
        shard.retain(self._retention(shard.name), self._is_needed, self._services.peers.learned_at)

    def _look_after_queue(self, shard: Shard, turn: bool) -> None:
        if turn:
            shard.delivery(self.map.on(shard.name).get("queue"))
        if shard.tick_queue():
            self._dead_letter_forwarder.send(shard)

    def _retention(self, shard: str) -> Retention | None:
        """The retention of the topic on a shard; None if the node does not know it, or it is deleted."""
        residents = self.map.on(shard)
        if not residents:
            return None
        topic = residents.get("topic")
        settings = topic.entry.settings if topic is not None else {}
        return Retention(settings.get("retention_bytes"), settings.get("retention_seconds"))

    def _is_needed(self, producer: bytes) -> bool:
        """Whether this producer forwards the dead letters of an existing queue. If its position were
        forgotten, dead letters could arrive twice."""
        shard = shard_of_dead_letters(producer)
        return shard is not None and shard in self.map.shards

    # Links.

    def opened(self, link: Link) -> None:
        peer = link.peer
        assert peer is not None
        if peer.role is PeerRole.NODE:
            self._peers[peer.name] = link
            self._clock_monitor.link_opened(peer.name, link)
        elif peer.role is PeerRole.OPERATOR:
            self._operators[peer.run] = link
        else:
            self._clients.link_opened(peer.run)

    def closed(self, link: Link, reason: str) -> None:
        peer = link.peer
        assert peer is not None
        if self._peers.get(peer.name) is link:
            del self._peers[peer.name]
        if self._operators.get(peer.run) is link:
            del self._operators[peer.run]
        if peer.role is PeerRole.CLIENT:
            self._clients.link_closed(peer.run, asyncio.get_running_loop().time())

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
        assert link.peer is not None
        if isinstance(message, wire.GetMap):
            return wire.encode(self.map.extract(message.topic))
        if isinstance(message, wire.RollCall):
            return wire.encode(self._roll_call(link.peer.role, message))
        if isinstance(message, wire.AskClock):
            return wire.encode(wire.ClockReading(self.clocks.wall_ns()))
        if isinstance(message, wire.Host):
            if link.peer.role is not PeerRole.OPERATOR:
                raise Malformed("only an operator places shards")
            return self._host(message.shard)
        if isinstance(message, wire.Admin):
            return self._pass_on(message)
        return self._requests.begin(link.peer.role, request, message)

    async def _pass_on(self, request: wire.Admin) -> Body:
        return wire.encode(await self._admin(request))

    def _learn(self, pushed: wire.Map) -> None:
        self.map.merge(pushed)
        if pushed.cluster:
            self._services.peers.learned(asyncio.get_running_loop().time())
        for name in [each for each in self._dialers if each not in self.map.nodes]:
            # It may host members of shards for as long as it runs.
            if self._dialers[name].link is None:
                self._background.start(self._dialers.pop(name).close("the node left the cluster"))
        for name, entry in self.map.nodes.items():
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
        """Sends to an operator by its run, else to the node of the member. Without a link the message is
        lost."""
        link = self._operators.get(to) or self._peers.get(node_of(to))
        if link is not None:
            link.tell(wire.encode(wire.Deliver(shard, to, self.shards[shard].member, m.encode(message))))

    def _deliver(self, envelope: wire.Deliver) -> None:
        message = m.decode(envelope.message)
        shard = self.shards.get(envelope.shard)
        if shard is not None and shard.member == envelope.to:
            shard.receive(envelope.sender, message)
        elif isinstance(message, m.RetireRequest) and envelope.sender in self._operators:
            # The member is gone already, as the operator wants.
            answer = m.encode(m.RetireResponse(message.epoch))
            told = wire.Deliver(envelope.shard, envelope.sender, envelope.to, answer)
            self._operators[envelope.sender].tell(wire.encode(told))

    # Requests of operators, and for them.

    async def _admin(self, request: wire.Admin) -> wire.Answer:
        """Passes a request on to an operator."""
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

    def _roll_call(self, role: PeerRole, request: wire.RollCall) -> wire.Answer:
        if role is PeerRole.OPERATOR:
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
        return wire.Rolled(
            self._directory.cluster,
            self._incarnation,
            self._directory.free_bytes,
            reports,
            self.clocks.ahead_seconds(),
            self.clocks.is_wrong(),
        )

    async def _host(self, name: str) -> Body:
        """Creates the member; of several requests for one shard the first one does."""
        while (making := self._making.get(name)) is not None:
            await asyncio.wait([making])
        shard = self.shards.get(name)
        if name in self._removing or (shard is not None and shard.is_retiring):
            text = f"node {self.name} is still removing an earlier member of shard {name}; ask again"
            return wire.encode(wire.Failed(wire.Code.UNAVAILABLE, text, True))
        if shard is not None:
            return wire.encode(wire.Hosted(shard.member))
        making = self._making[name] = asyncio.create_task(self._make(name))
        making.add_done_callback(lambda _: self._making.pop(name))
        return wire.encode(await asyncio.shield(making))

    async def _make(self, name: str) -> wire.Answer:
        """A new member, which is on disk when this returns. Nothing else uses its directory meanwhile."""
        try:
            replica, disk = await asyncio.to_thread(self._create, name)
        except (StorageFull, StorageFailed) as reason:
            code = wire.Code.FULL if isinstance(reason, StorageFull) else wire.Code.UNAVAILABLE
            return wire.Failed(code, str(reason), True)
        self.shards[name] = self._shard(name, replica, disk)
        return wire.Hosted(replica.member)

    def _create(self, name: str) -> tuple[Replica, Disk]:
        disk = self._directory.disk(name)
        member = self._directory.new_member()
        try:
            return Replica.create(disk, name, member, self._incarnation, self.settings.replica), disk
        except (StorageFull, StorageFailed):
            disk.close()
            self._directory.remove(name)
            raise
