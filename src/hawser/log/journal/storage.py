"""What a journal needs of a disk: files in one directory, as small an interface as will do.

Names are flat. What was written but not synced may be lost, kept or torn by a crash, piece by piece; what was
synced is there, and no byte changes that was not being written. A name that was created, renamed or removed
is certain only after `sync_names`.
`hawser.cluster` has the real one, `hawser.testing` one that forgets, tears, fills up and flips bits.

Whatever takes the name of a file that is not there raises FileNotFoundError. After one failed sync all others
fail: what the first could not write, a later one would not write either, and could not know.
"""

from typing import Protocol

__all__ = ["Storage", "StorageFailed", "StorageFull", "StorageRefused"]


class StorageFull(Exception):
    """There is no room; nothing was changed."""


class StorageFailed(Exception):
    """The disk reported an error; what was not synced before must be taken as unknown."""


class StorageRefused(StorageFailed):
    """The system gave no file descriptor, no memory or no access. That says nothing of the disk: what was
    synced is there, when it is opened again."""


class Storage(Protocol):
    """The files of one directory."""

    def names(self) -> list[str]:
        """Every file there is, sorted."""

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def create(self, name: str, size: int) -> None:
        """A new file of `size` zero bytes whose room is reserved: writing within it never finds the disk
        full. FileExistsError if there is one; StorageFull leaves nothing behind."""

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write within the file's reserved size."""

    def truncate(self, name: str, size: int) -> None:
        """Cut it to `size`, or fill it with reserved zeros up to `size`; StorageFull changes nothing."""

    def sync(self, name: str) -> None:
        """Return when everything written to it is on disk."""

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new`."""

    def remove(self, name: str) -> None: ...

    def sync_names(self) -> None:
        """Return when the directory is on disk."""
