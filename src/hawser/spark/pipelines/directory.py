"""The directory of a pipeline: its files, and the lock that lets one run write.

    pipeline.json        its id, made once
    lock                 held by the run and by its Spark
    tables/TABLE/        Parquet; what counts is what `_spark_metadata` lists (see tables.py)
    checkpoints/         the progress of each flow, as Spark keeps it
    refresh.json         the names of tables while they are being made anew
    removed/             directories that are being removed
    log/spark.log        Spark's output
    summary.html, .json  the result of the last run

Spark inherits the lock, and the lock ends with the last of the two: while a process of a killed run could
still write, no other run begins. Spark's files name each other by their full paths, so a directory cannot be
moved.
"""

import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from hawser.errors import Corrupt, PermissionDenied, Unavailable, UsageError

__all__ = ["Place"]

# How long the Spark of a run that was killed may take to die.
_DYING_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.05

_log = logging.getLogger("hawser.spark.pipelines")


class _Identity(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    path: str


class Place:
    """The directory of one pipeline, made if it does not exist. UsageError if it cannot be one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.tables = self.directory / "tables"
        self.checkpoints = self.directory / "checkpoints"
        self.log = self.directory / "log" / "spark.log"
        try:
            for each in (self.tables, self.checkpoints, self.log.parent):
                each.mkdir(parents=True, exist_ok=True)
            self._identity = self._identify()
        except PermissionError as error:
            raise PermissionDenied(f"{error.filename} cannot be written; who owns {directory}?") from error
        except OSError as error:
            raise UsageError(f"{directory} cannot keep a pipeline: {error.strerror or error}") from error

    def _identify(self) -> _Identity:
        path = self.directory / "pipeline.json"
        if not path.exists():
            made = _Identity(uuid.uuid4().hex[:16], str(self.directory))
            fresh = path.with_name(f".pipeline-{made.id}.json")
            fresh.write_bytes(msgspec.json.encode(made))
            try:
                # The first process names it.
                os.link(fresh, path)
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        try:
            found = msgspec.json.decode(path.read_bytes(), type=_Identity)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{path} is damaged ({error}); take another directory") from error
        if found.path != str(self.directory):
            raise UsageError(
                f"{self.directory} was made as {found.path}, and Spark's files name each other by that path: "
                "put it back, or take another directory"
            )
        return found

    @property
    def database(self) -> str:
        """The database of the tables in Spark's catalog; no other directory has this name."""
        return f"hawser_{self._identity.id}"

    def table(self, name: str) -> Path:
        return self.tables / name

    @contextmanager
    def lock(self) -> Iterator[int]:
        """The descriptor of the lock, for Spark to inherit. Unavailable while another run has it."""
        with (self.directory / "lock").open("a+") as file:
            self._take(file.fileno())
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield file.fileno()

    def _take(self, descriptor: int) -> None:
        until = time.monotonic() + _DYING_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = (self.directory / "lock").read_text(encoding="utf-8")
                if _lives(holder) or time.monotonic() >= until:
                    raise Unavailable(
                        f"{self.directory} is in use by another run of its pipeline (process {holder}); "
                        "wait for it, end it, or take another directory"
                    ) from None
            time.sleep(_LOOK_SECONDS)

    # Making tables anew.

    def forget(self, tables: Iterable[str]) -> None:
        """Remove tables and the progress of their flows, so that the next run makes them anew. Killed on the
        way, `finish_forgetting` of the next run does the rest: a table without its checkpoint would be filled
        twice, a checkpoint without its table would lose rows."""
        names = sorted({*tables, *self._to_forget()})
        if names:
            fresh = self._refresh.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(names))
                file.flush()
                # Before anything is removed: after a power failure an empty list would name none of them.
                os.fsync(file.fileno())
            fresh.replace(self._refresh)
            self.finish_forgetting()

    def finish_forgetting(self) -> None:
        for name in self._to_forget():
            for checkpoint in self.checkpoints_of(name):
                self.remove(checkpoint)
            self.remove(self.table(name))
        self._refresh.unlink(missing_ok=True)
        self.empty_removed()

    def checkpoints_of(self, table: str) -> list[Path]:
        """The checkpoints of flows into this table: one directory for each catalog."""
        return list(self.checkpoints.glob(f"_checkpoints/*/{self.database}/{table}"))

    def remove(self, path: Path) -> None:
        """Remove a directory as a whole or not at all: it is renamed first. PermissionDenied if it cannot
        be."""
        self._removed.mkdir(exist_ok=True)
        try:
            path.rename(self._removed / f"{path.name}-{uuid.uuid4().hex}")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise PermissionDenied(
                f"{path} cannot be removed ({error.strerror}); it is as it was. Give its owner's rights to "
                "this user and run the pipeline again"
            ) from error

    def empty_removed(self) -> None:
        """Delete what was removed. No data depends on it: if it fails, every run tries again."""
        try:
            shutil.rmtree(self._removed)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("%s takes room and cannot be removed: %s", self._removed, error)

    def _to_forget(self) -> list[str]:
        try:
            return msgspec.json.decode(self._refresh.read_bytes(), type=list[str])
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"{self._refresh} is damaged ({error}): it names the tables that are being made anew. Remove "
                "it, and run again with --full-refresh for each of these"
            ) from error

    @property
    def _refresh(self) -> Path:
        return self.directory / "refresh.json"

    @property
    def _removed(self) -> Path:
        return self.directory / "removed"


def _lives(process: str) -> bool:
    return process.isdecimal() and Path("/proc", process).exists()
