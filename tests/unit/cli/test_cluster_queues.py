"""The queue commands on a cluster: the same as on one host."""

from typing import Any

import msgspec
import pytest

import hawser
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS, hawser_command


@pytest.fixture
def url(cluster: RunningCluster) -> str:
    return cluster.url


def _json(url: str, *arguments: str) -> Any:
    return msgspec.json.decode(hawser_command(*arguments, "-o", "json", "--url", url).stdout)


def test_put_list_info_get_delete(url: str) -> None:
    settings = ["--max-deliveries", "5", "--capacity-bytes", "64M", "--slot-size", "4K"]
    said = hawser_command("queue", "put", "cli/jobs", "hello", "--key", "k", *settings, "--url", url)
    assert said.stderr == "put 1 message into 'cli/jobs'\n"
    lines = hawser_command("queue", "list", "--url", url).stdout.splitlines()
    assert lines[0].split()[:6] == ["queue", "ready", "claimed", "dead", "oldest", "replicas"]
    (row,) = [line.split() for line in lines if line.startswith("cli/jobs ")]
    assert row[:4] == ["cli/jobs", "1", "0", "0"]
    assert "64 MiB" in " ".join(row)
    text = hawser_command("queue", "info", "cli/jobs", "--url", url).stdout
    assert "max_deliveries 5" in text
    assert "1 ready, 0 claimed, of 1 put" in text
    with hawser.connect(url, name="holder") as bus:
        message = bus.queue("cli/jobs").get(LIMIT_SECONDS)
        assert message is not None
        found = _json(url, "queue", "info", "cli/jobs")
        assert (found["ready"], found["claimed"]) == (0, 1)
        assert [each["claimed"] for each in found["owners"]] == [1]
        assert found["owners"][0]["name"].startswith("holder")
        rows = [line.split() for line in hawser_command("ps", "--url", url).stdout.splitlines()]
        assert ["cli/jobs", found["owners"][0]["name"], "1"] in rows
        assert any(each["topic"] == "cli/jobs" and each["held"] == 1 for each in _json(url, "ps"))
        message.release()
    got = ["queue", "get", "cli/jobs", "--timeout", "60", "--url", url]
    assert hawser_command(*got, "--format", "%o %k %v %d").stdout == "1 k hello 2\n"
    assert _json(url, "queue", "delete", "cli/jobs", "--yes") == {"queue": "cli/jobs", "deleted": True}
    assert "no queue 'cli/jobs'" in hawser_command("queue", "info", "cli/jobs", "--url", url, code=3).stderr


def test_many_lines_keep_their_order(url: str) -> None:
    lines = [f"line {number}" for number in range(2000)]
    given = "\n".join(lines).encode()
    said = hawser_command("queue", "put", "cli/lines", "--stdin-lines", "--url", url, given=given)
    assert said.stderr == "put 2,000 messages into 'cli/lines'\n"
    got = ["queue", "get", "cli/lines", "--count", "2000", "--raw", "--timeout", "60", "--url", url]
    assert hawser_command(*got).stdout.splitlines() == lines
    assert (
        "within 0 s"
        in hawser_command("queue", "get", "cli/lines", "--timeout", "0", "--url", url, code=5).stderr
    )


def test_dead_letters_are_shown_and_retried(url: str) -> None:
    hawser_command("queue", "put", "cli/poison", "--stdin-lines", "--url", url, given=b"one\ntwo\nthree")
    got = ["queue", "get", "cli/poison", "--timeout", "60", "--raw", "--url", url]
    assert hawser_command(*got, "--count", "2", "--release").stdout == "one\ntwo\n"
    assert hawser_command(*got, "--count", "2", "--reject").stdout == "one\ntwo\n"
    peeked = hawser_command("queue", "peek", "cli/poison", "--dead", "--raw", "--url", url)
    assert peeked.stdout == "one\ntwo\n"
    assert _json(url, "queue", "info", "cli/poison")["dead"] == 2
    assert _json(url, "queue", "retry", "cli/poison", "--count", "1") == {"queue": "cli/poison", "moved": 1}
    assert hawser_command(*got, "--dead").stdout == "two\n"
    assert hawser_command(*got, "--count", "2").stdout == "three\none\n"
    assert "is empty" in hawser_command("queue", "peek", "cli/poison", "--url", url).stderr


def test_topics_and_queues_do_not_mix(url: str) -> None:
    hawser_command("topic", "pub", "cli/topic", "x", "--url", url)
    hawser_command("queue", "put", "cli/queue", "x", "--url", url)
    assert "cli/queue" not in [each["name"] for each in _json(url, "topic", "list")]
    assert "cli/topic" not in [each["name"] for each in _json(url, "queue", "list")]
    assert "is a topic" in hawser_command("queue", "info", "cli/topic", "--url", url, code=2).stderr
    assert "is a queue" in hawser_command("topic", "info", "cli/queue", "--url", url, code=2).stderr


def test_full_is_said(url: str) -> None:
    with hawser.connect(url) as bus:
        queue = bus.queue("cli/small", capacity_bytes=4096)
        # It takes effect when the leader has seen to it.
        with pytest.raises(hawser.Full):
            while True:
                queue.put(bytes(1000), timeout=0)
    put = ["queue", "put", "cli/small", "x" * 1000, "--timeout", "0", "--count", "3"]
    done = hawser_command(*put, "-o", "json", "--url", url, code=1)
    assert "has no room" in done.stderr
    assert msgspec.json.decode(done.stdout)["put"] == 0
