"""`hawser topic record|replay`: messages carried between files, shared memory and a cluster, none changed."""

import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

import hawser
from hawser.cli.topic import record_replay, recording_file
from hawser.cli.topic.counted_publisher import CountedPublisher
from hawser.cli.topic.recording_file import Message, RecordingReader, RecordingWriter
from hawser.record.record import Record
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.processes import Daemon, hawser_command, until


@pytest.fixture
def command() -> Iterator[Command]:
    with LocalBus() as local:
        yield Command(local.url)


def _messages() -> list[Message]:
    """Of two partitions, with keys, headers, gaps and losses."""
    made = []
    for number in range(1, 41):
        key = None if number % 3 else b"key %d" % number
        headers = {"number": b"%d" % number} if number % 5 == 0 else {}
        record = Record(b"value %d" % number * (number % 4), key, headers, 1_000_000 * number)
        lost = 7 if number == 20 else 0
        made.append(Message(number % 10 // 5, number + (7 if number >= 20 else 0), lost, record))
    return made


def _write(path: Path, messages: list[Message]) -> bytes:
    writer = RecordingWriter(path, "orders", "shm:///here", {"slot_size": 4096})
    for message in messages:
        writer.add(message)
    writer.close()
    return path.read_bytes()


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    _write(tmp_path / "file", _messages())
    with RecordingReader(tmp_path / "file") as reader:
        assert list(reader.messages()) == _messages()
        assert (reader.origin.topic, reader.origin.settings) == ("orders", {"slot_size": 4096})
        assert not reader.cut_off


def test_a_file_cut_off_anywhere_has_a_prefix(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    whole, expected = _write(tmp_path / "whole", _messages()), _messages()
    begin = len(_write(tmp_path / "empty", []))
    lengths = set()
    for size in range(begin, len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with RecordingReader(tmp_path / "cut") as reader:
            found = list(reader.messages())
        assert found == expected[: len(found)]
        lengths.add((len(found), reader.cut_off))
    record_property("cuts", len(whole) - begin)
    # Between frames nothing is amiss; elsewhere it is told.
    assert len(lengths) > 3 and (0, True) in lengths


def test_a_flipped_bit_is_never_a_message(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    flips, wrong = _flip_bits(tmp_path)
    record_property("flipped bits", flips)
    assert flips > 1000 and not wrong


def test_a_reader_without_checksums_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoChecksums:
        @staticmethod
        def crc32(data: bytes, start: int = 0) -> int:
            return 0

    monkeypatch.setattr(recording_file, "zlib", NoChecksums)
    assert _flip_bits(tmp_path)[1]


def _flip_bits(directory: Path) -> tuple[int, list[int]]:
    """Flip one bit of each byte in turn: how many, and after which of them a message was another one."""
    whole, expected = _write(directory / "whole", _messages()), _messages()
    wrong = []
    for byte in range(len(whole)):
        data = bytearray(whole)
        data[byte] ^= 1 << byte % 8
        (directory / "flipped").write_bytes(data)
        found = []
        try:
            with RecordingReader(directory / "flipped") as reader:
                for message in reader.messages():
                    found.append(message)
        except (hawser.Corrupt, hawser.UsageError):
            pass
        if found != expected[: len(found)]:
            wrong.append(byte)
    return len(whole), wrong


def test_there_and_back_through_a_cluster(command: Command, tmp_path: Path) -> None:
    lines = [f"message {number}" for number in range(30)]
    command.run("topic", "pub", "orders", "--stdin-lines", "--key", "k", given="\n".join(lines))
    recorded = ["topic", "record", "orders", "--start", "earliest", "--count", "30", "--to"]
    said = command.json(*recorded, str(tmp_path / "first"))
    assert (said["messages"], said["lost"]) == (30, 0)
    arguments = ["up", "--dir", str(tmp_path / "cluster"), "--listen", "127.0.0.1:0"]
    with Daemon(arguments, tmp_path / "log") as up:
        hawser_command("topic", "replay", str(tmp_path / "first"), "--fast", "--to", up.ready)
        echoed = ["topic", "echo", "orders", "--history", "30", "--count", "30", "--raw", "--timeout", "60"]
        assert hawser_command(*echoed, "--url", up.ready).stdout.splitlines() == lines
        # From a cluster to a file, and from a cluster to shared memory.
        hawser_command(*recorded, str(tmp_path / "second"), "--url", up.ready)
        target = ["--to", command.url, "--as", "copied", "--fast", "--count", "30"]
        hawser_command("topic", "replay", up.ready, "--topic", "orders", *target)
        # From shared memory to a cluster.
        command.run(*recorded, up.ready, "--as", "again")
        echoed[2] = "again"
        assert hawser_command(*echoed, "--url", up.ready).stdout.splitlines() == lines
    copied = command.run("topic", "echo", "copied", "--history", "30", "--count", "30", "--format", "%k %v")
    assert copied.stdout.splitlines() == [f"k {line}" for line in lines]
    first, second = (_records(tmp_path / name) for name in ("first", "second"))
    assert [each[:3] for each in first] == [each[:3] for each in second]


def _records(path: Path) -> list[Record]:
    with RecordingReader(path) as reader:
        return [message.record for message in reader.messages()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_interrupted_it_keeps_what_it_has(
    command: Command, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    file = tmp_path / "file"
    command.run("topic", "pub", "orders", "zero")
    with command.started("topic", "record", "orders", "--to", str(file), "-o", "json") as recorder:
        assert recorder.stderr is not None
        assert "recording topic 'orders'" in recorder.stderr.readline()
        for text in ("one", "two"):
            command.run("topic", "pub", "orders", text)
        until(lambda: file.stat().st_size > 0 and len(_records(file)) == 2, "the recording")
        recorder.send_signal(number)
        said, _ = recorder.communicate(timeout=60)
    assert recorder.returncode == code
    assert [record.value for record in _records(file)] == [b"one", b"two"]
    if code == 0:
        assert msgspec.json.decode(said)["messages"] == 2


def test_a_killed_recorder_leaves_a_prefix(command: Command, tmp_path: Path) -> None:
    command.run("topic", "pub", "orders", "zero")
    with command.started("topic", "record", "orders", "--to", str(tmp_path / "file")) as recorder:
        assert recorder.stderr is not None
        recorder.stderr.readline()
        command.run("topic", "pub", "orders", "--stdin-lines", given="\n".join(map(str, range(100))))
        until(
            lambda: (tmp_path / "file").stat().st_size > 0 and bool(_records(tmp_path / "file")), "a message"
        )
        recorder.kill()
        recorder.wait()
    values = [record.value for record in _records(tmp_path / "file")]
    assert values and values == [b"%d" % number for number in range(len(values))]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["record", "orders", "--to", "{exists}"], 2, "exists"),
        (["record", "orders", "--to", "/nowhere/at/all"], 2, "cannot be created"),
        (["record", "orders", "--to", "{new}", "--start", "soon"], 2, "earliest"),
        (["replay", "{missing}"], 3, "no file"),
        (["replay", "{exists}"], 4, "is not a recording"),
        (["replay", "shm://"], 2, "--topic"),
        (["replay", "{exists}", "--fast", "--rate", "3"], 2, "one of"),
    ],
)
def test_what_cannot_be_done_is_said(
    command: Command, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    command.run("topic", "pub", "orders", "zero")
    (tmp_path / "exists").write_text("something else, and long enough to be looked at")
    places = {name: str(tmp_path / name) for name in ("exists", "missing", "new")}
    done = command.run("topic", *(each.format(**places) for each in arguments), code=code)
    assert said in done.stderr
    assert not (tmp_path / "new").exists()


def test_replay_keeps_intervals_or_a_rate(command: Command, tmp_path: Path) -> None:
    """Times are not asserted, but that later ones are later: nothing is published before its turn."""
    messages = [
        Message(0, place + 1, 0, Record(b"%d" % place, None, {}, place * 200_000_000)) for place in range(5)
    ]
    _write(tmp_path / "file", messages)
    for name, options in (("timed", []), ("rated", ["--rate", "5"])):
        command.run("topic", "replay", str(tmp_path / "file"), "--as", name, *options)
        lines = command.lines("topic", "echo", name, "--history", "5", "--count", "5")
        stamps = [line["timestamp_ns"] for line in lines]
        assert [line["data"] for line in lines] == ["0", "1", "2", "3", "4"]
        assert stamps[-1] - stamps[0] >= 4 * 200_000_000 * 0.9


class _Sample:
    """What a subscription gives, of partition 0 or 1."""

    key, timestamp_ns, lost_before = None, 1, 0

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.headers: dict[str, bytes] = {}

    def __bytes__(self) -> bytes:
        return b"%d/%d" % (self.partition, self.offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Scripted:
    """Bus, topic and subscription at once: `bounds` and `samples` are what they say, one after another, the
    last bounds again and again."""

    url, name = "hawser://scripted", "orders"

    def __init__(self, bounds: list[list[tuple[int, int]]], samples: list[_Sample | None]) -> None:
        self._bounds = deque(bounds)
        self._samples = deque(samples)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic(self, name: str, create: bool) -> Self:
        return self

    def subscribe(self, start: str) -> Self:
        return self

    def take(self, timeout: float) -> _Sample | None:
        return self._samples.popleft() if self._samples else None

    def info(self) -> hawser.TopicInfo:
        bounds = self._bounds.popleft() if len(self._bounds) > 1 else self._bounds[0]
        partition = {"shard": "", "epoch": 1, "status": "steady", "leader": None, "members": []}
        made = {"name": "orders", "uuid": "", "settings": {}, "unused": {}, "head": 0, "oldest": 0}
        partitions = [
            {"partition": number, "start": start, "end": end, **partition}
            for number, (start, end) in enumerate(bounds)
        ]
        made |= {"partitions": partitions, "participants": [], "records": []}
        return msgspec.convert(made, hawser.TopicInfo)


def _replayed(monkeypatch: pytest.MonkeyPatch, scripted: _Scripted) -> list[object]:
    monkeypatch.setattr(hawser, "connect", lambda url: scripted)
    monkeypatch.setattr(record_replay, "_LOOK_SECONDS", 0.0)
    with ExitStack() as stack:
        messages, _ = record_replay._stored_messages(stack, scripted.url, scripted.name)
        return [message.record.value if isinstance(message, Message) else message for message in messages]


def test_a_partition_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the beginning and in the middle: no answer is not the same as nothing held."""
    whole, away = [(1, 2), (1, 3)], [(1, 2), (0, 0)]
    samples = [_Sample(0, 1), _Sample(1, 1), None, None, _Sample(1, 2)]
    scripted = _Scripted([away, away, whole, away, whole], samples)
    assert _replayed(monkeypatch, scripted) == [b"0/1", b"1/1", b"1/2"]


def test_what_retention_took_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = _Scripted([[(1, 2), (1, 3)], [(1, 2), (3, 4)]], [_Sample(0, 1), None])
    assert _replayed(monkeypatch, scripted) == [b"0/1", record_replay._Lost(2)]


@pytest.mark.parametrize("before", [[], [[(1, 2), (1, 3)]]])
def test_a_partition_that_never_answers_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, before: list[list[tuple[int, int]]]
) -> None:
    monkeypatch.setattr(record_replay, "_SILENCE_SECONDS", 0.0)
    scripted = _Scripted([*before, [(1, 2), (0, 0)]], [_Sample(0, 1)])
    with pytest.raises(hawser.Unavailable, match="partitions 1 of topic 'orders'"):
        _replayed(monkeypatch, scripted)


def test_no_more_bytes_are_in_flight_than_a_client_takes() -> None:
    """A receipt arrives as late as possible: when the publisher waits for it."""
    in_flight = most = 0

    class Late(Future[hawser.Receipt]):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

        def result(self, timeout: float | None = None) -> hawser.Receipt:
            nonlocal in_flight
            in_flight -= self.size
            return hawser.Receipt("orders", 1, 1, 0, "majority")

    class Topic:
        def info(self) -> Any:
            return SimpleNamespace(partitions=[0])

        def publish_nowait(self, value: bytes, key: bytes, headers: dict[str, bytes]) -> Late:
            nonlocal in_flight, most
            size = len(value) + len(key) + len(headers["h"])
            in_flight += size
            most = max(most, in_flight)
            return Late(size)

    topic: Any = Topic()
    publisher = CountedPublisher(topic)
    part = bytes(1 << 20)
    for _ in range(100):
        publisher.publish(part, part, {"h": part})
    assert 16 << 20 < most <= 32 << 20
    publisher.drain()
    assert in_flight == 0
    assert publisher.counts.published == 100
