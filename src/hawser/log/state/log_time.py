"""The time of a log, for the age of records. It never falls.

The leader writes entries that move it forward by the time that has passed since the entry before. Each entry
also marks the end of the topic at that time: a record below a mark is at least as old as the time since the
mark. It also marks idle producers (`Producers.mark`). The timestamps of producers have no influence, nor have
the wall clocks of members while one member was present all the time (`hawser.log.clock`).

A missing mark makes records look younger, never older, so MOST_MARKS marks are enough.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import AdvanceTime, decoder
from hawser.log.state.part import BadState, Context, Part
from hawser.log.state.producers import Producers
from hawser.log.state.results import Advanced, Reason, Rejected, Result
from hawser.log.state.topic import Topic

__all__ = ["MOST_MARKS", "LogTime"]

MOST_MARKS: Final = 256


class _State(msgspec.Struct, frozen=True, array_like=True):
    now_ns: int
    wall_ns: int
    marks: list[tuple[int, int]]


_read = decoder(AdvanceTime)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class LogTime(Part):
    """`now_ns` is the time of the log at the last ADVANCE_TIME entry, and `wall_ns` the time of day that a
    majority of the members' clocks confirmed then; both begin at 0."""

    name: ClassVar = "time"
    kinds: ClassVar = {Kind.ADVANCE_TIME: 1}

    def __init__(self) -> None:
        self.now_ns = 0
        self.wall_ns = 0
        # (time of the log, end of the topic then), both ascending.
        self._marks: list[tuple[int, int]] = []

    def end_at(self, time_ns: int) -> int:
        """An offset below which every record existed at this time of the log; 0 if none is known."""
        return max((end for marked_ns, end in self._marks if marked_ns <= time_ns), default=0)

    def apply(self, entry: Entry, context: Context) -> Result:
        command = _read(entry)
        if command is None or command.after_ns < command.before_ns:
            return Rejected(Reason.BAD_PAYLOAD)
        if command.before_ns != self.now_ns:
            return Rejected(Reason.OTHER_TIME, self.now_ns, command.before_ns)
        self.now_ns, self.wall_ns = command.after_ns, command.wall_ns
        context.part(Producers).mark(self.now_ns)
        topic = context.part(Topic)
        self._marks = [each for each in self._marks if each[1] > topic.start]
        if topic.end > (self._marks[-1][1] if self._marks else topic.start):
            self._marks.append((self.now_ns, topic.end))
        if len(self._marks) > MOST_MARKS:
            self._drop_mark()
        return Advanced(self.now_ns)

    def _drop_mark(self) -> None:
        """Drop the mark whose neighbours are closest to each other, so that marks stay evenly spread; never
        the first or the last."""
        marks = self._marks
        del marks[min(range(1, len(marks) - 1), key=lambda at: marks[at + 1][0] - marks[at - 1][0])]

    def save(self) -> tuple[bytes, Sequence[str]]:
        return self.digest(), ()

    def load(self, state: bytes) -> None:
        try:
            saved = _decode(state)
        except msgspec.DecodeError as error:
            raise BadState(f"the saved time of the log cannot be read: {error}") from error
        if saved.marks != sorted(saved.marks):
            raise BadState("the saved time of the log contradicts itself")
        self.now_ns, self.wall_ns, self._marks = saved.now_ns, saved.wall_ns, saved.marks

    def digest(self) -> bytes:
        return _encode(_State(self.now_ns, self.wall_ns, self._marks))
