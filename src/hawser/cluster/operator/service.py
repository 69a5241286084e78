"""An operator: dials every node, calls the roll, and makes the cluster match its metadata store.

Everything to be done follows from the store, so any operator can continue the work of one that died: a topic
without shards gets them, the shards of a deleted topic are removed, a shard without a leader gets one.
Several operators may run; compare-and-set in the store decides between them.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Container, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from hawser.cluster import wire
from hawser.cluster.background import Background
from hawser.cluster.operator.catalog import (
    cluster_id,
    forget_topic,
    is_orphaned_queue,
    list_topics,
    mark_deleted,
    store_nodes,
)
from hawser.cluster.operator.creation import coordinators_of, create, place
from hawser.cluster.operator.deletion import (
    Retiring,
    ShardDeletion,
    TransactionGate,
    forget_retiring,
    keep_retiring,
    list_retiring,
)
from hawser.cluster.operator.repair import Repairs
from hawser.cluster.operator.shard_driver import ShardDriver
from hawser.cluster.operator.validation import (
    check_creation,
    check_deletion,
    check_nodes,
    check_transactions,
    matches_uuid,
)
from hawser.cluster.shard_map import forget_oldest_deleted, node_of, owned_shards
from hawser.cluster.stall_watch import StallWatch
from hawser.cluster.stores.shard_metadata import StoredShard, delete_shard, list_shards, store_shard
from hawser.cluster.stores.store import Store, StoreUnavailable
from hawser.cluster.transport import (
    Body,
    Counters,
    Dialer,
    Handler,
    Identity,
    Link,
    PeerRole,
    Request,
    TransportError,
)
from hawser.errors import Corrupt, Unavailable
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Contract, Elect, Expand, Order, Swap, Transfer
from hawser.log.protocol.metadata import Metadata, Status
from hawser.log.protocol.operator import Operator

__all__ = ["OperatorService", "OperatorSettings"]

_log = logging.getLogger("hawser.cluster.operator")

Result = TypeVar("Result")


class OperatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an operator. A leader may be silent for `patience` ticks. The store is read again every
    `look_ticks`."""

    tick_seconds: float = 0.1
    patience: int = 8
    look_ticks: int = 10
    roll_seconds: float = 1.0
    # A member that is missing on its node is replaced after this many ticks; a deletion waits this long for a
    # node that is away.
    missing_ticks: int = 20
    # The number of shards that coordinate transactions; each has up to three members.
    homes: int = 4
    # How long a deletion waits for leaders to report that no transaction has work there.
    closing_seconds: float = 10.0
    # How long after its start the operator waits for nodes before it calls them too few.
    settling_seconds: float = 5.0


class OperatorService(Handler):
    """One operator in one event loop: `start`, then `stop`."""

    def __init__(
        self, name: str, store: Store, nodes: Mapping[str, str], settings: OperatorSettings | None = None
    ) -> None:
        self.settings = settings or OperatorSettings()
        self.counters = Counters()
        self.stalls = StallWatch(f"operator {name}")
        self.cluster = ""
        self.topics: dict[str, wire.TopicEntry] = {}
        self.drivers: dict[str, ShardDriver] = {}
        self.rolls: dict[str, wire.Rolled] = {}
        self._nodes = dict(nodes)
        self._nodes_version = 0
        self._name = name
        self._run = f"{name}#{secrets.token_hex(6)}"
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._dialers: dict[str, Dialer] = {}
        self._rolling: set[str] = set()
        # The errors of metadata that cannot be read; each is logged once.
        self._unreadable: set[str] = set()
        # Shards in the store that are being deleted. (Those in `_retiring` are gone from the store, but not
        # from every node.)
        self._deleting: dict[str, ShardDeletion] = {}
        # Topics and queues with a shard that could not be placed, and the reason.
        self._unplaced: dict[str, str] = {}
        self._retiring: dict[str, ShardDeletion] = {}
        self._transaction_gate = TransactionGate(
            self._leader_link, self.settings.closing_seconds, self.settings.tick_seconds
        )
        # One deletion of a name at a time: a second one must not reopen what the first has closed.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._background = Background()
        self._repairs = Repairs(self._host, self._send, self._background.start, self.settings.missing_ticks)
        # Until then, nodes that were not reached may still connect.
        self._settled_at = 0.0
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()

    async def start(self) -> None:
        """Reads the store and starts to dial."""
        self.cluster = await self._in_thread(cluster_id, self._store)
        self._nodes_version = await self._in_thread(store_nodes, self._store, self._nodes)
        await self._look()
        identity = Identity(role=PeerRole.OPERATOR, name=self._name, run=self._run, cluster=self.cluster)
        for name, address in self._nodes.items():
            self._dialers[name] = Dialer(address, identity, self, counters=self.counters)
            self._dialers[name].start()
        self._settled_at = asyncio.get_running_loop().time() + self.settings.settling_seconds
        self.stalls.start(asyncio.get_running_loop())
        self._background.start(self._tick())

    async def stop(self) -> None:
        self.stalls.stop()
        self._background.cancel()
        for driver in self.drivers.values():
            driver.close()
        await asyncio.gather(*(dialer.close("the operator stops") for dialer in self._dialers.values()))
        # A call of the store may take a while, and the loop may serve others.
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        self._store.close()

    async def _in_thread(self, call: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *arguments))

    # Time.

    async def _tick(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(self.settings.tick_seconds)
            number += 1
            for node, dialer in self._dialers.items():
                if dialer.link is not None and node not in self._rolling:
                    self._background.start(self._call_roll(node, dialer.link))
            for driver in list(self.drivers.values()):
                try:
                    driver.tick()
                except Exception:
                    _log.exception("shard %s: a tick failed", driver.shard)
            for deletion in list(self._deleting.values()):
                deletion.tell(self._send)
            if number % self.settings.look_ticks == 0:
                # With a store that hangs, reads would pile up, and creations and deletions would wait behind
                # them.
                if not self._looking.locked():
                    self._background.start(self._look_again())
                for retiring in list(self._retiring.values()):
                    retiring.tell(self._send)
                self._push()

    async def _call_roll(self, node: str, link: Link) -> None:
        self._rolling.add(node)
        try:
            body = await link.ask(wire.encode(wire.RollCall(self.cluster)), self.settings.roll_seconds)
        except TransportError:
            return
        finally:
            self._rolling.discard(node)
        answer = wire.decode_answer(body)
        if isinstance(answer, wire.Rolled):
            self._rolled(node, answer)
        else:
            _log.error("node %s: %s", node, answer)

    def _rolled(self, node: str, answer: wire.Rolled) -> None:
        first = node not in self.rolls
        self.rolls[node] = answer
        if first:
            self._push()
        for shard, driver in list(self.drivers.items()):
            report = answer.shards.get(shard)
            if report is not None and report.halted is None:
                status = m.decode(report.status)
                driver.receive(report.member, status)
        self._repairs.rolled(node, answer.shards, self.drivers, self.topics)

    @property
    def alive(self) -> list[str]:
        """The nodes that are connected and have answered a roll call."""
        return [
            node for node, dialer in self._dialers.items() if dialer.link is not None and node in self.rolls
        ]

    # The store.

    async def _look(self) -> None:
        """Makes drivers and deletions match the store."""
        async with self._looking:
            await self._compare_with_store()

    async def _compare_with_store(self) -> None:
        topics = await self._in_thread(list_topics, self._store)
        for name in [each for each, entry in topics.items() if is_orphaned_queue(each, entry, topics)]:
            marked = await self._in_thread(mark_deleted, self._store, name, topics[name].uuid)
            if marked is not None:
                topics[name] = marked
        shards = await self._in_thread(list_shards, self._store)
        unreadable = {str(stored) for stored in shards.values() if isinstance(stored, Corrupt)}
        for text in sorted(unreadable - self._unreadable):
            _log.error("%s", text)
        self._unreadable = unreadable
        self.topics.update(topics)
        for name in self.topics.keys() - topics.keys():
            # Gone from the store: one last entry tells the nodes.
            entry = self.topics[name]
            self.topics[name] = msgspec.structs.replace(entry, deleted=True)
        forget_oldest_deleted(self.topics, keep=topics)
        gone = [(name, entry) for name, entry in topics.items() if entry.deleted]
        deleted = {shard for name, entry in gone for shard in owned_shards(name, entry)}
        for shard, stored in shards.items():
            if isinstance(stored, Corrupt):
                # The driver is kept as it is until a person has repaired the metadata.
                continue
            if shard in deleted:
                self._begin_deletion(shard, stored)
            elif shard not in self.drivers:
                self._open_driver(shard).loaded(stored)
        for shard in self.drivers.keys() - shards.keys():
            self.drivers.pop(shard).close()
        for name, entry in topics.items():
            if entry.deleted:
                await self._finish_deletion(name, entry, shards)
            else:
                await self._make_shards(name, entry, shards)
        await self._continue_retiring()

    async def _look_again(self) -> None:
        try:
            await self._look()
        except StoreUnavailable as error:
            _log.warning("%s", error)

    def _open_driver(self, shard: str) -> ShardDriver:
        operator = Operator(self._run, self.settings.patience)
        driver = self.drivers[shard] = ShardDriver(
            shard, operator, self._store, self._in_thread, self._send, self._metadata_changed
        )
        return driver

    def _metadata_changed(self, driver: ShardDriver) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._push(driver.shard)

    # Messages.

    def _send(self, shard: str, member: str, message: m.Message) -> None:
        dialer = self._dialers.get(node_of(member))
        if dialer is not None:
            dialer.tell(wire.encode(wire.Deliver(shard, member, self._run, m.encode(message))))

    def told(self, link: Link, body: bytes | bytearray) -> None:
        envelope = wire.decode_told(body)
        if not isinstance(envelope, wire.Deliver):
            return
        message = m.decode(envelope.message)
        driver = self.drivers.get(envelope.shard)
        deletion = self._deleting.get(envelope.shard) or self._retiring.get(envelope.shard)
        if deletion is not None and isinstance(message, m.RetireResponse):
            deletion.remaining.discard(envelope.sender)
        elif driver is not None:
            driver.receive(envelope.sender, message)

    def _push(self, shard: str | None = None) -> None:
        """Sends every node the part of the map that belongs to one shard, or the whole map."""
        nodes = {
            name: wire.NodeEntry(address, name in self.rolls and self._dialers[name].link is not None)
            for name, address in self._nodes.items()
        }
        names = self.drivers if shard is None else {shard: self.drivers[shard]}
        shards = {
            name: _entry(driver.metadata) for name, driver in names.items() if driver.metadata is not None
        }
        topics = self.topics if shard is None else {}
        # A part carries no cluster name: a node that has just started must not take it for a complete map.
        cluster = self.cluster if shard is None else ""
        body = wire.encode(wire.MapPushed(wire.Map(cluster, nodes, topics, shards, self._nodes_version)))
        for dialer in self._dialers.values():
            if dialer.link is not None:
                dialer.link.tell(body)

    # Creation and deletion of shards.

    async def _make_shards(self, name: str, entry: wire.TopicEntry, shards: Container[str]) -> None:
        for shard in owned_shards(name, entry):
            if shard in shards or shard in self.drivers:
                continue
            replication = entry.settings.get("replication", 3)
            assert isinstance(replication, int)
            known = {
                each: driver.metadata.members for each, driver in self.drivers.items() if driver.metadata
            }
            try:
                nodes = place(replication, self.alive, known)
                members = [await self._host(node, shard) for node in nodes]
            except (ValueError, TransportError) as error:
                _log.warning("%s %s: %s", entry.kind, name, error)
                self._unplaced[name] = str(error)
                return
            stored = await self._in_thread(
                store_shard, self._store, shard, Metadata.initial(tuple(members)), None
            )
            if stored is not None and shard not in self.drivers:
                self._open_driver(shard).loaded(stored)
        self._unplaced.pop(name, None)

    async def _host(self, node: str, shard: str) -> str:
        link = await self._dialers[node].up(self.settings.roll_seconds)
        answer = wire.decode_answer(await link.ask(wire.encode(wire.Host(shard)), 10.0))
        if not isinstance(answer, wire.Hosted):
            reason = answer.text if isinstance(answer, wire.Failed) else answer
            raise ValueError(f"node {node} cannot hold shard {shard}: {reason}")
        return answer.member

    def _begin_deletion(self, shard: str, stored: StoredShard) -> None:
        driver = self.drivers.pop(shard, None)
        if driver is not None:
            driver.close()
        if shard not in self._deleting:
            self._deleting[shard] = ShardDeletion.of(shard, stored)

    async def _finish_deletion(self, name: str, entry: wire.TopicEntry, shards: Container[str]) -> None:
        left = [shard for shard in owned_shards(name, entry) if shard in shards]
        for shard in left:
            deletion = self._deleting.get(shard)
            if deletion is not None and deletion.is_done(self.alive, self.settings.missing_ticks):
                if deletion.remaining:
                    # Recorded before the shard is gone from the store, because nothing else names these
                    # members.
                    absent = Retiring(deletion.epoch, frozenset(deletion.remaining))
                    await self._in_thread(keep_retiring, self._store, shard, absent)
                    _log.warning(
                        "shard %s is deleted, except on %s, which did not answer",
                        shard,
                        ", ".join(sorted(absent.members)),
                    )
                await self._in_thread(delete_shard, self._store, shard, deletion.stored)
                self._deleting.pop(shard, None)
        if not left:
            await self._in_thread(forget_topic, self._store, name, entry)
            self._unplaced.pop(name, None)

    async def _continue_retiring(self) -> None:
        """Members that were away when their shard was deleted are told until they have deleted it, too, or
        until their node has left the cluster."""
        found = await self._in_thread(list_retiring, self._store)
        for shard in self._retiring.keys() - found.keys():
            del self._retiring[shard]
        for shard, absent in found.items():
            known = self._retiring.get(shard)
            if known is None or known.epoch < absent.epoch or not absent.members <= known.members:
                self._retiring[shard] = ShardDeletion(shard, absent.epoch, set(absent.members))
            elif not any(node_of(member) in self._nodes for member in known.remaining):
                if known.remaining:
                    _log.warning(
                        "shard %s is deleted; the files of %s stay, because their nodes have left the "
                        "cluster",
                        shard,
                        ", ".join(sorted(known.remaining)),
                    )
                del self._retiring[shard]
                await self._in_thread(forget_retiring, self._store, shard, known.members)

    # Administrative requests.

    def asked(self, link: Link, request: Request) -> Body | Coroutine[Any, Any, Body] | None:
        message = wire.decode_request(request.body)
        if not isinstance(message, wire.Admin):
            return wire.encode(
                wire.Failed(wire.Code.BAD_REQUEST, "operators take administrative requests", False)
            )
        return self._answered(message)

    async def _answered(self, message: wire.Admin) -> bytes:
        try:
            answer = await self._administer(message)
        except (StoreUnavailable, Unavailable) as error:
            answer = wire.Failed(wire.Code.UNAVAILABLE, str(error), True, error.outcome)
        except (ValueError, TransportError) as error:
            answer = wire.Failed(wire.Code.REJECTED, str(error), False)
        return wire.encode(answer)

    async def _administer(self, message: wire.Admin) -> wire.Answer:
        if message.kind is wire.AdminKind.CREATE:
            return await self._create(message)
        if message.kind is wire.AdminKind.DELETE:
            return await self._delete(message.name, message.uuid)
        if message.kind is wire.AdminKind.DRAIN:
            return await self._drain(message.name)
        driver = self.drivers.get(message.name)
        if driver is None or driver.metadata is None:
            return wire.Failed(wire.Code.NOT_FOUND, f"unknown shard {message.name!r}", False)
        make = await self._order_of(message, driver.metadata)
        return await driver.order(make)

    async def _order_of(self, message: wire.Admin, metadata: Metadata) -> Callable[[object], Order]:
        """The order for the state machine, with the members on the nodes that the request names."""
        check_nodes(message)
        kind, nodes = message.kind, message.nodes
        here = {node_of(member): member for member in metadata.members}

        def member(node: str) -> str:
            if node not in here:
                raise ValueError(
                    f"node {node} has no replica of {message.name}; replicas: {', '.join(sorted(here))}"
                )
            return here[node]

        if kind is wire.AdminKind.ELECT:
            return Elect
        if kind is wire.AdminKind.TRANSFER:
            to = member(nodes[0])
            return lambda tag: Transfer(to, tag)
        if kind is wire.AdminKind.CONTRACT:
            old = member(nodes[0])
            return lambda tag: Contract(old, tag)
        new_node = nodes[-1]
        if new_node not in self._dialers:
            raise ValueError(f"unknown node {new_node!r}; known nodes: {', '.join(sorted(self._dialers))}")
        if new_node in here:
            raise ValueError(f"node {new_node} has a replica of {message.name} already")
        new = await self._host(new_node, message.name)
        if kind is wire.AdminKind.EXPAND:
            return lambda tag: Expand(new, tag)
        old = member(nodes[0])
        return lambda tag: Swap(old, new, tag)

    async def _create(self, message: wire.Admin) -> wire.Answer:
        check_creation(message)
        if message.topic_kind == "homes":
            message = coordinators_of(message, self.settings.homes, self._nodes)
        if message.name not in self.topics and "colocate" not in message.settings:
            await self._nodes_reached(message.settings.get("replication", 3))
        while (entry := await self._in_thread(create, self._store, message, self.alive)).deleted:
            # An earlier one of this name is deleted first.
            await asyncio.sleep(self.settings.tick_seconds)
            await self._look()
        if entry.kind != message.topic_kind:
            return wire.AdminDone(False, f"{message.name} is a {entry.kind}, not a {message.topic_kind}")
        self.topics[message.name] = entry
        await self._look()
        return await self._made(message.name, entry)

    async def _nodes_reached(self, replication: Any) -> None:
        """Returns when enough nodes are alive for this replication, or all nodes. Only an operator that has
        just started waits: it does not know yet which nodes are alive."""
        wanted = min(replication, len(self._dialers))
        while len(self.alive) < wanted and asyncio.get_running_loop().time() < self._settled_at:
            await asyncio.sleep(self.settings.tick_seconds)

    async def _made(self, name: str, entry: wire.TopicEntry) -> wire.Answer:
        """Answers when all shards have leaders, when one cannot be placed, or when the topic is deleted
        meanwhile."""
        while True:
            changed = self._changed
            if not await self._is_there(name, entry):
                return wire.AdminDone(False, f"{entry.kind} {name} was deleted meanwhile; create it again")
            if self._all_steady(wire.shards_of(name, entry)):
                self._push()
                return wire.AdminDone(True, f"{entry.kind} {name} has {entry.partitions} partitions")
            try:
                async with asyncio.timeout(self.settings.tick_seconds * 5):
                    await changed.wait()
            except TimeoutError:
                await self._look()
                if name in self._unplaced:
                    return wire.Failed(wire.Code.UNAVAILABLE, self._unplaced[name], True)

    def _all_steady(self, shards: list[str]) -> bool:
        found = [self.drivers[shard].metadata for shard in shards if shard in self.drivers]
        steady = [each for each in found if each is not None and each.status is Status.STEADY]
        return len(steady) == len(shards)

    async def _is_there(self, name: str, entry: wire.TopicEntry) -> bool:
        """Whether this very topic still exists, unchanged."""
        found = (await self._in_thread(list_topics, self._store)).get(name)
        return found is not None and (found.uuid, found.deleted) == (entry.uuid, entry.deleted)

    async def _delete(self, name: str, uuid: str) -> wire.Answer:
        async with self._locks.setdefault(name, asyncio.Lock()):
            entry = (await self._in_thread(list_topics, self._store)).get(name)
            if not matches_uuid(name, uuid, entry):
                entry = None
            elif entry is not None and not entry.deleted:
                check_deletion(name, entry)
                # Another operator may have just made its shards.
                await self._look()
                await self._close(name, entry)
                entry = await self._in_thread(mark_deleted, self._store, name, entry.uuid)
        if entry is None:
            text = f"no topic or queue {name!r} with uuid {uuid} exists (any more)"
            return wire.Failed(wire.Code.NOT_FOUND, text, False)
        self.topics[name] = entry
        await self._look()
        self._push()
        while await self._is_there(name, entry):
            await asyncio.sleep(self.settings.tick_seconds)
            await self._look()
        return wire.AdminDone(True, f"{entry.kind} {name} is deleted")

    async def _close(self, name: str, entry: wire.TopicEntry) -> None:
        """Returns when no transaction has work there or can get any. Otherwise transactions may begin again,
        and the error says why."""
        shards = [shard for shard in owned_shards(name, entry) if self._can_be_led(shard)]
        try:
            check_transactions(name, entry, await self._transaction_gate.close(shards))
        except (Unavailable, ValueError):
            await self._transaction_gate.open(shards)
            raise

    def _can_be_led(self, shard: str) -> bool:
        """Not if the shard was never made, or if most of its members were on nodes that have left the
        cluster: such a shard can have no leader, so no transaction can have work there."""
        driver = self.drivers.get(shard)
        if driver is None or driver.metadata is None:
            return False
        members = driver.metadata.members
        return 2 * sum(node_of(member) in self._nodes for member in members) > len(members)

    def _leader_link(self, shard: str) -> Link | None:
        driver = self.drivers.get(shard)
        leader = driver.metadata.leader if driver is not None and driver.metadata is not None else None
        dialer = self._dialers.get(node_of(leader)) if leader is not None else None
        return dialer.link if dialer is not None else None

    async def _drain(self, node: str) -> wire.Answer:
        """Hands over what the node leads, as far as other members are alive."""
        orders = []
        for driver in self.drivers.values():
            metadata = driver.metadata
            if metadata is None or metadata.leader is None or node_of(metadata.leader) != node:
                continue
            others = [
                each for each in metadata.members if node_of(each) != node and node_of(each) in self.alive
            ]
            if others:
                to = secrets.choice(others)
                orders.append(driver.order(partial(Transfer, to)))
        done = await asyncio.gather(*orders)
        return wire.AdminDone(
            True, f"{sum(each.done for each in done)} of {len(done)} shards were handed over"
        )


def _entry(metadata: Metadata) -> wire.ShardEntry:
    change = metadata.change
    text = None if change is None else f"{change.kind} {change.old or ''} {change.new or ''} {metadata.phase}"
    return wire.ShardEntry(
        metadata.version,
        metadata.epoch,
        metadata.status.value,
        metadata.leader,
        metadata.members,
        text,
        metadata.copies,
    )
