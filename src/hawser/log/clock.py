"""A member's clock for the time of a log: how much time has passed since an entry last moved it.

| the member | counts from | with |
|---|---|---|
| was present when the entry moved the time | that moment | its monotonic clock |
| read the entry later, from its disk or from others | the moment it read the entry | its monotonic clock, or
the confirmed time of day if that gives more |

In the first case steps of wall clocks do not matter. In the second, a majority of the members must confirm
the time of day. Both only make records look younger, unless a majority has a wrong time of day and no member
was present.

Pure. Numbers are nanoseconds: `boot_ns` of a clock that runs while the machine sleeps and is never set.
"""

from collections.abc import Callable, Iterable
from typing import Final

from hawser.limits import CLOCK_BOUND_SECONDS
from hawser.log.state.log_time import LogTime

__all__ = ["LogClock"]

_BOUND_NS: Final = CLOCK_BOUND_SECONDS * 10**9


class LogClock:
    """The clock of one member of one shard. Call `saw` after entries were applied, before any other
    method."""

    def __init__(self, time: LogTime, boot_ns: int) -> None:
        """For a member that has just started with this time in its log."""
        self._known = (time.now_ns, time.wall_ns)
        self._since_ns = boot_ns
        self._was_there = False

    def saw(self, time: LogTime, boot_ns: Callable[[], int], walls_ns: Callable[[], Iterable[int]]) -> None:
        """Note that entries were applied. An entry that moved the time counts as just written if any clock
        known here agrees with its time of day. If a wrong clock agrees with an old entry, records look
        younger than they are."""
        known = time.now_ns, time.wall_ns
        if known != self._known:
            self._known = known
            self._since_ns = boot_ns()
            self._was_there = any(abs(each - time.wall_ns) <= _BOUND_NS for each in walls_ns())

    def now_ns(self, time: LogTime, boot_ns: int, confirmed_wall_ns: int) -> int:
        """The time of the log; never less than it was when it was moved last."""
        passed_ns = boot_ns - self._since_ns
        if not self._was_there:
            passed_ns = max(passed_ns, confirmed_wall_ns - time.wall_ns)
        return time.now_ns + max(0, passed_ns)
