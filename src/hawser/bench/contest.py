"""The measured loads, and the description of a contestant.

Every contestant moves the same messages in its own lossless mode, in the way its documentation recommends for
speed. The last message of a stream differs from the others and must arrive last, so only received messages
are counted.
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
    """`count` messages of `size` bytes in one direction, `batch` per call.

    `warm` more messages are sent first and not counted, because they touch memory for the first time.
    `queued` messages may be in flight; None leaves the bound to the contestant.
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
            raise RuntimeError(f"message {self.count} is not the last message of the stream")


@dataclass(frozen=True, slots=True)
class Crowd:
    """Producers put `count` messages of `size` bytes each, `batch` per call, and consumers get them. A
    consumer ends with a last message, of which each producer puts one. In batches or without a common queue
    it ends after a time without messages. Its result is the time of its last message, and its number of
    messages."""

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
        """Messages per second from the first put to the last get; RuntimeError if one was lost or
        duplicated."""
        count = sum(each for _, each in ended)
        if count != self.producers * self.count:
            raise RuntimeError(f"of {self.producers * self.count} messages {count} were got")
        return count * 1e9 / (max(at for at, _ in ended) - min(started))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Round trips of `size` bytes in `blocks` blocks of `rounds`. With `spin` both sides poll without
    sleeping."""

    size: int
    rounds: int
    blocks: int
    spin: bool


@dataclass(frozen=True, slots=True)
class Contestant:
    """A library that moves messages. `share` creates what its sides need to connect, in an empty
    directory."""

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
    """The directory as the address, for sides that connect through a path."""
    return str(directory)
