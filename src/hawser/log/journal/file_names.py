"""The names of a journal's files.

All but the promise (`vow`) have the number of a generation. An installed snapshot begins a new generation.
The promise names the valid one; files of other generations are left over from an interruption.
"""

import re
from typing import Final, NamedTuple

__all__ = ["BALLAST", "NEW_PROMISE", "PROMISE", "FileName", "block_name", "checkpoint_name",
           "new_checkpoint_name", "parse", "segment_name"]  # fmt: skip

PROMISE: Final = "vow"
BALLAST: Final = "ballast"
NEW_PROMISE: Final = "vow.new"

_SEGMENT: Final = re.compile(r"(log)-([0-9a-f]{8})-([0-9a-f]{16})()")
_CHECKPOINT: Final = re.compile(r"(checkpoint)-([0-9a-f]{8})()(\.new)?")
_BLOCK: Final = re.compile(r"(block)-([0-9a-f]{8})-([A-Za-z0-9_-]{1,100})()")


class FileName(NamedTuple):
    """A parsed file name: `rest` is a segment's first index in hexadecimal, or a block's name."""

    kind: str
    generation: int
    rest: str
    is_new: bool


def segment_name(generation: int, first: int) -> str:
    return f"log-{generation:08x}-{first:016x}"


def checkpoint_name(generation: int) -> str:
    return f"checkpoint-{generation:08x}"


def new_checkpoint_name(generation: int) -> str:
    """The name of a checkpoint until it replaces the last one."""
    return f"checkpoint-{generation:08x}.new"


def block_name(generation: int, name: str) -> str:
    """The file of the block with this name: letters, digits, `-` and `_`, at most 100."""
    file = f"block-{generation:08x}-{name}"
    if not _BLOCK.fullmatch(file):
        raise ValueError(f"a block cannot be named {name!r}: letters, digits, '-' and '_', at most 100")
    return file


def parse(name: str) -> FileName | None:
    """The parsed name; None if it is not a journal's file."""
    for pattern in (_SEGMENT, _CHECKPOINT, _BLOCK):
        if match := pattern.fullmatch(name):
            return FileName(match[1], int(match[2], 16), match[3], bool(match[4]))
    return None
