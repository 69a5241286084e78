"""An exact range of a partition, from whichever replica has it: what a batch job reads.

Offsets are dense, so a range says beforehand how many records are in it. The reader gives each of them once
and in order, or says which are no longer kept; nothing is skipped in silence. Replicas take turns: one that
is gone, hangs, or has not applied the range yet is followed by the next.
"""

import asyncio
from typing import NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.asking import ask
from hawser.cluster.client.failures import Backoff, error_of, given_up
from hawser.cluster.client.routing import Router
from hawser.cluster.maps import node_of
from hawser.cluster.transport import Link, TransportError
from hawser.record.batch import Batch

__all__ = ["LostRange", "Part", "RangeReader"]

# How long a replica that lags may take to apply what others have, before the next one is asked.
_WAIT_SECONDS = 0.1


class Part(NamedTuple):
    """So many `records` of a batch from place `skip` on; the first of them has `offset`."""

    batch: Batch
    skip: int
    records: int
    offset: int


class LostRange(NamedTuple):
    """The records `first` to `last` are no longer kept."""

    first: int
    last: int


class RangeReader:
    """The records from `first` up to but not including `end`, which a majority has. The leader, which has all
    of them, is asked first, or with another `turn` another replica. For one task at a time."""

    def __init__(
        self, router: Router, topic: str, uuid: str, partition: int, first: int, end: int, turn: int = 0
    ) -> None:
        assert 0 < first <= end
        self._router = router
        self._topic = topic
        self._shard = wire.shard_of(topic, uuid, partition)
        self._what = f"reading topic {topic!r}, partition {partition}"
        self._offset = first
        self._end = end
        self._turn = turn

    async def next(self) -> list[Part] | LostRange | None:
        """What comes next, about as much as is fetched at a time; None at the end. Closed if the topic was
        deleted, Unavailable if no replica gives it within the time of a call."""
        if self._offset >= self._end:
            return None
        router, settings = self._router, self._router.settings
        began = router.loop.time()
        backoff, seconds = Backoff(settings), settings.attempt_seconds
        trouble: str | wire.Failed = "no node with a replica can be reached"
        while router.loop.time() - began < settings.timeout:
            link = self._link()
            if link is not None:
                request = wire.Fetch(self._shard, self._offset, settings.fetch_bytes, _WAIT_SECONDS)
                try:
                    answer = await ask(link, wire.encode(request), seconds)
                except TransportError as error:
                    # A batch that is large for its network needs more than a first attempt has.
                    seconds, trouble = min(2 * seconds, settings.timeout), str(error)
                else:
                    found = self._found(answer)
                    if found is not None:
                        return found
                    trouble = answer if isinstance(answer, wire.Failed) else "its records have not come yet"
            self._turn += 1
            await asyncio.sleep(backoff.next())
            await router.look_after(self._topic, self._shard)
        raise given_up(self._what, router.loop.time() - began, trouble, doubt=False)

    def _link(self) -> Link | None:
        """To the replica whose turn it is."""
        entry = self._router.map.shards.get(self._shard)
        if entry is None or not entry.members:
            return None
        leader_first = sorted(entry.members, key=lambda member: member != entry.leader)
        member = leader_first[self._turn % len(leader_first)]
        node = self._router.map.nodes.get(node_of(member))
        return None if node is None else self._router.link(node.address)

    def _found(self, answer: wire.Answer) -> list[Part] | LostRange | None:
        """What an answer brings; None if another replica has to be asked."""
        if isinstance(answer, wire.Batches):
            parts = [self._part(first, Batch.read(data)) for first, data in answer.batches]
            return [part for part in parts if part.records] or None
        assert isinstance(answer, wire.Failed), answer
        if answer.code is wire.Code.OUT_OF_RANGE and self._offset < answer.start:
            lost = LostRange(self._offset, min(answer.start, self._end) - 1)
            self._offset = lost.last + 1
            return lost
        if not answer.retryable:
            raise error_of(answer, self._what)
        return None

    def _part(self, first: int, batch: Batch) -> Part:
        """Of a batch what belongs to the range; nothing of one that lies behind it."""
        offset, end = self._offset, min(first + batch.count, self._end)
        assert first <= offset or offset == self._end
        self._offset = max(offset, end)
        return Part(batch, offset - first, max(0, end - offset), offset)
