"""A program as users write it: what comes in a topic goes to another, until it is killed.

Usage: -m tests.spark.copy_program MASTER SETTINGS URL SOURCE TARGET DIRECTORY NUMBER
Settings are JSON. It begins when there is a file `turn-NUMBER` in the directory. In the middle of its rows,
attempt n of a second task stands still while there is a file `hold-n` there, which `held-n` says with its
process id, and fails if there is a file `fail-n`, which it takes away.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame

import hawser.spark
from tests.support.source import follow, wait_for

ROOT = str(Path(__file__).resolve().parents[2])
PATIENCE_SECONDS = 300.0


def main() -> None:
    master, settings, url, source, target, name, number = sys.argv[1:]
    directory = Path(name)
    spark = hawser.spark.session("copy", master, **json.loads(settings))
    (directory / f"ready-{number}").touch()
    while not (directory / f"turn-{number}").exists():
        time.sleep(0.01)
    data = follow(spark, url, source, maxOffsetsPerTrigger=40, minPartitions=2).select("key", "value")
    rows = told(data, directory).writeStream.format("hawser").options(endpoints=url, topic=target)
    rows.option("checkpointLocation", str(directory / "checkpoint")).start().awaitTermination()


def told(data: DataFrame, directory: Path) -> DataFrame:
    """Rows that wait and fail as they are told."""
    place = str(directory)

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if context.partitionId() == 1:
                if os.path.exists(f"{place}/fail-{attempt}"):
                    os.unlink(f"{place}/fail-{attempt}")
                    raise ValueError("as told")
                while os.path.exists(f"{place}/hold-{attempt}"):
                    Path(place, f"held-{attempt}").write_text(str(os.getpid()))
                    time.sleep(0.01)
            yield batch.slice(half)

    return data.mapInArrow(pass_on, data.schema)


class CopyProgram:
    """One that runs, with its JVM and its workers in a session of their own."""

    def __init__(
        self, master: str, settings: dict[str, str], url: str, names: tuple[str, str], directory: Path
    ) -> None:
        """`names` are those of the source and of the target."""
        self._directory = directory
        self._number = len(list(directory.glob("log-*")))
        self._log = directory / f"log-{self._number}"
        words = [master, json.dumps(settings), url, *names, str(directory), str(self._number)]
        surroundings = {**os.environ, "PYTHONPATH": ROOT}
        command = [sys.executable, "-m", "tests.spark.copy_program", *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=surroundings, cwd=directory, start_new_session=True, stdout=log, stderr=log
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def last_words(self) -> str:
        """Without the lines that say where in Java something happened."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if not line.startswith("\tat "))[-6000:]

    def begin(self) -> None:
        """As soon as it can."""
        self.wait_for((self._directory / f"ready-{self._number}").exists, "a session")
        (self._directory / f"turn-{self._number}").touch()

    def wait_for(self, condition: Callable[[], Any], what: str) -> Any:
        """What this gives as soon as it is true; AssertionError if the program ends."""

        def look() -> Any:
            assert self.is_running, self.last_words
            return condition()

        return wait_for(look, what, PATIENCE_SECONDS)

    def wait(self) -> None:
        """Until it ends by itself."""
        self._process.wait(PATIENCE_SECONDS)

    def signal(self, number: int) -> None:
        """To all of its processes."""
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        if self.is_running:
            self.signal(signal.SIGKILL)
            self._process.wait()


if __name__ == "__main__":
    main()
