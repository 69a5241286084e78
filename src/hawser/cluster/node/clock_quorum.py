"""Compares the clocks of a cluster's nodes, and tells which of them a majority confirms.

Each node asks the others for their time and keeps the difference between each clock and its own monotonic
clock. So it notices at once when its own wall clock is set, and within seconds when another node's is. An
answer that took long is too inexact and is dropped.

For a shard, the clocks of its members' nodes count. A clock is confirmed if the clocks within
`CLOCK_BOUND_SECONDS` of it, itself included, are a majority of these. For a shard with one member, only that
node's clock counts.
"""

import time
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from hawser.limits import CLOCK_BOUND_SECONDS
from hawser.log.protocol.metadata import majority

__all__ = ["ASK_SECONDS", "ClockQuorum", "Standing", "boot_ns"]

ASK_SECONDS: Final = 5.0
_LONGEST_ANSWER_NS: Final = 2 * 10**9
# The time after which an answer is too old to be used.
_KNOWN_NS: Final = 60 * 10**9
_BOUND_NS: Final = CLOCK_BOUND_SECONDS * 10**9


def boot_ns() -> int:
    """A monotonic clock that continues while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Standing(NamedTuple):
    """The standing of this node's clock among those of some nodes.

    `confirmed_ns` is the latest time of day that a majority has reached; None unless this clock is confirmed.
    If it is wrong, `better` are the nodes whose clocks are confirmed.
    """

    confirmed_ns: int | None
    better: tuple[str, ...] = ()


class _Heard(NamedTuple):
    offset_ns: int
    at_ns: int


class ClockQuorum:
    """The clocks that one node knows. `wall_ns` and `boot_ns` are its own."""

    def __init__(
        self,
        node: str,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = boot_ns,
    ) -> None:
        self.wall_ns = wall_ns
        self.boot_ns = boot_ns
        self._node = node
        self._heard: dict[str, _Heard] = {}

    def heard(self, node: str, wall_ns: int, asked_ns: int) -> None:
        """Records a node's time of day, which has just arrived. The node was asked at `asked_ns` of the
        monotonic clock here."""
        now = self.boot_ns()
        if now - asked_ns <= _LONGEST_ANSWER_NS:
            self._heard[node] = _Heard(wall_ns - (asked_ns + now) // 2, now)

    def _offsets(self) -> dict[str, int]:
        """The differences of all known wall clocks, including this node's, to the monotonic clock here."""
        now = self.boot_ns()
        known = {node: each.offset_ns for node, each in self._heard.items() if now - each.at_ns <= _KNOWN_NS}
        return {**known, self._node: self.wall_ns() - now}

    def walls_ns(self) -> list[int]:
        """The times of day that the known clocks show."""
        now = self.boot_ns()
        return [now + offset for offset in self._offsets().values()]

    def among(self, nodes: Collection[str]) -> Standing:
        """The standing of this node's clock among those of `nodes`, which include this node."""
        offsets = {node: offset for node, offset in self._offsets().items() if node in nodes}
        needed = majority(len(nodes))
        own = offsets.get(self._node)
        if own is None:
            return Standing(None)
        agreeing = {node: _near(offset, offsets) for node, offset in offsets.items()}
        if agreeing[self._node] >= needed:
            reached = sorted(offsets.values(), reverse=True)[needed - 1]
            return Standing(self.boot_ns() + reached)
        return Standing(None, tuple(sorted(node for node, count in agreeing.items() if count >= needed)))

    def ahead_seconds(self) -> float | None:
        """The seconds by which this clock is ahead of the time that at least half of all known nodes' clocks
        have reached; None if no other clock is known."""
        offsets = self._offsets()
        if len(offsets) == 1:
            return None
        reached = sorted(offsets.values(), reverse=True)[majority(len(offsets)) - 1]
        return (offsets[self._node] - reached) / 1e9

    def is_wrong(self) -> bool:
        """Whether the clocks of all known nodes fail to confirm this one."""
        offsets = self._offsets()
        return _near(offsets[self._node], offsets) < majority(len(offsets))


def _near(offset_ns: int, offsets: dict[str, int]) -> int:
    """The number of these clocks that agree with one of them, itself included."""
    return sum(abs(each - offset_ns) <= _BOUND_NS for each in offsets.values())
