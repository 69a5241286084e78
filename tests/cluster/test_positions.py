"""Positions through changes of leaders and restarts of nodes, which must not look like a restored backup, and
through restored backups, which must be noticed."""

import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hawser
from tests.support.cluster import RunningCluster

SECONDS = 60.0
ROUNDS = 16
Note = Callable[[str, object], None]


def publish_all(tx: Any, topic: Any, batch: list[bytes]) -> None:
    for value in batch:
        tx.publish(topic, value)


def publish_until(topic: Any, bus: Any, stop: threading.Event, published: list[bytes]) -> None:
    """About every second batch is published by a transaction, which may see two leaders."""
    chance = random.Random(7)
    while not stop.is_set():
        batch = [b"%d" % (len(published) + number) for number in range(chance.randrange(1, 9))]
        if chance.random() < 0.5:
            bus.run_transaction(partial(publish_all, topic=topic, batch=batch))
        else:
            topic.publish_many(batch)
        published += batch


def disturb(cluster: RunningCluster, topic: Any, chance: random.Random) -> str:
    """One of the things that happen to a cluster that loses nothing."""
    kind = chance.choice(["transfer", "restart", "restart all"])
    if kind == "transfer":
        (partition,) = topic.info().partitions
        others = [node for node in cluster.nodes if node != partition.leader]
        cluster.transfer(partition.shard, chance.choice(others))
    elif kind == "restart":
        node = chance.choice(cluster.nodes)
        cluster.stop(node)
        cluster.start(node)
    else:
        cluster.halt()
        cluster.go_on()
    return kind


def until_taken(subscription: Any, taken: list[bytes], count: int, commit: bool) -> None:
    while len(taken) < count:
        taken += [bytes(sample) for sample in subscription.take_many(50, SECONDS)]
        if commit:
            subscription.commit()


def test_nothing_that_loses_no_record_is_taken_for_a_restore(tmp_path: Path, record_property: Note) -> None:
    chance, stop = random.Random(11), threading.Event()
    with RunningCluster(tmp_path / "cluster") as cluster:
        bus = cluster.connect("publisher", timeout=SECONDS)
        topic, published = bus.topic("orders"), list[bytes]()
        topic.publish(b"0")
        published.append(b"0")
        reading = cluster.connect("reader", timeout=SECONDS).topic("orders")
        plain = reading.subscribe(start="earliest")
        member = reading.subscribe(start="earliest", group="g")
        taken: list[list[bytes]] = [[], []]
        kinds: list[str] = []
        publisher = threading.Thread(target=publish_until, args=(topic, bus, stop, published), daemon=True)
        publisher.start()
        for _ in range(ROUNDS):
            kinds.append(disturb(cluster, topic, chance))
            count = len(published) + 20
            until_taken(plain, taken[0], count, commit=False)
            until_taken(member, taken[1], count, commit=True)
        stop.set()
        publisher.join(SECONDS)
        until_taken(plain, taken[0], len(published), commit=False)
        until_taken(member, taken[1], len(published), commit=True)
        assert taken[0] == published and taken[1] == published
    for kind in set(kinds):
        record_property(kind, kinds.count(kind))
    record_property("records", len(published))


def test_every_restore_is_noticed_however_far_the_log_has_grown(
    tmp_path: Path, record_property: Note
) -> None:
    chance, noticed = random.Random(13), 0
    with RunningCluster(tmp_path / "cluster") as cluster:
        topic = cluster.connect("publisher", timeout=SECONDS).topic("orders")
        topic.publish_many([b"old"] * 10)
        reading: Any = cluster.connect("reader", timeout=SECONDS).topic("orders")
        for run in range(5):
            cluster.back_up(tmp_path / "backup")
            lost, grown = chance.randrange(1, 6), chance.randrange(12)
            subscription = reading.subscribe(start="earliest")
            topic.publish_many([b"lost"] * lost)
            end = topic.info().head
            while subscription.position < end:
                subscription.take_many(50, SECONDS)
            loop = reading._thread.loop
            is_over = threading.Event()
            loop.call_soon_threadsafe(is_over.wait, SECONDS)
            cluster.restore(tmp_path / "backup")
            shutil.rmtree(tmp_path / "backup")
            if grown:
                topic.publish_many([b"new %d" % run] * grown)
            is_over.set()
            try:
                subscription.take(SECONDS)
            except hawser.OffsetOutOfRange as error:
                assert f"Records {end - lost + 1} to {end}," in str(error)
                noticed += 1
            subscription.close()
    assert noticed == 5
    record_property("noticed", noticed)
