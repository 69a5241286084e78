"""The storage interface of a journal: files in one directory.

Names are flat. Written bytes that are not synced may be lost, kept or torn by a crash, piece by piece; synced
bytes are durable. A created, renamed or removed name is durable after `sync_names`. Calls with the name of a
missing file raise FileNotFoundError. After one failed sync all others fail, because a later sync would not
write the lost pages and could not report it.

`hawser.cluster` has the real storage; `hawser.testing` has one that forgets, tears, fills up and flips bits.
"""

from typing import Protocol

__all__ = ["Storage", "StorageFailed", "StorageFull", "StorageRefused"]


class StorageFull(Exception):
    """The disk is full; nothing changed."""


class StorageFailed(Exception):
    """The disk reported an error; the state of unsynced data is unknown."""


class StorageRefused(StorageFailed):
    """The system refused a file descriptor, memory or access. The disk is not at fault, and synced data is
    there after the next start."""


class Storage(Protocol):
    """The files of one directory."""

    def names(self) -> list[str]:
        """All files, sorted."""

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def create(self, name: str, size: int) -> None:
        """Create a file of `size` zero bytes with reserved room, so that writes within it never find the disk
        full. FileExistsError if it exists; StorageFull leaves no file."""

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write within the file's reserved size."""

    def truncate(self, name: str, size: int) -> None:
        """Cut the file to `size`, or extend it with reserved zeros; StorageFull changes nothing."""

    def sync(self, name: str) -> None:
        """Sync everything written to the file."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Sync the directory."""
