"""Requests about transactions between the leaders of shards, over the links between nodes.

The client finds the leader in the map and follows redirects. While a shard has no leader, as after a failover
or a start, it retries for two seconds; then the caller gets Failed and may ask again.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from hawser.cluster import wire
from hawser.cluster.node.transaction.admission import of_another_kind
from hawser.cluster.shard_map import ShardMap, node_of, topic_of
from hawser.cluster.transport import Link, PeerRole, TransportError
from hawser.cluster.wire import has_shard
from hawser.transaction.identity import Xid

__all__ = ["GONE_SECONDS", "PeerClient"]

_log = logging.getLogger("hawser.cluster.node")

_ASK_SECONDS: Final = 3.0
_MOST_HOPS: Final = 3
# How long a request is retried while the shard has no leader.
_PATIENT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.1
# A shard that complete maps have lacked for this time counts as deleted.
GONE_SECONDS: Final = 60.0
_MOST_MISSING: Final = 65_536

OnAnswer = Callable[[wire.Answer], None]
PeerRequest = wire.Transact | wire.TransactionLook


class LocalShards(Protocol):
    """The shards that this node leads."""

    def led(self, name: str) -> object | None: ...
    def transact(self, role: PeerRole, message: wire.Transact, answer: OnAnswer) -> None: ...
    def coordinator_of(self, xid: Xid) -> str | None: ...
    def look(self, request: wire.TransactionLook) -> Coroutine[Any, Any, wire.Answer] | wire.Answer: ...


class PeerClient:
    """The client of one node; `start` runs a coroutine in the background."""

    def __init__(
        self,
        shard_map: ShardMap,
        peers: Mapping[str, Link],
        here: LocalShards,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._map = shard_map
        self._peers = peers
        self._here = here
        self._start = start
        # When the complete map arrived last; since when each of these shards is missing from the map.
        self.learned_at = float("-inf")
        self._missing: dict[str, float] = {}

    def tell(self, request: PeerRequest, on_answer: OnAnswer) -> None:
        """Calls `on_answer` once: with the answer of the shard's leader, or with Failed."""
        if isinstance(request, wire.Transact) and self._here.led(request.shard) is not None:
            self._tell_here(request, on_answer)
        else:
            self._start(self._tell(request, on_answer))

    def _tell_here(self, request: wire.Transact, on_answer: OnAnswer) -> None:
        """For a shard that this node leads. A leader without a majority does not answer, so this has a
        time-out, too."""
        waits = True

        def here(answer: wire.Answer) -> None:
            nonlocal waits
            if not waits:
                return
            waits = False
            timer.cancel()
            if answer is not _LATE and _may_change(answer):
                self._start(self._tell(request, on_answer))
            else:
                on_answer(answer)

        timer = asyncio.get_running_loop().call_later(_ASK_SECONDS, here, _LATE)
        self._here.transact(PeerRole.NODE, request, here)

    async def _tell(self, request: PeerRequest, on_answer: OnAnswer) -> None:
        deadline = asyncio.get_running_loop().time() + _PATIENT_SECONDS
        try:
            answer = await self._ask(request)
            while _may_change(answer) and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(_PAUSE_SECONDS)
                answer = await self._ask(request)
        except Exception as error:
            # The caller has to get an answer, whatever the error is.
            if not isinstance(error, TransportError):
                _log.exception("shard %s: a request about a transaction failed", request.shard)
            answer = wire.Failed(wire.Code.UNAVAILABLE, str(error), True)
        on_answer(answer)

    async def _ask(self, request: PeerRequest) -> wire.Answer:
        if self._here.led(request.shard) is not None:
            return await self._ask_here(request)
        entry = self._map.shards.get(request.shard)
        node = node_of(entry.leader) if entry is not None and entry.leader else ""
        answer: wire.Answer = wire.Failed(wire.Code.NOT_LEADER, "the shard has no known leader", True)
        for _ in range(_MOST_HOPS):
            link = self._peers.get(node)
            if link is None:
                break
            answer = wire.decode_answer(await link.ask(wire.encode(request), _ASK_SECONDS))
            if not isinstance(answer, wire.Failed) or answer.leader is None or answer.leader[0] == node:
                break
            node = answer.leader[0]
        return answer

    async def _ask_here(self, request: PeerRequest) -> wire.Answer:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await self._answer_here(request)
        except TimeoutError:
            return _LATE

    async def _answer_here(self, request: PeerRequest) -> wire.Answer:
        if isinstance(request, wire.Transact):
            answered: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()

            def hear(answer: wire.Answer) -> None:
                if not answered.done():
                    answered.set_result(answer)

            self._here.transact(PeerRole.NODE, request, hear)
            return await answered
        answering = self._here.look(request)
        return await answering if asyncio.iscoroutine(answering) else answering

    def coordinator_of(self, xid: Xid) -> str | None:
        """The shard that decides the transaction, if this node knows it."""
        return self._here.coordinator_of(xid)

    def knows(self, shard: str) -> bool:
        """Whether the map has this shard."""
        return shard in self._map.shards

    def undeliverable(self, shard: str, now: float) -> wire.Failed | None:
        """Why a batch cannot be for a topic on this shard, as far as this node knows; None if it can."""
        residents = self._map.on(shard)
        if "topic" in residents:
            return None
        if residents:
            return of_another_kind(shard, residents, "topic")
        name = topic_of(shard)
        if self.is_gone(shard, now):
            return wire.Failed(wire.Code.NOT_FOUND, f"topic {name!r} was deleted", False)
        return wire.Failed(wire.Code.UNAVAILABLE, f"topic {name!r} is not known to this node yet", True)

    def learned(self, now: float) -> None:
        """A complete map arrived from an operator."""
        self.learned_at = now

    def is_gone(self, shard: str, now: float) -> bool:
        """Whether the shard's topic or queue is deleted: the map marks it as deleted, or complete maps have
        lacked it for GONE_SECONDS. The latter also covers another topic or queue of the same name."""
        name = topic_of(shard)
        entry = self._map.topics.get(name)
        if entry is not None and has_shard(name, entry, shard):
            self._missing.pop(shard, None)
            return entry.deleted
        since = self._missing.setdefault(shard, now)
        if len(self._missing) > _MOST_MISSING:
            del self._missing[next(iter(self._missing))]
        return self.learned_at - since >= GONE_SECONDS


_LATE: Final = wire.Failed(wire.Code.UNAVAILABLE, "the leader of the shard does not answer", True)


def _may_change(answer: wire.Answer) -> bool:
    """Whether a retry may find a leader."""
    return isinstance(answer, wire.Failed) and answer.retryable
