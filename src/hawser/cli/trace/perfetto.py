"""Trace records as a file for Perfetto (ui.perfetto.dev) or chrome://tracing: who held which message when.

Each process is one there, each participant a thread of it. A publish or a put is a short slice; a take or a
claim is a slice for as long as the sample is held, and an arrow leads to it from where the message was
written. Slices of one thread may not overlap, so who holds several samples at once has several threads. What
else happened is marked where it did.

The file is a JSON array of events, written as they come: one that was cut off still opens there.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import hawser
from hawser.record.trace import TraceKind, TraceRecord

__all__ = ["PerfettoFile"]

# How long a moment is drawn, if the next one leaves the room.
_MOMENT_NS: Final = 1000
# So many messages are remembered for arrows from them.
_MOST_PUBLISHED: Final = 100_000
_SECOND_NS: Final = 1_000_000_000

_WRITTEN: Final = frozenset({TraceKind.PUBLISH, TraceKind.PUT})
_OPENING: Final = frozenset({TraceKind.TAKE, TraceKind.CLAIM})
_CLOSING: Final = frozenset(
    {TraceKind.RELEASE, TraceKind.ACCEPT, TraceKind.RETURNED, TraceKind.REJECTED, TraceKind.MOVED}
)
# Whoever recovers the dead, or ends a lease, writes these for the participant that they name.
_BY_OTHERS: Final = frozenset({TraceKind.RETURNED, TraceKind.REJECTED, TraceKind.MOVED})


class _Thread(NamedTuple):
    process: int
    number: int


class _Slice(NamedTuple):
    """A message in somebody's hands, or the moment it was written."""

    start_ns: int
    name: str
    facts: dict[str, Any]


class _Participant:
    """The threads of one participant: the first for moments, one more for each sample it holds at once."""

    def __init__(self, process: int, title: str, first: _Thread) -> None:
        self.process = process
        self.title = title
        self.first = first
        # A moment ends where the next one begins, so the last one waits for it.
        self.moment: _Slice | None = None
        # Each with the end of its last slice.
        self.lanes: list[tuple[_Thread, int]] = []
        self.held: dict[int, TraceRecord] = {}


class PerfettoFile:
    """The file at `path`, which is written anew; whole once it is closed."""

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
        """One record, of the topic or queue `name`; those of one ring in their order."""
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
        """So many records are not there: they were overwritten before they could be read, or their writers
        died."""
        event = {"ph": "i", "s": "g", "name": f"{count} trace records lost", "pid": 0, "tid": 0}
        self._write(event | {"ts": self._time(time_ns)})

    def close(self) -> None:
        """End what is still held at its last sign, and the file."""
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
        self._mark(thread, record, f"{participant or 'somebody'} of {name} died: recovered by {record.pid}")

    def _add_written(self, one: _Participant, record: TraceRecord) -> None:
        start_ns = self._add_moment(one, _slice(record))
        self._published[record.region, record.sequence] = one.first, start_ns
        if len(self._published) > _MOST_PUBLISHED:
            del self._published[next(iter(self._published))]

    def _add_moment(self, one: _Participant, moment: _Slice) -> int:
        """Where it is drawn: messages of a batch have one time, and are drawn one behind the other."""
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
        """A sample that was held from its take on."""
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
        """From where the message was written, if that was seen."""
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
        """None if the record is about none, or another process wrote it and nothing else is known of it."""
        known = self._participants.get((record.region, record.owner))
        if known is None and record.owner and record.kind not in _BY_OTHERS:
            self._name_process(record.pid, participant)
            title = f"{participant or 'somebody'} of {name}"
            known = _Participant(record.pid, title, self._new_thread(record.pid, title))
            self._participants[record.region, record.owner] = known
        return known

    def _process(self, process: int) -> _Thread:
        """For what concerns no participant of it."""
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
        """In microseconds since the beginning: a number of JSON cannot hold those of the calendar exactly."""
        if not self._start_ns:
            # What is older, because its position was taken later, is not before the beginning.
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
