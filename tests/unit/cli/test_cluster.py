"""The daemons and `hawser cluster` as people and scripts use them: real processes on loopback."""

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hawser.cli.cluster.status import shard_problems
from tests.support.etcd import free_ports
from tests.support.processes import (
    ClusterProcesses,
    Daemon,
    NodeProcess,
    OperatorProcess,
    cluster_processes,
    hawser_command,
    page,
    until,
    until_page,
)

# What scripts rely on; more may be added.
SHARD_KEYS = {
    "id", "topic", "partition", "epoch", "leader", "members", "copies", "state", "head", "commit", "apply",
    "lag", "reconfiguration",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator[ClusterProcesses]:
    """Three nodes and a fourth to move to, with the topic `orders` of two partitions."""
    with cluster_processes(module_path, spare=1) as processes:
        processes.run("topic", "pub", "orders", "first", "--partitions", "2", "--key", "k")
        processes.nodes["n4"].start()
        processes.wait_until_alive(*processes.nodes)
        yield processes


def test_status_is_what_scripts_rely_on(cluster: ClusterProcesses) -> None:
    shown = cluster.status()
    assert [(each["topic"], each["partition"]) for each in shown["shards"]] == [("orders", 0), ("orders", 1)]
    for shard in shown["shards"]:
        assert set(shard) >= SHARD_KEYS
        assert shard["id"] == f"orders@{shard['id'].partition('@')[2][:8]}/{shard['partition']}"
        assert shard["leader"] in shard["members"] and len(shard["members"]) == shard["copies"] == 3
        assert shard["state"] == "steady" and shard["reconfiguration"] is None
        assert 0 < shard["apply"] <= shard["commit"] <= shard["head"]
        assert set(shard["lag"]) == set(shard["members"]) - {shard["leader"]}
    assert sum(shard["head"] for shard in shown["shards"]) >= 3
    assert [node["id"] for node in shown["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert all(node["alive"] and node["free_bytes"] > 0 for node in shown["nodes"])


@pytest.mark.parametrize(("copies", "troubles"), [(1, []), (2, ["orders/0: has 1 of 2 replicas"])])
def test_a_missing_copy_is_a_trouble(copies: int, troubles: list[str]) -> None:
    """Also if every replica that is there takes part."""
    shard = {
        "topic": "orders", "partition": 0, "state": "steady", "leader": "n1", "members": ["n1"],
        "copies": copies, "replicas": {"n1": {"role": "leader"}}, "lag": {}, "halted": {},
    }  # fmt: skip
    assert list(shard_problems({"shards": [shard]})) == troubles


def test_status_is_a_table_for_people(cluster: ClusterProcesses) -> None:
    text = cluster.run("cluster", "status", "--check").stdout
    assert re.search(r"^shard +epoch +leader +members +state +head +commit +apply +lag$", text, re.MULTILINE)
    assert re.search(r"^orders/1 +\d+ +n\d +n\d n\d n\d +steady", text, re.MULTILINE)
    assert re.search(r"^n4 +127\.0\.0\.1:\d+ +alive +0 +0 +[\d.]+ \wiB$", text, re.MULTILINE)


def test_one_node_is_enough_to_find_the_others(cluster: ClusterProcesses) -> None:
    url = f"hawser://{cluster.nodes['n4'].address}"
    assert hawser_command("cluster", "status", "--check", "--url", url).stdout.count("alive") == 4


def test_orders_are_carried_out_before_they_return(cluster: ClusterProcesses) -> None:
    before = cluster.shard("orders", 0)
    cluster.run("cluster", "elect", "orders/0")
    elected = cluster.shard("orders", 0)
    assert elected["epoch"] > before["epoch"] and elected["leader"] is not None
    other = next(node for node in elected["members"] if node != elected["leader"])
    cluster.run("cluster", "transfer", "orders/0", other)
    assert cluster.shard("orders", 0)["leader"] == other
    # Also of a leader, and by the full name.
    cluster.run("cluster", "swap", elected["id"], other, "n4")
    swapped = cluster.shard("orders", 0)
    assert set(swapped["members"]) == {*elected["members"], "n4"} - {other}
    cluster.run("cluster", "expand", "orders/0", other)
    assert len(cluster.shard("orders", 0)["members"]) == 4
    cluster.run("cluster", "contract", "orders/0", "n4")
    assert set(cluster.shard("orders", 0)["members"]) == set(elected["members"])
    assert cluster.shard("orders", 0)["head"] >= before["head"]
    cluster.run("cluster", "status", "--check", "--wait", "60")


def test_all_means_every_shard_that_it_concerns(cluster: ClusterProcesses) -> None:
    cluster.run("cluster", "swap", "all", "n1", "n4")
    assert all("n1" not in shard["members"] for shard in cluster.status()["shards"])
    cluster.run("cluster", "transfer", "all", "n4")
    assert {shard["leader"] for shard in cluster.status()["shards"] if "n4" in shard["members"]} == {"n4"}
    assert "no shard needs the change" in cluster.run("cluster", "swap", "all", "n1", "n2").stderr
    cluster.run("cluster", "swap", "all", "n4", "n1")
    assert all("n4" not in shard["members"] for shard in cluster.status()["shards"])


def test_no_wait_returns_when_it_has_begun(cluster: ClusterProcesses) -> None:
    before = cluster.shard("orders", 1)
    said = cluster.json("cluster", "elect", "orders/1", "--no-wait")
    assert said["order"] == "elect" and said["shard"] == "orders/1"
    cluster.run("cluster", "status", "--check", "--wait", "60")
    assert cluster.shard("orders", 1)["epoch"] > before["epoch"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["elect", "orders/9"], 3, "no shard 'orders/9'"),
        (["elect", "orders"], 3, "no shard 'orders'"),
        (["transfer", "orders/0", "n9"], 1, "n9 has no replica"),
        (["swap", "orders/0", "n9", "n4"], 1, "n9 has no replica"),
        (["expand", "orders/0", "n9"], 1, "unknown node 'n9'"),
        (["expand", "orders/0", "n2"], 1, "has a replica"),
        (["transfer", "orders/0"], 2, "Missing argument"),
    ],
)
def test_orders_that_make_no_sense_say_why(
    cluster: ClusterProcesses, arguments: list[str], code: int, said: str
) -> None:
    before = [(shard["members"], shard["leader"]) for shard in cluster.status()["shards"]]
    assert said in cluster.run("cluster", *arguments, code=code).stderr
    assert [(shard["members"], shard["leader"]) for shard in cluster.status()["shards"]] == before


def test_nobody_at_the_address_is_unhealthy() -> None:
    (port,) = free_ports(1)
    done = hawser_command("cluster", "status", "--url", f"hawser://127.0.0.1:{port}", code=4)
    assert f"127.0.0.1:{port} cannot be reached" in done.stderr
    assert "is not a cluster" in hawser_command("cluster", "status", "--url", "shm://", code=2).stderr


def test_the_pages_tell_of_readiness_and_figures(cluster: ClusterProcesses) -> None:
    for daemon in (cluster.nodes["n2"], cluster.operators["o1"]):
        assert page(f"{daemon.http}/livez") == (200, "alive\n")
        assert page(f"{daemon.http}/readyz") == (200, "ready\n")
    of_node = page(f"{cluster.nodes['n2'].http}/metrics")[1]
    shards = [shard["id"] for shard in cluster.status()["shards"] if "n2" in shard["members"]]
    assert f"\nhawser_shards {len(shards)}\n" in of_node
    for shard in shards:
        assert re.search(rf'^hawser_shard_head{{shard="{shard}"}} [1-9]\d*$', of_node, re.MULTILINE)
    assert "\nhawser_shards_halted 0\n" in of_node
    assert re.search(r"^hawser_link_received_bytes_total [1-9]\d*$", of_node, re.MULTILINE)
    of_operator = page(f"{cluster.operators['o1'].http}/metrics")[1]
    assert "hawser_nodes_alive 4\n" in of_operator
    assert re.search(r'^hawser_shards{state="steady"} 2$', of_operator, re.MULTILINE)


def test_a_node_alone_serves_and_is_not_ready(tmp_path: Path) -> None:
    port, http_port = free_ports(2)
    with NodeProcess("lonely", tmp_path, port, http_port) as node:
        assert node.ready == f"lonely {node.address}"
        code, text = page(f"{node.http}/readyz")
        assert code == 503 and "hawser operator" in text
        shown = hawser_command("cluster", "status", "--check", "--url", f"hawser://{node.address}", code=4)
        assert "no operator" in shown.stderr
        assert node.stop() == 0


def test_a_node_hands_over_what_it_leads_before_it_ends(tmp_path: Path) -> None:
    with cluster_processes(tmp_path) as cluster:
        cluster.run("topic", "pub", "orders", "first")
        leader = cluster.shard("orders")["leader"]
        assert cluster.nodes[leader].stop() == 0
        lines = cluster.nodes[leader].log_lines()
        assert {"time", "level", "logger", "message"} <= set(lines[0])
        messages = [line["message"] for line in lines]
        assert "handing over 1 shards" in messages and messages[-1] == "stopped"
        # Nobody had to miss it first: the shard was led by another one when it ended.
        after = cluster.shard("orders")
        assert after["leader"] not in (None, leader)
        assert "does not answer" in cluster.run("cluster", "status", "--check", code=4).stderr
        cluster.nodes[leader].start()
        cluster.run("cluster", "status", "--check", "--wait", "60")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with cluster_processes(tmp_path) as cluster:
        cluster.run("topic", "pub", "orders", "first")
        node = cluster.nodes[cluster.shard("orders")["leader"]]
        # Without an operator that answers, handing over takes as long as it may.
        cluster.operators["o1"].pause()
        node.signal(signal.SIGTERM)
        until(lambda: "handing over" in node.last_words, "handing over")

        def ends() -> bool:
            node.signal(signal.SIGTERM)
            return not node.runs

        until(ends, "the end of the node")
        assert node.wait() == 128 + signal.SIGTERM
        assert "stopping at once" in node.last_words and "stopped" not in node.last_words
        cluster.operators["o1"].resume()
        node.start()
        cluster.run("cluster", "status", "--check", "--wait", "60")


def test_another_nodes_directory_is_refused(tmp_path: Path) -> None:
    ports = free_ports(4)
    first = NodeProcess("one", tmp_path, ports[0], ports[1])
    second = NodeProcess("two", tmp_path, ports[2], ports[3])
    second.arguments[second.arguments.index("--dir") + 1] = str(first.directory)
    with first:
        second.begin()
        assert second.wait() == 2
        assert "in use by another node" in second.last_words


def test_a_node_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with cluster_processes(tmp_path, nodes=1) as cluster:
        node = cluster.nodes["n1"]
        (port,) = free_ports(1)
        metadata = f"sqlite:{tmp_path / 'other.sqlite'}"
        with OperatorProcess("stranger", tmp_path, metadata, {"n1": node.address}, port) as stranger:
            until(lambda: "belongs to cluster" in stranger.last_words, "the refusal")
            assert "no node answers" in page(f"{stranger.http}/readyz")[1]
        cluster.run("cluster", "status", "--check")


def test_an_operator_waits_for_its_store(tmp_path: Path) -> None:
    pytest.importorskip("etcd3gw")
    etcd_port, node_port, port = free_ports(3)
    nodes = {"n1": f"127.0.0.1:{node_port}"}
    operator = OperatorProcess("o1", tmp_path, f"etcd://127.0.0.1:{etcd_port}", nodes, port)
    operator.begin()
    try:
        until_page(f"{operator.http}/readyz", str(etcd_port), code=503)
        assert page(f"{operator.http}/livez")[0] == 200
        assert operator.stop() == 0
    finally:
        operator.kill()


def test_off_loopback_it_warns_of_the_bare_network(tmp_path: Path) -> None:
    port, http_port = free_ports(2)
    node = NodeProcess("open", tmp_path, port, http_port)
    node.arguments[node.arguments.index("--listen") + 1] = f"0.0.0.0:{port}"
    with node:
        (warning,) = [line for line in node.log_lines() if line["level"] == "warning"]
        assert "without TLS" in warning["message"]


def test_systemd_is_told(tmp_path: Path) -> None:
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(place))
        notify.settimeout(60)
        arguments = ["node", "--id", "n1", "--listen", "127.0.0.1:0", "--dir", str(tmp_path / "n1")]
        with Daemon(arguments, tmp_path / "log", {"NOTIFY_SOCKET": str(place)}) as node:
            assert notify.recv(100) == b"READY=1"
            assert node.stop() == 0
            assert notify.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_without_a_directory_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with Daemon(["up", "--nodes", "1"], tmp_path / "log", {"TMPDIR": str(tmp_path)}) as cluster:
        assert cluster.ready.startswith("hawser://127.0.0.1:")
        assert "removed at the end" in cluster.last_words
        (directory,) = tmp_path.glob("hawser-up-*")
        assert (directory / "n1" / "shards").is_dir()
        hawser_command("topic", "pub", "t", "x", "--replication", "1", "--url", cluster.ready)
        cluster.signal(number)
        assert cluster.wait() == 0
        assert not list(tmp_path.glob("hawser-up-*"))


def test_up_twice_finds_other_ports_and_a_directory_keeps_everything(tmp_path: Path) -> None:
    with Daemon(["up"], tmp_path / "other.log") as other:
        arguments = ["up", "--dir", str(tmp_path / "kept"), "--http", f"127.0.0.1:{free_ports(1)[0]}"]
        with Daemon(arguments, tmp_path / "log") as cluster:
            assert not set(cluster.ready.split("//")[1].split(",")) & set(
                other.ready.split("//")[1].split(",")
            )
            until_page(f"http://{arguments[-1]}/readyz", "ready")
            assert "hawser_nodes_alive 3\n" in page(f"http://{arguments[-1]}/metrics")[1]
            for text in ("one", "two"):
                hawser_command("topic", "pub", "t", text, "--url", cluster.ready)
            assert cluster.stop() == 0
            cluster.start()
            echoed = ["topic", "echo", "t", "--history", "2", "--count", "2", "--raw", "--timeout", "60"]
            assert hawser_command(*echoed, "--url", cluster.ready).stdout == "one\ntwo\n"
            assert cluster.stop() == 0


def test_up_at_ports_that_are_taken_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = hawser_command("up", "--listen", address, "--dir", str(tmp_path), code=4)
    assert f"cannot listen at {address}" in done.stderr and done.stdout == ""
