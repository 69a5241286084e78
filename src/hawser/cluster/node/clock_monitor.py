"""Asks the other nodes for their time, and hands over the shards of a node whose clock is wrong.

When all clocks are set at once, the nodes' knowledge of each other is outdated for a moment, so a node judges
by two rounds of answers. It hands each shard that it leads to a member whose clock a majority confirms, if
there is one; until then it removes nothing from the shard by age. The hand-over needs an operator and is
retried until it succeeds.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

from hawser.cluster import wire
from hawser.cluster.node.clock_quorum import ASK_SECONDS, ClockQuorum
from hawser.cluster.node.shard import Shard
from hawser.cluster.transport import Link, TransportError

__all__ = ["ClockMonitor"]

_log = logging.getLogger("hawser.cluster.node")

_ANSWER_SECONDS: Final = 3.0
_HAND_OVER_SECONDS: Final = 30.0
_MOST_AT_ONCE: Final = 16
_ROUNDS: Final = 2


class ClockMonitor:
    """The clock monitor of one node. `peers` are its links to other nodes, and `shards` the shards that it
    hosts. `administer` sends a request to an operator, and `start` runs a coroutine in the background."""

    def __init__(
        self,
        clocks: ClockQuorum,
        peers: Mapping[str, Link],
        shards: Mapping[str, Shard],
        administer: Callable[[wire.Admin], Awaitable[wire.Answer]],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._clocks = clocks
        self._peers = peers
        self._shards = shards
        self._administer = administer
        self._start = start
        # How many rounds in a row the clock here was wrong, and for which shards it was wrong in the last
        # round.
        self._rounds_wrong = 0
        self._doubtful: set[str] = set()
        self._leaving: set[str] = set()

    async def run(self) -> None:
        """Asks all peers periodically, and judges the clock of this node."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            for node, link in list(self._peers.items()):
                self.link_opened(node, link)
            self._judge()

    def link_opened(self, node: str, link: Link) -> None:
        """Asks a node to which a link was opened."""
        self._start(self._ask(node, link))

    async def _ask(self, node: str, link: Link) -> None:
        asked_ns = self._clocks.boot_ns()
        try:
            answer = wire.decode_answer(await link.ask(wire.encode(wire.AskClock()), _ANSWER_SECONDS))
        except TransportError:
            return
        if isinstance(answer, wire.ClockReading):
            self._clocks.heard(node, answer.time_ns, asked_ns)

    def _judge(self) -> None:
        before, self._rounds_wrong = self._rounds_wrong, self._rounds_wrong + 1
        if not self._clocks.is_wrong():
            self._rounds_wrong = 0
            if before >= _ROUNDS:
                _log.info("the clock of this node is confirmed by other nodes again")
        elif self._rounds_wrong == _ROUNDS:
            _log.error(
                "no majority of the nodes confirms the clock of this node, which is %.1f s ahead of theirs; "
                "set the clocks. Until then this node removes nothing by time",
                self._clocks.ahead_seconds() or 0.0,
            )
        led = {name: shard.standing().better for name, shard in self._shards.items() if shard.leads}
        better = {name: nodes for name, nodes in led.items() if nodes and name not in self._leaving}
        for name in [each for each in better if each in self._doubtful]:
            if len(self._leaving) < _MOST_AT_ONCE:
                # A random choice, so that a member that has lost its disk or is far behind is not tried for
                # ever.
                self._leaving.add(name)
                self._start(self._hand_over(name, random.choice(better[name])))
        self._doubtful = set(better)

    async def _hand_over(self, shard: str, node: str) -> None:
        request = wire.Admin(wire.AdminKind.TRANSFER, shard, (node,))
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                answer = await self._administer(request)
            if isinstance(answer, wire.AdminDone) and answer.done:
                _log.warning("shard %s is led by %s now, whose clock is confirmed", shard, node)
        except TimeoutError:
            pass
        finally:
            self._leaving.discard(shard)
