"""Commands that move messages, interrupted at every line: what they report is what is there.

Found by reading: an interrupt between the write of a batch and the clearing of its list wrote the batch
twice, and an interrupt between a publish and its count reported one message too few.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import hawser
from hawser.cli import output
from hawser.cli.queue import put
from hawser.cli.topic import counted_publisher, record_replay, recording_file
from hawser.cli.topic.counted_publisher import CountedPublisher
from hawser.cli.topic.recording_file import Message, RecordingReader, RecordingWriter
from hawser.record.record import Record

MESSAGES = 7
FILES = frozenset(str(module.__file__) for module in (record_replay, counted_publisher, put, recording_file))


class _InterruptAtLine:
    """Raises KeyboardInterrupt at the `number`-th line that runs in the files of the commands."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.came = False

    def __enter__(self) -> "_InterruptAtLine":
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.came = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def _every_line(work: Callable[[], object]) -> Iterator[bool]:
    """Run `work` with an interrupt at line 1, 2, ... until one run ends without; yields after each."""
    number = 0
    while True:
        number += 1
        interrupt = _InterruptAtLine(number)
        try:
            with interrupt:
                work()
        except KeyboardInterrupt:
            assert interrupt.came
        yield interrupt.came
        if not interrupt.came:
            return


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What commands print as JSON."""
    printed: list[dict[str, Any]] = []
    for module in (record_replay, put):
        monkeypatch.setattr(module, "wants_json", lambda: True)
        monkeypatch.setattr(module, "print_json", printed.append)
    return printed


def test_a_recording_has_each_message_once_and_the_report_is_true(
    tmp_path: Path,
    said: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(recording_file, "_BATCH_RECORDS", 3)
    file = tmp_path / "file"
    lines = 0

    def record() -> None:
        writer = RecordingWriter(file, "t", "shm://", {})
        messages = [Message(0, number, 0, Record(b"%d" % number)) for number in range(1, MESSAGES + 1)]
        try:
            record_replay._Copy(record_replay._FileSink(writer), None, "t", "file").run([*messages, None])
        finally:
            sys.settrace(None)
            writer.close()

    for interrupted in _every_line(record):
        lines += 1
        if file.exists() and not file.stat().st_size:
            # Interrupted where the file was made.
            assert interrupted and not said
            file.unlink()
        if file.exists():
            with RecordingReader(file) as reader:
                offsets = [message.offset for message in reader.messages()]
            assert not reader.cut_off
            assert offsets == list(range(1, len(offsets) + 1))
            file.unlink()
            for each in said:
                assert each["messages"] <= len(offsets) <= each["messages"] + each["unknown"]
            if not interrupted:
                assert (len(offsets), said[-1]["unknown"]) == (MESSAGES, 0)
        said.clear()
    record_property("lines", lines)
    assert lines > 200


def test_a_message_too_large_is_left_out_by_the_flush_after_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed among the messages that wait: each flush refused it again, and the command never ended."""
    monkeypatch.setattr(recording_file, "_BATCH_BYTES", 100)
    file = tmp_path / "file"
    small, too_large = Message(0, 1, 0, Record(b"x")), Message(0, 2, 0, Record(bytes(65 << 20)))
    made: list[RecordingWriter] = []

    def add() -> None:
        file.unlink(missing_ok=True)
        made.append(RecordingWriter(file, "t", "shm://", {}))
        made[-1].add(small)
        try:
            made[-1].add(too_large)
        except hawser.UsageError:
            made[-1].flush()

    for interrupted in _every_line(add):
        for writer in made:
            writer.flush()
            assert writer.waiting == 0 and (interrupted or writer.messages == 1)
            writer.close()
        made.clear()


@pytest.mark.parametrize("is_pipelined", [False, True])
def test_the_counts_of_a_publisher_are_true(
    is_pipelined: bool, record_property: Callable[[str, object], None]
) -> None:
    published: list[bytes] = []
    made: list[CountedPublisher] = []

    class Topic:
        def info(self) -> Any:
            return SimpleNamespace(partitions=[0] if is_pipelined else [])

        def publish(self, data: bytes, **_: Any) -> hawser.Receipt:
            if data == b"4":
                raise hawser.UsageError("too large")
            published.append(data)
            return hawser.Receipt("t", 0, len(published), 1, "process")

        def publish_nowait(self, data: bytes, **_: Any) -> "Future[hawser.Receipt]":
            future: Future[hawser.Receipt] = Future()
            try:
                future.set_result(self.publish(data))
            except hawser.UsageError as error:
                future.set_exception(error)
            return future

    def publish() -> None:
        topic: Any = Topic()
        made.append(CountedPublisher(topic))
        try:
            for number in range(MESSAGES):
                made[0].publish(b"%d" % number, None, None)
        finally:
            made[0].drain()

    lines = 0
    for _ in _every_line(publish):
        lines += 1
        for publisher in made:
            counts = publisher.counts
            refused, unknown = publisher.failed_numbers()
            assert counts.published <= len(published) <= counts.published + counts.unknown
            assert refused in ([], [5]) and len(unknown) == counts.unknown
            assert publisher.sent == counts.published + counts.unknown + len(refused)
        made.clear()
        published.clear()
    record_property("lines", lines)
    assert lines > 100


def test_the_counts_of_a_put_are_true(record_property: Callable[[str, object], None]) -> None:
    values: list[bytes] = []
    made: list[put._CountedPutter] = []

    class Queue:
        def put(self, data: bytes, **_: Any) -> hawser.Receipt:
            return self.put_many([data])

        def put_many(self, group: list[bytes], **_: Any) -> hawser.Receipt:
            values.extend(group)
            return hawser.Receipt("q", 0, len(values) - len(group) + 1, len(group), "process")

    def put_all() -> None:
        queue: Any = Queue()
        made.append(put._CountedPutter(queue, {"key": None, "headers": None, "timeout": None}))
        for group in ([b"1", b"2"], [b"3"], [b"4", b"5", b"6"]):
            made[0].put(group)

    lines = 0
    for _ in _every_line(put_all):
        lines += 1
        for putter in made:
            assert putter.counts.done <= len(values) <= putter.counts.done + putter.counts.in_doubt
        made.clear()
        values.clear()
    record_property("lines", lines)
    assert lines > 30


def test_an_error_is_told_by_the_exit_code_although_the_report_cannot_be_printed() -> None:
    def closed() -> None:
        raise BrokenPipeError

    with pytest.raises(hawser.Full), output.report_at_end(closed):
        raise hawser.Full("the queue is full")


ENDED_IN_A_TASK = """
import asyncio, os, signal
from hawser.cli import main
from hawser.cli.cluster.connection import run

async def work():
    asyncio.get_running_loop().create_task(end())
    await asyncio.sleep(60)

async def end():
    os.kill(os.getpid(), signal.SIGTERM)

main._run = lambda: run(work())
main.main()
"""


def test_a_signal_that_comes_in_any_task_ends_a_command_without_a_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDED_IN_A_TASK], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGTERM, "", "")
