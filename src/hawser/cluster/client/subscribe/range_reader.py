"""Reads of an exact range of a partition, from any replica that has it: for batch jobs.

Offsets are dense, so a range determines how many records it has. The reader returns each record once and in
order, or reports which are no longer kept; it skips none silently. If a replica is gone, hangs, or has not
applied the range yet, the reader asks the next one.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, error_of, given_up
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.client.sample import FetchedSample
from hawser.cluster.shard_map import node_of
from hawser.cluster.transport import Link, TransportError
from hawser.errors import HawserError, Timeout
from hawser.record.batch import Batch

__all__ = ["TakeResult", "LostRange", "BatchSlice", "RangeReader"]

# How long a lagging replica may take to apply the range before the reader asks the next one.
_WAIT_SECONDS = 0.1


class BatchSlice(NamedTuple):
    """`records` records of a batch from place `skip` on; the first has `offset`."""

    batch: Batch
    skip: int
    records: int
    offset: int

    def samples(
        self, most: int, partition: int, lost_before: int, decode: Callable[[Any], Any] | None
    ) -> list[FetchedSample]:
        """Up to `most` of its records as samples; `lost_before` records were lost before the first."""
        publisher = self.batch.header.producer.decode(errors="replace").rpartition("#")[0]
        records = islice(self.batch.records(), self.skip, self.skip + min(most, self.records))
        return [
            FetchedSample(record, partition, offset, publisher, 0 if place else lost_before, decode)
            for place, (offset, record) in enumerate(enumerate(records, self.offset))
        ]


class LostRange(NamedTuple):
    """The records `first` to `last` are no longer kept."""

    first: int
    last: int


class TakeResult(NamedTuple):
    """The result of a read: the samples, the offset up to which it has read, and how many records before that
    are no longer kept. `error` is why it ended early."""

    samples: list[FetchedSample]
    last: int
    missed: int
    error: HawserError | None = None


class RangeReader:
    """Reads the committed records from `first` up to but not including `end`, for one task at a time. It asks
    the leader first, or with another `turn` another replica, for about `fetch_bytes` at a time, at least a
    batch."""

    def __init__(
        self,
        router: Router,
        topic: str,
        uuid: str,
        partition: int,
        first: int,
        end: int,
        turn: int = 0,
        fetch_bytes: int | None = None,
    ) -> None:
        assert 0 < first <= end
        self._router = router
        self._topic = topic
        self._partition = partition
        self._shard = wire.shard_of(topic, uuid, partition)
        self._what = f"reading topic {topic!r}, partition {partition}"
        self._offset = first
        self._end = end
        self._turn = turn
        self._fetch_bytes = router.settings.fetch_bytes if fetch_bytes is None else fetch_bytes

    async def next(self, deadline: float | None = None) -> list[BatchSlice] | LostRange | None:
        """The next part of the range, as much as one fetch brings; None at its end. Closed if the topic was
        deleted, Unavailable if no replica has answered by the deadline, which is a call's timeout by
        default."""
        if self._offset >= self._end:
            return None
        router, settings = self._router, self._router.settings
        began = router.loop.time()
        if deadline is None:
            deadline = began + settings.timeout
        backoff, seconds = Backoff(settings), settings.attempt_seconds
        trouble: str | wire.Failed = "no node with a replica can be reached"
        while (left := deadline - router.loop.time()) > 0:
            link = self._link()
            if link is not None:
                request = wire.Fetch(self._shard, self._offset, self._fetch_bytes, _WAIT_SECONDS)
                try:
                    body = wire.encode(request)
                    answer = checked(link, request, await ask(link, body, min(seconds, left)))
                except TransportError as error:
                    # A batch that is large for its network needs more time than a first attempt has.
                    seconds, trouble = min(2 * seconds, settings.timeout), str(error)
                else:
                    found = self._found(answer)
                    if found is not None:
                        return found
                    trouble = answer if isinstance(answer, wire.Failed) else "its records have not come yet"
            self._turn += 1
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - router.loop.time())))
            await router.look_after(self._topic, self._shard, deadline)
        raise given_up(self._what, router.loop.time() - began, trouble, doubt=False)

    async def take(self, count: int, deadline: float, decode: Callable[[Any], Any] | None) -> TakeResult:
        """The next `count` records of the range, or those that arrive by the deadline and an error."""
        samples: list[FetchedSample] = []
        last, missed, lost = self._offset - 1, 0, 0
        try:
            while len(samples) < count and (found := await self.next(deadline)) is not None:
                if isinstance(found, LostRange):
                    last, lost = found.last, lost + found.last - found.first + 1
                    continue
                for part in found:
                    samples += part.samples(count - len(samples), self._partition, lost, decode)
                    missed, lost, last = missed + lost, 0, samples[-1].offset
                if len(samples) < count and self._offset < self._end:
                    self._check_time(deadline, len(samples))
        except HawserError as error:
            return TakeResult(samples, last, missed + lost, error)
        return TakeResult(samples, last, missed + lost)

    def _check_time(self, deadline: float, count: int) -> None:
        if self._router.loop.time() >= deadline:
            raise Timeout(
                f"{self._what}: only {count} of the messages came within {self._router.settings.timeout:g} "
                "s; continue behind them, read fewer at a time, or connect with a longer timeout"
            )

    def _link(self) -> Link | None:
        """A link to the replica whose turn it is."""
        entry = self._router.map.shards.get(self._shard)
        if entry is None or not entry.members:
            return None
        leader_first = sorted(entry.members, key=lambda member: member != entry.leader)
        member = leader_first[self._turn % len(leader_first)]
        node = self._router.map.nodes.get(node_of(member))
        return None if node is None else self._router.link(node.address)

    def _found(self, answer: wire.Answer) -> list[BatchSlice] | LostRange | None:
        """The contents of an answer; None if the reader has to ask another replica."""
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

    def _part(self, first: int, batch: Batch) -> BatchSlice:
        """The part of a batch that belongs to the range; empty if the batch lies behind it."""
        offset, end = self._offset, min(first + batch.count, self._end)
        assert first <= offset or offset == self._end
        self._offset = max(offset, end)
        return BatchSlice(batch, offset - first, max(0, end - offset), offset)
