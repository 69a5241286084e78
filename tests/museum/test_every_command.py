"""Every command that moves data is attacked somewhere, on one host, on a cluster, and on a full disk.

A cluster stops while commands work, or a signal ends them: what they say is compared with what is there.
"""

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec
import pytest

import hawser
from hawser.cli.main import root
from hawser.testing import LocalBus
from hawser.xa import Xid
from tests.museum import test_commands_at_signals
from tests.support.cluster import RunningCluster
from tests.support.command import LIMIT_SECONDS, Command
from tests.support.disks import small_disk
from tests.support.endings import ENDINGS, MESSAGES, Ended, Ending, feed, lines, recorded, whole_recording
from tests.support.processes import hawser_command, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HERE: Final = Path(__file__)
AT_SIGNALS: Final = Path(test_commands_at_signals.__file__)
TESTS: Final = HERE.parents[1]
# So that all commands are at work when the cluster stops.
SLOWLY: Final = ("--rate", "300")
# Commands that move data, and the test that compares what they say with what is there.
ATTACKED: Final = {
    "topic pub": (AT_SIGNALS, "test_publishing"),
    "topic echo": (AT_SIGNALS, "test_echoing"),
    "topic record": (AT_SIGNALS, "test_recording"),
    "topic replay": (AT_SIGNALS, "test_replaying_to_a_file"),
    "topic delete": (AT_SIGNALS, "test_deleting"),
    "queue put": (AT_SIGNALS, "test_putting"),
    "queue get": (AT_SIGNALS, "test_getting"),
    "queue retry": (AT_SIGNALS, "test_moving_dead_letters_back"),
    "queue delete": (AT_SIGNALS, "test_deleting"),
    "tx commit": (HERE, "test_a_decision_at_signals"),
    "tx rollback": (HERE, "test_a_decision_at_signals"),
    "tx forget": (HERE, "test_a_decision_at_signals"),
    "agent": (TESTS / "agent" / "test_recording_kills.py", "test_"),
    "node": (TESTS / "cluster" / "test_kills.py", "test_"),
    "operator": (TESTS / "cluster" / "test_kills.py", "test_"),
    "pipeline run": (TESTS / "spark" / "test_landing_kills.py", "test_killed_at_random_moments"),
    "pipeline audit": (TESTS / "spark" / "test_audit.py", "test_"),
    "demo": (TESTS / "spark" / "test_demo.py", "test_"),
}
DECIDED: Final = {"commit": "committed by a person", "rollback": "rolled back by a person"}
# Commands that only look, or write nothing but settings, positions, and orders that an operator carries out.
MOVES_NOTHING: Final = {
    "topic": "list info hz bw trace forget",
    "queue": "list info peek trace forget",
    "tx": "list show recover",
    "cluster": "status elect transfer swap expand contract",
    "log": "scan verify",
    "config": "schema check",
    "": "ps reap doctor bench completion up",
}


def _commands(group: click.Group, path: str = "") -> Iterator[str]:
    """The whole name of each command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        whole = f"{path} {name}".strip()
        if isinstance(command, click.Group):
            yield from _commands(command, whole)
        else:
            yield whole


def test_every_command_that_moves_data_is_attacked() -> None:
    """A new command needs an attack, or moves nothing."""
    others = {f"{group} {name}".strip() for group, names in MOVES_NOTHING.items() for name in names.split()}
    assert set(_commands(root)) == ATTACKED.keys() | others
    assert not ATTACKED.keys() & others
    for file, test in ATTACKED.values():
        assert f"def {test}" in file.read_text(), (file, test)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return whole_recording(tmp_path / "recording")


# Full disks.


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


def _on_a_full_disk(command: Command, *arguments: str) -> str:
    """What it says when standard output is on a full disk."""
    line = [*command.line(*arguments), "--url", command.url, "-o", "json"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            line, input=b"1\n2\n", stdout=full, stderr=subprocess.PIPE, check=False, timeout=LIMIT_SECONDS
        )
    told = done.stderr.decode()
    assert done.returncode == 1 and "No space left on device" in told and "Traceback" not in told, told
    return told


def test_a_report_that_cannot_be_written_is_a_failure(local: LocalBus, recording: Path) -> None:
    """And nothing is done twice, or taken without being printed."""
    bus, command = local.connect(), Command(local.url)
    with bus.topic("t", history=8) as topic, bus.queue("q") as queue:
        topic.publish(b"x")
        for arguments in (
            ["topic", "pub", "t", "--stdin-lines"],
            ["topic", "echo", "t", "--history", "1", "--count", "1"],
            ["queue", "put", "q", "--stdin-lines"],
            ["queue", "get", "q", "--count", "2"],
            ["queue", "get", "q", "--reject"],
            ["queue", "peek", "q"],
            ["topic", "replay", str(recording), "--as", "t", "--fast"],
            ["topic", "record", "t", "--history", "1", "--count", "1", "--to", str(recording) + ".new"],
            ["topic", "list"],
            ["queue", "info", "q"],
        ):
            _on_a_full_disk(command, *arguments)
        assert (topic.info().head, queue.info().ready, queue.info().dead) == (3 + MESSAGES, 2, 0)
        assert len(recorded(recording.with_name("recording.new"))) == 1
        message = queue.get(timeout=0)
        assert message is not None
        message.reject()
        _on_a_full_disk(command, "queue", "retry", "q")
        assert queue.info().ready == 2
    for kind in "topic", "queue":
        _on_a_full_disk(command, kind, "delete", kind[0], "--yes")
    assert (bus.topics(), bus.queues()) == ([], ["q.dead"])


def test_a_file_on_a_full_disk(local: LocalBus, recording: Path, tmp_path: Path) -> None:
    """A replay counts what is in its file; a picture of a trace is not said to be whole."""
    bus, command = local.connect(), Command(local.url)
    with small_disk(tmp_path / "disk", "8k") as disk, bus.topic("t", history=8) as topic:
        file = disk / "copy"
        copying = ["topic", "replay", str(recording), "--to", str(file), "--fast"]
        done = command.run(*copying, "-o", "json", code=1)
        values = recorded(file)
        assert values == [b"%d" % each for each in range(len(values))]
        assert msgspec.json.decode(done.stdout)["messages"] == len(values) < MESSAGES
        assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
        arguments = ["topic", "trace", "t", "--perfetto", str(disk / "picture"), "--count", "2000"]
        with command.started(*arguments) as tracing:
            while tracing.poll() is None:
                topic.publish(b"x", timeout=0)
            told = tracing.stderr.read() if tracing.stderr is not None else ""
        assert tracing.returncode == 1 and "No space left on device" in told and "Traceback" not in told, told


# Clusters.


class _Running:
    """A command that works while the cluster stops."""

    def __init__(self, stack: ExitStack, command: Command, *arguments: str, given: bytes = b"") -> None:
        line = [*command.line(*arguments), "--url", command.url, "-o", "json"]
        self._process = stack.enter_context(
            subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
        stack.callback(self._process.kill)
        feed(self._process.stdin, given)
        self._process.stdin = None

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> Ended:
        outputs = self._process.communicate(timeout=LIMIT_SECONDS)
        ended = Ended(self._process.returncode, *outputs)
        assert "Traceback" not in ended.told, ended.told
        return ended


class _Scene(NamedTuple):
    """What commands work on, on a cluster of one node."""

    bus: hawser.Bus
    topics: dict[str, "hawser.Topic[Any]"]
    queues: dict[str, "hawser.Queue[Any]"]

    @classmethod
    def made(cls, bus: hawser.Bus) -> "_Scene":
        topics = {
            name: bus.topic(name, replication=1) for name in ("published", "replayed", "source", "topic/gone")
        }
        queues = {name: bus.queue(name, replication=1) for name in ("put", "got", "retried", "queue/gone")}
        values = [b"%d" % each for each in range(MESSAGES)]
        topics["source"].publish_many(values)
        for name in "got", "retried":
            queues[name].put_many(values)
        rejected = 0
        while rejected < MESSAGES:
            taken = queues["retried"].get_many(1000, timeout=30)
            taken.reject()
            rejected += len(taken)
        return cls(bus, topics, queues)

    def left(self, queue: str) -> list[int]:
        return [int(bytes(sample)) for sample in self.queues[queue].peek(MESSAGES)]


def test_a_cluster_that_stops(tmp_path: Path, recording: Path) -> None:
    _stop(tmp_path, recording)


def _stop(place: Path, recording: Path) -> None:
    with RunningCluster(place / "cluster", nodes=1) as cluster, cluster.connect() as bus:
        _stop_at_work(cluster, _Scene.made(bus), recording, place)


def _stop_at_work(cluster: RunningCluster, scene: _Scene, recording: Path, place: Path) -> None:
    command = Command(cluster.url)
    topics, queues = scene.topics, scene.queues
    with ExitStack() as stack:

        def begin(*arguments: str, given: bytes = b"") -> _Running:
            return _Running(stack, command, *arguments, given=given)

        counted: list[tuple[str, Callable[[], int], _Running]] = [
            (
                "published",
                lambda: topics["published"].info().head,
                begin("topic", "pub", "published", "--stdin-lines", *SLOWLY, given=lines()),
            ),
            (
                "messages",
                lambda: topics["replayed"].info().head,
                begin("topic", "replay", str(recording), "--as", "replayed", *SLOWLY),
            ),
            (
                "put",
                lambda: queues["put"].info().ready,
                begin("queue", "put", "put", "--stdin-lines", *SLOWLY, given=lines()),
            ),
        ]
        copy, all_and_one = place / "copy", ["--count", str(MESSAGES + 1)]
        getting = begin("queue", "get", "got", *all_and_one)
        echoing = begin("topic", "echo", "source", "--history", str(MESSAGES), *all_and_one, "--timeout", "5")
        copying = begin(
            "topic", "record", "source", "--start", "earliest", "--seconds", "5", "--to", str(copy)
        )
        until(
            lambda: all(there() > 100 or not each.runs for _, there, each in counted),
            "messages of each command",
        )
        retrying = begin("queue", "retry", "retried")
        deleting = {kind: begin(kind, "delete", f"{kind}/gone", "--yes") for kind in ("topic", "queue")}
        until(lambda: queues["retried"].info().ready > 0 or not retrying.runs, "a dead letter that is back")
        cluster.stop("n1")
        ended = [running.ended() for _, _, running in counted]
        got, echoed, copied, retried = (each.ended() for each in (getting, echoing, copying, retrying))
        deleted = {kind: running.ended() for kind, running in deleting.items()}
    cluster.start("n1")
    until(lambda: all(there() > 0 for _, there, _ in counted), "the node's return")
    for (said, there, _), each in zip(counted, ended, strict=True):
        assert each.code in (4, 7) and each.report is not None, (each.code, each.told)
        each.check(said, there())
    _check_reads(scene, got, echoed, copied, recorded(copy))
    moved, dead_letters = scene.left("retried"), queues["retried"].dead_letters().peek(MESSAGES)
    assert sorted([*moved, *(int(bytes(each)) for each in dead_letters)]) == list(range(MESSAGES))
    retried.check("moved", len(moved))
    for kind, each in deleted.items():
        is_there = f"{kind}/gone" in (scene.bus.topics() if kind == "topic" else scene.bus.queues())
        assert not (is_there and each.code == 0), each.told


def _check_reads(scene: _Scene, got: Ended, echoed: Ended, copied: Ended, values: list[bytes]) -> None:
    shown = [int(msgspec.json.decode(line)["data"]) for line in got.lines]
    assert got.code in (4, 5, 7) and len(shown) == len(set(shown)), got.told
    assert {*shown, *scene.left("got")} == set(range(MESSAGES))
    seen = [int(msgspec.json.decode(line)["data"]) for line in echoed.lines]
    assert echoed.code in (4, 5) and seen == list(range(len(seen))), echoed.told
    assert values == [b"%d" % each for each in range(len(values))]
    copied.check("messages", len(values), len(values))


@pytest.fixture(scope="module")
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("every-command")


@pytest.mark.parametrize("how", ENDINGS)
def test_a_decision_at_signals(cluster: RunningCluster, bus: hawser.Bus, how: str) -> None:
    _decide(cluster, bus, how, range(2))


def _decide(cluster: RunningCluster, bus: hawser.Bus, how: str, runs: range) -> None:
    """What a person decides is as the command says, on every shard, and can be decided again."""
    ending = Ending(Command(cluster.url), how, f"decision {runs.start}")
    topic, queue = bus.topic(f"decided/{how}"), bus.queue(f"decided/queue/{how}")
    for run in runs:
        before = topic.info().head
        xid = _prepared(bus, topic, queue)
        decision = ("commit", "rollback")[run % 2]
        ended = ending.run(["tx", decision, str(xid), "--reason", "a test", "--yes"], within_seconds=1.5)
        stage, wanted = _stage(cluster, xid), DECIDED[decision]
        assert stage in (wanted, "prepared")
        if ended.report is not None or ended.code == 0:
            assert stage == wanted
        hawser_command("tx", decision, str(xid), "--reason", "again", "--yes", "--url", cluster.url)
        there = before + (decision == "commit")
        until(lambda there=there: topic.info().head == queue.info().ready == there, "the messages")  # type: ignore[misc]
        ended = ending.run(["tx", "forget", str(xid)], within_seconds=1.5)
        is_kept = _stage(cluster, xid) == wanted
        assert not is_kept or (ended.code != 0 and ended.report is None)
        if is_kept:
            hawser_command("tx", "forget", str(xid), "--url", cluster.url)


def _prepared(bus: hawser.Bus, topic: "hawser.Topic[Any]", queue: "hawser.Queue[Any]") -> Xid:
    """A transaction over both."""
    xid = Xid(4711, secrets.token_bytes(6), b"test")
    branch = bus.xa.start(xid)
    branch.publish(topic, b"first")
    branch.publish(queue, b"second")
    bus.xa.end(xid)
    assert bus.xa.prepare(xid) == "ok"
    return xid


def _stage(cluster: RunningCluster, xid: Xid) -> str:
    """As `hawser tx show` has it; empty if nothing is known of it."""
    done = hawser_command("tx", "show", str(xid), "-o", "json", "--url", cluster.url, code=None)
    return str(msgspec.json.decode(done.stdout)["stage"]) if done.returncode == 0 else ""


@pytest.mark.soak
def test_for_long(
    cluster: RunningCluster, bus: hawser.Bus, tmp_path: Path, recording: Path, soak_seconds: float
) -> None:
    end, run = time.monotonic() + soak_seconds, 2
    while time.monotonic() < end:
        for how in ENDINGS:
            _decide(cluster, bus, how, range(run, run + 2))
        place = tmp_path / str(run)
        place.mkdir()
        _stop(place, recording)
        run += 2
