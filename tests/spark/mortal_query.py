"""A query as Spark runs it, without Spark, whose driver and tasks die where chance wants it.

The readers and writers are those of the source and the sink, and the checkpoint has the files that Spark's
has. A driver that dies leaves everything as it is; the next one goes on from the checkpoint. A task that
fails, before or after it has prepared its rows, is tried again; one that is speculated runs twice, and one of
both counts. Meanwhile nodes are killed and started again.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from pyspark import TaskContext
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from hawser.errors import HawserError
from hawser.spark.sink import factory as sinks
from hawser.spark.source import factory as sources
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS

ROWS: Final = StructType().add("key", "binary").add("value", "binary")
PER_BATCH: Final = 25
# Of a driver at each of its steps, and of an attempt.
DEATH: Final = 0.08
FAILURE: Final = 0.15
SOON_SECONDS: Final = 0.05


class DriverKilledError(Exception):
    """Here the driver dies."""


class MortalQuery:
    """Reads from `source` and writes to topics: to one as a stream does, or in `foreachBatch` to each of
    several, under one txnAppId. `rows` is the schema of both ends; `meanwhile` is called at each step."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        chance: random.Random,
        directory: Path,
        source: dict[str, str],
        *targets: str,
        application: str | None = None,
    ) -> None:
        self.id = f"query-{directory.name}"
        self.checkpoint = directory
        self.lives = 0
        self.rows = ROWS
        self.meanwhile: Callable[[], None] = lambda: None
        self._patch = patch
        self._chance = chance
        self._source = source
        self._targets = targets
        self._application = application
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True, exist_ok=True)

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """Until all there is now is written, in as many lives as it takes; `between` is called after each. An
        error that does not pass is raised."""
        deadline = time.monotonic() + 2 * LIMIT_SECONDS
        while True:
            self.lives += 1
            try:
                return self._live()
            except DriverKilledError:
                pass
            except HawserError as error:
                if not error.retryable and error.outcome != "unknown":
                    raise
                assert time.monotonic() < deadline, error
                time.sleep(SOON_SECONDS)
            between()

    def noted(self, log: str) -> int:
        """The last batch in a log of the checkpoint, -1 without one."""
        return max((int(each.name) for each in (self.checkpoint / log).iterdir()), default=-1)

    def end(self, number: int) -> dict[str, Any]:
        """Where a batch ends, as noted."""
        found: dict[str, Any] = json.loads(self._note(number).read_text().splitlines()[2])
        return found

    def plan(self, number: int, end: dict[str, Any]) -> None:
        """Note where a batch ends."""
        self._note(number).write_text(
            "\n".join(("v1", f'{{"batchTimestampMs":{time.time_ns()}}}', json.dumps(end)))
        )

    def _note(self, number: int) -> Path:
        return self.checkpoint / "offsets" / str(number)

    def _step(self) -> None:
        self.meanwhile()
        if self._chance.random() < DEATH:
            raise DriverKilledError

    def _live(self) -> None:
        reader: Any = sources.stream_reader(self._source, self.rows)
        reader.prepareForTriggerAvailableNow()
        while True:
            done = self.noted("commits")
            number, start = done + 1, self.end(done) if done >= 0 else reader.initialOffset()
            if self.noted("offsets") == number:
                end = self.end(number)
            else:
                end = reader.latestOffset(start, ReadMaxRows(PER_BATCH))
                if end == start:
                    return
                self.plan(number, end)
            self._step()
            parts = [list(reader.read(each)) for each in reader.partitions(start, end)]
            for target in self._targets:
                self._write(target, parts, number)
            reader.commit(end)
            (self.checkpoint / "commits" / str(number)).write_text("v1\n{}")
            self._step()

    def _write(self, target: str, parts: list[list[Any]], number: int) -> None:
        given = {"endpoints": self._source["endpoints"], "topic": target}
        given["valueFormat"] = self._source.get("valueFormat", "raw")
        if self._application is not None:
            given |= {"txnAppId": self._application, "txnVersion": str(number)}
            made: Any = sinks.writer(given, self.rows, overwrite=False)
            ending = made
        else:
            given["checkpointLocation"] = str(self.checkpoint)
            made, ending = (sinks.stream_writer(given, self.rows) for _ in range(2))
        messages = [self._task(made, number, place, part) for place, part in enumerate(parts or [[]])]
        self._step()
        ending.commit(messages, *(() if self._application is not None else (number,)))
        self._step()

    def _task(self, writer: Any, number: int, place: int, part: list[Any]) -> Any:
        """What the attempt reports that counts."""
        properties = {"sql.streaming.queryId": self.id, "streaming.sql.batchId": str(number)}
        for attempt in range(100):
            task = SimpleNamespace(
                getLocalProperty=properties.get,
                partitionId=lambda: place,
                attemptNumber=lambda: attempt,  # noqa: B023
                taskAttemptId=lambda: 100 * place + attempt,  # noqa: B023
            )
            with self._patch.context() as patch:
                patch.setattr(TaskContext, "get", lambda: task)  # noqa: B023
                fate = self._chance.random()
                if fate < FAILURE:
                    with pytest.raises(ZeroDivisionError):
                        writer.write(self._rows(part, fails=True))
                    continue
                reports = [writer.write(self._rows(part))]
                if fate < 2 * FAILURE:
                    continue
                if fate < 3 * FAILURE:
                    reports.append(writer.write(self._rows(part)))
            return self._chance.choice(reports)
        raise AssertionError("chance is against it")

    def _rows(self, part: list[Any], fails: bool = False) -> Iterator[Any]:
        for batch in part:
            yield batch.slice(0, batch.num_rows // 2)
            if fails:
                break
            yield batch.slice(batch.num_rows // 2)
        if fails:
            raise ZeroDivisionError


@contextmanager
def nodes_killed(cluster: RunningCluster, seed: int) -> Iterator[None]:
    """While the block lasts, one node after the other ends at once and comes back."""
    over, chance, errors = threading.Event(), random.Random(seed), []

    def kill() -> None:
        try:
            while not over.is_set():
                name = chance.choice(cluster.nodes)
                cluster.stop(name)
                over.wait(chance.random() / 2)
                cluster.start(name)
                over.wait(1 + chance.random())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=kill, name="killer")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not errors, errors
