"""The files of one directory on a real disk: the storage of a journal.

Reads and writes go through the page cache with pread and pwrite; `fdatasync` makes data durable, and a sync
of the directory makes names durable. Space is reserved with fallocate, so a write within it cannot find the
disk full, unless the file system copies on write. After a failed sync Linux drops the unwritten data and
reports the error only once, so later syncs would succeed without having written anything. Therefore a storage
whose sync failed once refuses all later syncs.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NoReturn

from hawser.log.journal.storage import StorageFailed, StorageFull, StorageRefused

__all__ = ["Disk", "DiskCounters", "DiskSync"]

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
_FOR_OWNER_ONLY: Final = 0o600
# A node has many shards and a shard many segments, most of which are rarely read.
_MOST_OPEN_FILES: Final = 8


class _File:
    """An open file. It is closed when it is no longer used, but never during a sync."""

    __slots__ = ("descriptor", "is_forgotten", "syncs")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_forgotten = False
        self.syncs = 0

    def close_if_unused(self) -> None:
        if self.is_forgotten and not self.syncs:
            os.close(self.descriptor)


class DiskSync:
    """A sync of these files in progress."""

    __slots__ = ("files", "names")

    def __init__(self, names: Sequence[str], files: list[_File]) -> None:
        self.names = names
        self.files = files

    @property
    def descriptors(self) -> list[int]:
        return [file.descriptor for file in self.files]

    def let_go(self) -> None:
        for file in self.files:
            file.syncs -= 1
            file.close_if_unused()


class DiskCounters:
    """The counters of the disks that share it."""

    __slots__ = ("sync_seconds", "syncs", "written_bytes")

    def __init__(self) -> None:
        self.syncs = 0
        self.sync_seconds = 0.0
        self.written_bytes = 0

    def synced(self, seconds: float, files: int = 1) -> None:
        self.syncs += files
        self.sync_seconds += seconds


class Disk:
    """A Storage in `directory`, which is created if it does not exist and locked against other processes.

    One thread uses it at a time. `close` syncs nothing. If `aside` is set, it waits for syncs: meanwhile
    another thread may use this object, but neither sync nor close it."""

    def __init__(self, directory: Path | str, counters: DiskCounters | None = None) -> None:
        self.directory = Path(directory)
        self._counters = counters or DiskCounters()
        with self._failing("."):
            _make_directory(self.directory)
            self._directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._files: dict[str, _File] = {}
        self._failure: str | None = None
        self.aside: Callable[[Callable[[], None]], None] | None = None
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StorageRefused(
                f"{self.directory} is in use by another process; stop that process or use another directory"
            ) from None
        except OSError as error:
            self.close()
            raise StorageRefused(f"{self.directory} cannot be locked: {error.strerror}") from error

    def close(self) -> None:
        """Closes all files; no sync may be in progress."""
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def names(self) -> list[str]:
        with self._failing("its names"), os.scandir(self._directory) as entries:
            return sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def size(self, name: str) -> int:
        return os.fstat(self._descriptor(name)).st_size

    def read(self, name: str, start: int, size: int) -> bytes:
        descriptor = self._descriptor(name)
        try:
            data = os.pread(descriptor, size, start)
            # A read may return less, at a signal or after two gigabytes.
            while len(data) < size and (more := os.pread(descriptor, size - len(data), start + len(data))):
                data += more
        except OSError as error:
            raise self._named(name, error) from error
        return data

    def create(self, name: str, size: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._failing(name):
            descriptor = os.open(self._checked(name), flags, _FOR_OWNER_ONLY, dir_fd=self._directory)
        try:
            self._reserve(name, descriptor, 0, size)
        except (StorageFull, StorageFailed):
            os.close(descriptor)
            os.unlink(name, dir_fd=self._directory)
            raise
        self._keep(name, _File(descriptor))

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        self._counters.written_bytes += len(data)
        descriptor = self._descriptor(name)
        try:
            written = os.pwrite(descriptor, data, start)
            while written < len(data):
                written += os.pwrite(descriptor, memoryview(data)[written:], start + written)
        except OSError as error:
            raise self._named(name, error) from error

    def truncate(self, name: str, size: int) -> None:
        descriptor = self._descriptor(name)
        old = os.fstat(descriptor).st_size
        if size > old:
            try:
                self._reserve(name, descriptor, old, size - old)
            except StorageFull:
                # Otherwise the space reserved before the disk was full would stay allocated.
                os.ftruncate(descriptor, old)
                raise
        else:
            with self._failing(name):
                os.ftruncate(descriptor, size)

    def sync(self, name: str) -> None:
        pinned = self.begin_sync([name])
        try:
            self._sync(name, pinned.descriptors[0], os.fdatasync)
        finally:
            pinned.let_go()

    def begin_sync(self, names: Sequence[str]) -> DiskSync:
        """Starts a sync whose descriptors another component syncs, while other calls continue here."""
        self._check_that_syncs_work()
        sync = DiskSync(names, [])
        try:
            for name in names:
                self._descriptor(name)
                file = self._files[name]
                file.syncs += 1
                sync.files.append(file)
        except BaseException:
            sync.let_go()
            raise
        return sync

    def end_sync(self, sync: DiskSync, error: int, seconds: float) -> None:
        """The sync took this time; with an errno as its error, this raises as `sync` does."""
        sync.let_go()
        if error:
            self._fail(" or ".join(sync.names), error)
        self._counters.synced(seconds, len(sync.files))

    def rename(self, old: str, new: str) -> None:
        here = self._directory
        with self._failing(old):
            os.rename(self._checked(old), self._checked(new), src_dir_fd=here, dst_dir_fd=here)
        self._forget(new)
        if old in self._files:
            self._files[new] = self._files.pop(old)

    def remove(self, name: str) -> None:
        with self._failing(name):
            os.unlink(self._checked(name), dir_fd=self._directory)
        self._forget(name)

    def sync_names(self) -> None:
        self._sync(str(self.directory), self._directory, os.fsync)

    def _sync(self, name: str, descriptor: int, flush: Callable[[int], None]) -> None:
        self._check_that_syncs_work()
        began = monotonic()
        try:
            if self.aside is None:
                flush(descriptor)
            else:
                self.aside(partial(flush, descriptor))
                # A concurrent sync may have received the error of the same file.
                self._check_that_syncs_work()
        except OSError as error:
            self._fail(name, error.errno or errno.EIO)
        self._counters.synced(monotonic() - began)

    def _check_that_syncs_work(self) -> None:
        if self._failure is not None:
            raise StorageFailed(f"{self._failure}; {self.directory} is not synced any more since then")

    def _fail(self, name: str, error: int) -> NoReturn:
        self._failure = f"syncing {name} failed: {os.strerror(error)}"
        raise StorageFailed(f"{self._failure}. Check the disk, then restart")

    def _descriptor(self, name: str) -> int:
        """The descriptor of the file, valid until the next call that opens a file."""
        file = self._files.get(name)
        if file is None:
            with self._failing(name):
                flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                file = _File(os.open(self._checked(name), flags, dir_fd=self._directory))
            self._keep(name, file)
        return file.descriptor

    def _keep(self, name: str, file: _File) -> None:
        """Keeps this file open, and closes another one if too many are open."""
        self._files[name] = file
        while len(self._files) > _MOST_OPEN_FILES:
            self._forget(next(other for other in self._files if other != name))

    def _forget(self, name: str) -> None:
        """Closes the file, or leaves that to the sync that uses it."""
        file = self._files.pop(name, None)
        if file is not None:
            file.is_forgotten = True
            file.close_if_unused()

    def _checked(self, name: str) -> str:
        if not name or "/" in name or name in (".", ".."):
            raise ValueError(f"{name!r} is not the name of a file in {self.directory}")
        return name

    def _reserve(self, name: str, descriptor: int, start: int, size: int) -> None:
        if size:
            with self._failing(name):
                os.posix_fallocate(descriptor, start, size)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, FileExistsError):
            raise
        except OSError as error:
            raise self._named(name, error) from error

    def _named(self, name: str, error: OSError) -> StorageFull | StorageFailed:
        place = f"{self.directory / name}: {error.strerror}"
        if error.errno in _NO_ROOM:
            return StorageFull(f"no space for {place}. Free some, or use another disk")
        if error.errno in _REFUSED:
            return StorageRefused(
                f"{place}. The disk may be fine: raise the limits of the process (ulimit -n), then restart"
            )
        return StorageFailed(f"{place}. Check the disk, then restart")


def _make_directory(directory: Path) -> None:
    """Creates the directory and its parents, durably: a crash must not take the journal's directory away."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
