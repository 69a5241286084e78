"""Waits that were longer than they had to be, or never ended. Found by review."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec
import pytest

import hawser
from hawser.testing import LocalBus
from tests.museum.sleeping import until_asleep

PATIENCE_SECONDS = 30
BATCHES = 20
SLICE_SECONDS = 0.1


class Point(msgspec.Struct):
    x: int


def test_values_that_cannot_be_decoded_do_not_hold_up_publishers() -> None:
    """The error came before the subscriber had told anybody how far it was."""
    with LocalBus() as local:
        points = local.connect().topic("points", schema=Point, history=0, depth=4)
        subscription = points.subscribe(reliable=True)
        anything = local.connect().topic("points")
        for _ in range(4):
            anything.publish(b"\xc1", timeout=0)
        for _ in range(4):
            with pytest.raises(hawser.Corrupt):
                subscription.take_value(0)
        points.publish(Point(5), timeout=0)
        assert subscription.take_value(0) == Point(5)


def test_a_batch_wakes_whom_it_waits_for(record_property: Callable[[str, object], None]) -> None:
    """A batch larger than the ring waited for a subscriber that slept beside its first messages."""
    with LocalBus() as local:
        topic = local.connect().topic("small", slot_size=64, history=0, depth=2)
        subscription, file = topic.subscribe(reliable=True), local.directory / "small.topic"

        def take_all() -> None:
            for _ in range(BATCHES * 5):
                subscription.take_value(PATIENCE_SECONDS)

        taker = threading.Thread(target=take_all, daemon=True)
        taker.start()
        seconds = 0.0
        for _ in range(BATCHES):
            until_asleep(file, "subscriber")
            began = time.monotonic()
            topic.publish_many([b"x"] * 5, timeout=PATIENCE_SECONDS)
            seconds += time.monotonic() - began
        taker.join()
    slices = seconds / SLICE_SECONDS
    record_property("slices slept", f"{slices:.2f} in {BATCHES} batches")
    assert slices < BATCHES / 4


def test_event_loops_survive_a_moment_without_descriptors() -> None:
    """The thread that sleeps for all loops could not look for the dead, and ended. In a process of its own:
    threads of others here would not survive it."""
    with LocalBus() as local:
        command = [sys.executable, "-m", "tests.museum.without_descriptors", local.url]
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS * 4)
