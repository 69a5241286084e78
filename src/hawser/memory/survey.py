"""A survey of the files of a domain, without attaching to them, since attaching to a file from an earlier
boot would remove it."""

import os
import stat
from pathlib import Path
from typing import Any, Final

from hawser.memory._native import FORMAT_VERSION, boot_id
from hawser.memory.domain import LOCK_NAME, TRACE_NAME
from hawser.memory.file_locks import held_by_others
from hawser.memory.labels import Label, read_label
from hawser.memory.names import topic_name_of

__all__ = ["survey"]

_STATES: Final = {LOCK_NAME: "lock", TRACE_NAME: "trace"}
# The byte that every process with the region open holds.
_USE_BYTE: Final = 1


def survey(directory: Path) -> list[dict[str, Any]]:
    """A dict for each file, sorted: file, topic, state, in_use, uid, mode; empty without the directory."""
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
        if file in _STATES:
            state = _STATES[file]
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
        in_use = held_by_others(descriptor, _USE_BYTE)
        return _state_of_label(read_label(descriptor), in_use), in_use
    finally:
        os.close(descriptor)


def _state_of_label(label: Label | None, in_use: bool) -> str:
    if label is None:
        return "foreign"
    if label.version != FORMAT_VERSION:
        return "other version"
    if label.boot_id != boot_id():
        return "earlier boot"
    return "leftover" if label.ephemeral and not in_use else label.kind or "foreign"
