"""What the tests of audits share: runs of the command, and evidence that was tampered with."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet

from hawser.agent.recording.target import Target
from hawser.cluster.client.client import addresses_of
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import Gap
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.auditing.document import Document

LIMIT_SECONDS = 400.0


class Audit:
    """`hawser pipeline audit` into one directory; with `remote`, on a Connect server that runs already."""

    def __init__(self, directory: Path, url: str, remote: str | None, *arguments: str) -> None:
        self.directory = directory
        where = ["--master", "local[2]"] if remote is None else ["--remote", remote.partition(";")[0]]
        line = [sys.executable, "-m", "hawser", "pipeline", "audit", "--url", url, "--dir", str(directory)]
        self.command = [*line, *where, *arguments]
        token = "" if remote is None else remote.partition("token=")[2]
        self.environment = {**os.environ, **({"SPARK_CONNECT_AUTHENTICATE_TOKEN": token} if token else {})}

    def run(self, code: int = 0) -> Document:
        """To its end; AssertionError unless it exits with `code`."""
        done = subprocess.run(
            self.command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return msgspec.json.decode((self.directory / "audit.json").read_bytes(), type=Document)

    def rows(self, table: str) -> int:
        return tables.count(self.directory, table)


def publish_stamped(
    url: str, topic: str, producer: str, parts: Sequence[tuple[int, Sequence[Record]]]
) -> None:
    """As a recorder does, but whatever we like: batches of records, each from a number on."""
    with Target(addresses_of(url), topic, "topic", {}, None, producer.encode(), threading.Event()) as target:
        target.producer_state()
        for first, records in parts:
            landed = target.publish(Batch.of(list(records), Stamp(producer.encode(), first, 1)), 0)
            assert landed is not None and landed.is_new, (first, landed)


def gap(number: int, timestamp_ns: int) -> tuple[int, list[Record]]:
    """A batch that stands for a number that was lost."""
    return number, [Gap(number, number).record(timestamp_ns)]


def doctored(landing: Path, copy: Path, change: Any) -> None:
    """A copy of a landing whose raw table has the rows that `change` makes of them, a list of dicts."""
    shutil.copytree(landing / "checkpoints", copy / "checkpoints")
    place = copy / "tables" / "raw"
    (place / "_spark_metadata").mkdir(parents=True)
    found = tables.read(landing, "raw")
    rows = pyarrow.Table.from_pylist(change(found.to_pylist()), schema=found.schema)
    file = place / "part-0.parquet"
    pyarrow.parquet.write_table(rows, file)
    entry = {
        "path": file.as_uri(), "size": file.stat().st_size, "isDir": False, "modificationTime": 1,
        "blockReplication": 1, "blockSize": 1 << 25, "action": "add",
    }  # fmt: skip
    (place / "_spark_metadata" / "0").write_bytes(b"v1\n" + msgspec.json.encode(entry))
