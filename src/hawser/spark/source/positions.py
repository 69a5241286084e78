"""How far a query is, told to the cluster: a group whose position holds retention back.

The group belongs to one query and has one member, which is always called the same: so a query that was
killed goes on as what it was. Its position moves behind what Spark has committed, and only forward. It is a
mark and nothing else; where a query goes on is in its checkpoint.
"""

import asyncio
import logging
from concurrent.futures import Future
from typing import Final

from hawser.cluster import wire
from hawser.errors import HawserError
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit, GroupJoin, Payload, encode_command
from hawser.log.state.results import AnyResult, Joined, decode_result
from hawser.spark.connection import Connection
from hawser.spark.source.offsets import Offsets

__all__ = ["Mark", "group_of"]

_MEMBER: Final = "spark"
_SECONDS: Final = 15.0

_log = logging.getLogger("hawser.spark.source")


def group_of(name: str) -> str:
    """The group of a query: none that consumers share by accident."""
    return f"spark:{name}"


class Mark:
    """That of one query."""

    def __init__(self, cluster: Connection, name: str) -> None:
        self._cluster = cluster
        self._group = group_of(name)
        self._under_way: Future[None] | None = None

    def hold(self, offsets: Offsets) -> None:
        """Return when the mark is there, or further on."""
        self._cluster.call(self._move(offsets))

    def move(self, offsets: Offsets) -> None:
        """Move on soon; if the last move is still under way, a later one does."""
        if self._under_way is None or self._under_way.done():
            self._under_way = self._cluster.begin(self._try_to_move(offsets))

    async def _try_to_move(self, offsets: Offsets) -> None:
        try:
            await self._move(offsets)
        except HawserError as error:
            _log.warning("the mark of group %s was not moved: %s", self._group, error)

    async def _move(self, offsets: Offsets) -> None:
        await asyncio.gather(
            *(
                self._move_shard(topic, wire.shard_of(topic, place.uuid, partition), position)
                for topic, place in offsets.items()
                for partition, position in place.partitions.items()
            )
        )

    async def _move_shard(self, topic: str, shard: str, position: int) -> None:
        joined = await self._execute(topic, shard, Kind.GROUP_JOIN, GroupJoin(self._group, _MEMBER, position))
        if isinstance(joined, Joined) and joined.position < position:
            # If it is refused somebody else has moved it on, and that is as well.
            command = GroupCommit(self._group, _MEMBER, joined.generation, joined.position, position)
            await self._execute(topic, shard, Kind.GROUP_COMMIT, command)

    async def _execute(self, topic: str, shard: str, kind: Kind, command: Payload) -> AnyResult:
        router = self._cluster.router
        request = wire.Execute(shard, kind, encode_command(command))
        deadline = router.loop.time() + _SECONDS
        answer = await router.ask_leader(topic, shard, request, f"group {self._group!r}", deadline)
        assert isinstance(answer, wire.Executed), answer
        return decode_result(answer.result)
