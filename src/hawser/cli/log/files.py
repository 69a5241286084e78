"""A node's directory, opened read only.

A journal is opened as a node opens it. The repairs that a node would write are kept in memory, so commands
see the state that the node would see, and the files do not change.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import hawser
from hawser.log.journal.storage import StorageFailed

__all__ = ["FrozenFiles", "ShardFiles", "shards_of"]


class ShardFiles(NamedTuple):
    """A shard and the directory of its journal."""

    shard: str
    path: Path


@contextmanager
def shards_of(directory: Path) -> Iterator[list[ShardFiles]]:
    """The journals of a node's directory, or the one in `directory`. No node can start there meanwhile.

    UsageError if the node runs, NotFound if there is no journal."""
    if not directory.is_dir():
        raise hawser.NotFound(f"no directory {directory}")
    with _without_node(directory):
        if (directory / "vow").exists():
            yield [ShardFiles(unquote(directory.name), directory)]
        elif (directory / "shards").is_dir():
            yield [ShardFiles(unquote(each.name), each) for each in sorted((directory / "shards").iterdir())]
        else:
            raise hawser.NotFound(f"{directory} is not the directory of a node or of a shard")


@contextmanager
def _without_node(directory: Path) -> Iterator[None]:
    # A journal that is written while it is read would look damaged.
    place = next(
        (each for each in (directory, *directory.resolve().parents[:2]) if (each / "lock").exists()), None
    )
    if place is None:
        yield
        return
    try:
        descriptor = os.open(place / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError as error:
        raise hawser.PermissionDenied(
            f"{place / 'lock'} cannot be read; run this as the node's user"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise hawser.UsageError(
            f"the node of {place} is running, and its log changes; stop the node first, or read "
            "a copy that was made while the node was stopped"
        ) from None
    finally:
        os.close(descriptor)


class FrozenFiles:
    """A Storage for a journal that keeps writes in memory and leaves the files unchanged."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._sizes: dict[str, int] = {}
        self._bases: dict[str, str | None] = {}
        self._patches: dict[str, list[tuple[int, bytes]]] = {}
        with self._failing(str(directory)):
            for entry in os.scandir(directory):
                if entry.is_file(follow_symlinks=False):
                    self._sizes[entry.name] = entry.stat().st_size
                    self._bases[entry.name] = entry.name

    def names(self) -> list[str]:
        return sorted(self._sizes)

    def size(self, name: str) -> int:
        self._check(name)
        return self._sizes[name]

    def read(self, name: str, start: int, size: int) -> bytes:
        self._check(name)
        size = max(0, min(size, self._sizes[name] - start))
        data = bytearray(self._read_base(name, start, size).ljust(size, b"\0"))
        for at, patch in self._patches.get(name, ()):
            begin, end = max(at, start), min(at + len(patch), start + size)
            if begin < end:
                data[begin - start : end - start] = patch[begin - at : end - at]
        return bytes(data)

    def _read_base(self, name: str, start: int, size: int) -> bytes:
        base = self._bases[name]
        if base is None:
            return b""
        with self._failing(base), (self.directory / base).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def create(self, name: str, size: int) -> None:
        if name in self._sizes:
            raise FileExistsError(name)
        self._sizes[name], self._bases[name] = size, None

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        self._check(name)
        assert start + len(data) <= self._sizes[name]
        self._patches.setdefault(name, []).append((start, bytes(data)))

    def truncate(self, name: str, size: int) -> None:
        self._check(name)
        old, self._sizes[name] = self._sizes[name], size
        if size > old:
            self.write(name, old, bytes(size - old))

    def sync(self, name: str) -> None:
        self._check(name)

    def rename(self, old: str, new: str) -> None:
        self._check(old)
        self._sizes[new], self._bases[new] = self._sizes.pop(old), self._bases.pop(old)
        self._patches[new] = self._patches.pop(old, [])

    def remove(self, name: str) -> None:
        self._check(name)
        del self._sizes[name], self._bases[name]
        self._patches.pop(name, None)

    def sync_names(self) -> None:
        """Nothing is ever written."""

    def _check(self, name: str) -> None:
        if name not in self._sizes:
            raise FileNotFoundError(name)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise hawser.PermissionDenied(
                f"{error.filename} cannot be read; run this as the node's user"
            ) from error
        except OSError as error:
            raise StorageFailed(f"{self.directory / name}: {error.strerror}. Check the disk") from error
