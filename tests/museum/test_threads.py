"""Threads of one process that met in the middle of a call. Found by review."""

import fcntl
import os
import signal
import struct
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.museum.sleeping import asleep, pauses_of, until_asleep
from tests.support.builds import Build
from tests.support.processes import until
from tests.support.programs import build

PATIENCE_SECONDS = 30
ROUNDS = 20

FIRST_PUBLISHERS = """
import sys, threading, hawser
topic = hawser.connect(sys.argv[1]).topic("fresh", slot_size=1 << 20, history=1, depth=1)
start, made, large = threading.Barrier(4), [], bytes(1 << 20)
def publish():
    start.wait()
    made.append(topic.publisher())
    publisher = made[-1]
    while len(made) < 4:
        publisher.publish(large)
threads = [threading.Thread(target=publish) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(made))
"""


class Waiting(threading.Thread):
    """A thread whose call waits until a publisher has space; `outcome` is what it returned or raised."""

    def __init__(self, topic_file: Path, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.outcome: object = None
        self.start()
        until_asleep(topic_file, "publisher")

    def run(self) -> None:
        try:
            self.outcome = self._call()
        except hawser.HawserError as error:
            self.outcome = error


def full_topic(local: LocalBus) -> tuple[hawser.Topic[Any], hawser.Subscription[Any], Path]:
    """A topic whose one reliable subscriber is in the way of the next message, and its file."""
    topic = local.connect().topic("full", slot_size=64, history=0, depth=2)
    subscription = topic.subscribe(reliable=True)
    topic.publish_many([b"1", b"2"])
    return topic, subscription, local.directory / "full.topic"


def filled_loan(topic: hawser.Topic[Any], data: bytes) -> Any:
    loan = topic.loan(len(data))
    with memoryview(loan) as view:
        view[:] = data
    return loan


def test_threads_make_the_first_publishers() -> None:
    """The payloads were mapped twice, and the mapping that one thread wrote to was taken away."""
    library = build(Path(__file__).with_name("slow_mapping.cpp"), ["-shared", "-fPIC"])
    python = Build()
    with LocalBus() as local:
        done = subprocess.run(
            python.command("-c", FIRST_PUBLISHERS, local.url),
            env={**python.environment(), "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_a_loan_that_is_being_published_cannot_be_published_or_viewed() -> None:
    with LocalBus() as local:
        topic, subscription, file = full_topic(local)
        loan = filled_loan(topic, b"loan")
        waiting = Waiting(file, lambda: loan.publish(PATIENCE_SECONDS))
        with pytest.raises(hawser.UsageError, match="being published"):
            loan.publish(0)
        with pytest.raises(BufferError):
            memoryview(loan)
        assert subscription.take_value(0) == b"1"
        waiting.join()
        assert isinstance(waiting.outcome, hawser.Receipt)
        assert subscription.take_values(9, 0) == [b"2", b"loan"]


def test_a_loan_that_is_being_published_is_not_given_up() -> None:
    """Dropped by another thread, its slot was lent again while the publish went on to deliver it."""
    with LocalBus() as local:
        topic, subscription, file = full_topic(local)
        loan = filled_loan(topic, b"loan")
        waiting = Waiting(file, lambda: loan.publish(PATIENCE_SECONDS))
        loan.drop()
        other = filled_loan(topic, b"next")
        assert topic.info().slots_lent == 2
        assert subscription.take_value(0) == b"1"
        waiting.join()
        assert subscription.take_values(9, 0) == [b"2", b"loan"]
        other.drop()
        assert topic.info().slots_lent == 0


def test_a_signal_handler_cannot_publish_in_the_middle_of_a_publish() -> None:
    """It waited for the very publish that it had interrupted."""
    refusals: list[BaseException] = []
    with LocalBus() as local:
        topic, subscription, file = full_topic(local)

        def publish_too(number: int, frame: object) -> None:
            with pytest.raises(hawser.HawserError) as caught:
                topic.publish(b"handler", timeout=0)
            refusals.append(caught.value)

        def interrupt() -> None:
            until_asleep(file, "publisher")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            while not refusals:
                until_asleep(file, "publisher")
            subscription.take_value(0)

        before = signal.signal(signal.SIGUSR1, publish_too)
        interrupter = threading.Thread(target=interrupt, daemon=True)
        try:
            interrupter.start()
            assert topic.publish(b"3", timeout=PATIENCE_SECONDS).first_offset == 3
            interrupter.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert [type(each) for each in refusals] == [hawser.UsageError]


def test_a_short_take_leaves_another_threads_flag_alone(
    record_property: Callable[[str, object], None],
) -> None:
    """The first thread to give up told publishers that nobody sleeps. Between two slices of its sleep the
    other one is awake for a moment, so not every look finds the flag."""
    with LocalBus() as local:
        topic = local.connect().topic("shared", slot_size=64)
        subscription, file = topic.subscribe(), local.directory / "shared.topic"
        sleeper = threading.Thread(target=lambda: subscription.take(PATIENCE_SECONDS), daemon=True)
        sleeper.start()
        kept = 0
        for _ in range(ROUNDS):
            until_asleep(file, "subscriber")
            assert subscription.take(0.001) is None
            kept += asleep(file, "subscriber")
        topic.publish(b"the end")
        sleeper.join()
    record_property("flags kept", f"{kept} of {ROUNDS}")
    assert kept > ROUNDS // 2


def test_a_removal_that_is_stuck_holds_up_no_other_topic() -> None:
    """It held a lock of the whole process between its tries."""
    with LocalBus() as local:
        topic, in_the_way, _ = full_topic(local)
        stuck = local.connect().topic("stuck")
        everything = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        lock = os.open(local.directory / ".lock", os.O_RDWR)
        try:
            fcntl.fcntl(lock, fcntl.F_OFD_SETLK, everything)
            removal = threading.Thread(target=stuck.delete, daemon=True)
            removal.start()
            while removal.is_alive() and pauses_of(removal) < 10:
                with pytest.raises(hawser.Full):
                    topic.publish(b"3", timeout=0)
            assert removal.is_alive(), "the publish waited until the removal had given up"
        finally:
            os.close(lock)
        removal.join()
        assert in_the_way.take_values(9, 0) == [b"1", b"2"]
        assert "stuck" not in local.connect().topics()


class Busy(weakref.WeakSet[Any]):
    """Somebody joins in the middle of every look at who has joined."""

    def __init__(self, join: Callable[[], object]) -> None:
        super().__init__()
        self._join = join

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            other = threading.Thread(target=self._join, daemon=True)
            other.start()
            other.join(0.2)
            yield each


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_who_joins_while_a_topic_or_queue_is_closed_leaves_again(kind: str) -> None:
    """The set of participants changed under the loop that closed them, and the close was left half done."""
    outcomes: list[object] = []
    with LocalBus() as local:
        opened: Any = getattr(local.connect(), kind)("closing")
        start = opened.subscribe if kind == "topic" else opened.consume

        def join() -> None:
            try:
                outcomes.append(start())
            except hawser.Closed:
                outcomes.append("closed")

        opened._joined = Busy(join)
        kept = [start(), start()]
        opened._require_open = lambda: None  # those who join have looked before
        opened.close()
        until(lambda: len(outcomes) == len(kept), "they have joined or not")
        assert outcomes == ["closed"] * len(kept)
        assert getattr(local.connect(), kind)("closing").info().participants == []
