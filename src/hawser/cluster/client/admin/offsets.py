"""Offsets: where a subscription or a new group starts in a partition, and a group member's share of
partitions."""

import asyncio
import secrets
from datetime import datetime
from typing import Final, Literal, NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, given_up
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import TransportError
from hawser.errors import OffsetOutOfRange
from hawser.log.entry import Kind
from hawser.log.state.commands import AT_END, GroupJoin, GroupLeave, encode_command
from hawser.record.batch import Batch

__all__ = [
    "Bounds",
    "Moment",
    "Place",
    "at_time",
    "begin_group",
    "group_start",
    "inspect",
    "nanoseconds",
    "resolve",
    "share_of",
]

# A batch that is large for its network takes longer than other answers.
_BATCH_SECONDS: Final = 3.0

Place = Literal["earliest", "latest"] | int | datetime | None


class Bounds(NamedTuple):
    """A partition has the records from `start` up to but not including `end`. `terms` are those of its
    records, as far as they are known."""

    start: int
    end: int
    terms: wire.Runs = ()


class Moment(NamedTuple):
    """The offset of the first record of a time or later; the partition's end if it has none."""

    offset: int
    is_there: bool


def share_of(member: str, members: tuple[str, ...], partitions: int) -> set[int]:
    """The range of partitions of one of the sorted members. If the partitions do not divide evenly, the first
    members get one more."""
    if member not in members:
        return set()
    place, count = members.index(member), len(members)
    least, more = divmod(partitions, count)
    first = place * least + min(place, more)
    return set(range(first, first + least + (place < more)))


async def inspect(
    router: Router,
    topic: str,
    shard: str,
    deadline: float,
    at_ns: int | None = None,
    with_groups: bool = False,
    queue: bool = False,
    terms_from: int | None = None,
) -> wire.Inspected:
    """Query the leader of a partition, with a linearizable read; `queue` says that it is a queue's."""
    request = wire.Inspect(shard, at_ns, with_groups, queue=queue, terms_from=terms_from)
    answer = await router.ask_leader(topic, shard, request, f"looking at topic {topic!r}", deadline)
    assert isinstance(answer, wire.Inspected), answer
    return answer


async def resolve(router: Router, topic: str, shard: str, start: Place, history: int, deadline: float) -> int:
    """The offset to begin at; OffsetOutOfRange for one that the partition does not have."""
    if isinstance(start, datetime):
        return (await at_time(router, topic, shard, nanoseconds(start), deadline)).offset
    found = await inspect(router, topic, shard, deadline)
    if start == "earliest":
        return found.start
    if isinstance(start, int):
        if not found.start <= start <= found.end:
            raise OffsetOutOfRange(
                f"offset {start} of topic {topic!r} does not exist: shard {shard} has {found.start} up to "
                f'{found.end - 1}, and {found.end} is next; begin at one of those, or at "earliest"'
            )
        return start
    return max(found.start, found.end - history)


async def group_start(
    router: Router, topic: str, shard: str, start: Place, history: int, deadline: float
) -> int:
    """The position at which a new group begins in a partition."""
    if start == "earliest":
        return 0
    if isinstance(start, int):
        return start
    if not history and (start is None or start == "latest"):
        return AT_END
    return await resolve(router, topic, shard, start, history, deadline)


async def begin_group(
    router: Router, topic: str, shard: str, group: str, position: int, deadline: float
) -> None:
    """Fix the start of a new group in a partition that no member reads yet."""
    found = await inspect(router, topic, shard, deadline, with_groups=True)
    if group in found.groups:
        return
    founder = f"founder#{secrets.token_hex(6)}"
    for kind, command in (
        (Kind.GROUP_JOIN, GroupJoin(group, founder, position)),
        (Kind.GROUP_LEAVE, GroupLeave(group, founder)),
    ):
        request = wire.Execute(shard, kind, encode_command(command))
        await router.ask_leader(topic, shard, request, f"beginning group {group!r} in {shard}", deadline)


async def at_time(router: Router, topic: str, shard: str, moment_ns: int, deadline: float) -> Moment:
    """The place of a time in a partition."""
    found = await inspect(router, topic, shard, deadline, at_ns=moment_ns)
    assert found.at is not None
    if found.at >= found.end:
        return Moment(found.end, False)
    return Moment(await _first_at(router, topic, shard, found.at, moment_ns, deadline), True)


def nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970, with the microsecond precision of datetime."""
    return min(max(int(moment.timestamp() * 1_000_000) * 1_000, 0), (1 << 63) - 1)


async def _first_at(router: Router, topic: str, shard: str, offset: int, moment: int, deadline: float) -> int:
    """The offset of the record itself; the leader knows only its batch."""
    backoff, began = Backoff(router.settings), router.loop.time()
    trouble: str | wire.Failed = "no node with a replica can be reached"
    answer: wire.Answer | None
    while (left := deadline - router.loop.time()) > 0:
        link = router.reading_link(shard)
        if link is not None:
            try:
                seconds = min(left, _BATCH_SECONDS)
                request = wire.Fetch(shard, offset, 1, 0)
                answer = checked(link, request, await ask(link, wire.encode(request), seconds))
            except TransportError as error:
                answer, trouble = None, str(error)
            if isinstance(answer, wire.Batches):
                if answer.batches:
                    first_offset, data = answer.batches[0]
                    place = Batch.read(data).first_at(moment)
                    return offset if place is None else max(offset, first_offset + place)
                trouble = "its records have not come yet"
            if isinstance(answer, wire.Failed):
                trouble = answer
                if offset < answer.start:
                    offset = answer.start
                    continue
        await asyncio.sleep(min(backoff.next(), max(0.0, deadline - router.loop.time())))
        await router.look_after(topic, shard, deadline)
    raise given_up(f"reading topic {topic!r}", router.loop.time() - began, trouble, doubt=False)
