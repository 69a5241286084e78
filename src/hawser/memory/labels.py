"""Labels: the first bytes of a region's file, read without attaching to it (native/layout.hpp: Label)."""

import os
import struct
from pathlib import Path
from typing import Final, NamedTuple

from hawser.record.trace import region_number

__all__ = ["Label", "label_of_file", "read_label"]

# Magic, version, kind, hash, uuid, boot id, time of creation, settings up to `ephemeral`.
_LABEL: Final = struct.Struct("=8sIIQ16s40sQ32sI")
_MAGIC: Final = b"HAWSER\r\n"
_KINDS: Final = {1: "topic", 2: "queue"}


class Label(NamedTuple):
    """An unchecked label. `number` is the region's number in trace records."""

    version: int
    number: int
    kind: str | None
    boot_id: str
    ephemeral: bool


def read_label(descriptor: int) -> Label | None:
    """The label of an open file; None if it is not a region."""
    data = os.pread(descriptor, _LABEL.size, 0)
    if len(data) < _LABEL.size or not data.startswith(_MAGIC):
        return None
    _, version, kind, _, uuid, boot, _, _, ephemeral = _LABEL.unpack(data)
    boot_id = boot.rstrip(b"\0").decode(errors="replace")
    return Label(version, region_number(uuid.hex()), _KINDS.get(kind), boot_id, bool(ephemeral))


def label_of_file(path: Path) -> Label | None:
    """The label of a file; None if it is missing or not a region, OSError if it cannot be read."""
    try:
        # O_NONBLOCK, because opening a pipe in its place would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return read_label(descriptor)
    finally:
        os.close(descriptor)
