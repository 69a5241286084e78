"""Threads share every public object of a cluster with every method, transactions and branches too."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from hawser.cluster import wire
from tests.hostile.shared_scene import Value, value_of
from tests.support.builds import Build
from tests.support.cluster import RunningCluster
from tests.support.processes import until
from tests.support.programs import numbers

SECONDS = 3.0
Record = Callable[[str, object], None]


def share(cluster: RunningCluster, seed: int, seconds: float = SECONDS, *more: str) -> Any:
    """The program, run to its end, with topics and queues of its own."""
    for shared in ("shared", "jobs", "short-lived", "short-lived jobs"):
        # Refused while transactions that an earlier run left open have work there.
        until(partial(is_deleted, cluster, shared), f"the deletion of {shared!r}")
    return share_as_it_is(cluster, seed, seconds, *more)


def is_deleted(cluster: RunningCluster, name: str) -> bool:
    answer = cluster.delete(name)
    return isinstance(answer, wire.AdminDone) or answer.code is wire.Code.NOT_FOUND


def share_as_it_is(cluster: RunningCluster, seed: int, seconds: float, *more: str) -> Any:
    """As `share`, with what the cluster has."""
    arguments = ["-m", "tests.hostile.shared_on_cluster", cluster.url, "--seed", str(seed)]
    return Build().run(*arguments, "--seconds", str(seconds), *more, limit_seconds=seconds * 3 + 240)


def run_well(cluster: RunningCluster, seed: int, record_property: Record, seconds: float = SECONDS) -> None:
    done = share(cluster, seed, seconds)
    assert done.returncode == 0, f"seed {seed}:\n{done.stderr[-8000:]}"
    assert done.stderr == ""
    for name, value in numbers(done.stdout).items():
        record_property(name, value)


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_share_every_object(cluster: RunningCluster, seed: int, record_property: Record) -> None:
    run_well(cluster, seed, record_property)


def test_threads_share_every_object_while_leaders_change(
    cluster: RunningCluster, record_property: Record
) -> None:
    moves = 0
    is_over = threading.Event()

    def move() -> None:
        nonlocal moves
        chance = random.Random(1)
        while not is_over.wait(0.1):
            for shard in cluster.ask(wire.GetMap(None)).shards:
                if shard.startswith(("shared@", "jobs@", "__tx")) and chance.random() < 0.5:
                    # One that is being made, or is on its way already, is not moved.
                    with suppress(AssertionError):
                        cluster.transfer(shard, chance.choice(cluster.nodes))
                        moves += 1

    moving = threading.Thread(target=move)
    moving.start()
    try:
        run_well(cluster, 3, record_property)
    finally:
        is_over.set()
        moving.join()
    record_property("moves", moves)
    assert moves


def test_a_planted_bug_is_seen(cluster: RunningCluster) -> None:
    done = share(cluster, 1, SECONDS, "--planted")
    assert done.returncode == 1 and "Wrong" in done.stderr and "taken more than once" in done.stderr, (
        done.stderr
    )


def test_what_an_earlier_run_left_is_refused(cluster: RunningCluster) -> None:
    """Numbers of an earlier run would be counted as those of this one: a branch that was rolled back, for
    example, as committed, and its messages as lost."""
    with cluster.connect() as bus:
        assert is_deleted(cluster, "shared")
        bus.topic("shared", schema=Value).publish(value_of(1))
    done = share_as_it_is(cluster, 1, 0.1)
    assert done.returncode == 1 and "'shared' has 1 messages of an earlier run" in done.stderr, done.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_threads_share_every_object_for_long(
    cluster: RunningCluster, soak_seconds: float, record_property: Record
) -> None:
    until, seed = time.monotonic() + soak_seconds, int(time.time())
    while time.monotonic() < until:
        run_well(cluster, seed, record_property, 10 * SECONDS)
        seed += 1
