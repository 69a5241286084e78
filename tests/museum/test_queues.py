"""Queues of one host that met something in the middle of a call. Found by review."""

import gc
import logging
import mmap
import sys
import threading
from pathlib import Path

import msgspec
import pytest

import hawser
from hawser.agent.recording import queue_source
from hawser.testing import LocalBus
from tests.support.children import Channel, Child

PATIENCE_SECONDS = 30
ROUNDS = 150
RETRIES = 6_000


def test_a_bus_and_its_queue_are_closed_by_two_threads_at_once(tmp_path: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(ROUNDS):
            bus = hawser.connect(f"shm://{tmp_path}/domain", name="closer")
            queue = bus.queue("jobs")
            queue.put(b"one")
            message = queue.get(0)
            assert message is not None
            message.accept()
            threads = [threading.Thread(target=each.close, daemon=True) for each in (queue, bus)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive(), "the bus waits for a queue that waits for the bus"
    finally:
        sys.setswitchinterval(interval)


def test_a_letter_that_no_batch_holds_is_an_error_for_its_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_source, "BLOCK_BYTES", 100)
    monkeypatch.setattr(queue_source, "fits_in_batch", lambda message: len(message) <= 100)
    with hawser.connect(f"shm://{tmp_path}/domain") as bus:
        queue = bus.queue("jobs")
        queue.put(bytes(101))
        message = queue.get(0)
        assert message is not None
        message.reject()
        queue.dead_letters().close()
        with (
            queue_source.QueueSource(bus.url, "jobs.dead", "recorder") as source,
            pytest.raises(hawser.UsageError, match=r"message 1 of queue 'jobs\.dead' has 101 bytes"),
        ):
            source.take(1.0)


class Picky(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            error = ValueError("negative")  # which refers to itself, by its frame
            raise error


def test_values_that_cannot_be_made_keep_no_places() -> None:
    with LocalBus() as local:
        queue = local.connect().queue("picky", max_held=4, schema=Picky)
        for number in (1, -1, 2):
            value = Picky(1)
            value.number = number
            queue.put(value)
        gc.disable()
        try:
            for _ in range(9):
                values = queue.get_values(9, 0)
                assert [each.number for each in values] == [1]
                values.release()
        finally:
            gc.enable()


def test_letters_with_room_are_not_full() -> None:
    """Processes that move dead letters to and fro meet messages that another one is moving, and move nothing.
    That was logged as a full queue of dead letters, although 20 of 1,024 were there."""
    local = LocalBus()
    local.connect().queue("jobs", max_deliveries=2).put_many([b"%d" % number for number in range(20)])
    over = mmap.mmap(-1, 1)

    def work(channel: Channel) -> None:
        queue, log = local.connect().queue("jobs"), Log()
        logging.getLogger("hawser.queue").addHandler(log)
        while not over[0]:
            message = queue.get(0.01)
            if message is not None:
                message.release()
        channel.tell(log.lines[0] if log.lines else "nothing")

    def retry(channel: Channel) -> None:
        queue, moved = local.connect().queue("jobs"), 0
        try:
            while moved < RETRIES:
                moved += queue.retry_dead_letters()
        finally:
            over[0] = 1

    with local, Child(work) as first, Child(work) as second, Child(work) as third, Child(retry) as fourth:
        assert [first.hear(), second.hear(), third.hear()] == ["nothing"] * 3
        fourth.join()


class Log(logging.Handler):
    """The lines that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
