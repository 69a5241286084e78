"""Exact ranges of a partition, through nodes that go, retention and deletion; no Spark."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.bench.cluster.servers import free_ports
from hawser.cluster.client.client import Client, addresses_of
from hawser.cluster.client.loop_thread import LoopThread
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.client.subscribe.range_reader import LostRange, RangeReader
from hawser.cluster.embedded import EmbeddedCluster
from hawser.cluster.wire import Code
from hawser.spark import connection
from hawser.spark.source.options import Options
from tests.support.cluster import RunningCluster
from tests.support.source import shard_of, trim

SMALL = ClientSettings(fetch_bytes=2_000, timeout=20.0)


class Connected:
    def __init__(self, cluster: RunningCluster, settings: ClientSettings = SMALL) -> None:
        self.thread = LoopThread("test")
        self.client = self.thread.call(self._start(cluster.url, settings))

    async def _start(self, url: str, settings: ClientSettings) -> Client:
        client = Client(addresses_of(url), "test", settings)
        await client.start()
        return client

    def reader(self, topic: hawser.Topic[Any], first: int, end: int, turn: int = 0) -> RangeReader:
        return RangeReader(self.client.router, topic.name, topic.info().uuid, 0, first, end, turn)

    def next(self, reader: RangeReader) -> Any:
        return self.thread.call(reader.next())

    def close(self) -> None:
        self.thread.call(self.client.close())
        self.thread.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as running:
        yield running


@pytest.fixture
def connected(cluster: RunningCluster) -> Iterator[Connected]:
    connected = Connected(cluster)
    yield connected
    connected.close()


def taken(found: Any) -> list[tuple[int, bytes]]:
    """(offset, value) of what came."""
    return [
        (part.offset + place, record.value)
        for part in found
        for place, record in enumerate(list(part.batch.records())[part.skip : part.skip + part.records])
    ]


def filled(cluster: RunningCluster, count: int) -> tuple[Any, list[bytes]]:
    """A topic with so many records, in batches of any size."""
    topic = cluster.connect("tests").topic("ranges")
    values = [b"%d" % number * 9 for number in range(count)]
    chance, place = random.Random(count), 0
    while place < count:
        size = chance.choice([1, 2, 30, 200])
        topic.publish_many(values[place : place + size])
        place += size
    return topic, values


def test_every_range_is_exact(cluster: RunningCluster, connected: Connected, record_property: Any) -> None:
    topic, values = filled(cluster, 2000)
    chance = random.Random(5)
    for number in range(40):
        first = chance.randint(1, 2000)
        end = chance.randint(first, 2001)
        reader = connected.reader(topic, first, end, turn=number)
        found = []
        while (answer := connected.next(reader)) is not None:
            found += taken(answer)
        assert found == [(offset, values[offset - 1]) for offset in range(first, end)]
    record_property("ranges", 40)


def test_nodes_that_go_in_mid_read(cluster: RunningCluster, connected: Connected) -> None:
    """Each of them once, the leader among them: the range is what it was."""
    topic, values = filled(cluster, 3000)
    reader = connected.reader(topic, 1, 3001)
    found = []
    for node in cluster.nodes:
        found += taken(connected.next(reader))
        cluster.stop(node)
        found += taken(connected.next(reader))
        cluster.start(node)
    while (answer := connected.next(reader)) is not None:
        found += taken(answer)
    assert found == list(enumerate(values, 1))


def test_a_leader_that_moves_in_mid_read(cluster: RunningCluster, connected: Connected) -> None:
    topic, values = filled(cluster, 1000)
    shard = shard_of(topic)
    reader = connected.reader(topic, 1, 1001)
    found = []
    for node in (*cluster.nodes, *cluster.nodes):
        if topic.info().partitions[0].leader != node:
            cluster.transfer(shard, node)
        found += taken(connected.next(reader) or [])
    while (answer := connected.next(reader)) is not None:
        found += taken(answer)
    assert found == list(enumerate(values, 1))


def test_what_is_trimmed_in_mid_read_is_told(cluster: RunningCluster, connected: Connected) -> None:
    topic, values = filled(cluster, 2000)
    reader = connected.reader(topic, 1, 1901)
    found = taken(connected.next(reader))
    behind = found[-1][0] + 1
    trim(cluster, topic, 1501)
    assert connected.next(reader) == LostRange(behind, 1500)
    while (answer := connected.next(reader)) is not None:
        found += taken(answer)
    offsets = [*range(1, behind), *range(1501, 1901)]
    assert found == [(offset, values[offset - 1]) for offset in offsets]
    whole = connected.reader(topic, 5, 100)
    assert (connected.next(whole), connected.next(whole)) == (LostRange(5, 99), None)


def test_a_topic_that_is_deleted_in_mid_read(cluster: RunningCluster, connected: Connected) -> None:
    topic, _ = filled(cluster, 1000)
    reader = connected.reader(topic, 1, 1001)
    connected.next(reader)
    topic.delete()
    with pytest.raises(hawser.Closed, match="deleted"):
        while connected.next(reader) is not None:
            pass


def test_nobody_there_ends_in_time(cluster: RunningCluster) -> None:
    connected = Connected(cluster, ClientSettings(timeout=3.0, fetch_bytes=2_000))
    topic, _ = filled(cluster, 1000)
    reader = connected.reader(topic, 1, 1001)
    connected.next(reader)
    nodes = cluster.nodes
    for node in nodes:
        cluster.stop(node)
    with pytest.raises(hawser.Unavailable, match="reading topic 'ranges', partition 0: not done within"):
        while connected.next(reader) is not None:
            pass
    connected.close()
    for node in nodes:
        cluster.start(node)


def test_a_replica_that_refuses_for_good_is_believed(
    cluster: RunningCluster, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hawser.cluster import wire
    from hawser.cluster.client.subscribe import range_reader

    async def refuse(*_: Any) -> wire.Answer:
        return wire.Failed(Code.DAMAGED, "planted", False)

    topic, _ = filled(cluster, 10)
    monkeypatch.setattr(range_reader, "ask", refuse)
    with pytest.raises(hawser.Corrupt, match="planted"):
        connected.next(connected.reader(topic, 1, 11))


@contextmanager
def one_node(directory: Path, listen: str) -> Iterator[str]:
    """A cluster at this address and no other."""

    async def start() -> EmbeddedCluster:
        cluster = EmbeddedCluster(directory, 1, listen)
        await cluster.start()
        return cluster

    thread = LoopThread("cluster")
    cluster = thread.call(start())
    yield cluster.url
    thread.call(cluster.stop())
    thread.stop()


def test_another_cluster_at_the_same_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker outlives a cluster: what it learned of the old one is not in the way of the new one."""
    monkeypatch.setattr(connection, "_SETTINGS", ClientSettings(timeout=5.0, connect_timeout=60.0))
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    for name in ("old", "new"):
        with one_node(tmp_path / name, listen) as url, hawser.connect(url) as bus:
            if name == "old":
                # Of two versions of a topic the higher one is believed.
                for _ in range(3):
                    bus.topic("same", replication=1).delete()
            bus.topic("same", replication=1).publish(name.encode())
            options = Options.of({"endpoints": url, "subscribe": "same"}, streaming=False)
            if name == "new":
                stale = connection.connection(url)
                with pytest.raises(hawser.Unavailable):
                    stale.bounds(stale.topics(options), options)
            fresh = connection.connection(url)
            (topic,) = fresh.bounds(fresh.topics(options), options).values()
            assert topic.partitions[0].end == 2
