"""Queues while nodes stop, answers are lost, and movers of letters die: what clients are told is true."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.metrics import node_metrics
from hawser.cluster.node.queue import dead_letter_forwarder
from hawser.cluster.node.shard import Shard
from hawser.cluster.transport import Link, LinkClosed
from hawser.log.entry import Kind
from hawser.log.queue.dead_letters import next_dead_letters
from hawser.record.batch import Batch
from tests.support.cluster import RunningCluster
from tests.support.processes import hawser_command
from tests.unit.api.cluster.test_queue import SECONDS, got, new_queue, wait_until

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("tester", session_seconds=60.0)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as running:
        yield running


class Thief:
    """Takes the first answers to requests of one kind on their way to the client, after the node has carried
    them out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type, most: float = 3) -> None:
        self.stolen = 0
        self.most = most
        decode, ask = wire.decode_request, Link.ask

        async def steal(link: Link, body: bytes, timeout: float | None) -> Any:
            answer = await ask(link, body, timeout)
            if self.stolen < self.most and isinstance(decode(body), kind):
                self.stolen += 1
                raise LinkClosed("stolen", was_sent=True)
            return answer

        monkeypatch.setattr(Link, "ask", steal)


@contextmanager
def in_a_hurry(bus: Any) -> Iterator[None]:
    """Its calls take half a second at most."""
    settings = bus._client.settings
    msgspec.structs.force_setattr(settings, "timeout", 0.5)
    yield
    msgspec.structs.force_setattr(settings, "timeout", SECONDS)


def test_nothing_is_put_twice_though_answers_are_lost(
    bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(bus)
    thief = Thief(monkeypatch, wire.QueuePut)
    assert queue.put(b"x").first_offset == 1
    assert thief.stolen == 3
    assert queue.info().ready == 1


def test_an_accept_whose_answer_is_lost_counts(bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = new_queue(bus)
    queue.put_many([b"1", b"2"])
    held = got(queue)
    thief = Thief(monkeypatch, wire.QueueSettle)
    held.accept()
    assert thief.stolen == 3
    info = queue.info()
    assert (info.ready, info.claimed) == (1, 0)


def test_what_an_answer_had_lent_that_is_lost_is_lent_again(
    bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = new_queue(bus, max_deliveries=1)
    queue.put_many([b"1", b"2"])
    thief = Thief(monkeypatch, wire.QueueGet)
    messages = queue.get_many(5, timeout=SECONDS)
    assert thief.stolen == 3
    assert [(bytes(each), each.delivery_count) for each in messages] == [(b"1", 1), (b"2", 1)]


def test_an_accept_that_nobody_answers_is_unknown_and_goes_on(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = cluster.connect("hasty", timeout=SECONDS)
    queue = new_queue(bus)
    queue.put(b"x")
    held = got(queue)
    thief = Thief(monkeypatch, wire.QueueSettle, inf)
    with in_a_hurry(bus):
        with pytest.raises(hawser.OutcomeUnknown, match="The client still sends it"):
            held.accept()
        with pytest.raises(hawser.OutcomeUnknown):
            held.release()
    thief.most = 0
    wait_until(lambda: held._held_message.state.value == "settled")  # type: ignore[attr-defined]
    held.accept()
    assert (queue.info().ready, queue.info().claimed) == (0, 0)


def test_a_value_whose_accept_nobody_answers_stays_in_hand(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = cluster.connect("hasty", timeout=SECONDS)
    queue = new_queue(bus)
    queue.put_many([b"0", b"1"])
    values = queue.consume(prefetch=0).values()
    assert next(values) == b"0"
    thief = Thief(monkeypatch, wire.QueueSettle, inf)
    for go_on in (values.accept, values.accept, lambda: next(values)):
        with in_a_hurry(bus), pytest.raises(hawser.OutcomeUnknown):
            go_on()
    thief.most = 0

    def goes_on() -> bool:
        with suppress(hawser.OutcomeUnknown):
            assert next(values) == b"1"
            return True
        return False

    wait_until(goes_on)
    thief.most = inf
    with in_a_hurry(bus), pytest.raises(hawser.OutcomeUnknown):
        values.accept()
    thief.most = 0
    queue.put(b"2")

    def begins_again() -> bool:
        with suppress(hawser.OutcomeUnknown):
            assert next(iter(values)) == b"2"  # the accept is repeated
            return True
        return False

    wait_until(begins_again)
    values.accept()
    assert (queue.info().ready, queue.info().claimed) == (0, 0)


def test_without_a_leader_nothing_hangs_and_nothing_is_claimed_to_be_done(
    own_cluster: RunningCluster,
) -> None:
    name = new_queue(own_cluster.connect("patient")).name
    queue = own_cluster.connect("hasty", timeout=3.0).queue(name)
    queue.put_many([b"1", b"2"])
    held = got(queue)
    nodes = own_cluster.nodes
    for node in nodes:
        own_cluster.stop(node)
    with pytest.raises(hawser.Unavailable, match="held as before"):
        held.accept()
    with pytest.raises(hawser.Unavailable):
        queue.get(timeout=0)
    assert queue.get(timeout=0.1) is None
    with pytest.raises(hawser.Unavailable):
        queue.put(b"3")
    with pytest.raises(hawser.Unavailable):
        queue.info()
    for node in nodes:
        own_cluster.start(node)
    wait_until(lambda: _is_fenced(held))
    assert [bytes(each) for each in queue.get_many(9, timeout=SECONDS)] == [b"1", b"2"]


def test_what_nodes_and_their_logs_tell_of_a_queue(own_cluster: RunningCluster, tmp_path: Path) -> None:
    bus = own_cluster.connect("watched", session_seconds=60.0)
    queue = new_queue(bus, replication=1)
    queue.put_many([b"1", b"2", b"3", b"4"])
    messages = queue.get_many(3, timeout=SECONDS)
    messages[0].reject()
    messages[1].accept()
    leader = queue.info().partitions[0].leader
    assert leader is not None
    figures = {
        (metric.name, dict(metric.labels).get("state")): metric.value
        for metric in node_metrics(own_cluster._nodes[leader], tmp_path / leader)
        if ("queue", queue.name) in metric.labels
    }
    states = [figures["hawser_queue_messages", state] for state in ("ready", "claimed", "dead")]
    assert states == [1, 1, 1]
    assert 0 <= figures["hawser_queue_oldest_age_seconds", None] < 60
    assert 0 < figures["hawser_queue_used_bytes", None] < figures["hawser_queue_capacity_bytes", None]
    own_cluster.stop(leader)
    scanned = hawser_command(
        "log", "scan", "--dir", str(tmp_path / leader), "--shard", queue.name, "-o", "json"
    )
    lines = [msgspec.json.decode(line) for line in scanned.stdout.splitlines()]
    shown = [(line["kind"], line["offset"], line["records"]) for line in lines if line["kind"] != "nothing"]
    assert shown == [("queue put", 1, 4), ("queue settle", 1, 1), ("queue settle", None, 1)]
    own_cluster.start(leader)


def _is_fenced(message: hawser.Message) -> bool:
    try:
        message.accept()
    except hawser.Fenced:
        return True
    except (hawser.Unavailable, hawser.OutcomeUnknown):
        return False
    raise AssertionError("it was held by a leader that is gone")


def test_every_node_stops_in_turn_while_messages_flow(
    own_cluster: RunningCluster, record_property: Record
) -> None:
    queue = new_queue(own_cluster.connect("busy", timeout=SECONDS))
    accepted: list[bytes] = []
    put: list[bytes] = []
    is_enough, is_over = threading.Event(), threading.Event()

    def produce() -> None:
        while not is_enough.is_set():
            value = str(len(put)).encode()
            queue.put(value)
            put.append(value)

    def consume() -> None:
        while not is_over.is_set():
            message = queue.get(timeout=0.2)
            if message is None:
                continue
            value = bytes(message)
            try:
                message.accept()
            except hawser.Fenced:
                continue
            accepted.append(value)

    threads = [threading.Thread(target=work) for work in (produce, consume, consume)]
    for thread in threads:
        thread.start()
    for node in own_cluster.nodes:
        own_cluster.stop(node)
        accepted_more(accepted)
        own_cluster.start(node)
    is_enough.set()
    threads[0].join()
    wait_until(lambda: len(accepted) >= len(put))
    wait_until(lambda: not queue.info().ready + queue.info().claimed)
    is_over.set()
    for thread in threads:
        thread.join()
    assert sorted(accepted) == sorted(put)
    record_property("accepted once", len(accepted))


def accepted_more(accepted: list[bytes]) -> None:
    so_far = len(accepted)
    wait_until(lambda: len(accepted) >= so_far + 20)


@pytest.mark.parametrize("forgets_who_it_is", [False, True])
def test_letters_arrive_once_though_their_mover_dies_between_the_steps(
    bus: hawser.Bus, monkeypatch: pytest.MonkeyPatch, forgets_who_it_is: bool, record_property: Record
) -> None:
    """It dies after each put, before it is accepted at home. With the defect the next one sends the letters
    as somebody else."""
    execute, sends = Shard.execute, 0

    async def die(shard: Shard, kind: int, payload: bytes) -> Any:
        nonlocal sends
        if kind == Kind.QUEUE_SETTLE:
            sends += 1
            if sends % 3:
                raise hawser.HawserError("killed")
        return await execute(shard, kind, payload)

    def other_stamp(*arguments: Any) -> Batch | None:
        batch = next_dead_letters(*arguments)
        return None if batch is None else batch.stamped(batch.stamp._replace(producer=f"{sends}".encode()))

    monkeypatch.setattr(Shard, "execute", die)
    monkeypatch.setattr(dead_letter_forwarder, "_PAUSE_SECONDS", 0.01)
    if forgets_who_it_is:
        monkeypatch.setattr(dead_letter_forwarder, "next_dead_letters", other_stamp)
    queue = new_queue(bus, dead_letter=f"morgue-{forgets_who_it_is}")
    for number in range(6):
        queue.put_many([f"{number}.{each}".encode() for each in range(3)])
        queue.get_many(3, timeout=SECONDS).reject()
    wait_until(lambda: _dead_letters_at_home(queue) == 0)
    dead_letters = queue.dead_letters()
    found = [bytes(each).decode() for each in dead_letters.peek(1000)]
    wanted = [f"{number}.{each}" for number in range(6) for each in range(3)]
    assert (found == wanted) is not forgets_who_it_is
    assert set(found) == set(wanted)
    record_property("sent", sends)


def _dead_letters_at_home(queue: Any) -> int:
    return int(queue._thread.call(queue._queue.query_contents()).dead_letters)
