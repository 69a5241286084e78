"""How much of a partition is kept: by age and by size, whichever asks for less.

The leader decides from its clock and its disk and proposes an entry; what the entry says holds for all. Sizes
are counted in whole segments of the leader's journal, so a little more may stay.
"""

import time
from typing import NamedTuple

from hawser.log.journal.journal import Journal
from hawser.log.state.results import OutOfRange
from hawser.log.state.topic import Topic

__all__ = ["Retention"]


class Retention(NamedTuple):
    """None keeps everything."""

    most_bytes: object = None
    most_seconds: object = None

    def doubled(self) -> "Retention":
        """Twice as much of both."""
        return Retention(*(2 * each if isinstance(each, int | float) else each for each in self))

    def start_of(self, topic: Topic, journal: Journal) -> int | None:
        """The first offset that is to be kept; None if nothing is to go."""
        start = topic.start
        if isinstance(self.most_seconds, int | float):
            start = max(start, topic.at_time(time.time_ns() - int(self.most_seconds * 1e9)))
        if isinstance(self.most_bytes, int):
            start = max(start, _first_in_log(topic, journal.first_of_newest(self.most_bytes)))
        return start if start > topic.start else None


def _first_in_log(topic: Topic, index: int) -> int:
    """The first offset that lies at `index` of the log or behind it."""
    low, high = topic.start, topic.end
    while low < high:
        middle = (low + high) // 2
        place = topic.locate(middle)
        assert not isinstance(place, OutOfRange)
        if place.index < index:
            low = place.first_offset + place.count
        else:
            high = max(low, place.first_offset)
    return low
