"""Lines that processes write down as they go, and that others read when they were killed.

A kill can cut off the line that is being written: the kernel copies page by page, and looks for a kill
between two. Such a line was not written: its writer did nothing after it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Lines", "read_notes", "whole_lines"]


class Lines:
    """The end of a file, to be written by one process at a time: a line is on its way before anything else
    happens."""

    def __init__(self, file: str | Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.truncate(self._descriptor, sum(len(line) + 1 for line in whole_lines(file)))

    def write(self, line: bytes) -> None:
        os.write(self._descriptor, line + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def whole_lines(file: str | Path) -> list[bytes]:
    """Without their ends."""
    return Path(file).read_bytes().split(b"\n")[:-1]


def read_notes(files: Iterable[Path]) -> list[dict[str, Any]]:
    """Of files with an object of JSON on each line."""
    return [msgspec.json.decode(line) for file in files for line in whole_lines(file)]
