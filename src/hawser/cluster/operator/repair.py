"""Repairs: compares what the nodes report of each shard with its metadata, at every roll call.

| case | what a node reports | repair |
|---|---|---|
| lost | its member is gone, or another member is in its place | a new member, or that one, replaces it |
| stray | a member that the metadata does not name | it joins a shard with too few copies, else is deleted |
| short | no member, of a shard with too few copies | one of these nodes gets a new member, which joins |
| orphan | a member of a shard that no topic or queue owns | it is deleted if it never held an entry |

The metadata says how many copies a shard should have: as many as it was created with, until an order expands
or contracts it.

A repair begins when a case has been reported without a break for some time, and only while the shard has no
order in progress. Repairs keep no state that the next roll calls do not show again, so any operator continues
an interrupted one.

A stray or an orphan may be a member that an operator is about to name in the metadata, and a shard is short
while another operator replaces a copy; so these get more time. A stray or an orphan is told to retire in the
epoch of the metadata, which a node refuses once its member was fenced, installed or made to follow in a later
one.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final

from hawser.cluster.operator.shard_driver import ShardDriver
from hawser.cluster.shard_map import node_of, owned_shards, topic_of
from hawser.cluster.transport import TransportError
from hawser.cluster.wire import ShardReport, TopicEntry
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Contract, Expand, Order, Swap
from hawser.log.protocol.metadata import Metadata, Status

__all__ = ["Repairs"]

_log = logging.getLogger("hawser.cluster.operator")

# Strays, orphans and short shards are repaired after this multiple of the patience with a lost member.
_MORE_PATIENCE: Final = 10


class _Case(Enum):
    LOST = "lost"
    STRAY = "stray"
    ORPHAN = "orphan"
    SHORT = "short"


_Found = tuple[_Case, str]


class Repairs:
    """The repairs of all shards. `host` creates a member on a node, or finds the existing one; `patience` is
    in roll calls."""

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
        # By node and shard: the case that its last roll calls agree on, and how many do.
        self._seen: dict[str, dict[str, tuple[_Found, int]]] = {}
        self._under_way: set[str] = set()

    def rolled(
        self,
        node: str,
        reports: Mapping[str, ShardReport],
        drivers: Mapping[str, ShardDriver],
        topics: Mapping[str, TopicEntry],
    ) -> None:
        """`node` has answered a roll call with these reports."""
        before = self._seen.get(node, {})
        seen = self._seen[node] = {}
        for shard in [*drivers, *(each for each in reports if each not in drivers)]:
            driver, report = drivers.get(shard), reports.get(shard)
            found = _case_of(node, shard, driver, report, topics)
            if found is None or shard in self._under_way:
                continue
            known, count = before.get(shard, (found, 0))
            count = count + 1 if known == found else 1
            seen[shard] = found, count
            if count > self._patience:
                self._repair(node, shard, driver, found, count, drivers)

    def _repair(
        self,
        node: str,
        shard: str,
        driver: ShardDriver | None,
        found: _Found,
        count: int,
        drivers: Mapping[str, ShardDriver],
    ) -> None:
        case, member = found
        metadata = driver.metadata if driver is not None else None
        if driver is None or metadata is None:
            if count > self._patience * _MORE_PATIENCE:
                self._send(shard, member, m.RetireRequest(0))
        elif case is _Case.LOST and len(metadata.members) == 1:
            if count == self._patience + 1:
                _log.error("shard %s: node %s has lost %s, the only copy of the shard", shard, node, member)
        elif case is _Case.LOST:
            self._take_up(shard, self._replace(node, shard, driver, member))
        elif case is _Case.STRAY and len(metadata.members) < metadata.copies:
            self._take_up(shard, self._order(shard, driver, [partial(Expand, member, is_repair=True)]))
        elif count <= self._patience * _MORE_PATIENCE:
            return
        elif case is _Case.SHORT:
            others = [each for each, seen in self._seen.items() if seen.get(shard, (None, 0))[0] == found]
            nodes = sorted({node, *others}, key=_held(drivers).__getitem__)
            self._take_up(shard, self._add(shard, driver, nodes))
        else:
            _log.warning("shard %s: %s is not a member and is deleted", shard, member)
            self._send(shard, member, m.RetireRequest(metadata.epoch))

    def _take_up(self, shard: str, repair: Coroutine[Any, Any, None]) -> None:
        self._under_way.add(shard)
        # After a failure the next attempt waits as long as the first one, whichever node reports the case
        # then.
        for seen in self._seen.values():
            seen.pop(shard, None)
        self._begin(self._until_done(shard, repair))

    async def _until_done(self, shard: str, repair: Coroutine[Any, Any, None]) -> None:
        try:
            await repair
        except (ValueError, TransportError) as error:
            _log.warning("shard %s: %s", shard, error)
        finally:
            self._under_way.discard(shard)

    async def _replace(self, node: str, shard: str, driver: ShardDriver, lost: str) -> None:
        new = await self._host(node, shard)
        _log.warning("shard %s: node %s has lost its disk %s; %s takes its place", shard, node, lost, new)
        orders: list[Callable[[object], Order]] = [partial(Swap, lost, new)]
        if driver.metadata is not None and len(driver.metadata.members) == 2:
            orders = [partial(Contract, lost, is_repair=True), partial(Expand, new, is_repair=True)]
        await self._order(shard, driver, orders)

    async def _add(self, shard: str, driver: ShardDriver, nodes: list[str]) -> None:
        """Adds a new member on the first of these nodes that can hold one."""
        for node in nodes:
            try:
                new = await self._host(node, shard)
            except (ValueError, TransportError) as error:
                _log.warning("shard %s: %s", shard, error)
            else:
                _log.warning("shard %s has too few copies; %s joins", shard, new)
                await self._order(shard, driver, [partial(Expand, new, is_repair=True)])
                return

    @staticmethod
    async def _order(shard: str, driver: ShardDriver, orders: list[Callable[[object], Order]]) -> None:
        for order in orders:
            done = await driver.order(order)
            _log.info("shard %s: %s", shard, done.text)
            if not done.done:
                return


def _case_of(
    node: str,
    shard: str,
    driver: ShardDriver | None,
    report: ShardReport | None,
    topics: Mapping[str, TopicEntry],
) -> _Found | None:
    """The case of this shard on this node, if there is one."""
    if report is not None and report.halted is not None:
        return None
    if driver is None:
        is_orphan = report is not None and _owner_of(shard, topics) is None
        return (_Case.ORPHAN, report.member) if report is not None and is_orphan else None
    metadata = driver.metadata
    if metadata is None or metadata.status is not Status.STEADY or driver.has_orders:
        return None
    return _compare(node, metadata, report.member if report is not None else None)


def _compare(node: str, metadata: Metadata, there: str | None) -> _Found | None:
    if there in metadata.members or there in metadata.removed:
        # A removed member is told to retire until it is gone.
        return None
    for member in metadata.members:
        if node_of(member) == node:
            return _Case.LOST, member
    if there is not None:
        return _Case.STRAY, there
    return (_Case.SHORT, "") if len(metadata.members) < metadata.copies else None


def _held(drivers: Mapping[str, ShardDriver]) -> Counter[str]:
    """The number of members on each node."""
    known = [driver.metadata for driver in drivers.values() if driver.metadata is not None]
    return Counter(node_of(member) for metadata in known for member in metadata.members)


def _owner_of(shard: str, topics: Mapping[str, TopicEntry]) -> TopicEntry | None:
    """The topic or queue that the shard belongs to, unless it is deleted."""
    name = topic_of(shard)
    entry = topics.get(name)
    return entry if entry is not None and shard in owned_shards(name, entry) and not entry.deleted else None
