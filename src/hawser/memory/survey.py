"""Looking at the files of a domain from outside, without attaching to any: attaching to what an earlier
boot left would remove it."""

import fcntl
import os
import stat
import struct
from pathlib import Path
from typing import Any, Final

from hawser.memory._native import FORMAT_VERSION, boot_id
from hawser.memory.names import topic_name_of

__all__ = ["survey"]

# The start of a topic's file, as in native/layout.hpp: magic, version, kind, hash, uuid, boot id, time of
# creation, settings up to `ephemeral`.
_LABEL: Final = struct.Struct("=8sIIQ16s40sQ32sI")
_MAGIC: Final = b"HAWSER\r\n"
_LOCK_NAME: Final = ".lock"
# What fcntl wants: type, whence, start, length, pid.
_FLOCK: Final = struct.Struct("hhqqi")
_USE_BYTE: Final = 1


def survey(directory: Path) -> list[dict[str, Any]]:
    """One dict a file, sorted: file, topic, state, in_use, uid, mode; none if there is no directory."""
    try:
        files = sorted(os.listdir(directory))
    except OSError:
        return []
    found = (_look_at(directory, file) for file in files)
    return [each for each in found if each is not None]


def _look_at(directory: Path, file: str) -> dict[str, Any] | None:
    path = directory / file
    try:
        info = os.lstat(path)
    except OSError:
        return None
    topic = topic_name_of(file)
    state, in_use = "foreign", False
    if stat.S_ISREG(info.st_mode):
        if file == _LOCK_NAME:
            state = "lock"
        elif topic is not None:
            state, in_use = _state_of(path)
    return {
        "file": file,
        "topic": topic,
        "state": state,
        "in_use": in_use,
        "uid": info.st_uid,
        "mode": stat.S_IMODE(info.st_mode),
    }


def _state_of(path: Path) -> tuple[str, bool]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return "unreadable", False
    try:
        return _state_of_label(os.read(descriptor, _LABEL.size), _in_use(descriptor))
    finally:
        os.close(descriptor)


def _state_of_label(label: bytes, in_use: bool) -> tuple[str, bool]:
    if len(label) < _LABEL.size or not label.startswith(_MAGIC):
        return "foreign", in_use
    _, version, _, _, _, boot, _, _, ephemeral = _LABEL.unpack(label)
    if version != FORMAT_VERSION:
        return "other version", in_use
    if boot.rstrip(b"\0").decode(errors="replace") != boot_id():
        return "earlier boot", in_use
    return ("leftover" if ephemeral and not in_use else "topic"), in_use


def _in_use(descriptor: int) -> bool:
    """Whether any description of the file holds the byte that everybody who has it open shares."""
    request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _USE_BYTE, 1, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
