"""Events of a directory from the kernel (inotify): files that were closed, created or removed.

A participant keeps a writable description of its region's file open while it lives, and the kernel sends an
event when the description is closed for the last time. The death of a process in any namespace therefore
causes an event, and so does an orderly leave. The event may arrive before the locks of the description are
released: it names a region to scan, not a dead process.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["DirectoryWatch", "FileEvents"]

_CLOSE_WRITE: Final = 0x00000008
_MOVED_TO: Final = 0x00000080
_CREATE: Final = 0x00000100
_DELETE: Final = 0x00000200
_OVERFLOW: Final = 0x00004000
_ONLYDIR: Final = 0x01000000
_DONT_FOLLOW: Final = 0x02000000
_INTEREST: Final = _CLOSE_WRITE | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR | _DONT_FOLLOW
# Watch, event mask, cookie of renames, length of the name that follows.
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16


class FileEvents(NamedTuple):
    """The files with events. With `overflow` the kernel lost events."""

    files: frozenset[str]
    overflow: bool


class DirectoryWatch:
    """Events of the files of one directory since the last `follow`. OSError if inotify is not available."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._watch = -1

    def fileno(self) -> int:
        """A descriptor that is readable when there are events."""
        return self._descriptor

    def follow(self, directory: Path) -> bool:
        """Watch this directory, and return whether it is a different one than before. A directory that is
        removed, moved or replaced is noticed by the next call."""
        try:
            watch = self._checked(
                self._library.inotify_add_watch(
                    self._descriptor, os.fsencode(directory), ctypes.c_uint32(_INTEREST)
                )
            )
        except (FileNotFoundError, NotADirectoryError):
            watch = -1
        former, self._watch = self._watch, watch
        if former not in (-1, watch):
            # The kernel removes the watch of a removed directory itself.
            self._library.inotify_rm_watch(self._descriptor, former)
        return watch not in (-1, former)

    def read(self) -> FileEvents:
        """The events since the last call; does not wait."""
        files: set[str] = set()
        overflow = False
        try:
            told = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            told = b""
        at = 0
        while at < len(told):
            watch, kind, _, size = _EVENT.unpack_from(told, at)
            name = told[at + _EVENT.size : at + _EVENT.size + size].rstrip(b"\0")
            at += _EVENT.size + size
            overflow |= bool(kind & _OVERFLOW)
            if watch == self._watch and name:
                files.add(os.fsdecode(name))
        return FileEvents(frozenset(files), overflow)

    def close(self) -> None:
        """Close the descriptor; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
