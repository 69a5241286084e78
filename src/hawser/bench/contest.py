"""What the contestants are measured on, and how a contestant is described.

Every contestant moves the same messages in its own lossless mode and in the way its documentation
recommends for speed. The last message of a stream differs from the others; a receiver has to find it
where it belongs, so only messages that really arrived are counted.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hawser.bench.processes import Side

MEASURED_SIZE = 64


@dataclass(frozen=True, slots=True)
class Stream:
    """`count` messages of `size` bytes one way, `batch` of them for each call.

    `warm` more go first, uncounted, where memory is touched for the first time; `queued` is how many
    may be on their way, None being the contestant's choice.
    """

    size: int
    count: int
    batch: int = 1
    warm: int = 0
    queued: int | None = None

    def message(self) -> bytes:
        return b"m" * self.size

    def last_message(self) -> bytes:
        return b"z" * self.size

    def check(self, last: bytes) -> None:
        """Refuse a figure for a stream that lost, doubled or reordered a message."""
        if last != self.last_message():
            raise RuntimeError(f"after {self.count} messages another one than the last had arrived")


@dataclass(frozen=True, slots=True)
class Crowd:
    """So many producers put `count` messages of `size` bytes each, `batch` of them for each call; so many
    consumers get them. A consumer ends with a last message, of which each producer puts one, or where that
    cannot be, in batches and without a common queue, with silence. Its result is when it had its last
    message, and how many it had."""

    size: int
    count: int
    producers: int
    consumers: int
    batch: int = 1

    def message(self) -> bytes:
        return b"m" * self.size

    def last_message(self) -> bytes:
        return b"z" * self.size

    def rate(self, started: list[int], ended: list[tuple[int, int]]) -> float:
        """Messages a second from the first put to the last get; refused if one was lost or doubled."""
        count = sum(each for _, each in ended)
        if count != self.producers * self.count:
            raise RuntimeError(f"of {self.producers * self.count} messages {count} were got")
        return count * 1e9 / (max(at for at, _ in ended) - min(started))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Round trips of `size` bytes in `blocks` blocks of `rounds`; `spin`: neither side ever sleeps."""

    size: int
    rounds: int
    blocks: int
    spin: bool


@dataclass(frozen=True, slots=True)
class Contestant:
    """Somebody who can do the measured work.

    `share` makes what both sides need to meet, from a directory nobody else uses.
    """

    name: str
    module: str
    share: Callable[[Path], Any]
    receive: Side
    send: Side
    echo: Side | None = None
    ask: Side | None = None

    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


def address_in(directory: Path) -> str:
    """The directory itself: sides that meet at a path need nothing more."""
    return str(directory)
