"""Locks on bytes of files by open file descriptions, which the kernel releases when the process ends."""

import fcntl
import os
import struct
from typing import Final

__all__ = ["held_by_others", "try_lock", "unlock"]

# struct flock: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi")


def held_by_others(descriptor: int, byte: int) -> bool:
    """Whether another description of the file holds a lock on this byte."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def try_lock(descriptor: int, byte: int, *, shared: bool = False) -> bool:
    """Lock the byte; False if another description holds it."""
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int, byte: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0))
