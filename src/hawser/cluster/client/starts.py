"""Where a subscription begins in each partition."""

import asyncio
from datetime import datetime
from typing import Literal, NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.asking import ask
from hawser.cluster.client.failures import Backoff
from hawser.cluster.client.routing import Router
from hawser.cluster.transport import TransportError
from hawser.errors import OffsetOutOfRange
from hawser.record.batch import Batch

__all__ = ["Bounds", "Place", "at_time", "inspect", "nanoseconds", "resolve"]

Place = Literal["earliest", "latest"] | int | datetime | None


class Bounds(NamedTuple):
    """A partition has the records from `start` up to but not including `end`."""

    start: int
    end: int


async def inspect(
    router: Router,
    topic: str,
    shard: str,
    deadline: float,
    at_ns: int | None = None,
    with_groups: bool = False,
    queue: bool = False,
) -> wire.Inspected:
    """What the leader of a partition knows to be true now; of a topic's, unless it is a queue's."""
    request = wire.Inspect(shard, at_ns, with_groups, queue=queue)
    answer = await router.ask_leader(topic, shard, request, f"looking at topic {topic!r}", deadline)
    assert isinstance(answer, wire.Inspected), answer
    return answer


async def resolve(router: Router, topic: str, shard: str, start: Place, history: int, deadline: float) -> int:
    """The offset to begin at: OffsetOutOfRange for one that is not there."""
    if isinstance(start, datetime):
        return await at_time(router, topic, shard, nanoseconds(start), deadline)
    found = await inspect(router, topic, shard, deadline)
    if start == "earliest":
        return found.start
    if isinstance(start, int):
        if not found.start <= start <= found.end:
            raise OffsetOutOfRange(
                f"offset {start} of topic {topic!r} is not there: shard {shard} has {found.start} up to "
                f'{found.end - 1}, and {found.end} is next; begin at one of those, or at "earliest"'
            )
        return start
    return max(found.start, found.end - history)


async def at_time(router: Router, topic: str, shard: str, moment_ns: int, deadline: float) -> int:
    """The offset of the first record of this time or later; the end if there is none."""
    found = await inspect(router, topic, shard, deadline, at_ns=moment_ns)
    assert found.at is not None
    return await _first_at(router, topic, shard, found.at, moment_ns, deadline)


def nanoseconds(moment: datetime) -> int:
    """Since 1970, to the microsecond that a datetime has."""
    return min(max(int(moment.timestamp() * 1_000_000) * 1_000, 0), (1 << 63) - 1)


async def _first_at(router: Router, topic: str, shard: str, offset: int, moment: int, deadline: float) -> int:
    """The very record: the leader knows the batch that it is in."""
    backoff = Backoff(router.settings)
    answer: wire.Answer | None
    while router.loop.time() < deadline:
        link = router.reading_link(shard)
        if link is not None:
            try:
                answer = await ask(link, wire.encode(wire.Fetch(shard, offset, 1, 0)), 3.0)
            except TransportError:
                answer = None
            if isinstance(answer, wire.Batches):
                if not answer.batches:
                    return offset
                first_offset, data = answer.batches[0]
                place = Batch.read(data).first_at(moment)
                return offset if place is None else max(offset, first_offset + place)
            if isinstance(answer, wire.Failed) and offset < answer.start:
                offset = answer.start
                continue
        await asyncio.sleep(backoff.next())
        await router.refresh(topic)
    # Too early is safe; the subscription goes on from here as soon as it can.
    return offset
