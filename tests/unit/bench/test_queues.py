"""The measuring code of queues: every contestant moves every message, and a lost one is found. Nothing here
judges a time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hawser.bench.cluster import queues as cluster_queues
from hawser.bench.cluster.loads import Load
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.contest import Contestant, Crowd, Stream
from hawser.bench.host import queues
from hawser.bench.host.queues import (
    EACH,
    FASTER_FIFO,
    FIFO_BATCHES,
    HAWSER,
    HAWSER_BATCHES,
    HAWSER_IN_PLACE,
    _crowd_rate,
    _killed,
    _redis,
    _redis_batches,
)
from hawser.bench.host.streams import PYZMQ, QUEUE, rate
from hawser.bench.peers import faster_fifo, pyzmq, redis, stdlib
from hawser.bench.plan import Plan
from hawser.bench.processes import run_sides

STREAM = Stream(64, 1024, batch=16)
CROWD = Crowd(64, 200, EACH, EACH)


def _require(contestant: Contestant) -> None:
    if not contestant.installed():
        pytest.skip(f"{contestant.name} is not installed")


@pytest.mark.parametrize(
    "contestant",
    [HAWSER, HAWSER_BATCHES, HAWSER_IN_PLACE, FASTER_FIFO, FIFO_BATCHES],
    ids=lambda one: one.name,
)
def test_a_contestant_moves_every_message(contestant: Contestant, tmp_path: Path) -> None:
    _require(contestant)
    assert rate(Plan(tmp_path), contestant, STREAM) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("contestant", "sides"),
    [(HAWSER, queues), (QUEUE, stdlib), (PYZMQ, pyzmq), (FASTER_FIFO, faster_fifo)],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_crowd_moves_every_message(contestant: Contestant, sides: Any, tmp_path: Path) -> None:
    _require(contestant)
    crowded = replace(contestant, receive=sides.get_in_crowd, send=sides.put_in_crowd)
    assert _crowd_rate(Plan(tmp_path), crowded, CROWD) > 0


def test_redis_moves_every_message(tmp_path: Path) -> None:
    reason = redis.why_not()
    if reason is not None:
        pytest.skip(reason)
    place = tmp_path / "server"
    place.mkdir()
    with redis.server(place) as socket:
        plan = Plan(tmp_path)
        assert rate(plan, _redis(socket), STREAM) > 0
        assert rate(plan, _redis_batches(socket), STREAM) > 0
        crowded = replace(_redis(socket), receive=redis.get_in_crowd, send=redis.put_in_crowd)
        assert _crowd_rate(plan, crowded, CROWD) > 0


def test_a_crowd_that_loses_a_message_is_refused() -> None:
    ended = [(10, 200)] * (EACH - 1)
    assert CROWD.rate([0, 1], [*ended, (20, 200)]) == EACH * 200 * 1e9 / 20
    with pytest.raises(RuntimeError, match="of 800 messages 799 were got"):
        CROWD.rate([0], [*ended, (20, 199)])


def test_a_killed_consumers_message_is_given_again(tmp_path: Path) -> None:
    row = _killed(Plan(tmp_path, quick=True))
    assert row.value > 0
    assert list(tmp_path.iterdir()) == []


def test_queues_of_a_cluster_give_everything_once() -> None:
    with hawser_servers() as servers:
        load = Load(0.1, 8)
        assert cluster_queues._rate(cluster_queues.put_in_flight, servers.url, load) > 0
        assert cluster_queues._rate(cluster_queues.get_in_flight, servers.url, load) > 0
        sides = [(cluster_queues.get_lists, None), (cluster_queues.put_lists, None)]
        finished, started = run_sides(sides, servers.url, 2 * cluster_queues.BATCH)
        assert finished > started
