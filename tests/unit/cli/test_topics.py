"""`hawser topic`: what is published comes out again, in every form."""

import os
import pty
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.standing import stand_still

PATIENCE_SECONDS = 30.0


@dataclass
class Typed:
    """What a typed topic carries."""

    name: str
    size: int


@pytest.fixture
def bus(local: LocalBus) -> hawser.Bus:
    return local.connect("tester")


def test_publish_and_echo(command: Command) -> None:
    said = command.run("topic", "pub", "a/b", "hello", "--key", "k", "--header", "x=y", "--name", "me")
    assert "offset 1" in said.stderr
    assert said.stdout == ""
    (line,) = command.lines("topic", "echo", "a/b", "--history", "1", "--count", "1")
    assert line.pop("timestamp_ns") > 0
    assert line == {
        "topic": "a/b",
        "partition": 0,
        "offset": 1,
        "publisher": "me",
        "key": "k",
        "headers": {"x": "y"},
        "lost_before": 0,
        "size": 5,
        "data": "hello",
    }


def test_lines_files_and_counts(command: Command, tmp_path: os.PathLike[str]) -> None:
    file = os.path.join(tmp_path, "data")
    with open(file, "wb") as opened:
        opened.write(b"\x00\xff")
    command.run("topic", "pub", "t", "--stdin-lines", given="one\ntwo\n\nlast")
    command.run("topic", "pub", "t", "--file", file)
    command.run("topic", "pub", "t", "--file", "-", given="piped")
    assert command.json("topic", "pub", "t", "x", "--count", "3") == {
        "topic": "t",
        "sent": 3,
        "published": 3,
        "first_offset": 7,
        "last_offset": 9,
        "refused": [],
        "unknown": [],
    }
    lines = command.lines("topic", "echo", "t", "--history", "9", "--count", "9")
    assert [line["data"] for line in lines] == [
        *("one", "two", "", "last"),
        {"base64": "AP8="},
        *("piped", "x", "x", "x"),
    ]


def test_forms_of_echo(command: Command) -> None:
    command.run("topic", "pub", "t", "a\tb", "--name", "me", "--key", "k")
    following = ["topic", "echo", "t", "--history", "1", "--count", "1"]
    assert command.run(*following, "--raw").stdout == "a\tb\n"
    assert (
        command.run(*following, "--format", "%o|%p|%k|%s|%l|%v|%x|%%").stdout == "1|me|k|3|0|a\tb|610962|%\n"
    )
    assert "61 09 62" in command.run(*following, "--hex").stdout
    assert "a.b" in command.run(*following, "--hex").stdout
    assert command.run(*following).stdout.endswith("me  3 B  key=k  a\\tb\n")
    assert "is not a field" in command.run(*following, "--format", "%q", code=2).stderr


def test_echo_decodes_typed_topics(command: Command, bus: hawser.Bus) -> None:
    bus.topic("typed", schema=Typed).publish(Typed("ship", 3))
    following = ["topic", "echo", "typed", "--history", "1", "--count", "1"]
    (line,) = command.lines(*following)
    assert line["value"] == {"name": "ship", "size": 3}
    assert '{"name":"ship","size":3}' in command.run(*following).stdout


def test_rate_is_kept(command: Command) -> None:
    start = time.monotonic()
    command.run("topic", "pub", "t", "x", "--rate", "100", "--count", "51")
    assert time.monotonic() - start >= 0.5


def test_echo_waits_for_the_topic_follows_it_and_outlives_it(command: Command, bus: hawser.Bus) -> None:
    with command.started("topic", "echo", "t", "--format", "%v") as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert "waiting for topic 't'" in following.stderr.readline()
        topic = bus.topic("t")
        for word in (b"first", b"second"):
            _await_subscriber(topic)
            topic.publish(word)
            assert following.stdout.readline() == word.decode() + "\n"
        topic.delete(force=True)
        assert "was deleted" in following.stderr.readline()
        topic = bus.topic("t")
        _await_subscriber(topic)
        topic.publish(b"third")
        assert following.stdout.readline() == "third\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_SECONDS) == 130
        assert "Traceback" not in following.stderr.read()
    assert topic.info().participants[1:] == []


def _await_subscriber(topic: "hawser.Topic[Any]") -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not any(each.kind == "subscriber" for each in topic.info().participants):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_echo_tells_what_was_missed(command: Command, bus: hawser.Bus) -> None:
    topic = bus.topic("t", history=2, depth=2)
    with command.started("topic", "echo", "t", "--count", "2", "--format", "%o %l") as following:
        _await_subscriber(topic)
        stand_still(following.pid)
        for _ in range(10):
            topic.publish(b"x")
        following.send_signal(signal.SIGCONT)
        output, errors = following.communicate(timeout=PATIENCE_SECONDS)
    lost = [int(line.split()[1]) for line in output.splitlines()]
    assert sum(lost) == 6
    assert "missed" in errors


def test_echo_into_a_pipe_that_closes(command: Command) -> None:
    command.run("topic", "pub", "t", "x" * 60_000, "--count", "40")
    echo = subprocess.Popen(
        [*command.line("--url", command.url, "topic", "echo", "t", "--history", "40", "--count", "40")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with echo:
        assert echo.stdout is not None
        assert echo.stderr is not None
        echo.stdout.read(10)
        echo.stdout.close()
        assert echo.stderr.read() == b""
        assert echo.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("name", ["hz", "bw"])
def test_rates(command: Command, bus: hawser.Bus, name: str) -> None:
    topic = bus.topic("t")
    with command.started("topic", name, "t", "--seconds", "2", "-o", "json") as watching:
        _await_subscriber(topic)
        while watching.poll() is None:
            topic.publish(b"12345678")
            time.sleep(0.01)
        assert watching.stdout is not None
        lines = [msgspec.json.decode(line) for line in watching.stdout]
    assert watching.returncode == 0
    assert 1 <= len(lines) <= 3
    figures = lines[-1]
    assert figures["missed"] == 0
    if name == "hz":
        assert 10 < figures["rate_hz"] < 110
        assert 0.009 < figures["least_seconds"] <= figures["most_seconds"]
    else:
        assert 80 < figures["bytes_per_second"] < 880
        assert figures["least_bytes"] == figures["most_bytes"] == 8


def test_list_and_info(command: Command, bus: hawser.Bus) -> None:
    assert command.json("topic", "list") == []
    topic = bus.topic("a", slot_size=100, history=3000, ephemeral=True)
    subscription = topic.subscribe(group="g", reliable="durable")
    topic.publish(b"x")
    subscription.take(1)
    info = command.json("topic", "info", "a")
    assert [info] == command.json("topic", "list")
    assert info["settings"]["slot_size"] == 100
    assert info["head"] == 1
    assert {each["kind"] for each in info["participants"]} == {"publisher", "subscriber"}
    assert [each["name"] for each in info["records"]] == ["group:g"]
    assert 0 < info["resident_bytes"] < info["configured_bytes"]
    shown = command.run("topic", "info", "a").stdout
    assert "slot_size 100 B" in shown
    assert "group:g" in shown
    heading, row = command.run("topic", "list").stdout.splitlines()
    assert heading.split()[:3] == ["topic", "messages", "kept"]
    assert row.split()[:5] == ["a", "1", "1", "1", "1"]
    assert "ephemeral" in row


def test_a_broken_topic_does_not_hide_the_others(command: Command, bus: hawser.Bus, local: LocalBus) -> None:
    bus.topic("good")
    (local.directory / "bad.topic").write_bytes(b"nonsense" * 1000)
    done = command.run("topic", "list")
    assert "good" in done.stdout
    assert "'bad' is left out" in done.stderr
    assert "not a Hawser topic" in command.run("topic", "info", "bad", code=4).stderr


def test_delete_and_forget(command: Command, bus: hawser.Bus) -> None:
    topic = bus.topic("t")
    subscription = topic.subscribe(group="g")
    assert "in use" in command.run("topic", "delete", "t", code=2).stderr
    assert "held by" in command.run("topic", "forget", "t", "group:g", code=2).stderr
    subscription.close()
    assert command.json("topic", "forget", "t", "group:g") == {"topic": "t", "forgotten": "group:g"}
    command.run("topic", "forget", "t", "group:g", code=3)
    command.run("topic", "delete", "t", "--force")
    assert bus.topics() == []


def test_delete_asks_on_a_terminal(command: Command, bus: hawser.Bus) -> None:
    bus.topic("t").close()
    assert _on_terminal(command, b"n\n", "topic", "delete", "t") == 130
    assert bus.topics() == ["t"]
    assert _on_terminal(command, b"y\n", "topic", "delete", "t") == 0
    assert bus.topics() == []


def test_a_table_on_a_terminal_has_colours_unless_told_not_to(command: Command, bus: hawser.Bus) -> None:
    bus.topic("t").subscribe().close()
    topic = bus.topic("t")
    topic.publish(b"x")
    assert b"\x1b[" in _shown_on_terminal(command, "ps")
    assert b"\x1b[3" not in _shown_on_terminal(command, "ps", no_color=True)
    assert b"\x1b[" not in _shown_on_terminal(command, "topic", "info", "none", no_color=True)


def _on_terminal(command: Command, answer: bytes, *arguments: str) -> int:
    controller, terminal = pty.openpty()
    line = command.line("--url", command.url, *arguments)
    with subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        os.write(controller, answer)
        code = process.wait(PATIENCE_SECONDS)
    os.close(terminal)
    os.close(controller)
    return code


def _shown_on_terminal(command: Command, *arguments: str, no_color: bool = False) -> bytes:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    environment.pop("NO_COLOR", None)
    if no_color:
        environment["NO_COLOR"] = "1"
    line = command.line("--url", command.url, *arguments)
    with subprocess.Popen(line, env=environment, stdin=terminal, stdout=terminal, stderr=terminal) as process:
        process.wait(PATIENCE_SECONDS)
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(controller, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(controller)
    return shown
