"""What went wrong in the queue of seed 2 (docs/seeds.md), tried on ours.

There a message was framed by a marker in the bytes of a ring, writers and readers were known by cursors, and
a cursor that was old was taken for one whose owner is dead.
"""

import os
import random
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.builds import Build
from tests.support.children import Channel, Child, sleep_for_ever, victim

from .test_clock import stepping_clock

NAME = "jobs"
# What the seed's queue searched for, with a believable size behind it.
MARKER = struct.pack("<IQ", 924926508, 3) + b"XYZ"


def got(queue: hawser.Queue[Any], timeout: float | None = 30) -> hawser.Message:
    message = queue.get(timeout)
    assert message is not None
    return message


def accept_all(queue: hawser.Queue[Any]) -> list[bytes]:
    """Everything there is, without waiting."""
    found = []
    while (message := queue.get(timeout=0)) is not None:
        with message:
            found.append(bytes(message))
    return found


def killed_while_writing(local: LocalBus, data: bytes) -> None:
    """A producer dies with its whole message written, one instruction before it would be there."""

    def work(channel: Channel) -> None:
        queue = hawser.connect(local.url, name="writer").queue(NAME)
        with cast(Any, queue)._region.publisher("writer").loan(len(data)) as view:
            view[:] = data
            channel.tell("written")
            sleep_for_ever()

    with victim(work) as child:
        assert child.hear() == "written"


def test_no_size_at_any_place_of_the_ring_touches_its_neighbours(local: LocalBus) -> None:
    """There: a block at the end of the buffer overran it, into the states of the cursors."""
    queue = local.connect().queue(NAME, slot_size=200, capacity=3, max_held=4)
    before, after = bytes(range(200)), bytes(range(199, -1, -1))
    for size in range(201):
        middle = random.Random(size).randbytes(size)
        queue.put_many([before, middle, after])
        held = queue.get_many(3)
        assert [bytes(message) for message in held] == [before, middle, after]
        queue.put(b"one more")  # the ring goes on by four with each size
        assert [bytes(message) for message in held] == [before, middle, after]
        held.accept()
        assert accept_all(queue) == [b"one more"]


def test_an_empty_message_is_a_message(local: LocalBus) -> None:
    """There: a size of 0 meant that nothing could be recovered, and the queue stood still behind it."""
    queue = local.connect().queue(NAME, slot_size=64, capacity=4)
    for _ in range(10):
        queue.put_many([b"", b"a", b"", b""])
        empty = got(queue, 0)
        assert (len(empty), bytes(empty)) == (0, b"")
        empty.release()
        assert accept_all(queue) == [b"", b"a", b"", b""]


def test_nothing_of_an_earlier_lap_comes_back(local: LocalBus) -> None:
    """There: a writer that died before its header left that of the last lap, which was delivered again."""
    queue = local.connect().queue(NAME, slot_size=64, capacity=2, max_consumers=1, max_held=1)
    offsets: list[int] = []
    for lap in range(40):
        queue.put(b"lap %d" % lap)
        if lap % 8 == 0:
            killed_while_writing(local, b"never put")
        with got(queue, 0) as message:
            assert bytes(message) == b"lap %d" % lap
            assert not message.redelivered
            offsets.append(message.offset)
        assert accept_all(queue) == []
    assert offsets == sorted(set(offsets))


def test_no_content_can_forge_a_message(local: LocalBus) -> None:
    """There: the next message was searched for by a marker, which a message may contain."""
    queue = local.connect().queue(NAME, slot_size=8192, capacity=8)
    path = Path(queue.info().path)
    queue.put(b"first")
    control = path.read_bytes()[4096 : 4096 + 8192]  # entries, ring and slots, as they are now
    assert b"first" not in control
    hostile = [MARKER, MARKER * 100, control, b"\xff" * 8192, bytes(8192), path.read_bytes()[:1024]]
    for data in hostile:
        killed_while_writing(local, data)
        queue.put(data)
    assert accept_all(queue) == [b"first", *hostile]


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_writer_is_neither_taken_for_dead_nor_waited_for(local: LocalBus, seed: int) -> None:
    """There: its block was released and written by others, and it went on writing into it."""
    size = 1 << 20
    settings: dict[str, Any] = {"slot_size": size, "capacity": 4, "max_held": 4}
    chance = random.Random(seed)
    queue = local.connect("others").queue(NAME, **settings)

    def write_slowly(channel: Channel) -> None:
        own = hawser.connect(local.url, name="slow").queue(NAME)
        channel.tell("begins")
        for number in range(1_000_000):
            own.put(bytes([number % 251]) * size)

    with victim(write_slowly) as child:
        child.hear()
        for number in range(10):
            with got(queue) as first:
                assert len(set(bytes(first))) == 1
            time.sleep(chance.random() * 0.01)  # so that it stops anywhere, mostly in the middle of a copy
            child.signal(signal.SIGSTOP)
            accept_all(queue)
            queue.put(b"%d" % number, timeout=0)
            found = accept_all(queue)
            assert b"%d" % number in found
            assert all(len(set(data)) == 1 for data in found if len(data) == size)
            child.signal(signal.SIGCONT)
        assert "slow" in {each.name for each in queue.info().participants}
    while (message := queue.get(timeout=0)) is not None:
        with message:
            assert len(set(bytes(message))) == 1


def test_a_slow_reader_keeps_its_message_unchanged_and_holds_up_nobody(local: LocalBus) -> None:
    """There: its block was given to writers, who changed it under its eyes."""
    queue = local.connect("others").queue(NAME, slot_size=64, capacity=4, max_held=2)
    queue.put(b"slow")

    def read_slowly(channel: Channel) -> None:
        own = hawser.connect(local.url, name="slow").queue(NAME)
        message = got(own)
        channel.tell(bytes(message).decode())
        os.kill(os.getpid(), signal.SIGSTOP)
        assert bytes(message) == b"slow"
        message.accept()
        assert bytes(got(own)) == b"last"
        channel.tell("both")
        sleep_for_ever()

    with victim(read_slowly) as child:
        assert child.hear() == "slow"
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        for number in range(100):  # many laps
            queue.put(b"%d" % number, timeout=0)
            assert accept_all(queue) == [b"%d" % number]
        assert queue.get(timeout=0.3) is None  # a sleeper looks around several times, and takes nothing
        queue.put(b"last")
        child.signal(signal.SIGCONT)
        assert child.hear() == "both"


def test_the_last_message_of_the_dead_needs_no_later_one(local: LocalBus) -> None:
    """There: with nothing behind it the end of a dead writer's block was not found; readers stood still."""
    queue = local.connect().queue(NAME, slot_size=64, capacity=4)
    queue.put(b"last")
    killed_while_writing(local, b"never put")

    def die_with_it(channel: Channel) -> None:
        own = hawser.connect(local.url, name="reader").queue(NAME)
        channel.tell(bytes(got(own)).decode())
        sleep_for_ever()

    with victim(die_with_it) as child:
        assert child.hear() == "last"
    with got(queue) as message:
        assert (bytes(message), message.redelivered, message.delivery_count) == (b"last", True, 2)
    assert queue.get(timeout=0) is None
    queue.put(b"goes on")
    assert accept_all(queue) == [b"goes on"]


CLOCK_PROGRAM = """
import sys, time, hawser
buses = [hawser.connect(sys.argv[1], name=name) for name in ("first", "second")]
first, second = (bus.queue("jobs", slot_size=64, lease=60) for bus in buses)
stamps = []
for number in range(20):
    time.sleep(0.001)  # a producer looks at the clock again
    first.put(b"%d" % number)
    held = first.get(5)
    stamps.append(held.timestamp_ns)
    assert second.get(0) is None
    held.accept()
assert stamps != sorted(stamps), "the clock does not step"
first.put(b"held")
held = first.get(5)
assert second.get(0.3) is None
held.accept()
assert second.get(0) is None
"""


def test_a_clock_that_steps_back_takes_nothing_from_the_living(local: LocalBus) -> None:
    """There: a step back made every cursor look older than the threshold, all at once."""
    build = Build()
    done = subprocess.run(
        build.command("-c", CLOCK_PROGRAM, local.url),
        env={**build.environment(), "LD_PRELOAD": str(stepping_clock())},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_lost_when_nobody_dies(local: LocalBus) -> None:
    """There: a reader that looked at a header while its writer ended skipped a whole message."""
    producers, each = 3, 2_000
    queue = local.connect().queue(NAME, slot_size=64, capacity=8, max_producers=8)
    found: list[bytes] = []

    def work(number: int) -> None:
        with hawser.connect(local.url, name=f"producer-{number}") as bus:
            own = bus.queue(NAME)
            for count in range(each):
                own.put(b"%d/%d" % (number, count))

    def consume() -> None:
        with hawser.connect(local.url, name="consumer") as bus:
            own = bus.queue(NAME)
            while len(found) < producers * each:
                message = own.get(timeout=0.01)
                if message is not None:
                    with message:
                        found.append(bytes(message))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    threads += [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(b"%d/%d" % (one, two) for one in range(producers) for two in range(each))
    assert queue.info().ready == 0


def test_a_full_queue_says_so(local: LocalBus) -> None:
    """There: whoever wrote did not look at the answer, and the message was gone."""
    queue = local.connect().queue(NAME, slot_size=64, capacity=4)
    for number in range(4):
        queue.put(b"%d" % number, timeout=0)
    with pytest.raises(hawser.Full):
        queue.put(b"too much", timeout=0)
    with pytest.raises(hawser.Full) as refused:
        queue.put_many([b"too", b"much"], timeout=0.05)
    assert refused.value.published == 0
    assert accept_all(queue) == [b"0", b"1", b"2", b"3"]


def test_a_queue_is_complete_for_everyone_who_opens_it(local: LocalBus) -> None:
    """There: who lost the race to make it mapped a half-built one."""

    def open_and_use(channel: Channel) -> None:
        channel.hear()
        with hawser.connect(local.url) as bus:
            queue = bus.queue(NAME, slot_size=64, capacity=64)
            queue.put(b"x")
            with got(queue):
                channel.tell("used")

    children = [Child(open_and_use) for _ in range(8)]
    try:
        for child in children:
            child.tell("now")
        assert [child.hear() for child in children] == ["used"] * 8
        for child in children:
            child.join()
    finally:
        for child in children:
            child.kill()
            child.close()
