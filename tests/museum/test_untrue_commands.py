"""Commands that lost messages, or said what was not so.

Found by reading and by trying: a message too large for a recording took up to 1,024 others with it; a replay
of a topic that was overwritten meanwhile said that nothing was lost; a closed pipe turned a failure into exit
code 0; the count of a failed publish left out messages that were published.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import hawser
from hawser.cli.topic import recording_file
from hawser.cli.topic.recording_file import Message, RecordingReader, RecordingWriter
from hawser.cluster.disk import Disk
from hawser.log.entry import Entry
from hawser.log.journal.journal import Journal, Settings
from hawser.record.record import Record
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.disks import small_disk
from tests.support.processes import hawser_command, until

if TYPE_CHECKING:
    from tests.support.cluster import RunningCluster


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


@pytest.fixture
def bus(local: LocalBus) -> hawser.Bus:
    return local.connect()


@pytest.fixture
def command(local: LocalBus) -> Command:
    return Command(local.url)


def _values(file: Path) -> list[bytes]:
    with RecordingReader(file) as reader:
        return [bytes(message.record.value) for message in reader.messages()]


def test_a_message_too_large_for_a_recording_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_file, "_BATCH_BYTES", 1000)
    writer = RecordingWriter(tmp_path / "file", "t", "shm://", {})
    writer.add(Message(0, 1, 0, Record(b"one")))
    with pytest.raises(hawser.UsageError, match="message 2 of partition 0 is too large for a recording"):
        writer.add(Message(0, 2, 3, Record(bytes(65 << 20))))
    writer.add(Message(0, 3, 0, Record(b"three")))
    writer.close()
    with RecordingReader(tmp_path / "file") as reader:
        found = [(message.offset, message.lost_before, message.record.value) for message in reader.messages()]
    assert found == [(1, 0, b"one"), (3, 4, b"three")]


def test_large_messages_that_fit_alone_are_recorded(
    command: Command, bus: hawser.Bus, tmp_path: Path
) -> None:
    with bus.topic("t", slot_size=70 << 20, history=8) as topic:
        topic.publish(bytes(1_000_000))
        topic.publish(bytes(66_500_000))
        topic.publish(bytes(68 << 20))
        topic.publish(b"last")
        file = tmp_path / "file"
        arguments = ["topic", "record", "t", "--history", "4", "--count", "4", "--to", str(file)]
        done = command.run(*arguments, "-o", "json", code=1)
    said = msgspec.json.decode(done.stdout)
    assert (said["messages"], said["refused"], said["unknown"]) == (3, 1, 0)
    assert "message 3 of partition 0 is too large for a recording" in done.stderr
    assert list(map(len, _values(file))) == [1_000_000, 66_500_000, 4]


def test_a_full_disk_leaves_a_recording_that_can_be_read(
    command: Command, bus: hawser.Bus, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "2m"), bus.topic("t", history=64, slot_size=100_000) as topic:
        for number in range(64):
            topic.publish(b"%02d" % number + bytes(90_000))
        file = tmp_path / "disk" / "file"
        arguments = ["topic", "record", "t", "--history", "64", "--count", "64", "--to", str(file)]
        done = command.run(*arguments, "-o", "json", code=1)
        values = _values(file)
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr
    assert 0 < len(values) < 64
    assert [value[:2] for value in values] == [b"%02d" % number for number in range(len(values))]
    assert msgspec.json.decode(done.stdout)["messages"] == len(values)


@pytest.mark.parametrize(("mode", "expected"), [("user", 0o600), ("group", 0o660)])
def test_a_recording_has_the_modes_of_its_domain(tmp_path: Path, mode: str, expected: int) -> None:
    command = Command(f"shm://{tmp_path}/domain")
    with hawser.connect(command.url, mode=mode) as bus:
        bus.topic("t", history=1, mode=mode).publish(b"x")
        file = tmp_path / "file"
        command.run("topic", "replay", command.url, "--topic", "t", "--to", str(file), "--fast")
        copied = tmp_path / "copy"
        command.run("topic", "replay", str(file), "--to", str(copied), "--fast")
    assert stat.S_IMODE(file.stat().st_mode) == expected
    assert stat.S_IMODE(copied.stat().st_mode) == expected


def test_a_replay_says_what_was_overwritten_before_it_was_read(
    command: Command, bus: hawser.Bus, tmp_path: Path
) -> None:
    with bus.topic("t", history=8) as topic:
        for number in range(8):
            topic.publish(b"%d" % number)
        file = tmp_path / "file"
        arguments = [
            "topic",
            "replay",
            command.url,
            "--topic",
            "t",
            "--to",
            str(file),
            "--rate",
            "1",
            "-o",
            "json",
        ]
        with command.started(*arguments) as replay:
            # The first message is in the file when the second one is taken, a second later.
            until(lambda: file.exists() and file.stat().st_size > 0 and bool(_values(file)), "a message")
            for number in range(200):
                topic.publish(b"new %d" % number)
            said, told = replay.communicate(timeout=60)
    values = _values(file)
    report = msgspec.json.decode(said)
    assert replay.returncode == 1, told
    assert values == [b"%d" % number for number in range(len(values))]
    assert (report["messages"], report["lost"]) == (len(values), 8 - len(values))
    assert len(values) < 8 and "the copy in" in told


@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_failure_is_one_whether_or_not_its_report_is_read(
    command: Command, bus: hawser.Bus, kind: str, is_read: bool
) -> None:
    if kind == "queue":
        bus.queue("q", capacity=1).put(b"x")
        arguments = ["queue", "put", "q", "y", "--timeout", "0.2", "-o", "json"]
    else:
        topic = bus.topic("t", history=1)
        subscription = topic.subscribe(reliable=True)
        with pytest.raises(hawser.Full):
            for _ in range(10_000):
                topic.publish(b"x", timeout=0)
        arguments = ["topic", "pub", "t", "y", "--timeout", "0.2", "-o", "json"]
    reading, writing = os.pipe()
    try:
        if not is_read:
            os.close(reading)
        done = subprocess.run(
            [*command.line(*arguments), "--url", command.url],
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
        if is_read:
            os.close(reading)
    assert done.returncode == 1, done.stderr
    if kind == "topic":
        subscription.close()


@pytest.mark.parametrize("output", ["closed", "full"])
@pytest.mark.parametrize("kind", ["doctor", "log verify"])
def test_a_bad_verdict_is_one_whether_or_not_it_is_read(tmp_path: Path, kind: str, output: str) -> None:
    """Commands that check something exited with 0 if a reader had closed their output."""
    if kind == "doctor":
        # Everybody may write to the domain.
        tmp_path.chmod(0o777)
        arguments = ["doctor", "--url", f"shm://{tmp_path}"]
    else:
        disk = Disk(tmp_path / "shards" / "a%401%2F0")
        journal = Journal.format(disk, "a@1/0", "n1.1", Settings(segment_bytes=4096))
        journal.append([Entry.make(1, 1)])
        journal.sync()
        disk.close()
        (tmp_path / "lock").touch()
        promise = tmp_path / "shards" / "a%401%2F0" / "vow"
        promise.write_bytes(bytes(len(promise.read_bytes())))
        arguments = ["log", "verify", "--dir", str(tmp_path)]
    reading, writing = os.pipe()
    os.close(reading)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hawser", *arguments, "-o", "json"],
            stdout=full if output == "full" else writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    os.close(writing)
    assert done.returncode == 4 and "Traceback" not in done.stderr, done.stderr
    assert ("No space left on device" in done.stderr) == (output == "full")


def _without_output(command: Command, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run with standard output closed before it starts, as `>&-` does."""
    line = ["sh", "-c", 'exec "$@" >&-', "sh", *command.line(*arguments), "--url", command.url]
    return subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False, timeout=60)


def test_a_closed_output_hides_no_failure_and_takes_no_message(command: Command, bus: hawser.Bus) -> None:
    """Commands ended in a traceback, which replaced the failure, and Python has no sys.stdout then."""
    queue = bus.queue("q", capacity=1)
    for said in "Bad file descriptor", "1 messages wait for a consumer":
        done = _without_output(command, "queue", "put", "q", "y", "--timeout", "0.2", "-o", "json")
        assert done.returncode == 1
        assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert queue.info().ready == 1
    done = _without_output(command, "queue", "get", "q")
    assert done.returncode == 1
    assert "Bad file descriptor" in done.stderr and len(done.stderr.splitlines()) == 1
    assert queue.info().ready == 1


def test_buffered_output_that_cannot_be_written_changes_no_exit_code(command: Command) -> None:
    """Python flushes standard output when it exits, and exits with 120 if that fails."""
    program = "import sys; sys.stdout.write('x'); from hawser.cli.main import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        line = [sys.executable, "-c", program, "topic", "info", "missing", "--url", command.url]
        done = subprocess.run(
            line,
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert done.returncode == 3, done.stderr


def test_output_on_a_full_disk_is_a_failure_in_one_sentence(command: Command, bus: hawser.Bus) -> None:
    bus.queue("q").put(b"x")
    with open("/dev/full", "wb") as full:
        line = [*command.line("queue", "get", "q"), "--url", command.url]
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr and len(done.stderr.splitlines()) == 1
    assert bus.queue("q").info().ready == 1


def test_pub_counts_what_it_published_behind_a_failure(cluster: "RunningCluster") -> None:
    lines = [b"1", b"2", b"a" * 70_000_000, b"3", b"4"]
    command = ["topic", "pub", "counted", "--stdin-lines", "--url", cluster.url, "-o", "json"]
    done = hawser_command(*command, given=b"\n".join(lines) + b"\n", code=2)
    said = msgspec.json.decode(done.stdout)
    with hawser.connect(cluster.url) as bus:
        head = bus.topic("counted", create=False).info().head
    assert (said["refused"], said["unknown"]) == ([3], [])
    assert said["published"] == said["sent"] - 1 == head


def test_a_retry_counts_what_it_moved_before_a_failure(cluster: "RunningCluster") -> None:
    bus = cluster.connect()
    queue = bus.queue("retried", capacity_bytes=4 << 20, dead_letter="elsewhere")
    for _ in range(2):
        for _ in range(3):
            queue.put(bytes(1_000_000))
        for _ in range(3):
            message = queue.get(timeout=30)
            assert message is not None
            message.reject()
    done = hawser_command("queue", "retry", "retried", "--url", cluster.url, code=1)
    moved = queue.info().ready
    assert 0 < moved < 6 and bus.queue("elsewhere").info().ready == 6 - moved
    assert f"moved at least {moved} dead letters back to 'retried'" in done.stderr


@pytest.mark.parametrize("arguments", [["topic", "info", b"\xff"], ["topic", "pub", b"\xff", "x"]])
def test_a_name_that_is_not_utf_8_is_refused_in_one_sentence(
    command: Command, arguments: list[str | bytes]
) -> None:
    line = [*command.line(*(os.fsdecode(each) for each in arguments)), "--url", command.url]
    done = subprocess.run(line, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_data_and_keys_may_be_any_bytes(command: Command, bus: hawser.Bus) -> None:
    topic = bus.topic("t", history=1)
    arguments: list[str | bytes] = [
        "topic",
        "pub",
        "t",
        b"\xff\xfe",
        "--key",
        b"k\xff",
        "--header",
        b"h=\xfd",
    ]
    subprocess.run(
        [*command.line(*(os.fsdecode(each) for each in arguments)), "--url", command.url],
        check=True,
        timeout=60,
    )
    sample = topic.subscribe(history=1).take(10)
    assert sample is not None
    with sample:
        assert (bytes(sample), sample.key) == (b"\xff\xfe", b"k\xff")
        assert dict(sample.headers) == {"h": b"\xfd"}


def test_a_float_that_json_lacks_is_printed(command: Command, bus: hawser.Bus) -> None:
    class Reading(msgspec.Struct):
        values: list[float]

    bus.queue("q", schema=Reading).put(Reading([float("nan"), float("inf"), float("-inf"), 1.5]))
    assert command.json("queue", "get", "q")["value"] == {"values": ["NaN", "Infinity", "-Infinity", 1.5]}


def test_a_node_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    nodes = ["--node", "n1=127.0.0.1:1", "--node", "n1=127.0.0.1:2"]
    done = hawser_command("operator", "--metadata", f"sqlite:{tmp_path}/store", *nodes, code=2)
    assert "node 'n1' is given twice" in done.stderr
