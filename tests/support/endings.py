"""Commands that are ended at random moments, and what they reported by then."""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from hawser.cli.topic.recording_file import Message, RecordingReader, RecordingWriter
from hawser.record.record import Record
from tests.support.command import LIMIT_SECONDS, Command
from tests.support.processes import until

MESSAGES: Final = 2000
# Together a command needs half a second for them, so that it is ended on the way.
RATE: Final = ("--rate", "4000")
ENDINGS: Final = ("int", "term", "kill", "closed")

_SIGNALS: Final = {"int": signal.SIGINT, "term": signal.SIGTERM, "kill": signal.SIGKILL}


class Ended:
    """A run of a command that was ended: its exit code, what it printed, and its report if there is one."""

    def __init__(self, code: int, printed: bytes, told: bytes) -> None:
        self.code = code
        self.lines = printed.splitlines()
        self.told = told.decode(errors="replace")
        self.report: dict[str, Any] | None = None
        with suppress(IndexError, msgspec.DecodeError):
            self.report = msgspec.json.decode(self.lines[-1], type=dict[str, Any])

    @property
    def unknown(self) -> int:
        """The number of messages that the command is not sure of."""
        found = (self.report or {}).get("unknown", 0)
        return len(found) if isinstance(found, list) else int(found)

    def check(self, said: str, there: int, wanted: int = MESSAGES) -> None:
        """The count in the report is right, and the exit code tells whether everything was done."""
        if self.report is not None:
            assert self.report[said] <= there <= self.report[said] + self.unknown, (self.report, there)
        if self.code == 0:
            assert there == wanted, (self.report, there)


class Ending:
    """Ends commands by a signal, or by closing their standard output: one run in three at any moment from its
    start on, the others after they have begun with their work."""

    def __init__(self, command: Command, how: str, seed: str) -> None:
        self._command = command
        self._signal = _SIGNALS.get(how)
        # Python restores the signal's own effect before it exits.
        self._codes = {0} if self._signal is None else {0, 128 + self._signal, -self._signal}
        self._random = random.Random(f"{how} {seed}")

    @property
    def is_read(self) -> bool:
        """Whether the standard output of the commands is read to its end."""
        return self._signal is not None

    def run(
        self,
        arguments: list[str],
        given: bytes = b"",
        has_begun: Callable[[], bool] | None = None,
        *,
        within_seconds: float = 0.5,
    ) -> Ended:
        """Run a command and end it within a time; AssertionError if it ends in a traceback, or with another
        exit code than 0 and that of its end."""
        line = [*self._command.line(*arguments), "--url", self._command.url, "-o", "json"]
        begun = None if self._random.randrange(3) == 0 else has_begun
        with subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            feeding = threading.Thread(target=feed, args=(process.stdin, given))
            feeding.start()
            # The thread closes it.
            process.stdin = None
            try:
                if begun is not None:
                    until(lambda: begun() or process.poll() is not None, f"the first message of {arguments}")
                time.sleep(self._random.uniform(0, within_seconds))
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
        if begun is None and ended.told.rstrip().endswith("KeyboardInterrupt"):
            # Python was still starting.
            assert ended.code != 0 and not ended.lines
            return ended
        assert "Traceback" not in ended.told, ended.told
        assert ended.code in self._codes, (ended.code, ended.told)
        return ended


def feed(stdin: IO[bytes] | None, given: bytes) -> None:
    """Write all of it, as far as it is read, and close."""
    assert stdin is not None
    with suppress(OSError):
        stdin.write(given)
        stdin.flush()
    with suppress(OSError):
        stdin.close()


def lines(number: int = MESSAGES) -> bytes:
    return b"".join(b"%d\n" % each for each in range(number))


def whole_recording(file: Path) -> Path:
    """A new recording of every message."""
    writer = RecordingWriter(file, "t", "shm://", {})
    for each in range(MESSAGES):
        writer.add(Message(0, each + 1, 0, Record(b"%d" % each)))
    writer.close()
    return file


def recorded(file: Path) -> list[bytes]:
    """The values in a recording; none if it was ended before its beginning was written."""
    if not file.exists() or not file.stat().st_size:
        return []
    with RecordingReader(file) as reader:
        return [bytes(each.record.value) for each in reader.messages()]
