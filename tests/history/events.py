"""Events, the operations they make up, and how both are written down and read."""

import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import msgspec

__all__ = ["NEVER", "Event", "HistoryError", "Operation", "Outcome", "Recorder", "operations", "read_events"]

# The end of what did not end.
NEVER: Final = 1 << 62

# fmt: off
Name = Literal[
    "publish", "poll", "seek", "read", "final", "state", "trim", "take", "commit", "position",
    "get", "set", "swap",
]
# fmt: on
Type = Literal["invoke", "ok", "fail", "info"]


class HistoryError(Exception):
    """The history itself is broken, so that nothing can be said about what it tells of."""


class Outcome(StrEnum):
    DONE = "ok"
    NOT_DONE = "fail"
    UNKNOWN = "info"


class Event(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A line of a history; the fields after `object` are the arguments or the result."""

    type: Type
    id: str
    process: str
    time: int
    operation: Name | None = None
    object: str = ""
    values: list[str] = []
    records: list[tuple[int, str]] = []
    offset: int | None = None
    end: int | None = None
    value: str | None = None
    expected: str | None = None
    done: bool | None = None
    group: str = ""
    error: str = ""


class Operation(msgspec.Struct, eq=False):
    """An invocation with its end. `result` has the fields of the end, or is None if it was not `ok`."""

    place: int
    name: Name
    asked: Event
    outcome: Outcome
    returned: int
    result: Event | None

    @property
    def invoked(self) -> int:
        return self.asked.time

    @property
    def process(self) -> str:
        return self.asked.process

    def __str__(self) -> str:
        """For a person: who asked what, and was told what, when."""
        given = [f"{name} {value!r}" for name, value in _fields(self.asked)]
        words = [f"{self.process} {self.name}", *given, self.outcome.value]
        if self.result is not None:
            words += [f"{name} {_shortened(value)}" for name, value in _fields(self.result)]
        until = "" if self.returned == NEVER else str(self.returned)
        return f"[{self.invoked}..{until}] " + " ".join(words)


_ARGUMENTS: Final = (
    *("object", "group", "values", "records", "offset", "end", "value", "expected", "done", "error"),
)


def _fields(event: Event) -> Iterator[tuple[str, object]]:
    for name in _ARGUMENTS:
        value = getattr(event, name)
        if value is not None and value not in ("", []):
            yield name, value


def _shortened(value: object) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"[{value[0]!r}, {value[1]!r}, ... {value[-1]!r}] ({len(value)})"
    return repr(value)


def read_events(paths: Iterable[Path]) -> list[Event]:
    """The events of all the files, in order of time. A last line that was cut off by a kill is left out."""
    decode = msgspec.json.Decoder(Event).decode
    events = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                events.append(decode(line))
            except msgspec.MsgspecError as error:
                if number < len(lines):
                    raise HistoryError(f"{path}, line {number}: {error}") from error
    # An operation may begin when another ends; who began first is then the writer's order.
    return sorted(events, key=lambda event: event.time)


def operations(events: Iterable[Event]) -> list[Operation]:
    """The operations, in order of invocation."""
    open_ones: dict[str, Operation] = {}
    found: list[Operation] = []
    seen: set[str] = set()
    for event in events:
        if event.type == "invoke":
            if event.operation is None or event.id in seen:
                raise HistoryError(f"operation {event.id!r} has no name, or was invoked twice")
            seen.add(event.id)
            operation = Operation(len(found), event.operation, event, Outcome.UNKNOWN, NEVER, None)
            found.append(operation)
            open_ones[event.id] = operation
            continue
        ending = open_ones.pop(event.id, None)
        if ending is None:
            raise HistoryError(f"operation {event.id!r} ended, and had not begun or had ended before")
        if event.process != ending.process or event.time < ending.invoked:
            raise HistoryError(f"operation {event.id!r} ended in another process, or before it began")
        ending.outcome = Outcome(event.type)
        if ending.outcome is not Outcome.UNKNOWN:
            # What nobody knows may still take effect later.
            ending.returned = event.time
        if ending.outcome is Outcome.DONE:
            ending.result = event
    return found


class Recorder:
    """Writes down what one client process does; for any number of threads.

    Each line is in the file before the call returns, so a kill loses at most the line it falls into.
    """

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def invoke(self, operation: Name, object: str, process: str | None = None, **arguments: Any) -> Event:
        """Write down that it begins; `process` where one file holds several."""
        process = process or self.process
        identity = f"{self.process}/{next(self._numbers)}"
        return self._write("invoke", identity, process, operation=operation, object=object, **arguments)

    def end(self, invocation: Event, type: Type, **result: Any) -> None:
        """Write down how it ended: `ok`, `fail` or `info`."""
        self._write(type, invocation.id, invocation.process, **result)

    def close(self) -> None:
        self._file.close()

    def _write(self, type: Type, identity: str, process: str, **fields: Any) -> Event:
        with self._lock:
            event = Event(type=type, id=identity, process=process, time=time.monotonic_ns(), **fields)
            self._file.write(msgspec.json.encode(event) + b"\n")
        return event
