"""News of a directory from the kernel (inotify): which of its files were closed, made or removed.

A participant keeps a description of its topic's file open for as long as it lives, and the kernel says when a
description that could write is closed for the last time. So a death makes news, of whatever and in whichever
namespace the participant died, and so does everybody who leaves in order. The news may come a moment before
the locks of that description are gone: it says where to look, never who is dead.
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
# Which watch, what happened, a cookie of renames, bytes of the name that follows.
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 1 << 16


class FileEvents(NamedTuple):
    """Files that something happened to; `overflow` if the kernel had more to tell than it could keep."""

    files: frozenset[str]
    overflow: bool


class DirectoryWatch:
    """What happens to the files of one directory, from the last `follow` on. OSError if the kernel has none
    to give."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._checked(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._watch = -1

    def fileno(self) -> int:
        """Readable when there is news."""
        return self._descriptor

    def follow(self, directory: Path) -> bool:
        """Whether it is another directory than so far. One that is removed, moved or made anew under its path
        is noticed by asking again."""
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
            # Gone by itself if the directory is.
            self._library.inotify_rm_watch(self._descriptor, former)
        return watch not in (-1, former)

    def read(self) -> FileEvents:
        """What happened since the last call; does not wait."""
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
        """May be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
