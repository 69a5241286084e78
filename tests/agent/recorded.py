"""What a recorder wrote, read back from a cluster, and recorders that run in a thread of the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from hawser.agent.recording import Recorder
from hawser.cluster import wire
from hawser.cluster.client.admin import offsets
from hawser.cluster.client.client import Client, TopicHandle, addresses_of
from hawser.cluster.client.rpc import ask
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.transport import TransportError
from hawser.errors import HawserError
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.record.recording import GAP_HEADER, Gap
from tests.support.processes import LIMIT_SECONDS, until

Some = TypeVar("Some", bound=Recorder)


class Row(NamedTuple):
    """A record with its place in the cluster, and the offset that its sample had on its host."""

    partition: int
    offset: int
    producer: str
    sequence: int
    record: Record

    @property
    def gap(self) -> Gap | None:
        header = self.record.headers.get(GAP_HEADER)
        return None if header is None else Gap.decode(header)


def rows_of(url: str, topic: str) -> list[Row]:
    """Every record of a topic, partition by partition."""
    return asyncio.run(_rows(url, topic))


async def _rows(url: str, topic: str) -> list[Row]:
    settings = ClientSettings(timeout=LIMIT_SECONDS, connect_timeout=LIMIT_SECONDS)
    client = Client(addresses_of(url), "reader", settings)
    await client.start()
    try:
        opened = await client.open(topic, {}, False, None)
        return [
            row for number in range(opened.partitions) for row in await _rows_of_partition(opened, number)
        ]
    finally:
        await client.close()


async def _rows_of_partition(topic: TopicHandle, partition: int) -> list[Row]:
    shard, router = topic.shard(partition), topic.router
    bounds = await offsets.inspect(router, topic.name, shard, router.loop.time() + LIMIT_SECONDS)
    rows: list[Row] = []
    offset = bounds.start
    while offset < bounds.end:
        for first_offset, data in (await _fetched(topic, shard, offset)).batches:
            batch = Batch.read(data)
            stamp = batch.stamp
            rows += [
                Row(
                    partition,
                    first_offset + place,
                    stamp.producer.decode(),
                    stamp.incarnation + place,
                    record,
                )
                for place, record in enumerate(batch.records())
            ]
            offset = first_offset + batch.count
    return rows


async def _fetched(topic: TopicHandle, shard: str, offset: int) -> wire.Batches:
    """Of whoever leads; that may be somebody else at any time."""
    router = topic.router
    deadline = router.loop.time() + LIMIT_SECONDS
    answer: object = "nobody leads"
    while router.loop.time() < deadline:
        link = router.leader_link(shard)
        if link is not None:
            with suppress(TransportError):
                answer = await ask(link, wire.encode(wire.Fetch(shard, offset, 8 << 20, 1.0)), LIMIT_SECONDS)
                if isinstance(answer, wire.Batches):
                    return answer
        await router.refresh(topic.name)
        await asyncio.sleep(0.05)
    raise AssertionError(f"nothing comes from offset {offset} on: {answer}")


def check_tiling(rows: list[Row]) -> tuple[int, int]:
    """(samples, samples gone) of one recorder's rows, which leave out no offset and have none twice."""
    expected, samples, gone = 1, 0, 0
    for row in rows:
        gap = row.gap
        if gap is None:
            assert row.sequence == expected, f"sample {row.sequence} is where {expected} should be"
            samples += 1
        else:
            assert (gap.first, gap.last) == (expected, row.sequence), f"{gap} is where {expected} should be"
            gone += gap.lost
        expected = row.sequence + 1
    return samples, gone


def recording(domain: str, topic: str, url: str, **options: Any) -> AbstractContextManager[Recorder]:
    """A recorder of a topic, at work until the block ends; what it raises is raised then."""
    return at_work(Recorder(domain, topic, url, **{"name": "recorder", **options}))


@contextmanager
def at_work(recorder: Some) -> Iterator[Some]:
    """The recorder in a thread until the block ends; what it raises is raised then."""
    stop, failures = threading.Event(), list[HawserError]()

    def run() -> None:
        try:
            recorder.run(stop)
        except HawserError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield recorder
    finally:
        stop.set()
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), "the recorder does not end"
    if failures:
        raise failures[0]


def until_recorded(recorder: Recorder, position: int) -> None:
    """Until the sample with this offset is in the cluster."""
    until(lambda: recorder.status().position >= position, f"position {position}", recorder.status)


def until_state(recorder: Recorder, state: str) -> None:
    until(lambda: recorder.status().state == state, repr(state), recorder.status)
