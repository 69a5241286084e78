"""`hawser queue` on one host: what is put comes out again, once, and never before it was printed."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.standing import stand_still

PATIENCE_SECONDS = 30.0


@dataclass
class Typed:
    """What a typed queue carries."""

    name: str
    size: int


@pytest.fixture
def bus(local: LocalBus) -> hawser.Bus:
    return local.connect("tester")


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def counts(queue: "hawser.Queue[Any]") -> tuple[int, int, int]:
    found = queue.info()
    return found.ready, found.claimed, found.dead


def test_put_and_get(command: Command) -> None:
    said = command.run("queue", "put", "a/b", "hello", "--key", "k", "--header", "x=y", "--name", "me")
    assert said.stderr == "put 1 message into 'a/b'\n"
    assert said.stdout == ""
    (line,) = command.lines("queue", "get", "a/b")
    assert line.pop("timestamp_ns") > 0
    assert line == {
        "queue": "a/b",
        "partition": 0,
        "offset": 1,
        "publisher": "me",
        "key": "k",
        "headers": {"x": "y"},
        "lost_before": 0,
        "size": 5,
        "delivery_count": 1,
        "redelivered": False,
        "data": "hello",
    }
    assert "no message of queue 'a/b'" in command.run("queue", "get", "a/b", "--timeout", "0", code=5).stderr


def test_lines_files_and_counts(command: Command, tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "data")
    with open(file, "wb") as opened:
        opened.write(b"\x00\xff")
    command.run("queue", "put", "q", "--stdin-lines", given="one\ntwo\n\nlast")
    command.run("queue", "put", "q", "--file", file)
    command.run("queue", "put", "q", "--stdin-lines", "--count", "1", given="only\nthis")
    assert command.json("queue", "put", "q", "x", "--count", "3", "--key", "k") == {
        "queue": "q",
        "put": 3,
        "first_offset": 7,
        "last_offset": 9,
        "unknown": 0,
    }
    lines = command.lines("queue", "get", "q", "--count", "9")
    assert [line["data"] for line in lines] == [
        *("one", "two", "", "last"),
        {"base64": "AP8="},
        *("only", "x", "x", "x"),
    ]
    assert [line["key"] for line in lines] == [None] * 6 + ["k"] * 3


def test_forms(command: Command, bus: hawser.Bus) -> None:
    queue = bus.queue("q", schema=Typed)
    queue.put(Typed("ship", 3), key=b"k")
    assert '{"name":"ship","size":3}' in command.run("queue", "peek", "q").stdout
    (line,) = command.lines("queue", "get", "q", "--release")
    assert line["value"] == {"name": "ship", "size": 3}
    shown = command.run("queue", "get", "q", "--format", "%o %k %p %d").stdout
    assert shown == "1 k tester 2\n"
    queue.put(Typed("boat", 1))
    assert "is not a field" in command.run("queue", "get", "q", "--format", "%q", code=2).stderr
    assert "is not a field" in command.run("queue", "peek", "q", "--format", "%d", code=2).stderr
    assert counts(queue) == (1, 0, 0)


def test_what_could_not_be_printed_is_not_accepted(command: Command, bus: hawser.Bus) -> None:
    queue = bus.queue("q", slot_size=64_000)
    queue.put_many([b"x" * 60_000] * 40)
    line = command.line("--url", command.url, "queue", "get", "q", "--count", "40", "--raw")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as getting:
        assert getting.stdout is not None and getting.stderr is not None
        getting.stdout.read(10)
        getting.stdout.close()
        assert getting.stderr.read() == b""
        assert getting.wait(PATIENCE_SECONDS) == 0
    ready, claimed, _ = counts(queue)
    assert claimed == 0
    assert ready >= 40 - 32


def test_a_killed_getter_has_accepted_what_it_printed_and_nothing_else(
    command: Command, bus: hawser.Bus
) -> None:
    queue = bus.queue("q")
    with command.started("queue", "get", "q", "--follow", "--raw") as getting:
        assert getting.stdout is not None
        for word in ("one", "two"):
            queue.put(word.encode())
            assert getting.stdout.readline() == word + "\n"
        until(lambda: counts(queue)[:2] == (0, 0))
        stand_still(getting.pid)
        queue.put(b"three")
        getting.kill()
        getting.wait(PATIENCE_SECONDS)
    assert command.run("queue", "get", "q", "--raw").stdout == "three\n"


def test_follow_waits_for_the_queue_and_outlives_it(command: Command, bus: hawser.Bus) -> None:
    with command.started("queue", "get", "q", "--follow", "--format", "%v") as following:
        assert following.stdout is not None and following.stderr is not None
        assert "waiting for queue 'q'" in following.stderr.readline()
        queue = bus.queue("q")
        queue.put(b"first")
        assert following.stdout.readline() == "first\n"
        queue.delete(force=True)
        assert "was deleted" in following.stderr.readline()
        queue = bus.queue("q")
        queue.put(b"second")
        assert following.stdout.readline() == "second\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_SECONDS) == 130
        assert "Traceback" not in following.stderr.read()


def test_release_and_reject(command: Command, bus: hawser.Bus) -> None:
    queue = bus.queue("q")
    queue.put_many([b"one", b"two", b"three"])
    got = command.run("queue", "get", "q", "--count", "2", "--release", "--raw").stdout
    assert got == "one\ntwo\n"
    assert counts(queue) == (3, 0, 0)
    assert command.run("queue", "get", "q", "--count", "2", "--reject", "--raw").stdout == got
    assert counts(queue) == (1, 0, 2)
    peeked = command.lines("queue", "peek", "q", "--dead")
    assert [line["data"] for line in peeked] == ["one", "two"]
    assert "hawser-dead-letter" in peeked[0]["headers"]
    assert command.json("queue", "retry", "q", "--count", "1") == {"queue": "q", "moved": 1}
    assert command.run("queue", "get", "q", "--dead", "--raw").stdout == "two\n"
    assert "no dead letters" in command.run("queue", "peek", "q", "--dead").stderr
    assert "no dead letters" in command.run("queue", "retry", "q").stderr
    assert command.run("queue", "get", "q", "--count", "2", "--raw").stdout == "three\none\n"
    assert "is empty" in command.run("queue", "peek", "q").stderr


def test_peek_changes_nothing(command: Command, bus: hawser.Bus) -> None:
    queue = bus.queue("q")
    queue.put_many([b"%d" % number for number in range(20)])
    with queue.get(0) or pytest.fail("nothing there"):
        assert command.run("queue", "peek", "q", "--count", "3", "--raw").stdout == "0\n1\n2\n"
        assert len(command.lines("queue", "peek", "q")) == 10
        assert counts(queue) == (19, 1, 0)
    assert "no dead letters" in command.run("queue", "peek", "q", "--dead").stderr
    assert "no dead letter" in command.run("queue", "get", "q", "--dead", "--timeout", "0", code=5).stderr
    assert bus.queues() == ["q"]


def test_list_and_info(command: Command, bus: hawser.Bus) -> None:
    assert command.json("queue", "list") == []
    assert "no queues" in command.run("queue", "list").stderr
    queue = bus.queue("a", slot_size=100, capacity=10, max_deliveries=3, ephemeral=True)
    queue.put_many([b"x", b"y"])
    with queue.get(0) or pytest.fail("nothing there"):
        info = command.json("queue", "info", "a")
        assert (info["ready"], info["claimed"], info["dead"]) == (1, 1, 0)
        assert [(each["name"], each["pid"], each["claimed"]) for each in info["owners"]] == [
            ("tester", os.getpid(), 1)
        ]
        shown = command.run("queue", "info", "a").stdout
        assert "1 ready, 1 claimed, of 2 put" in shown
        assert "slot_size 100 B" in shown and "max_deliveries 3" in shown
        heading, row = command.run("queue", "list").stdout.splitlines()
        assert heading.split()[:5] == ["queue", "ready", "claimed", "dead", "oldest"]
        assert row.split()[:4] == ["a", "1", "1", "0"]
        assert "ephemeral" in row
        assert [each["name"] for each in command.json("queue", "list")] == ["a"]


def test_topics_and_queues_do_not_mix(command: Command, bus: hawser.Bus) -> None:
    bus.topic("t").publish(b"x")
    bus.queue("q").put(b"x")
    assert [each["name"] for each in command.json("topic", "list")] == ["t"]
    assert [each["name"] for each in command.json("queue", "list")] == ["q"]
    for arguments in (["info", "t"], ["get", "t"], ["peek", "t"], ["put", "t", "x"], ["delete", "t"]):
        assert "is a topic" in command.run("queue", *arguments, code=2).stderr
    for arguments in (["info", "q"], ["pub", "q", "x"], ["delete", "q"]):
        assert "is a queue" in command.run("topic", *arguments, code=2).stderr
    assert sorted((each["topic"], each["kind"]) for each in command.json("ps")) == [
        ("q", "producer"),
        ("t", "publisher"),
    ]
    assert {line.split()[0] for line in command.run("ps").stdout.splitlines()[1:]} == {"q", "t"}


def test_full_is_said_and_what_was_put_is_counted(command: Command, bus: hawser.Bus) -> None:
    bus.queue("q", capacity=3)
    done = command.run("queue", "put", "q", "x", "--count", "5", "--timeout", "0", code=1)
    assert "put 3 messages" in done.stderr
    assert "full" in done.stderr.lower()
    assert counts(bus.queue("q"))[0] == 3


def test_delete_and_forget(command: Command, bus: hawser.Bus) -> None:
    queue = bus.queue("q")
    queue.put(b"x")
    assert "in use" in command.run("queue", "delete", "q", "--yes", code=2).stderr
    assert "not recorded by 'agent'" in command.run("queue", "forget", "q", "agent", code=3).stderr
    queue.close()
    assert _on_terminal(command, b"n\n", "queue", "delete", "q") == 130
    assert bus.queues() == ["q"]
    assert command.json("queue", "delete", "q") == {"queue": "q", "deleted": True}
    assert bus.queues() == []


def _on_terminal(command: Command, answer: bytes, *arguments: str) -> int:
    controller, terminal = pty.openpty()
    line = command.line("--url", command.url, *arguments)
    with subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.write(controller, answer)
        code = process.wait(PATIENCE_SECONDS)
    os.close(terminal)
    os.close(controller)
    return code


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["put", "x"], 2, "Give one of"),
        (["put", "x", "1", "--slot-size", "much"], 2, "not a number of bytes"),
        (["put", "x", "1", "--capacity", "0"], 2, "outside 1"),
        (["put", "a//b", "1"], 2, "empty part"),
        (["put", "x", "1", "--header", "nothing"], 2, "NAME=VALUE"),
        (["put", "x", "1", "--rate", "nan"], 2, "'nan' is not a number above 0"),
        (["put", "x", "1", "--rate", "0"], 2, "'0' is not a number above 0"),
        (["get", "x", "--raw", "--hex"], 2, "Give one of"),
        (["get", "x", "--follow", "--count", "1"], 2, "Give one of"),
        (["get", "x", "--release", "--reject"], 2, "--release"),
        (["get", "x"], 3, "no queue 'x'"),
        (["peek", "x"], 3, "no queue 'x'"),
        (["info", "x"], 3, "no queue 'x'"),
        (["retry", "x"], 3, "no queue 'x'"),
        (["delete", "x"], 3, "no queue 'x'"),
        (["get", "x", "--follow", "--timeout", "0.1"], 5, "no queue 'x' within"),
    ],
)
def test_failures_say_why_and_end_with_their_code(
    command: Command, arguments: list[str], code: int, said: str
) -> None:
    done = command.run("queue", *arguments, code=code)
    assert said in done.stderr
    assert done.stdout == ""


def test_queues_are_completed(command: Command, bus: hawser.Bus) -> None:
    bus.topic("jotted")
    bus.queue("jobs")
    environment = {
        **os.environ,
        "HAWSER_DIR": command.url.removeprefix("shm://"),
        "_HAWSER_COMPLETE": "bash_complete",
        "COMP_WORDS": "hawser queue info jo",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(command.line(), env=environment, capture_output=True, text=True, check=False)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == ["jobs"]
