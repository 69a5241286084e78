"""Every command that moves messages, ended at random moments: what it says is compared with what is there.

A signal ends the command (SIGINT, SIGTERM, SIGKILL), or a reader closes its standard output, or the cluster
stops. It may say "unknown"; it may never say something untrue.
"""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import pytest

import hawser
from hawser.cli.recording import Message, RecordingReader, RecordingWriter
from hawser.record.record import Record
from hawser.testing import LocalBus
from tests.conftest import soak_seconds_told
from tests.support.cluster import RunningCluster
from tests.support.command import LIMIT_SECONDS, Command
from tests.support.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES: Final = 2000
# Together a command needs a second for them, so that it is ended on the way.
RATE: Final = ("--rate", "2000")
RUNS: Final = 3
SIGNALS: Final = {"int": signal.SIGINT, "term": signal.SIGTERM, "kill": signal.SIGKILL}


class Ended:
    """A run of a command that was ended: its exit code, what it printed, and its report if there is one."""

    def __init__(self, code: int, printed: bytes, told: bytes) -> None:
        self.code = code
        self.lines = printed.splitlines()
        self.told = told.decode(errors="replace")
        self.report: dict[str, Any] | None = None
        with suppress(IndexError, msgspec.DecodeError):
            self.report = msgspec.json.decode(self.lines[-1], type=dict[str, Any])


class Ending:
    """Ends commands, each after another random time."""

    def __init__(self, command: Command, how: str) -> None:
        self._command = command
        self._signal = SIGNALS.get(how)
        # Python restores the signal's own effect before it exits.
        self._codes = {0} if self._signal is None else {0, 128 + self._signal, -self._signal}
        self._random = random.Random(how)

    def run(
        self, arguments: list[str], given: bytes = b"", has_begun: Callable[[], bool] = lambda: True
    ) -> Ended:
        """Run a command and end it up to a second after `has_begun`."""
        line = [*self._command.line(*arguments), "--url", self._command.url, "-o", "json"]
        with subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            feeding = threading.Thread(target=_feed, args=(process.stdin, given))
            feeding.start()
            # The thread closes it.
            process.stdin = None
            try:
                until(lambda: has_begun() or process.poll() is not None, f"the first message of {arguments}")
                time.sleep(self._random.uniform(0, 1))
                if self._signal is not None:
                    process.send_signal(self._signal)
                elif process.stdout is not None:
                    process.stdout.close()
                    process.stdout = None
                printed, told = process.communicate(timeout=LIMIT_SECONDS)
            finally:
                process.kill()
                feeding.join()
        ended = Ended(process.returncode, printed or b"", told)
        assert "Traceback" not in ended.told, ended.told
        assert ended.code in self._codes, (ended.code, ended.told)
        return ended


def _feed(stdin: IO[bytes] | None, given: bytes) -> None:
    assert stdin is not None
    with suppress(OSError):
        stdin.write(given)
        stdin.flush()
    with suppress(OSError):
        stdin.close()


def check(ended: Ended, said: str, there: int, unknown: int, wanted: int = MESSAGES) -> None:
    """The count in the report is right, and the exit code says whether everything was done."""
    if ended.report is not None:
        assert ended.report[said] <= there <= ended.report[said] + unknown, (ended.report, there)
    if ended.code == 0:
        assert there == wanted, (ended.report, there)


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


@pytest.fixture
def bus(local: LocalBus) -> hawser.Bus:
    return local.connect()


@pytest.fixture(params=["int", "term", "kill", "closed"])
def ending(request: pytest.FixtureRequest, local: LocalBus) -> Ending:
    return Ending(Command(local.url), request.param)


@pytest.fixture(scope="module")
def runs() -> range:
    return range(RUNS * 50 if soak_seconds_told() else RUNS)


def lines(number: int = MESSAGES) -> bytes:
    return b"".join(b"%d\n" % each for each in range(number))


def unknown_of(ended: Ended) -> int:
    found = (ended.report or {}).get("unknown", 0)
    return len(found) if isinstance(found, list) else int(found)


def recorded(file: Path) -> list[bytes]:
    """The values in a recording; none if it was ended before its beginning was written."""
    if not file.exists() or not file.stat().st_size:
        return []
    with RecordingReader(file) as reader:
        return [bytes(each.record.value) for each in reader.messages()]


def test_publishing(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with bus.topic(f"t{run}", history=8) as topic:
            arguments = ["topic", "pub", topic.name, "--stdin-lines", *RATE]
            ended = ending.run(arguments, lines(), lambda: topic.info().head > 0)
            check(ended, "published", topic.info().head, unknown_of(ended))


def test_putting(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with bus.queue(f"q{run}", capacity=MESSAGES, slot_size=64) as queue:
            # In groups, and in single messages.
            rate = RATE if run % 2 else ()
            given = lines() if run % 2 else b"".join(lines(MESSAGES // 10) for _ in range(10))
            arguments = ["queue", "put", queue.name, "--stdin-lines", *rate]
            ended = ending.run(arguments, given, lambda: queue.info().ready > 0)
            info = queue.info()
            check(ended, "put", info.ready, unknown_of(ended))
            assert info.claimed == 0


def test_getting(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    """A message leaves the queue once it is printed; one that was not is still there."""
    for run in runs:
        with bus.queue(f"q{run}", capacity=MESSAGES, slot_size=64) as queue:
            queue.put_many([b"%d" % each for each in range(MESSAGES)])
            arguments = ["queue", "get", queue.name, "--count", str(MESSAGES)]
            ended = ending.run(arguments, b"", lambda: queue.info().ready < MESSAGES)
            left = {int(bytes(sample)) for sample in queue.peek(MESSAGES)}
            printed = [msgspec.json.decode(line)["data"] for line in ended.lines if line.endswith(b"}")]
            assert len(printed) == len(set(printed))
            if ended.lines:
                assert set(range(MESSAGES)) <= left | set(map(int, printed))
            if ended.code == 0 and ended.lines:
                assert not left and len(printed) == MESSAGES


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
                ended = ending.run(
                    ["topic", "record", "t", "--to", str(file), "--seconds", "2"], b"", file.exists
                )
                numbers = [int(value) for value in recorded(file)]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
                check(ended, "messages", len(numbers), unknown_of(ended), len(numbers))
        finally:
            stop.set()
            publisher.join()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    writer = RecordingWriter(tmp_path / "recording", "t", "shm://", {})
    for each in range(MESSAGES):
        writer.add(Message(0, each + 1, 0, Record(b"%d" % each)))
    writer.close()
    return tmp_path / "recording"


def test_replaying_to_a_file(ending: Ending, runs: range, recording: Path, tmp_path: Path) -> None:
    for run in runs:
        file = tmp_path / f"copy{run}"
        rate = RATE if run % 3 else ("--fast",)
        ended = ending.run(["topic", "replay", str(recording), "--to", str(file), *rate], b"", file.exists)
        values = recorded(file)
        assert values == [b"%d" % each for each in range(len(values))]
        check(ended, "messages", len(values), unknown_of(ended))


def test_replaying_to_a_topic(ending: Ending, bus: hawser.Bus, runs: range, recording: Path) -> None:
    for run in runs:
        with bus.topic(f"t{run}", history=8) as topic:
            arguments = ["topic", "replay", str(recording), "--as", topic.name, *RATE]
            ended = ending.run(arguments, b"", lambda: topic.info().head > 0)
            check(ended, "messages", topic.info().head, unknown_of(ended))


def test_moving_dead_letters_back(ending: Ending, bus: hawser.Bus, runs: range) -> None:
    for run in runs:
        with bus.queue(f"q{run}", capacity=MESSAGES, slot_size=64, dead_letter=f"dead{run}") as queue:
            queue.put_many([b"%d" % each for each in range(MESSAGES)])
            while taken := queue.get_many(1000, timeout=0):
                taken.reject()
            letters = queue.dead_letters(create=False)
            arguments = ["queue", "retry", queue.name]
            ended = ending.run(arguments, b"", lambda: queue.info().ready > 0)
            moved = [int(bytes(sample)) for sample in queue.peek(MESSAGES)]
            left = [int(bytes(sample)) for sample in letters.peek(MESSAGES)]
            assert sorted(moved + left) == list(range(MESSAGES))
            if ended.code == 0:
                assert not left


def test_a_cluster_that_stops(tmp_path: Path, recording: Path) -> None:
    with RunningCluster(tmp_path / "cluster", nodes=1) as cluster, cluster.connect() as bus:
        published, replayed = (bus.topic(name, replication=1) for name in ("published", "replayed"))
        queue = bus.queue("q", replication=1)
        cases: list[tuple[str, Callable[[], int], list[str]]] = [
            ("published", lambda: published.info().head, ["topic", "pub", "published", "--stdin-lines"]),
            (
                "messages",
                lambda: replayed.info().head,
                ["topic", "replay", str(recording), "--as", "replayed"],
            ),
            ("put", lambda: queue.info().ready, ["queue", "put", "q", "--stdin-lines"]),
        ]
        command = Command(cluster.url)
        with ExitStack() as stack:
            running = []
            for _, _, arguments in cases:
                line = command.line(*arguments, *RATE, "--url", cluster.url, "-o", "json")
                process = stack.enter_context(
                    subprocess.Popen(
                        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                    )
                )
                stack.callback(process.kill)
                _feed(process.stdin, lines())
                process.stdin = None
                running.append(process)
            until(lambda: all(there() > 100 for _, there, _ in cases), "messages of each command")
            cluster.stop("n1")
            outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in running]
        cluster.start("n1")
        until(lambda: all(there() > 0 for _, there, _ in cases), "the node's return")
        for (said, there, _), process, output in zip(cases, running, outputs, strict=True):
            ended = Ended(process.returncode, *output)
            assert ended.code in (4, 7) and "Traceback" not in ended.told, (ended.code, ended.told)
            assert ended.report is not None
            check(ended, said, there(), unknown_of(ended))
