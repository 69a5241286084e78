"""Transactions as they go over the wire: entries one by one, sent by a process that one can end."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from hawser.cluster import wire
from hawser.cluster.shard_map import node_of
from hawser.cluster.transport import Identity, Link, PeerRole, TransportError, dial
from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import AnyResult, Outcome, decode_result
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.commands import BranchAbort, BranchCommit, BranchPrepare, CoordinatorClose, to_fields
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    LANE_FORMAT,
    Label,
    TransactionId,
    Xid,
    coordinator_number,
    owner_of,
)
from tests.support.cluster import RunningCluster

__all__ = ["QUERY", "Peer", "batch_of", "does", "entry", "lane", "stage_and_stay", "task"]

QUERY = b"query"
_ASK_SECONDS = 30.0


def batch_of(*values: bytes) -> bytes:
    return bytes(Batch.of([Record(each) for each in values]).data)


def does(request: wire.Transact, *kinds: int) -> bool:
    """Whether an entry is of one of these kinds, or says what one would with the last operation."""
    for each in request.entries:
        label = Label.read(each.label)
        said = Kind.BRANCH_PREPARE if label is not None and label.coordinator else Kind.BRANCH_COMMIT
        if each.kind in kinds or (label is not None and label.last and said in kinds):
            return True
    return False


def entry(kind: int, payload: "bytes | Payload", label: Label | None = None) -> wire.Labelled:
    data = payload if isinstance(payload, bytes) else encode_command(payload)
    return wire.Labelled(kind, data, b"" if label is None else label.encode())


def lane(name: str, incarnation: int = 1) -> TransactionId:
    return TransactionId(Xid(LANE_FORMAT, name.encode(), b""), incarnation)


def task(application: str, branch: bytes = b"branch") -> TransactionId:
    """A branch of an application's batch."""
    return TransactionId(Xid(APPLICATION_FORMAT, application.encode(), branch), 1)


class Peer:
    """Somebody with a link to every node of a cluster, until it leaves."""

    def __init__(self, cluster: RunningCluster, run: str, role: PeerRole = PeerRole.CLIENT) -> None:
        self.cluster = cluster
        self.owner = owner_of(run)
        self._identity = Identity(role=role, name=run, run=run)
        self._links: dict[str, Link] = cluster.run(self._dial())

    async def _dial(self) -> dict[str, Link]:
        addresses = self.cluster.url.removeprefix("hawser://").split(",")
        links = await asyncio.gather(*(dial(each, self._identity) for each in addresses))
        return {link.peer.name: link for link in links if link.peer is not None}

    def leave(self) -> None:
        self.cluster.run(self._close())

    async def _close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def come_again(self) -> None:
        """With a link to every node, also to those that were away."""
        self.leave()
        self._links = self.cluster.run(self._dial())

    def address(self, node: str) -> str:
        return self._links[node].address

    # Places.

    def create(self, name: str, kind: wire.TopicKind = "topic", partitions: int = 1, **settings: Any) -> None:
        wanted = wire.Admin(
            wire.AdminKind.CREATE, name, partitions=partitions, settings=settings, topic_kind=kind
        )
        answer = self.cluster.run(self._asked(next(iter(self._links)), wanted))
        assert isinstance(answer, wire.AdminDone) and answer.done, answer

    def shard(self, name: str, partition: int = 0) -> str:
        return self.cluster.run(self._shards(name))[partition]

    def coordinator(self, xid: Xid) -> str:
        homes = self.cluster.run(self._shards(wire.HOMES))
        return homes[coordinator_number(xid, len(homes))]

    async def _shards(self, name: str) -> list[str]:
        while True:
            map_ = await self._asked(next(iter(self._links)), wire.GetMap())
            if name in map_.topics:
                return wire.shards_of(name, map_.topics[name])
            await asyncio.sleep(0.01)

    async def leader(self, shard: str) -> str:
        """The node that leads it, once one does."""
        while True:
            for node, link in self._links.items():
                if link.is_open:
                    found = (await self._asked(node, wire.GetMap())).shards.get(shard)
                    if found is not None and found.leader is not None:
                        return node_of(found.leader)
            await asyncio.sleep(0.01)

    # Asking.

    async def _asked(self, node: str, request: Any) -> Any:
        return wire.decode_answer(await self._links[node].ask(wire.encode(request), _ASK_SECONDS))

    async def asked(self, request: Any) -> Any:
        """The answer of whoever leads the shard, asked until it is one that stays."""
        while True:
            with suppress(TransportError):
                answer = await self._asked(await self.leader(request.shard), request)
                if not isinstance(answer, wire.Failed) or not answer.retryable:
                    return answer
            await asyncio.sleep(0.01)

    async def asked_once(self, request: Any) -> Any:
        """The first answer of whoever leads the shard."""
        return await self._asked(await self.leader(request.shard), request)

    def ask(self, request: Any) -> Any:
        return self.cluster.run(self.asked(request))

    def begin(self, request: Any) -> "Future[Any]":
        """Ask, and go on."""
        return self.cluster.begin(self.asked(request))

    def transact(self, shard: str, *entries: wire.Labelled) -> list[AnyResult]:
        answer = self.ask(wire.Transact(shard, entries))
        assert isinstance(answer, wire.Transacted), answer
        return [decode_result(each) for each in answer.results]

    def look(self, shard: str, transaction: TransactionId | None = None) -> wire.TransactionsSeen:
        wanted = wire.TransactionLook(shard)
        if transaction is not None:
            wanted = wire.TransactionLook(shard, transaction.xid, transaction.incarnation)
        seen = self.ask(wanted)
        assert isinstance(seen, wire.TransactionsSeen), seen
        return seen

    # Entries.

    def label(self, transaction: TransactionId, number: int = 0, timeout_seconds: int = 60) -> Label:
        return Label(transaction, number, 0, self.owner, timeout_seconds)

    def publish(self, transaction: TransactionId, number: int, *values: bytes, **how: int) -> wire.Labelled:
        return entry(Kind.BATCH, batch_of(*values), self.label(transaction, number, **how))

    def put(self, transaction: TransactionId, number: int, *values: bytes) -> wire.Labelled:
        return entry(Kind.QUEUE_PUT, batch_of(*values), self.label(transaction, number))

    def commit(self, transaction: TransactionId, count: int, *others: str) -> wire.Labelled:
        """Commit the branch of this shard, and with it those of the others."""
        return entry(Kind.BRANCH_COMMIT, BranchCommit(((0, count),), others), self.label(transaction))

    def prepare(self, transaction: TransactionId, count: int, coordinator: str, **how: int) -> wire.Labelled:
        vote = BranchPrepare(((0, count),), coordinator)
        return entry(Kind.BRANCH_PREPARE, vote, self.label(transaction, **how))

    def abort(self, transaction: TransactionId, *others: str) -> wire.Labelled:
        """Roll the branch of this shard back, and with it those of the others."""
        abort = BranchAbort(Outcome.ROLLED_BACK, others=others)
        return entry(Kind.BRANCH_ABORT, abort, self.label(transaction))

    def close(self, transaction: TransactionId, counts: dict[str, int], batch: int = 1) -> wire.Labelled:
        """At home: have a branch of an application prepared."""
        participants = tuple((shard, ((0, count),)) for shard, count in sorted(counts.items()))
        return entry(Kind.HOME_CLOSE, CoordinatorClose(to_fields(transaction), participants, QUERY, batch))

    # What there is.

    def values(self, shard: str) -> list[bytes]:
        """What a topic's shard holds."""
        answer = self.ask(wire.Fetch(shard, 1, 1 << 20, 0.0))
        assert isinstance(answer, wire.Batches), answer
        return [bytes(each.value) for _, data in answer.batches for each in Batch.read(bytes(data)).records()]


async def stage_and_stay(address: str, shard: str, name: str) -> None:
    """Stage an operation on a shard that the node there leads, say so, and wait to be ended."""
    link = await dial(address, Identity(role=PeerRole.CLIENT, name=name, run=name))
    label = Label(lane(name), 1, 0, owner_of(name))
    request = wire.Transact(shard, (entry(Kind.BATCH, batch_of(name.encode()), label),))
    answer = wire.decode_answer(await link.ask(wire.encode(request), _ASK_SECONDS))
    assert isinstance(answer, wire.Transacted), answer
    print("staged", flush=True)
    await link.wait_closed()
