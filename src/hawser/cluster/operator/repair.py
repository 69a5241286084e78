"""Repairs: what the nodes report of each shard is compared with its metadata, at every roll call.

| case | what a node reports | repair |
|---|---|---|
| lost | its member is gone, or another one is in its place | a new member, or that one, replaces it |
| stray | a member that the metadata does not name | it joins a shard with too few copies, else is deleted |
| orphan | a member of a shard that no topic or queue owns | it is deleted if it never held an entry |

A repair begins when a case has been reported for some time without a break. It keeps nothing in memory that
the next roll call does not show again: whatever interrupts it, a later roll call of any operator takes it up.
No repair begins while the shard has an order to carry out.

A stray or an orphan may be a member that an operator is about to name in the metadata. It is therefore given
more time, and it is told to retire in the epoch of the metadata: a node refuses that once its member was
fenced, installed or made to follow in a later one.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from typing import Any, Final

from hawser.cluster.maps import node_of, owned_shards, topic_of
from hawser.cluster.operator.desk import Desk
from hawser.cluster.transport import TransportError
from hawser.cluster.wire import ShardReport, TopicEntry
from hawser.log.protocol import messages as m
from hawser.log.protocol.metadata import Metadata, Status
from hawser.log.protocol.orders import Contract, Expand, Order, Swap

__all__ = ["Repairs"]

_log = logging.getLogger("hawser.cluster.operator")

# A member that no metadata names is deleted after so many times the patience with a lost one.
_MORE_PATIENCE: Final = 10


class _Case(Enum):
    LOST = "lost"
    STRAY = "stray"
    ORPHAN = "orphan"


_Found = tuple[_Case, str]


class Repairs:
    """Those of all shards. `host` makes a member on a node, or finds the one that is there; `patience` is in
    roll calls."""

    def __init__(
        self,
        host: Callable[[str, str], Awaitable[str]],
        send: Callable[[str, str, m.Message], None],
        begin: Callable[[Coroutine[Any, Any, None]], object],
        patience: int,
    ) -> None:
        self._host = host
        self._send = send
        self._begin = begin
        self._patience = patience
        # By node and shard: what its last roll calls have in common, and how many these are.
        self._seen: dict[str, dict[str, tuple[_Found, int]]] = {}
        self._under_way: set[str] = set()

    def rolled(
        self,
        node: str,
        reports: Mapping[str, ShardReport],
        desks: Mapping[str, Desk],
        topics: Mapping[str, TopicEntry],
    ) -> None:
        """`node` has answered a roll call with these."""
        before, seen = self._seen.get(node, {}), {}
        for shard in [*desks, *(each for each in reports if each not in desks)]:
            desk, report = desks.get(shard), reports.get(shard)
            found = _case_of(node, shard, desk, report, topics)
            if found is None or shard in self._under_way:
                continue
            known, count = before.get(shard, (found, 0))
            count = count + 1 if known == found else 1
            seen[shard] = found, count
            if count > self._patience:
                self._repair(node, shard, desk, found, count, _copies_of(shard, topics))
                if shard in self._under_way:
                    # If it fails, the next attempt waits as long as the first one.
                    del seen[shard]
        self._seen[node] = seen

    def _repair(
        self, node: str, shard: str, desk: Desk | None, found: _Found, count: int, copies: int
    ) -> None:
        case, member = found
        metadata = desk.metadata if desk is not None else None
        if desk is None or metadata is None:
            if count > self._patience * _MORE_PATIENCE:
                self._send(shard, member, m.RetireRequest(0))
        elif case is _Case.LOST and len(metadata.members) == 1:
            if count == self._patience + 1:
                _log.error("shard %s: node %s has lost its disk %s, the only copy", shard, node, member)
        elif case is _Case.LOST:
            self._take_up(shard, self._replace(node, shard, desk, member))
        elif len(metadata.members) < copies:
            self._take_up(shard, self._order(shard, desk, [lambda tag: Expand(member, tag)]))
        elif count > self._patience * _MORE_PATIENCE:
            _log.warning("shard %s: %s is none of its members and is deleted", shard, member)
            self._send(shard, member, m.RetireRequest(metadata.epoch))

    def _take_up(self, shard: str, repair: Coroutine[Any, Any, None]) -> None:
        self._under_way.add(shard)
        self._begin(self._until_done(shard, repair))

    async def _until_done(self, shard: str, repair: Coroutine[Any, Any, None]) -> None:
        try:
            await repair
        except (ValueError, TransportError) as error:
            _log.warning("shard %s: %s", shard, error)
        finally:
            self._under_way.discard(shard)

    async def _replace(self, node: str, shard: str, desk: Desk, lost: str) -> None:
        new = await self._host(node, shard)
        _log.warning("shard %s: node %s has lost its disk %s; %s takes its place", shard, node, lost, new)
        orders: list[Callable[[object], Order]] = [lambda tag: Swap(lost, new, tag)]
        if desk.metadata is not None and len(desk.metadata.members) == 2:
            orders = [lambda tag: Contract(lost, tag), lambda tag: Expand(new, tag)]
        await self._order(shard, desk, orders)

    @staticmethod
    async def _order(shard: str, desk: Desk, orders: list[Callable[[object], Order]]) -> None:
        for order in orders:
            done = await desk.order(order)
            _log.info("shard %s: %s", shard, done.text)
            if not done.done:
                return


def _case_of(
    node: str, shard: str, desk: Desk | None, report: ShardReport | None, topics: Mapping[str, TopicEntry]
) -> _Found | None:
    """What is wrong with this shard on this node."""
    if report is not None and report.halted is not None:
        return None
    if desk is None:
        is_orphan = report is not None and _owner_of(shard, topics) is None
        return (_Case.ORPHAN, report.member) if report is not None and is_orphan else None
    metadata = desk.metadata
    if metadata is None or metadata.status is not Status.STEADY or desk.has_orders:
        return None
    return _compare(node, metadata, report.member if report is not None else None)


def _compare(node: str, metadata: Metadata, there: str | None) -> _Found | None:
    if there in metadata.members or there in metadata.removed:
        # One that was removed is told to retire until it is gone.
        return None
    for member in metadata.members:
        if node_of(member) == node:
            return _Case.LOST, member
    return (_Case.STRAY, there) if there is not None else None


def _owner_of(shard: str, topics: Mapping[str, TopicEntry]) -> TopicEntry | None:
    """The topic or queue that has this shard, unless it is deleted."""
    name = topic_of(shard)
    entry = topics.get(name)
    return entry if entry is not None and shard in owned_shards(name, entry) and not entry.deleted else None


def _copies_of(shard: str, topics: Mapping[str, TopicEntry]) -> int:
    """How many members the shard was made with; 0 if nothing owns it."""
    entry = _owner_of(shard, topics)
    copies = entry.settings.get("replication", 3) if entry is not None else 0
    assert isinstance(copies, int)
    return copies
