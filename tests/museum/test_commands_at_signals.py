"""Every command that moves messages on one host, ended at random moments: what it says is compared with what
is there.

A signal ends the command (SIGINT, SIGTERM, SIGKILL), or a reader closes its standard output. It may say
"unknown"; it may never say something untrue.
"""

import inspect
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.command import Command
from tests.support.endings import ENDINGS, MESSAGES, RATE, Ended, Ending, lines, recorded, whole_recording

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Of each command, with each ending.
RUNS: Final = range(1)
BOTH_WAYS: Final = range(2)
# The most that one consumer may hold.
HELD: Final = 1000
EVERY: Final = set(range(MESSAGES))


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


@pytest.fixture
def bus(local: LocalBus) -> hawser.Bus:
    return local.connect()


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest, local: LocalBus) -> Ending:
    return Ending(Command(local.url), request.param, request.node.originalname)


@pytest.fixture
def runs() -> range:
    return RUNS


def filled(bus: hawser.Bus, name: str, **settings: Any) -> "hawser.Queue[Any]":
    """A queue with every message."""
    queue = bus.queue(name, capacity=MESSAGES, slot_size=64, **settings)
    queue.put_many([b"%d" % each for each in range(MESSAGES)])
    return queue


def rejected(queue: "hawser.Queue[Any]") -> "hawser.Queue[Any]":
    """The dead letters of a queue, with all of its messages."""
    while taken := queue.get_many(1000, timeout=0):
        taken.reject()
    return queue.dead_letters(create=False)


def numbers(samples: "list[hawser.Sample]") -> list[int]:
    return [int(bytes(sample)) for sample in samples]


def printed(ended: Ended) -> list[int]:
    """The messages that were printed as a whole."""
    return [int(msgspec.json.decode(line)["data"]) for line in ended.lines if line.endswith(b"}")]


def test_publishing(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with bus.topic(f"t{run}", history=8) as topic:
            arguments = ["topic", "pub", topic.name, "--stdin-lines", *RATE]
            ended = ending.run(arguments, lines(), lambda: topic.info().head > 0)
            ended.check("published", topic.info().head)


def test_putting(ending: Ending, bus: hawser.Bus) -> None:
    """In groups, and in single messages."""
    for run in BOTH_WAYS:
        with bus.queue(f"q{run}", capacity=MESSAGES, slot_size=64) as queue:
            rate = RATE if run else ()
            given = lines() if run else b"".join(lines(MESSAGES // 10) for _ in range(10))
            arguments = ["queue", "put", queue.name, "--stdin-lines", *rate]
            ended = ending.run(arguments, given, lambda: queue.info().ready > 0)
            info = queue.info()
            ended.check("put", info.ready)
            assert info.claimed == 0


def test_getting(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    """A message leaves the queue once it is printed; one that was not is still there."""
    for run in runs:
        with filled(bus, f"q{run}") as queue:
            arguments = ["queue", "get", queue.name, "--count", str(MESSAGES)]
            ended = ending.run(arguments, b"", lambda: queue.info().ready < MESSAGES)
            left, shown = numbers(queue.peek(MESSAGES)), printed(ended)
            assert len(shown) == len(set(shown)) and len(left) == len(set(left))
            if ending.is_read:
                assert set(left) | set(shown) == EVERY
                assert ended.code != 0 or not left


def test_releasing(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    """Every message is still there, also one that was printed."""
    with filled(bus, "q", max_held=HELD) as queue:
        for _ in runs:
            arguments = ["queue", "get", "q", "--release", "--count", str(HELD)]
            ended = ending.run(arguments, b"", lambda: queue.info().claimed > 0)
            assert set(numbers(queue.peek(MESSAGES))) == EVERY
            if ended.code == 0 and ending.is_read:
                assert len(set(printed(ended))) == HELD


def test_rejecting(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    """A message becomes a dead letter once it is printed, and none is lost."""
    for run in runs:
        with filled(bus, f"q{run}") as queue:
            arguments = ["queue", "get", queue.name, "--reject", "--count", str(MESSAGES)]
            ended = ending.run(arguments, b"", lambda: queue.info().ready < MESSAGES)
            # The next get recovers a consumer that was killed, and moves what it rejected.
            queue.get_many(1, timeout=0).release()
            left, dead_letters = numbers(queue.peek(MESSAGES)), numbers(queue.dead_letters().peek(MESSAGES))
            assert sorted(left + dead_letters) == sorted(EVERY)
            if ending.is_read:
                assert set(dead_letters) <= set(printed(ended))
            if ended.code == 0 and ending.is_read:
                assert not left


def test_getting_dead_letters(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with filled(bus, f"q{run}") as queue, rejected(queue) as dead_letters:
            arguments = ["queue", "get", queue.name, "--dead", "--count", str(MESSAGES)]
            ended = ending.run(arguments, b"", lambda: dead_letters.info().ready < MESSAGES)
            left, shown = numbers(dead_letters.peek(MESSAGES)), printed(ended)
            assert len(shown) == len(set(shown))
            if ending.is_read:
                assert set(left) | set(shown) == EVERY
                assert ended.code != 0 or not left


def test_moving_dead_letters_back(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with filled(bus, f"q{run}", dead_letter=f"dead{run}") as queue, rejected(queue) as dead_letters:
            arguments = ["queue", "retry", queue.name]
            ended = ending.run(arguments, b"", lambda: queue.info().ready > 0)
            moved, left = numbers(queue.peek(MESSAGES)), numbers(dead_letters.peek(MESSAGES))
            assert sorted(moved + left) == sorted(EVERY)
            ended.check("moved", len(moved))


@pytest.mark.parametrize("kind", ["topic", "queue"])
def test_deleting(ending: Ending, bus: hawser.Bus, runs: range, kind: str) -> None:
    """It is gone, or there with all messages."""
    for run in runs:
        name = f"d{run}"
        made = filled(bus, name) if kind == "queue" else bus.topic(name, history=8)
        if isinstance(made, hawser.Topic):
            made.publish(b"x")
        wanted = made.info().head
        made.close()
        ended = ending.run([kind, "delete", name, "--yes", "--force"])
        is_there = name in (bus.queues() if kind == "queue" else bus.topics())
        if is_there:
            again = bus.queue(name, create=False) if kind == "queue" else bus.topic(name, create=False)
            assert ended.code != 0 and ended.report is None
            assert again.info().head == wanted


def test_echoing(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    """Each message is printed once, in order; exit code 0 says that all are."""
    with bus.topic("t", history=MESSAGES, slot_size=64) as topic:
        for each in range(MESSAGES):
            topic.publish(b"%d" % each)
        for _ in runs:
            arguments = ["topic", "echo", "t", "--history", str(MESSAGES), "--count", str(MESSAGES)]
            ended = ending.run(arguments)
            shown = printed(ended)
            assert shown == list(range(len(shown)))
            if ended.code == 0 and ending.is_read:
                assert len(shown) == MESSAGES


def test_recording(ending: Ending, bus: hawser.Bus, runs: range, tmp_path: Path) -> None:
    with bus.topic("t", history=MESSAGES, slot_size=64) as topic:
        for each in range(MESSAGES):
            topic.publish(b"%d" % each)
        stop = threading.Event()

        def publish() -> None:
            number = MESSAGES
            while not stop.wait(0.001):
                topic.publish(b"%d" % number)
                number += 1

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for run in runs:
                file = tmp_path / f"file{run}"
                arguments = ["topic", "record", "t", "--to", str(file), "--seconds", "1"]
                ended = ending.run(arguments, b"", file.exists)
                values = [int(value) for value in recorded(file)]
                assert values == list(range(values[0], values[0] + len(values))) if values else True
                ended.check("messages", len(values), len(values))
        finally:
            stop.set()
            publisher.join()


def test_recording_to_a_topic(ending: Ending, bus: hawser.Bus, local: LocalBus, runs: range) -> None:
    with bus.topic("t", history=MESSAGES, slot_size=64) as topic:
        for each in range(MESSAGES):
            topic.publish(b"%d" % each)
        for run in runs:
            with bus.topic(f"copy{run}", history=8) as copy:
                arguments = ["topic", "record", "t", "--to", local.url, "--as", copy.name]
                arguments += ["--history", str(MESSAGES), "--count", str(MESSAGES)]
                ended = ending.run(arguments, b"", lambda: copy.info().head > 0)
                ended.check("messages", copy.info().head)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return whole_recording(tmp_path / "recording")


def test_replaying_to_a_file(ending: Ending, recording: Path, tmp_path: Path) -> None:
    for run in BOTH_WAYS:
        file = tmp_path / f"copy{run}"
        rate = RATE if run else ("--fast",)
        ended = ending.run(["topic", "replay", str(recording), "--to", str(file), *rate], b"", file.exists)
        values = recorded(file)
        assert values == [b"%d" % each for each in range(len(values))]
        ended.check("messages", len(values))


def test_replaying_to_a_topic(ending: Ending, bus: hawser.Bus, runs: range, recording: Path) -> None:
    for run in runs:
        with bus.topic(f"t{run}", history=8) as topic:
            arguments = ["topic", "replay", str(recording), "--as", topic.name, *RATE]
            ended = ending.run(arguments, b"", lambda: topic.info().head > 0)
            ended.check("messages", topic.info().head)


def test_replaying_a_topic(ending: Ending, bus: hawser.Bus, local: LocalBus, runs: range) -> None:
    with bus.topic("t", history=MESSAGES, slot_size=64) as topic:
        for each in range(MESSAGES):
            topic.publish(b"%d" % each)
        for run in runs:
            with bus.topic(f"copy{run}", history=8) as copy:
                arguments = ["topic", "replay", local.url, "--topic", "t", "--as", copy.name, *RATE]
                ended = ending.run(arguments, b"", lambda: copy.info().head > 0)
                ended.check("messages", copy.info().head)


@pytest.mark.soak
def test_for_long(tmp_path: Path, soak_seconds: float, record_property: Any) -> None:
    """Each of the tests above at random, in a domain of its own."""
    tests = [test for name, test in globals().items() if name.startswith("test_") and name != "test_for_long"]
    chance, counts = random.Random(), Counter[str]()
    end = time.monotonic() + soak_seconds
    while time.monotonic() < end:
        test, number = chance.choice(tests), counts.total()
        place = tmp_path / str(number)
        place.mkdir()
        with LocalBus() as local:
            given = {
                "bus": local.connect(),
                "ending": Ending(Command(local.url), chance.choice(ENDINGS), f"{chance.random()}"),
                "kind": chance.choice(("topic", "queue")),
                "local": local,
                "recording": whole_recording(place / "recording"),
                "runs": RUNS,
                "tmp_path": place,
            }
            test(**{name: given[name] for name in inspect.signature(test).parameters})
        shutil.rmtree(place)
        counts[test.__name__] += 1
    record_property("runs", dict(counts))
