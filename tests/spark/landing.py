"""What the tests of landings share: a Spark Connect server, a cluster of Hawser, and runs of the command."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from hawser.spark.pipelines import tables

LIMIT_SECONDS = 240.0


class Landing:
    """`hawser pipeline run` into one directory; with `remote`, on a Connect server that runs already."""

    def __init__(self, directory: Path, url: str, remote: str | None = None) -> None:
        self.directory = directory
        self.url = url
        self._where = ["--master", "local[2]"] if remote is None else ["--remote", remote.partition(";")[0]]
        token = "" if remote is None else remote.partition("token=")[2]
        self.environment = {**os.environ, **({"SPARK_CONNECT_AUTHENTICATE_TOKEN": token} if token else {})}

    def command(self, *arguments: str) -> list[str]:
        line = [sys.executable, "-m", "hawser", "pipeline", "run", "--url", self.url]
        return [*line, "--dir", str(self.directory), *self._where, *arguments]

    def begin(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """A run that somebody ends; what it says is in its directory."""
        self.directory.mkdir(exist_ok=True)
        with (self.directory / "said.txt").open("ab") as said:
            return subprocess.Popen(
                self.command(*arguments),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def run(self, *arguments: str, code: int | None = 0) -> "subprocess.CompletedProcess[str]":
        """To its end; AssertionError unless it exits with `code`, if there is one."""
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        assert code in (None, done.returncode), (
            arguments,
            done.returncode,
            done.stdout,
            done.stderr,
            self.last_words,
        )
        return done

    @property
    def last_words(self) -> str:
        """The end of Spark's log."""
        log = self.directory / "log" / "spark.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else ""

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """In the order of topics, partitions and offsets."""
        found = tables.read(self.directory, table)
        rows = found.select(columns or found.column_names).to_pylist()
        return sorted(rows, key=lambda row: [row.get(name, 0) for name in ("topic", "partition", "offset")])

    @property
    def summary(self) -> Any:
        return msgspec.json.decode((self.directory / "summary.json").read_bytes())
