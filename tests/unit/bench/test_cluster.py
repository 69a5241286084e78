"""The measuring code of clusters: its servers, its loops, its verdicts. Nothing here judges a time."""

import asyncio
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from hawser.bench.cluster import writes
from hawser.bench.cluster.loads import Load, one_at_a_time, rate_in_flight, rate_of_futures
from hawser.bench.cluster.servers import Process, file_system, hawser_servers, place_on_disk, wait_until
from hawser.bench.peers import etcd, jetstream
from hawser.bench.plan import Plan
from hawser.bench.processes import run_sides

SHORT = 0.05


def test_syncs_are_measured_on_a_disk() -> None:
    assert file_system(Path("/proc")) == "proc"
    with place_on_disk() as directory:
        assert file_system(directory) not in ("tmpfs", "ramfs", "")
    assert not directory.exists()


def test_a_machine_without_a_disk_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hawser.bench.cluster.servers.file_system", lambda _: "tmpfs")
    with pytest.raises(RuntimeError, match="TMPDIR"), place_on_disk():
        pass


def test_a_server_that_ends_says_its_last_words(tmp_path: Path) -> None:
    process = Process(["sh", "-c", "echo planted; exit 3"], tmp_path / "log")
    with pytest.raises(RuntimeError, match=r"ended with 3.*\nplanted"):
        wait_until(lambda: False, [process], "it")


def test_no_more_calls_are_in_flight_than_the_load_says() -> None:
    flying = most = 0

    async def call(_: int) -> None:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1

    assert asyncio.run(rate_in_flight(call, Load(SHORT, in_flight=7))) > 0
    assert (flying, most) == (0, 7)


def test_every_future_is_waited_for() -> None:
    class Landing(Future[None]):
        waited = False

        def result(self, timeout: float | None = None) -> None:
            self.waited = True

    begun: list[Landing] = []

    def begin(_: int) -> Landing:
        begun.append(Landing())
        return begun[-1]

    assert rate_of_futures(begin, Load(SHORT, in_flight=3, batch=10)) > 0
    assert len(begun) >= 3 and all(future.waited for future in begun)


def test_calls_one_at_a_time_are_all_timed() -> None:
    numbers: list[int] = []
    times = one_at_a_time(numbers.append, Load(SHORT))
    assert numbers == list(range(len(times))) and min(times) >= 0


def test_the_messages_of_etcd_are_those_of_its_protocol() -> None:
    assert etcd.put_request(b"k", b"v") == b"\x0a\x01k\x12\x01v"
    long = etcd.put_request(b"k", b"v" * 300)
    assert long == b"\x0a\x01k\x12\xac\x02" + b"v" * 300
    put = etcd.put_request(b"k", b"v")
    assert etcd.transaction_request([put, put]) == (b"\x12\x08\x12\x06" + put) * 2


@pytest.mark.parametrize(
    ("text", "version"),
    [("nats-server: v2.9.10\n", (2, 9)), ("nats-server: v2.12.1", (2, 12)), ("what?", (0, 0))],
)
def test_the_version_of_nats_is_read(text: str, version: tuple[int, int]) -> None:
    assert jetstream.version_of(text) == version


def test_a_nats_that_cannot_sync_every_write_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho nats-server: v2.9.10\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert jetstream.why_not() == "nats-server: v2.9.10 cannot sync every write; 2.10 or later can"


def test_a_rate_is_held_against_the_better_peer() -> None:
    row = writes._in_flight_row({"hawser": 10_000.0, "etcd": 3_000.0, "JetStream": 6_000.0})
    assert row.missed and row.targets[0].measured == pytest.approx(10 / 6)
    assert not writes._in_flight_row({"hawser": 10_000.0, "etcd": 3_000.0}).missed
    assert writes._in_flight_row({"hawser": 10_000.0}).targets[0].met is None


def test_batches_are_held_against_the_best_of_any_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"hawser": 500.0, "etcd": 20.0}
    monkeypatch.setattr(writes, "_run", lambda side, place, load: found[place])
    entrants, places = [writes.HAWSER, writes.ETCD], {name: name for name in found}
    plan = Plan(tmp_path, quick=True)
    assert not writes._batched_row(plan, entrants, places, {"hawser": 1.0, "etcd": 50.0}).missed
    assert writes._batched_row(plan, entrants, places, {"hawser": 1.0, "etcd": 51.0}).missed


def test_the_clients_of_a_cluster_are_measured(record_property: Any) -> None:
    with hawser_servers() as servers:
        load = Load(SHORT, in_flight=4, batch=3)
        (times,) = run_sides([(writes.publish_one_at_a_time, None)], servers.url, Load(SHORT))
        (single,) = run_sides([(writes.publish_in_flight, None)], servers.url, Load(SHORT, 4))
        (lists,) = run_sides([(writes.publish_in_flight, None)], servers.url, load)
        (read,) = run_sides([(writes.read_batches, None)], servers.url, (3, 100))
        busy, resident = servers.nodes["n1"].cpu_seconds(), servers.nodes["n1"].resident_bytes()
        with pytest.raises(RuntimeError, match="1000 records were acknowledged, but the partition has 1"):
            run_sides([(_boast, None)], servers.url, None)
    assert times and min(single, lists, read, busy, resident) > 0
    assert not any(Path(f"/proc/{each.process_id}").exists() for each in servers.processes)
    record_property("publishes", len(times))


def _boast(url: str, _: None, gate: Any) -> None:
    """Claims a thousand records after one publish."""
    import hawser

    with hawser.connect(url) as bus, bus.topic("boast", replication=3) as topic:
        topic.publish(b"one")
        gate.start()
        writes._check(topic.info(), 1000)


def test_the_node_that_leads_most_is_killed_and_every_shard_is_written_to(record_property: Any) -> None:
    record_property("nanoseconds", writes._writable_again())


def test_etcd_is_measured(record_property: Any) -> None:
    if not etcd.installed():
        pytest.skip("needs etcd and grpcio: run make bench once")
    with etcd.etcd_servers() as address:
        (times,) = run_sides([(etcd.put_one_at_a_time, None)], address, Load(SHORT))
        (rate,) = run_sides([(etcd.put_in_flight, None)], address, Load(SHORT, 4))
        (batched,) = run_sides([(etcd.put_in_transactions, None)], address, Load(SHORT, 2, 128))
    assert times and min(rate, batched) > 0
    record_property("puts", len(times))


def test_jetstream_is_measured(record_property: Any) -> None:
    reason = jetstream.why_not()
    if reason is not None:
        pytest.skip(reason)
    with jetstream.nats_servers() as addresses:
        (times,) = run_sides([(jetstream.publish_one_at_a_time, None)], addresses, Load(SHORT))
        (rate,) = run_sides([(jetstream.publish_in_flight, None)], addresses, Load(SHORT, 4))
    assert times and rate > 0
    record_property("publishes", len(times))
