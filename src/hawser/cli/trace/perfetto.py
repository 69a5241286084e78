"""Trace records as a file for Perfetto (ui.perfetto.dev) or chrome://tracing: the holders of messages over
time.

A process becomes a process, a participant a thread. A publish or put is a short slice; a take or claim is a
slice as long as the sample is held, with an arrow from the publish. Slices of one thread must not overlap, so
a participant that holds several samples at once gets several threads. Other records become instant events.

The file is a JSON array of events, written as they arrive; Perfetto also opens a truncated file.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import hawser
from hawser.record.trace import TraceKind, TraceRecord

__all__ = ["PerfettoFile"]

# Length of a publish or put, unless the next one begins earlier.
_MOMENT_NS: Final = 1000
# Messages that are remembered as origins of arrows.
_MOST_PUBLISHED: Final = 100_000
_SECOND_NS: Final = 1_000_000_000

_WRITTEN: Final = frozenset({TraceKind.PUBLISH, TraceKind.PUT})
_OPENING: Final = frozenset({TraceKind.TAKE, TraceKind.CLAIM})
_CLOSING: Final = frozenset(
    {TraceKind.RELEASE, TraceKind.ACCEPT, TraceKind.RETURNED, TraceKind.REJECTED, TraceKind.MOVED}
)
# Written by a process that recovers the participant or ends its lease.
_BY_OTHERS: Final = frozenset({TraceKind.RETURNED, TraceKind.REJECTED, TraceKind.MOVED})


class _Thread(NamedTuple):
    process: int
    number: int


class _Slice(NamedTuple):
    """A message that is held, or its publish."""

    start_ns: int
    name: str
    facts: dict[str, Any]


class _Participant:
    """The threads of one participant: the first for short slices, one more for each sample held at once."""

    def __init__(self, process: int, title: str, first: _Thread) -> None:
        self.process = process
        self.title = title
        self.first = first
        # A short slice ends where the next one begins, so the last one is written with the next.
        self.moment: _Slice | None = None
        # Each thread with the end of its last slice.
        self.lanes: list[tuple[_Thread, int]] = []
        self.held: dict[int, TraceRecord] = {}


class PerfettoFile:
    """Writes the file at `path`, replacing it; it is complete once closed."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise hawser.UsageError(f"{path} cannot be written: {error.strerror}") from error
        self._written = 0
        self._start_ns = 0
        self._threads = 0
        self._arrows = 0
        self._processes: set[int] = set()
        self._participants: dict[tuple[int, int], _Participant] = {}
        self._published: dict[tuple[int, int], tuple[_Thread, int]] = {}

    def add(self, record: TraceRecord, name: str, participant: str) -> None:
        """Add a record of the topic or queue `name`; records of one ring come in order."""
        if record.kind == TraceKind.RECOVER:
            self._add_recovery(record, name, participant)
            return
        one = self._participant(record, name, participant)
        if one is None:
            self._mark(self._process(record.pid), record, f"{record.what} {_number(record)} of {name}")
            return
        if record.kind in _WRITTEN:
            self._add_written(one, record)
        elif record.kind in _OPENING and (record.kind == TraceKind.CLAIM or record.deliveries):
            one.held[record.sequence] = record
        elif record.kind in _OPENING:
            self._arrow(record, one.first, self._add_moment(one, _slice(record)))
        elif record.kind in _CLOSING and (taken := one.held.pop(record.sequence, None)) is not None:
            self._end(one, taken, record.time_ns, record.what)
        elif record.kind != TraceKind.NOTHING:
            self._mark(one.first, record, f"{record.what} {_number(record)}")

    def lost(self, count: int, time_ns: int) -> None:
        """Mark `count` records that were overwritten before they were read, or whose writers died."""
        event = {"ph": "i", "s": "g", "name": f"{count} trace records lost", "pid": 0, "tid": 0}
        self._write(event | {"ts": self._time(time_ns)})

    def close(self) -> None:
        """End the slices of samples that are still held, and the file."""
        for one in self._participants.values():
            self._end_moment(one, None)
            for taken in one.held.values():
                self._end(one, taken, taken.time_ns + _MOMENT_NS, "still held")
        self._file.write(b"\n]\n" if self._written else b"[]\n")
        self._file.close()

    def _add_recovery(self, record: TraceRecord, name: str, participant: str) -> None:
        dead = self._participants.get((record.region, record.value))
        thread = self._process(record.pid) if dead is None else dead.first
        if dead is not None:
            for taken in dead.held.values():
                self._end(dead, taken, record.time_ns, "recovered")
            dead.held.clear()
        self._mark(
            thread, record, f"{participant or 'a participant'} of {name} died: recovered by {record.pid}"
        )

    def _add_written(self, one: _Participant, record: TraceRecord) -> None:
        start_ns = self._add_moment(one, _slice(record))
        self._published[record.region, record.sequence] = one.first, start_ns
        if len(self._published) > _MOST_PUBLISHED:
            del self._published[next(iter(self._published))]

    def _add_moment(self, one: _Participant, moment: _Slice) -> int:
        """The time at which it is drawn: messages of a batch have the same time and are drawn in sequence."""
        last = one.moment
        start_ns = moment.start_ns if last is None else max(moment.start_ns, last.start_ns + 1)
        self._end_moment(one, start_ns)
        one.moment = moment._replace(start_ns=start_ns)
        return start_ns

    def _end_moment(self, one: _Participant, next_ns: int | None) -> None:
        moment, one.moment = one.moment, None
        if moment is not None:
            room = _MOMENT_NS if next_ns is None else next_ns - moment.start_ns
            self._slice(one.first, moment, min(_MOMENT_NS, room))

    def _end(self, one: _Participant, taken: TraceRecord, end_ns: int, how: str) -> None:
        """Write the slice of a sample that was held since `taken`."""
        held = _slice(taken)
        thread = self._lane(one, held.start_ns, end_ns)
        self._slice(thread, held._replace(facts=held.facts | {"end": how}), max(1, end_ns - held.start_ns))
        self._arrow(taken, thread, held.start_ns)

    def _lane(self, one: _Participant, start_ns: int, end_ns: int) -> _Thread:
        for place, (thread, busy_until) in enumerate(one.lanes):
            if busy_until <= start_ns:
                one.lanes[place] = thread, end_ns
                return thread
        thread = self._new_thread(one.process, f"{one.title}, held")
        one.lanes.append((thread, end_ns))
        return thread

    def _arrow(self, record: TraceRecord, to: _Thread, time_ns: int) -> None:
        """Write an arrow from the publish of the message, if its record was read."""
        origin = self._published.get((record.region, record.sequence))
        if origin is None:
            return
        self._arrows += 1
        event = {"name": "message", "cat": "message", "id": self._arrows}
        thread, start_ns = origin
        self._write({"ph": "s", **event, **_at(thread), "ts": self._time(start_ns)})
        self._write({"ph": "f", "bp": "e", **event, **_at(to), "ts": self._time(time_ns)})

    def _slice(self, thread: _Thread, held: _Slice, duration_ns: int) -> None:
        event = {"ph": "X", "name": held.name, "cat": "message", **_at(thread)}
        times = {"ts": self._time(held.start_ns), "dur": duration_ns / 1000}
        self._write(event | times | {"args": held.facts})

    def _mark(self, thread: _Thread, record: TraceRecord, text: str) -> None:
        event = {"ph": "i", "s": "p", "name": text, "cat": record.what, **_at(thread)}
        self._write(event | {"ts": self._time(record.time_ns)})

    def _participant(self, record: TraceRecord, name: str, participant: str) -> _Participant | None:
        """The participant of a record; None if it has none, or if an unknown one is named by another
        process."""
        known = self._participants.get((record.region, record.owner))
        if known is None and record.owner and record.kind not in _BY_OTHERS:
            self._name_process(record.pid, participant)
            title = f"{participant or 'a participant'} of {name}"
            known = _Participant(record.pid, title, self._new_thread(record.pid, title))
            self._participants[record.region, record.owner] = known
        return known

    def _process(self, process: int) -> _Thread:
        """The thread for records of a process without a participant."""
        self._name_process(process, "")
        return _Thread(process, 0)

    def _name_process(self, process: int, participant: str) -> None:
        if process not in self._processes:
            self._processes.add(process)
            event = {"ph": "M", "name": "process_name", "pid": process, "tid": 0}
            self._write(event | {"args": {"name": participant or f"process {process}"}})

    def _new_thread(self, process: int, title: str) -> _Thread:
        self._threads += 1
        thread = _Thread(process, self._threads)
        self._write({"ph": "M", "name": "thread_name", **_at(thread), "args": {"name": title}})
        return thread

    def _time(self, time_ns: int) -> float:
        """Microseconds since the first record: a JSON number cannot hold Unix time in nanoseconds exactly."""
        if not self._start_ns:
            # An older record, whose position was taken later, stays after the start.

            self._start_ns = time_ns - _SECOND_NS
        return max(0, time_ns - self._start_ns) / 1000

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write((b",\n" if self._written else b"[\n") + msgspec.json.encode(event))
        self._written += 1


def _slice(record: TraceRecord) -> _Slice:
    facts: dict[str, Any] = {"offset": record.sequence, "time_ns": record.time_ns}
    if record.kind in _WRITTEN:
        facts["bytes"] = record.value
    if record.latency_ns is not None:
        facts["latency_us"] = record.latency_ns / 1000
    if record.kind == TraceKind.CLAIM:
        facts["deliveries"] = record.deliveries
    return _Slice(record.time_ns, f"{record.what} {record.sequence}", facts)


def _number(record: TraceRecord) -> str:
    return str(record.value) if record.kind == TraceKind.MISSED else str(record.sequence)


def _at(thread: _Thread) -> dict[str, int]:
    return {"pid": thread.process, "tid": thread.number}
