"""The names of a journal's files.

All but the vow carry the number of a generation. An installed snapshot is a new generation; the vow says
which one counts, and files of any other are left over from something that was interrupted.
"""

import re
from typing import Final, NamedTuple

__all__ = ["NEW_VOW", "VOW", "FileName", "block_name", "checkpoint_name", "new_checkpoint_name", "parse",
           "segment_name"]  # fmt: skip

VOW: Final = "vow"
NEW_VOW: Final = "vow.new"

_PATTERN: Final = re.compile(r"(log|block|checkpoint)-([0-9a-f]{8})(?:-([A-Za-z0-9_.-]+))?(\.new)?")
_BLOCK: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_-]{0,99}")


class FileName(NamedTuple):
    """What a file's name says: `rest` is a segment's first index in hexadecimal, or a block's name."""

    kind: str
    generation: int
    rest: str
    is_new: bool


def segment_name(generation: int, first: int) -> str:
    return f"log-{generation:08x}-{first:016x}"


def checkpoint_name(generation: int) -> str:
    return f"checkpoint-{generation:08x}"


def new_checkpoint_name(generation: int) -> str:
    """The name under which it is written before it replaces the last one."""
    return f"checkpoint-{generation:08x}.new"


def block_name(generation: int, name: str) -> str:
    """Letters, digits, `-` and `_`, at most 100 of them."""
    if not _BLOCK.fullmatch(name):
        raise ValueError(f"a block cannot be named {name!r}: letters, digits, '-' and '_', at most 100")
    return f"block-{generation:08x}-{name}"


def parse(name: str) -> FileName | None:
    """What the name says; None if it is no name of a journal's file."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        return None
    return FileName(match[1], int(match[2], 16), match[3] or "", bool(match[4]))
