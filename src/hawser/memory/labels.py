"""What the first bytes of a region's file say, read without attaching to it (native/layout.hpp: Label)."""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Label", "kind_of_file", "read_label"]

# Magic, version, kind, hash, uuid, boot id, time of creation, settings up to `ephemeral`.
_LABEL: Final = struct.Struct("=8sIIQ16s40sQ32sI")
_MAGIC: Final = b"HAWSER\r\n"
_KINDS: Final = {1: "topic", 2: "queue"}


class Label(NamedTuple):
    """A region's file about itself; nothing of it is checked."""

    version: int
    kind: str | None
    boot_id: str
    ephemeral: bool


def read_label(descriptor: int) -> Label | None:
    """Of an open file; None if it is no region's."""
    data = os.pread(descriptor, _LABEL.size, 0)
    if len(data) < _LABEL.size or not data.startswith(_MAGIC):
        return None
    _, version, kind, _, _, boot, _, _, ephemeral = _LABEL.unpack(data)
    return Label(version, _KINDS.get(kind), boot.rstrip(b"\0").decode(errors="replace"), bool(ephemeral))


def kind_of_file(path: Path) -> str | None:
    """ "topic" or "queue"; None if the file cannot be read, or is no region's."""
    try:
        # A pipe in its place would have us wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        label = read_label(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if label is None else label.kind
