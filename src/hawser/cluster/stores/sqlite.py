"""A metadata store in one SQLite file, for operators on one machine.

One table, a row a key; the version is the row's number, which SQLite never gives out twice (AUTOINCREMENT):

    entries(version INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE NOT NULL, data BLOB NOT NULL)

A write replaces the row by a new one inside BEGIN IMMEDIATE, which holds off the writers of every other
process from before the version is compared. It returns when all of it is synced: synchronous is EXTRA.

The journal is a rollback journal and not a write-ahead log. A log would need one sync a write instead of
three, but SQLite before 3.51.3 can damage a file when one process writes while another copies its log back
(https://sqlite.org/wal.html#walresetbug), and two operators on one machine are just that.

A connection must not be carried over a fork: each process opens its own.
"""

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import SystemRandom
from threading import Lock
from typing import Final

from hawser import errors
from hawser.cluster.stores.store import (
    Conflict,
    StoreUnavailable,
    Value,
    after_prefix,
    check_write,
    encoded_key,
)

__all__ = ["SqliteStore"]

# "HAWS", by which `file` and a later Hawser know the file; and the format of the table.
APPLICATION_ID: Final = 0x48415753
FORMAT_VERSION: Final = 1

_FOR_OWNER_ONLY: Final = 0o600
_TABLE: Final = """CREATE TABLE entries (
    version INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE NOT NULL, data BLOB NOT NULL)"""
# A write takes about as long.
_PAUSE_SECONDS: Final = 0.001
# The global random generator belongs to the program, and a fork copies it.
_RANDOM: Final = SystemRandom()
_PRIMARY_CODE: Final = 0xFF
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FORBIDDEN: Final = frozenset({sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH})


class SqliteStore:
    """A Store in the file at `path`, which it makes, readable for its owner only, if there is none."""

    def __init__(self, path: Path | str, timeout_seconds: float = 5.0) -> None:
        self.path = Path(path).absolute()
        self.timeout_seconds = timeout_seconds
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        with self._failing("opening it"):
            self._create()
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def get(self, key: str) -> Value | None:
        encoded = encoded_key(key)
        with self._connected(f"reading {key!r}") as connection:
            return self._current(connection, encoded)

    def list(self, prefix: str) -> dict[str, Value]:
        query = "SELECT key, data, version FROM entries"
        bounds: tuple[bytes, ...] = ()
        if prefix:
            start = encoded_key(prefix)
            query, bounds = f"{query} WHERE key >= ? AND key < ?", (start, after_prefix(start))
        with self._connected(f"listing {prefix!r}") as connection:
            rows = self._execute(connection, f"{query} ORDER BY key", bounds).fetchall()
        return {key.decode(): Value(data, version) for key, data, version in rows}

    def put(self, key: str, data: bytes, expected: int | None) -> Value | Conflict:
        encoded = encoded_key(key)
        check_write(key, data, expected)
        with self._connected(f"writing {key!r}") as connection, self._writing(connection, key):
            current = self._current(connection, encoded)
            if (None if current is None else current.version) != expected:
                return Conflict(current)
            query = "INSERT OR REPLACE INTO entries (key, data) VALUES (?, ?)"
            version = connection.execute(query, (encoded, data)).lastrowid
            assert version is not None
            assert current is None or version > current.version
            return Value(data, version)

    def delete(self, key: str, expected: int) -> bool:
        encoded = encoded_key(key)
        with self._connected(f"deleting {key!r}") as connection, self._writing(connection, key):
            query = "DELETE FROM entries WHERE key = ? AND version = ?"
            return connection.execute(query, (encoded, expected)).rowcount == 1

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _create(self) -> None:
        """Make an empty file, which is an empty database. It is never opened here: closing any descriptor of
        it would end the locks that this process has on it."""
        try:
            os.mknod(self.path, _FOR_OWNER_ONLY | stat.S_IFREG)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise errors.NotFound(
                f"there is no directory {self.path.parent} for the metadata store. "
                "Create it, or correct the URL"
            ) from None
        except PermissionError as error:
            raise errors.PermissionDenied(f"{self._name} cannot be made: {error.strerror}") from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Sets up the connection, and creates the table in a new file."""
        with self._failing("opening it"):
            self._execute(connection, "PRAGMA synchronous = EXTRA")
            self._execute(connection, "PRAGMA journal_mode = TRUNCATE")
            if self._is_ours(connection):
                return
            self._execute(connection, "BEGIN IMMEDIATE")
            # Another process may have created it meanwhile.
            if not self._is_ours(connection):
                connection.execute(_TABLE)
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            self._execute(connection, "COMMIT")

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Whether the table exists; refuses the file of another program or of a later format."""
        query = "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
        query += " FROM pragma_application_id, pragma_user_version"
        application, version, tables = self._execute(connection, query).fetchone()
        if not application and not tables:
            return False
        if application != APPLICATION_ID:
            raise errors.SettingsMismatch(
                f"{self._name} is a database of another program. Give the metadata store a file of its own"
            )
        if version != FORMAT_VERSION:
            raise errors.SettingsMismatch(
                f"{self._name} has format {version}, and this Hawser knows format {FORMAT_VERSION} only. "
                "Use the Hawser that wrote it, or a later one"
            )
        return True

    def _current(self, connection: sqlite3.Connection, key: bytes) -> Value | None:
        query = "SELECT data, version FROM entries WHERE key = ?"
        rows = self._execute(connection, query, (key,)).fetchall()
        return Value(*rows[0]) if rows else None

    def _execute(
        self, connection: sqlite3.Connection, statement: str, parameters: tuple[bytes, ...] = ()
    ) -> sqlite3.Cursor:
        """Wait for other processes. SQLite's own waiting sleeps longer each time, up to a tenth of a second,
        and a busy writer would keep all others out for as long as it is busy."""
        deadline = time.monotonic() + self.timeout_seconds
        while True:
            try:
                return connection.execute(statement, parameters)
            except sqlite3.OperationalError as error:
                if _code(error) not in _BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_PAUSE_SECONDS * (0.5 + _RANDOM.random()))

    @contextmanager
    def _connected(self, doing: str) -> Iterator[sqlite3.Connection]:
        """The connection, for one call at a time."""
        if not self._lock.acquire(timeout=self.timeout_seconds):
            raise StoreUnavailable(f"{self._name} is busy: {doing} got no turn in {self.timeout_seconds} s")
        try:
            if self._connection is None:
                raise errors.Closed(f"{self._name} is closed")
            with self._failing(doing):
                yield self._connection
        finally:
            self._lock.release()

    @contextmanager
    def _writing(self, connection: sqlite3.Connection, key: str) -> Iterator[None]:
        """A transaction: it excludes other writers, and is on disk when it ends."""
        self._execute(connection, "BEGIN IMMEDIATE")
        try:
            yield
            self._execute(connection, "COMMIT")
        except sqlite3.Error as error:
            _roll_back(connection)
            if _code(error) == sqlite3.SQLITE_IOERR:
                # The last sync may have failed after all was written.
                raise StoreUnavailable(
                    f"{self._name} could not be written ({error}); read {key!r} to see whether it was. "
                    "Check the disk",
                    outcome="unknown",
                ) from error
            raise
        except BaseException:
            _roll_back(connection)
            raise

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """Translates SQLite's errors; none of them leaves a change."""
        try:
            yield
        except sqlite3.Error as error:
            code = _code(error)
            if code in _BUSY:
                raise StoreUnavailable(
                    f"{self._name} is held by another process: {doing} got no turn in "
                    f"{self.timeout_seconds} s. Try again; if it persists, find the process with fuser"
                ) from error
            if code in _DAMAGED:
                raise errors.Corrupt(
                    f"{self._name} is damaged or no SQLite file ({error}). Restore a copy of it"
                ) from error
            if code in _FORBIDDEN:
                raise errors.PermissionDenied(
                    f"{self._name} cannot be written by this user: {error}"
                ) from error
            raise StoreUnavailable(f"{self._name}: {doing} failed: {error}. Check the disk") from error

    @property
    def _name(self) -> str:
        return f"metadata store {self.path}"


def _roll_back(connection: sqlite3.Connection) -> None:
    # After some errors SQLite has rolled back by itself. If it cannot, the journal stays, and the next reader
    # of the file rolls back with it.
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _code(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors of the Python module itself."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE
