"""The topic commands on a cluster: the same as on one host."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hawser
from tests.support.processes import LIMIT_SECONDS, Daemon, hawser_command


@pytest.fixture(scope="module")
def url(module_path: Path) -> Iterator[str]:
    arguments = ["up", "--dir", str(module_path / "cluster"), "--listen", "127.0.0.1:0"]
    with Daemon(arguments, module_path / "log") as cluster:
        yield cluster.ready


def _json(url: str, *arguments: str) -> Any:
    return msgspec.json.decode(hawser_command(*arguments, "-o", "json", "--url", url).stdout)


def test_publish_list_info_echo_delete(url: str) -> None:
    settings = ["--partitions", "2", "--retention-bytes", "64M", "--retention-seconds", "3600"]
    said = hawser_command("topic", "pub", "a/b", "hello", "--key", "k", *settings, "--url", url)
    assert said.stderr == "published to 'a/b' at offset 1\n"
    lines = hawser_command("topic", "list", "--url", url).stdout.splitlines()
    assert lines[0].split() == ["topic", "partitions", "replicas", "messages", "kept", "remarks"]
    assert ["a/b", "2", "3", "1", "1"] in [line.split() for line in lines]
    text = hawser_command("topic", "info", "a/b", "--url", url).stdout
    assert "partitions 2, replication 3, retention_bytes 64 MiB, retention_seconds 60 min" in text
    found = _json(url, "topic", "info", "a/b")
    assert [each["partition"] for each in found["partitions"]] == [0, 1]
    assert sum(each["end"] - each["start"] for each in found["partitions"]) == 1
    echoed = ["topic", "echo", "a/b", "--history", "1", "--count", "1", "--timeout", "60", "--url", url]
    line = msgspec.json.decode(hawser_command(*echoed, "--json").stdout)
    assert (line["data"], line["key"], line["offset"]) == ("hello", "k", 1) and line["partition"] in (0, 1)
    assert hawser_command(*echoed, "--format", "%P %o %k %v").stdout == f"{line['partition']} 1 k hello\n"
    assert _json(url, "topic", "delete", "a/b", "--yes") == {"topic": "a/b", "deleted": True}
    assert "no topic 'a/b'" in hawser_command("topic", "info", "a/b", "--url", url, code=3).stderr


def test_many_lines_keep_their_order(url: str) -> None:
    lines = [f"line {number}" for number in range(2000)]
    said = hawser_command(
        "topic", "pub", "lines", "--stdin-lines", "--url", url, given="\n".join(lines).encode()
    )
    assert said.stderr == "published 2,000 messages to 'lines' at offsets 1 to 2,000\n"
    echoed = ["topic", "echo", "lines", "--history", "2000", "--count", "2000", "--raw", "--timeout", "60"]
    assert hawser_command(*echoed, "--url", url).stdout.splitlines() == lines


def test_rates_are_measured(url: str) -> None:
    with hawser.connect(url) as bus:
        topic = bus.topic("rates")
        command = [sys.executable, "-m", "hawser", "topic", "bw", "rates", "--seconds", "60", "-o", "json"]
        with subprocess.Popen([*command, "--url", url], stdout=subprocess.PIPE, text=True) as measuring:
            assert measuring.stdout is not None
            try:
                while True:
                    for _ in range(20):
                        topic.publish(bytes(100))
                    figures = msgspec.json.decode(measuring.stdout.readline())
                    if figures["messages"]:
                        break
            finally:
                measuring.kill()
    assert figures["bytes_per_second"] > 0


def test_groups_are_shown_with_their_lag(url: str) -> None:
    with hawser.connect(url, name="shop") as bus:
        topic = bus.topic("orders", partitions=2)
        for number in range(10):
            topic.publish(b"order", key=b"%d" % number)
        with topic.subscribe(group="billing", start="earliest") as subscription:
            for _ in range(4):
                assert subscription.take(LIMIT_SECONDS) is not None
            subscription.commit()
            rows = [line.split() for line in hawser_command("ps", "--url", url).stdout.splitlines()]
            shown = [row for row in rows if row[0] == "orders"]
            assert [row[1:3] for row in shown] == [["0", "billing"], ["1", "billing"]]
            assert all(row[3].startswith("shop") for row in shown)
            assert sum(int(row[4]) for row in shown) == 4
            assert sum(int(row[5]) for row in shown) == 6
            assert sum(each["lag"] for each in _json(url, "ps")) == 6


def test_the_variable_stands_for_the_option(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAWSER_URL", url)
    hawser_command("topic", "pub", "variable", "x")
    assert "variable" in hawser_command("topic", "list").stdout
    assert "variable" in hawser_command("cluster", "status", "--check", "--wait", "60").stdout


def test_doctor_checks_a_cluster(url: str) -> None:
    hawser_command("cluster", "status", "--check", "--wait", "60", "--url", url)
    done = hawser_command("doctor", "-o", "json", "--url", url)
    report = msgspec.json.decode(done.stdout)
    assert report["healthy"]
    verdicts = [(each["check"], each["verdict"]) for each in report["checks"]]
    assert verdicts == [("operators", "ok"), ("nodes", "ok"), ("clocks", "ok"), ("shards", "ok")]


def test_commands_about_one_host_say_so(url: str) -> None:
    assert "nothing to do" in hawser_command("reap", "--url", url).stderr


def test_progress_is_for_terminals(url: str) -> None:
    hawser_command("topic", "pub", "watched", "x", "--url", url)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hawser", "cluster", "elect", "watched/0", "--url", url]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, check=False, timeout=LIMIT_SECONDS)
    os.close(theirs)
    data = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):
        while part := terminal.read(65536):
            data += part
    shown = data.decode()
    assert done.returncode == 0 and done.stdout == b""
    assert "elect watched/0" in shown and "the leader is" in shown
    # The same without a terminal is one line.
    plain = hawser_command("cluster", "elect", "watched/0", "--url", url).stderr
    assert plain.count("\n") == 1 and "\x1b" not in plain
