"""What a cluster forgets of recorders, and recorders that were forgotten; and a disk with no room."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.node import maintenance
from hawser.cluster.node.maintenance import Maintenance, Now
from hawser.cluster.node.retention import Retention
from hawser.log.entry import Kind
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Command, Propose, Receive
from hawser.log.replica import Replica, Settings
from hawser.log.state.commands import ExpireProducers, TrimTo, encode_command
from hawser.log.state.producers import Producers
from hawser.log.state.results import Expired, Trimmed, decode_result
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import Gap, recorder_id
from hawser.testing import LocalBus
from hawser.testing.disk import SimDisk
from hawser.transaction.participant.branches import transactional_parts
from tests.agent.recorded import check_tiling, recording, rows_of, until_recorded, until_state
from tests.support.cluster import RunningCluster
from tests.support.disks import small_disk
from tests.support.processes import until

DAY_SECONDS = 86_400.0


# The cluster's side.


def leading_replica() -> Replica:
    replica = Replica.create(SimDisk(), "s", "n1.a", 1, Settings(parts=transactional_parts))
    replica.step(Receive("o", m.FenceRequest(1)))
    replica.step(Receive("o", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    return replica


def propose(replica: Replica, kind: Kind, payload: bytes) -> None:
    replica.step(Propose((Command(kind, payload, None),)))
    while replica.sync_wanted:
        sync = replica.begin_sync()
        sync.run()
        replica.finish_sync(sync)


def known_after(replica: Replica, keeper: Maintenance) -> set[bytes]:
    """The producers that are known once everything that is due was done, at the time of `upkeep.time`."""
    now = Now(10**18 + round(vars(maintenance)["time"].monotonic() * 1e9), 0)
    for kind, payload in keeper.due(replica, Retention(None, None), confirmed=now):
        propose(replica, kind, payload)
    return {name for name, _, _ in replica.machine.part(Producers)}


def test_an_idle_recorder_is_forgotten_only_with_its_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("hawser.cluster.node.maintenance.time", clock)
    replica, keeper, recorder = leading_replica(), Maintenance(), recorder_id("r", "region")
    for producer in (recorder, b"ordinary"):
        batch = Batch.of([Record(b"x"), Record(b"y")], Stamp(producer, 1, 1))
        propose(replica, Kind.BATCH, bytes(batch.data))
    assert known_after(replica, keeper) == {recorder, b"ordinary"}
    now += 8 * DAY_SECONDS
    assert known_after(replica, keeper) == {recorder}
    propose(replica, Kind.TRIM, encode_command(TrimTo(2)))
    now += 8 * DAY_SECONDS
    assert known_after(replica, keeper) == {recorder}
    propose(replica, Kind.TRIM, encode_command(TrimTo(3)))
    now += 8 * DAY_SECONDS
    assert known_after(replica, keeper) == set()


# The recorder's side.


def execute(cluster: RunningCluster, topic: str, kind: Kind, payload: bytes) -> Any:
    """What became of an entry of the only partition of a topic."""
    entry = cluster.ask(wire.GetMap(topic)).topics[topic]
    request = wire.Execute(wire.shard_of(topic, entry.uuid, 0), kind, payload)
    answers = [cluster.ask(request, node) for node in cluster.nodes]
    (result,) = [decode_result(each.result) for each in answers if isinstance(each, wire.Executed)]
    return result


def trim_all(cluster: RunningCluster, topic: str) -> None:
    (partition,) = cluster.connect().topic(topic, create=False).info().partitions
    trimmed = execute(cluster, topic, Kind.TRIM, encode_command(TrimTo(partition.end)))
    assert isinstance(trimmed, Trimmed) and trimmed.start == partition.end


def forget(cluster: RunningCluster, topic: str, producer: bytes) -> None:
    """As the cluster does with one that was idle for long, when nothing of it is left."""
    entry = cluster.ask(wire.GetMap(topic)).topics[topic]
    shard = wire.shard_of(topic, entry.uuid, 0)
    leaders: list[Any] = []

    def is_one() -> bool:
        leaders[:] = [node.shards[shard] for node in cluster._nodes.values() if node.shards[shard].leads]
        return len(leaders) == 1

    until(is_one, "somebody leads, and nobody else")
    (leader,) = leaders
    found = leader.replica.machine.part(Producers).newest(producer)
    assert found is not None
    expiry = encode_command(ExpireProducers(((producer, found[0], 1),)))
    answer = cluster.run(leader.execute(Kind.EXPIRE_PRODUCERS, expiry))
    assert isinstance(answer, wire.Executed) and decode_result(answer.result) == Expired(1)


def test_a_forgotten_recorder_goes_on_where_its_region_says(cluster: RunningCluster) -> None:
    with LocalBus() as local:
        topic = local.connect("p").topic("forgotten", history=0, depth=100)
        with recording(local.url, "forgotten", cluster.url) as recorder:
            until_state(recorder, "recording")
            topic.publish_many([b"%d" % number for number in range(1, 51)])
            until_recorded(recorder, 50)
        producer = recorder_id("recorder", topic.info().uuid)
        trim_all(cluster, "forgotten")
        forget(cluster, "forgotten", producer)
        topic.publish_many([b"%d" % number for number in range(51, 61)])
        with recording(local.url, "forgotten", cluster.url) as recorder:
            until_recorded(recorder, 60)
            assert (recorder.status().recorded, recorder.status().lost) == (10, 0)
    rows = rows_of(cluster.url, "forgotten")
    assert [(row.sequence, row.record.value) for row in rows] == [(n, b"%d" % n) for n in range(51, 61)]


def test_one_that_is_new_to_a_trimmed_topic_says_what_it_lacks(cluster: RunningCluster) -> None:
    remote: hawser.Topic[Any] = cluster.connect().topic("trimmed")
    remote.publish_many([b"of somebody else"] * 5)
    trim_all(cluster, "trimmed")
    with LocalBus() as local:
        topic = local.connect("p").topic("trimmed", history=2)
        topic.publish_many([b"x"] * 10)
        with recording(local.url, "trimmed", cluster.url) as recorder:
            until_recorded(recorder, 10)
    rows = rows_of(cluster.url, "trimmed")
    assert [row.gap for row in rows] == [Gap(1, 1), Gap(2, 8), None, None]
    assert check_tiling(rows) == (2, 8)


# A disk with no room.


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that the test fills."""
    with small_disk(tmp_path / "small", "160m") as place:
        yield place


def test_a_full_disk_is_waited_for(full_disk: Path, record_property: Callable[[str, object], None]) -> None:
    message = bytes(100_000)
    filler = full_disk / "filler"
    with LocalBus() as local, RunningCluster(full_disk / "cluster") as own:
        topic = local.connect("p").topic("t", slot_size=len(message), history=0, depth=1000)
        with recording(local.url, "t", own.url) as recorder:
            until_state(recorder, "recording")
            free = os.statvfs(full_disk)
            filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - (30 << 20))))
            topic.publish_many([message] * 300)
            until(lambda: "disk is full" in (recorder.status().error or ""), "a full disk")
            assert recorder.status().state == "waiting for cluster"
            record_property("recorded before it was full", recorder.status().recorded)
            filler.unlink()
            until_recorded(recorder, 300)
        assert check_tiling(rows_of(own.url, "t")) == (300, 0)
