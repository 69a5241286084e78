"""`hawser topic trace` and `hawser queue trace`, and what Perfetto makes of a trace."""

import os
import signal
import subprocess
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cli.trace.perfetto import PerfettoFile
from hawser.record.trace import TraceKind, TraceRecord
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.processes import until

PATIENCE_SECONDS = 60.0
MICROSECOND_NS = 1000


def is_traced(topic: "hawser.Topic[Any] | hawser.Queue[Any]") -> bool:
    return topic.info().settings["trace"] is not None


def until_traced(topic: "hawser.Topic[Any] | hawser.Queue[Any]") -> None:
    until(lambda: is_traced(topic), "tracing is on")


def ended(tool: "subprocess.Popen[str]") -> tuple[str, str]:
    """What a tool that ends has printed."""
    return tool.communicate(timeout=PATIENCE_SECONDS)


def test_a_topic_is_followed_and_left_as_it_was(local: LocalBus, command: Command) -> None:
    topic = local.connect("writer").topic("t")
    local.connect().topic("other").publish(b"x")
    with command.started("topic", "trace", "t", "--count", "7", "-o", "json") as tool:
        until_traced(topic)
        assert not is_traced(local.connect().topic("other"))
        with local.connect("reader").topic("t").subscribe() as subscription:
            topic.publish(b"12345")
            with subscription.take(PATIENCE_SECONDS):  # type: ignore[union-attr]
                pass
        switched, *lines = [msgspec.json.decode(line) for line in ended(tool)[0].splitlines()]
    assert not is_traced(topic)
    assert (switched["kind"], switched["trace"], switched["pid"]) == ("switched", "metadata", tool.pid)
    assert [(line["kind"], line["participant"], line.get("offset")) for line in lines] == [
        ("subscribe", "reader", None),
        ("subscribe", "writer", None),
        ("publish", "writer", 1),
        ("take", "reader", 1),
        ("release", "reader", 1),
        ("unsubscribe", "reader", 1),
    ]
    assert {(line["topic"], line["pid"]) for line in lines} == {("t", os.getpid())}
    assert lines[2]["size"] == 5 and lines[3]["held"]
    assert lines[3]["time_ns"] - lines[2]["time_ns"] == lines[3]["latency_ns"] > 0
    assert [line["position"] for line in lines] == list(range(1, 7))


def test_a_queue_is_followed_in_words(local: LocalBus, command: Command) -> None:
    queue = local.connect("worker").queue("jobs")
    with command.started("queue", "trace", "--count", "8") as tool:
        until_traced(queue)
        queue.put(b"job")
        queue.get(PATIENCE_SECONDS).release()  # type: ignore[union-attr]
        queue.get(PATIENCE_SECONDS).accept()  # type: ignore[union-attr]
        switched, *lines = [line.split() for line in ended(tool)[0].splitlines()]
    assert switched[1:] == ["switched", "jobs", "-", f"({tool.pid})", "to", "metadata"]
    kinds = ["subscribe", "put", "subscribe", "claim", "returned", "claim", "accept"]
    assert [line[1] for line in lines] == kinds
    assert {tuple(line[2:5]) for line in lines} == {("jobs", "worker", f"({os.getpid()})")}
    assert lines[1][5:] == ["#1", "3", "B"] and lines[3][5:7] == ["#1", "after"]
    assert lines[5][-2:] == lines[6][-2:] == ["delivery", "2"]


def test_it_waits_for_a_topic_and_for_the_next_of_its_name(local: LocalBus, command: Command) -> None:
    bus = local.connect("writer")
    with command.started("topic", "trace", "t", "-o", "json") as tool:
        assert tool.stderr is not None and "waiting for topic 't'" in tool.stderr.readline()
        for _ in range(2):
            topic = bus.topic("t")
            until_traced(topic)
            topic.delete()
        topic = bus.topic("t")
        until_traced(topic)
        topic.publish(b"x")
        assert tool.stdout is not None
        assert any(msgspec.json.decode(line)["kind"] == "publish" for line in tool.stdout)


def test_switched_for_good(local: LocalBus, command: Command) -> None:
    topics = [local.connect().topic(name) for name in ("a", "b")]
    assert command.json("topic", "trace", "a", "--on") == {"topics": ["a"], "traced": True}
    assert [is_traced(topic) for topic in topics] == [True, False]
    assert "2 topics is on" in command.run("topic", "trace", "--on", "--level", "payload").stderr
    assert [topic.info().settings["trace"] for topic in topics] == ["payload", "payload"]
    assert "trace payload" in command.run("topic", "info", "a").stdout
    command.run("topic", "trace", "--seconds", "0")
    assert [is_traced(topic) for topic in topics] == [True, True]
    assert command.json("topic", "trace", "--off") == {"topics": ["a", "b"], "traced": False}
    assert [is_traced(topic) for topic in topics] == [False, False]


def test_a_damaged_one_is_left_out(local: LocalBus, command: Command) -> None:
    topic = local.connect().topic("sound")
    local.connect().topic("damaged").close()
    path = local.directory / "damaged.topic"
    path.write_bytes(path.read_bytes()[:2000])
    done = command.run("topic", "trace", "--on", "-o", "json")
    assert msgspec.json.decode(done.stdout) == {"topics": ["sound"], "traced": True}
    assert done.stderr.startswith("topic 'damaged' is left out: ") and is_traced(topic)
    assert "left out" in command.run("topic", "trace", "--seconds", "0").stderr
    assert "damaged" in command.run("topic", "trace", "damaged", "--on", code=4).stderr


def test_a_tool_that_is_killed_leaves_tracing_on(local: LocalBus, command: Command) -> None:
    topic = local.connect().topic("t")
    with command.started("topic", "trace", "t") as tool:
        until_traced(topic)
        tool.kill()
    assert is_traced(topic)
    command.run("topic", "trace", "t", "--off")
    assert not is_traced(topic)
    # Under `nohup` a closed terminal is ignored, here and there.
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    for number in [each for each in numbers if signal.getsignal(each) != signal.SIG_IGN]:
        with command.started("topic", "trace", "t") as tool:
            until_traced(topic)
            tool.send_signal(number)
            ended(tool)
        assert not is_traced(topic)


def test_lost_records_are_said(local: LocalBus, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", "64")
    topic = local.connect().topic("t", trace="metadata")
    topic.publish(b"x")
    with command.started("topic", "trace", "t", "-o", "json") as tool:
        assert tool.stdout is not None
        line: dict[str, Any] = {}
        while not line:
            topic.publish(b"x")
            os.set_blocking(tool.stdout.fileno(), False)
            text = tool.stdout.readline()
            line = msgspec.json.decode(text) if text else {}
        tool.send_signal(signal.SIGSTOP)
        topic.publish_many([b"x"] * 1000)
        tool.send_signal(signal.SIGCONT)
        assert tool.stderr is not None
        said = tool.stderr.readline()
    assert said.startswith("lost ") and "records of the domain" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topic", "trace", "absent", "--on"], 3, "no topic 'absent'"),
        (["topic", "trace", "q"], 2, "is a queue; see `hawser queue trace`"),
        (["queue", "trace", "q", "--on", "--level", "payload"], 2, "is for topics"),
        (["topic", "trace", "--level", "payload"], 2, "--level needs --on"),
        (["topic", "trace", "--off", "--count", "1"], 2, "only switch"),
        (["topic", "trace", "--url", "hawser://127.0.0.1:1"], 2, "hawser agent --trace"),
        (["topic", "trace", "--perfetto", "/dev/null/x"], 2, "cannot be written"),
    ],
)
def test_what_makes_no_sense_is_said(
    local: LocalBus, command: Command, arguments: list[str], code: int, said: str
) -> None:
    bus = local.connect()
    topic, queue = bus.topic("t"), bus.queue("q")
    assert said in command.run(*arguments, code=code).stderr
    assert not is_traced(topic) and not is_traced(queue)


def test_a_domain_of_another_user_is_left_alone(local: LocalBus, command: Command) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    local.connect().topic("t")
    os.chown(local.directory, 12345, 12345)
    assert "belongs to user 12345" in command.run("topic", "trace", "t", "--on", code=6).stderr
    assert not (local.directory / ".trace").exists()


class Drawn:
    """What is in a file for Perfetto; AssertionError if its threads or arrows make no sense."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())
        self.processes = self._named("process_name")
        self.threads = self._named("thread_name")
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.marks = [event for event in self.events if event["ph"] == "i"]
        self._check_threads()
        self.arrows = [self._ends(event) for event in self.events if event["ph"] == "f"]
        assert 2 * len(self.arrows) == sum(event["ph"] in "sf" for event in self.events)

    def _named(self, name: str) -> dict[tuple[int, int], str]:
        events = [event for event in self.events if event["name"] == name]
        return {(event["pid"], event["tid"]): event["args"]["name"] for event in events}

    def _check_threads(self) -> None:
        """No two slices of a thread overlap."""
        by_thread = defaultdict(list)
        for event in self.slices:
            assert (event["pid"], event["tid"]) in self.threads and (event["pid"], 0) in self.processes
            by_thread[event["pid"], event["tid"]].append(_span_ns(event))
        for times in by_thread.values():
            for (_, end), (start, _) in pairwise(sorted(times)):
                assert end <= start

    def _ends(self, finish: dict[str, Any]) -> tuple[str, str]:
        """Titles of the slices that an arrow leads from and to."""
        (start,) = [event for event in self.events if (event["ph"], event.get("id")) == ("s", finish["id"])]
        return self._enclosing(start), self._enclosing(finish)

    def _enclosing(self, event: dict[str, Any]) -> str:
        place = (event["pid"], event["tid"])
        moment = round(event["ts"] * MICROSECOND_NS)
        slices = [each for each in self.slices if (each["pid"], each["tid"]) == place]
        (found,) = [each for each in slices if _span_ns(each)[0] <= moment < _span_ns(each)[1]]
        return str(found["name"])


def _span_ns(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * MICROSECOND_NS)
    return start, start + round(event["dur"] * MICROSECOND_NS)


def test_a_trace_for_perfetto(local: LocalBus, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    topic = local.connect("writer").topic("t")
    with command.started("topic", "trace", "t", "--count", "11", "--perfetto", str(path)) as tool:
        until_traced(topic)
        with local.connect("reader").topic("t").subscribe() as subscription:
            topic.publish_many([b"1", b"2", b"3"])
            for sample in subscription.take_many(2, PATIENCE_SECONDS):
                sample.release()
            assert subscription.take_value(PATIENCE_SECONDS) == b"3"
        assert "open it at ui.perfetto.dev" in ended(tool)[1]
    drawn = Drawn(path)
    assert set(drawn.processes.values()) == {"reader", f"process {tool.pid}"}
    assert {"writer of t", "reader of t", "reader of t, held"} == set(drawn.threads.values())
    taken = [event["name"] for event in drawn.slices if event["name"].startswith("take")]
    assert sorted(taken) == ["take 1", "take 2", "take 3"]
    assert sorted(drawn.arrows) == [(f"publish {each}", f"take {each}") for each in (1, 2, 3)]


def record(
    position: int, kind: TraceKind, owner: int, sequence: int = 0, value: int = 0, **more: int
) -> TraceRecord:
    facts = {"deliveries": 1, "pid": 100 + owner, **more}
    time_ns = 10**18 + position * MICROSECOND_NS
    return TraceRecord(position, time_ns, 7, sequence, owner, kind, value=value, **facts)


def test_what_is_held_at_a_death_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = PerfettoFile(path)
    told = [
        record(0, TraceKind.PUBLISH, 1, 1),
        record(1, TraceKind.PUBLISH, 1, 2),
        record(2, TraceKind.TAKE, 2, 1),
        record(3, TraceKind.TAKE, 3, 1),
        record(4, TraceKind.TAKE, 2, 2),
        record(5, TraceKind.NOTHING, 2),
        record(6, TraceKind.RELEASE, 2, 1),
        record(8, TraceKind.RECOVER, 0, value=2, pid=99),
        record(9, TraceKind.MISSED, 3, 40, value=38),
        record(10, TraceKind.RECOVER, 0, value=9, pid=99),
    ]
    for each in told:
        file.add(each, "t", {1: "w", 2: "dead", 3: "slow"}.get(each.about, ""))
    file.lost(5, told[-1].time_ns)
    file.close()
    drawn = Drawn(path)
    held = {
        (event["args"]["end"], event["name"]): event["dur"]
        for event in drawn.slices
        if "end" in event["args"]
    }
    assert held == {("release", "take 1"): 4, ("recovered", "take 2"): 4, ("still held", "take 1"): 1}
    assert list(drawn.threads.values()).count("dead of t, held") == 2
    assert [event["name"] for event in drawn.marks] == [
        "dead of t died: recovered by 99",
        "missed 38",
        "a participant of t died: recovered by 99",
        "5 trace records lost",
    ]
    assert sorted(drawn.arrows) == [("publish 1", "take 1")] * 2 + [("publish 2", "take 2")]


def test_what_others_write_of_somebody_is_not_theirs(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = PerfettoFile(path)
    file.lost(3, 10**18)
    file.add(record(1, TraceKind.RETURNED, 2, 1, pid=99), "jobs", "dead")
    file.add(record(2, TraceKind.SWITCHED, 0, value=1, pid=99), "jobs", "")
    file.add(record(3, TraceKind.CLAIM, 4, 1), "jobs", "worker")
    file.close()
    drawn = Drawn(path)
    assert drawn.processes == {(99, 0): "process 99", (104, 0): "worker"}
    assert set(drawn.threads.values()) == {"worker of jobs", "worker of jobs, held"}
    assert [event["name"] for event in drawn.marks[1:]] == ["returned 1 of jobs", "switched 0 of jobs"]
    assert max(event["ts"] for event in drawn.events if "ts" in event) < 10 * MICROSECOND_NS**2


def test_an_empty_trace_for_perfetto(tmp_path: Path) -> None:
    PerfettoFile(tmp_path / "trace.json").close()
    assert Drawn(tmp_path / "trace.json").events == []
