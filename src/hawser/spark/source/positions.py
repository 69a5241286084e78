"""The position of a query in the cluster: a group that holds retention back.

The group belongs to one query and has one member with a fixed name, so that a query which was killed
continues as the same member. Its position follows the offsets that Spark has committed, and only moves
forward. A query never starts from it: the checkpoint has the offsets of a query.
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
    """The name of the query's group, which no consumer uses by accident."""
    return f"spark:{name}"


class Mark:
    """The position of one query."""

    def __init__(self, cluster: Connection, name: str) -> None:
        self._cluster = cluster
        self._group = group_of(name)
        self._under_way: Future[None] | None = None

    def hold(self, offsets: Offsets) -> None:
        """Move the position to these offsets and wait until it is there, or further on."""
        self._cluster.call(self._move(offsets))

    def move(self, offsets: Offsets) -> None:
        """Move the position soon; while a move is in flight, a later call moves it."""
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
            # A refusal means that another process has moved it further, which is as good.
            command = GroupCommit(self._group, _MEMBER, joined.generation, joined.position, position)
            await self._execute(topic, shard, Kind.GROUP_COMMIT, command)

    async def _execute(self, topic: str, shard: str, kind: Kind, command: Payload) -> AnyResult:
        router = self._cluster.router
        request = wire.Execute(shard, kind, encode_command(command))
        deadline = router.loop.time() + _SECONDS
        answer = await router.ask_leader(topic, shard, request, f"group {self._group!r}", deadline)
        assert isinstance(answer, wire.Executed), answer
        return decode_result(answer.result)
