"""How much of a partition is kept: by age and by size, whichever keeps less.

The leader decides by the log's time and its own disk, and proposes an entry that binds all members. Sizes are
counted in whole segments of the leader's journal, and ages from one mark of the log's time to the next, so
slightly more may be kept. A record is within `most_bytes` as long as its entry is among the newest entries of
that size. Every record with a higher offset is kept with it, even if a transaction staged that record in an
earlier entry.
"""

from typing import NamedTuple

from hawser.log.journal.journal import Journal
from hawser.log.state.log_time import LogTime
from hawser.log.state.topic import Topic

__all__ = ["Retention"]


class Retention(NamedTuple):
    """None keeps everything."""

    most_bytes: object = None
    most_seconds: object = None

    def doubled(self) -> "Retention":
        """Twice as much of both."""
        return Retention(*(2 * each if isinstance(each, int | float) else each for each in self))

    def start_of(
        self, topic: Topic, journal: Journal, log_time: LogTime | None = None, now_ns: int | None = None
    ) -> int | None:
        """The first offset to be kept; None if nothing is to be removed. Nothing is removed by age unless the
        time of the log, `now_ns`, is known."""
        start = topic.start
        if isinstance(self.most_seconds, int | float) and log_time is not None and now_ns is not None:
            start = max(start, log_time.end_at(now_ns - int(self.most_seconds * 1e9)))
        if isinstance(self.most_bytes, int):
            start = max(start, topic.at_entry(journal.first_of_newest(self.most_bytes)))
        return start if start > topic.start else None
