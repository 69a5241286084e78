"""The `hawser` command as a process, in a domain of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

LIMIT_SECONDS = 120


class Command:
    """Runs `hawser` in one domain."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._environment = {**os.environ, "HAWSER_DIR": url.removeprefix("shm://")}
        self._environment.pop("NO_COLOR", None)

    def line(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "hawser", *arguments]

    def run(
        self, *arguments: str, given: str | bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; AssertionError unless it exits with `code`."""
        data = given.encode() if isinstance(given, str) else given
        done = subprocess.run(
            self.line(*arguments),
            env=self._environment,
            input=data,
            capture_output=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        output = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        assert done.returncode == code, (arguments, done.returncode, *output)
        return subprocess.CompletedProcess(done.args, done.returncode, *output)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What it prints with `-o json`."""
        return msgspec.json.decode(self.run(*arguments, "-o", "json", code=code).stdout)

    def lines(self, *arguments: str) -> list[Any]:
        """What it prints with `-o json`, a value for each line."""
        return [msgspec.json.decode(line) for line in self.run(*arguments, "-o", "json").stdout.splitlines()]

    @contextmanager
    def started(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """The command while it runs; killed, if it still lives, when the block ends."""
        process = subprocess.Popen(
            self.line(*arguments),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()
