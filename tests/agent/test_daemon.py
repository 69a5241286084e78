"""The agent as a daemon: how it starts and ends, what it refuses, and what makes it ready."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import hawser
from hawser.agent.daemon import AgentDaemon
from hawser.agent.directory_watch import DirectoryWatch
from hawser.agent.recorder_threads import RecorderThreads
from hawser.agent.recording import RecorderStatus
from hawser.errors import SettingsMismatch
from hawser.testing import LocalBus
from tests.agent.support import Agent
from tests.agent.test_recovery import SETTINGS, take_part
from tests.support.children import victim
from tests.support.etcd import free_ports
from tests.support.links import run
from tests.support.processes import Daemon, hawser_command, page, until, until_page


def test_it_says_when_it_is_ready_and_ends_in_order(agent: Agent, local: LocalBus) -> None:
    assert agent.ready == f"agent {local.url}"
    assert page(f"{agent.http}/readyz") == (200, "ready\n")
    assert page(f"{agent.http}/livez") == (200, "alive\n")
    assert agent.stop() == 0
    assert agent.messages()[-1] == "stopped"


def test_there_need_not_be_a_domain(local: LocalBus, tmp_path: Path) -> None:
    local.directory.rmdir()
    with Agent(local, tmp_path, look_seconds="0.1") as agent:
        assert page(f"{agent.http}/readyz")[0] == 200
        local.directory.mkdir(mode=0o700)
        with victim(take_part(local, "x", **SETTINGS)) as child:
            child.hear()
        agent.until_figure(2, "agent_recovered_total")


def test_a_domain_that_cannot_be_read_makes_it_not_ready(local: LocalBus, tmp_path: Path) -> None:
    with Agent(local, tmp_path, look_seconds="0.1") as agent:
        local.directory.rmdir()
        local.directory.write_text("not a directory")
        until(lambda: page(f"{agent.http}/readyz")[0] == 503, "not ready")
        assert "Not a directory" in page(f"{agent.http}/readyz")[1]
        local.directory.unlink()
        until(lambda: page(f"{agent.http}/readyz")[0] == 200, "ready again")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--record", "x"], "need --to"),
        (["--to", "hawser://127.0.0.1:1"], "need --to"),
        (["--record", "x", "--to", "shm://"], "is not the URL of a cluster"),
        (["--record", "x", "--record", "x=y", "--to", "hawser://127.0.0.1:1"], "once"),
        (["--record", "a//b", "--to", "hawser://127.0.0.1:1"], "empty part"),
        (["--record", "x=a//b", "--to", "hawser://127.0.0.1:1"], "empty part"),
        (["--name", "group:x"], "which is reserved; choose another"),
        (["--url", "hawser://127.0.0.1:1"], "is no URL of a domain"),
        (["--http", "nowhere"], "nowhere"),
        (["--look-seconds", "0"], "look-seconds"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], text: str, tmp_path: Path) -> None:
    done = hawser_command("agent", "--url", f"shm://{tmp_path}", *arguments, code=2)
    assert text in done.stderr


def test_the_port_is_taken(agent: Agent, local: LocalBus) -> None:
    done = hawser_command("agent", "--url", local.url, "--http", agent.http.removeprefix("http://"), code=4)
    assert "cannot serve pages" in done.stderr


class Troubled:
    """A recorder of this state, which fails for good if it is told to."""

    def __init__(self, topic: str, state: str, error: str = "") -> None:
        fields = {"topic": topic, "target": topic, "state": state, "error": error}
        counts = {"recorded": 3, "gaps": 1, "lost": 2, "position": 5, "lag": 7}
        self.state = msgspec.convert({**fields, **counts}, RecorderStatus)
        self.fail = threading.Event()

    def status(self) -> RecorderStatus:
        return self.state

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            if self.fail.is_set():
                raise SettingsMismatch("the target has other settings")


@contextmanager
def at_work(*recordings: Troubled) -> Iterator[RecorderThreads]:
    recorders = RecorderThreads()
    for recording in recordings:
        recorders.start(recording)
    yield recorders
    assert recorders.stop(60)


def test_a_recorder_says_why_it_is_not_ready() -> None:
    waiting = Troubled("b", "waiting for cluster", "no node answers")
    with at_work(Troubled("a", "recording"), waiting, Troubled("c", "waiting for topic")) as recorders:
        assert recorders.why_not_ready() == "recorder of b: waiting for cluster: no node answers"
        waiting.state = Troubled("b", "recording").state
        assert recorders.why_not_ready() is None


def test_a_recorder_that_fails_leaves_the_others_alone() -> None:
    sound, failing = Troubled("a", "recording"), Troubled("b", "recording")
    with at_work(sound, failing) as recorders:
        assert recorders.why_not_ready() is None
        failing.fail.set()
        until(lambda: recorders.why_not_ready() is not None, "the failure is told")
        assert recorders.why_not_ready() == "recorder of b: failed: the target has other settings"
        works = {
            metric.labels[0][1]: metric.value
            for metric in recorders.metrics()
            if metric.name == "hawser_recorder_recording"
        }
        assert works == {"a": 1, "b": 0}


def test_without_news_deaths_are_found_by_looking(local: LocalBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: DirectoryWatch) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(DirectoryWatch, "__init__", refuse)
    topic = local.connect().topic("x", **SETTINGS)

    async def work() -> None:
        daemon = AgentDaemon("agent", local.url, [], look_seconds=0.02)
        await daemon.start()
        with victim(take_part(local, "x")) as child:
            child.hear()
        while topic.info().participants:
            await asyncio.sleep(0.01)
        await daemon.stop()

    run(work())


def test_news_of_a_directory(tmp_path: Path) -> None:
    news = DirectoryWatch()
    first, second = tmp_path / "first", tmp_path / "second"
    assert not news.follow(first)
    first.mkdir()
    assert news.follow(first) and not news.follow(first)
    (first / "file").write_text("text")
    assert news.read().files == {"file"}
    assert news.read().files == frozenset()
    (first / "file").read_text()
    os.stat(first / "file")
    assert news.read().files == frozenset(), "reading is no news"
    first.rename(second)
    first.mkdir()
    assert news.follow(first)
    (second / "old").write_text("text")
    (first / "new").write_text("text")
    assert news.read().files == {"new"}
    news.close()
    news.close()


def test_more_news_than_the_kernel_keeps(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"this host keeps {most} events, more than it is worth to make")
    news = DirectoryWatch()
    news.follow(tmp_path)
    for number in range(most):
        (tmp_path / str(number % 100)).write_bytes(b"")
    told = news.read()
    while told.files and not told.overflow:
        told = news.read()
    assert told.overflow
    news.close()


def test_an_agent_that_is_stopped_is_in_nobodys_way(agent: Agent, local: LocalBus) -> None:
    topic = local.connect().topic("x", **SETTINGS)
    with victim(take_part(local, "x")) as child:
        child.hear()
        agent.signal(signal.SIGSTOP)
    with hawser.connect(local.url, name="other") as bus:
        assert bus.topic("x").publish(b"sample").first_offset == 11
        assert [each.name for each in topic.info().participants] == ["other"]
    agent.signal(signal.SIGCONT)
    topic.delete()


def test_it_records(local: LocalBus, tmp_path: Path) -> None:
    """Started before its cluster and killed on the way; the recorder itself is attacked elsewhere."""
    topic = local.connect().topic("x", slot_size=64, history=0, depth=1000)
    (port,) = free_ports(1)
    up = ["up", "--nodes", "1", "--dir", str(tmp_path / "cluster"), "--listen", f"127.0.0.1:{port}"]
    recording = ["--record", "x=site/x", "--record", "later", "--to", f"hawser://127.0.0.1:{port}"]
    cluster, agent = Daemon(up, tmp_path / "up.log"), Agent(local, tmp_path, *recording)
    try:
        agent.start()
        until_page(f"{agent.http}/readyz", "recorder of x: waiting for cluster", 503)
        topic.publish_many([b"%d" % number for number in range(100)])
        agent.until_figure(100, "recorder_lag", "x", "site/x")
        with hawser.connect(cluster.start()) as bus:
            bus.topic("site/x", replication=1)
        agent.until_figure(100, "recorder_recorded_total", "x", "site/x")
        until_page(f"{agent.http}/readyz", "ready")
        agent.kill()
        topic.publish_many([b"%d" % number for number in range(100, 150)])
        agent.start()
        agent.until_figure(150, "recorder_position", "x", "site/x")
        assert agent.figure("recorder_recorded_total", "x", "site/x") == 50
        with hawser.connect(cluster.ready) as bus:
            recorded = bus.topic("site/x", create=False).read_oldest(1000).samples
        assert [bytes(sample) for sample in recorded] == [b"%d" % number for number in range(150)]
        assert agent.stop() == 0
    finally:
        agent.kill()
        cluster.kill()
