"""`hawser topic trace` and `hawser queue trace`: print each operation on messages as it happens.

Tracing is switched on for regions that are not traced, and off again when the command ends.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

import hawser
from hawser.cli.options import chosen_url, shared_options, wants_json
from hawser.cli.output import byte_size, clock, count, dimmed, notice, print_json
from hawser.memory import Domain
from hawser.memory.settings import TRACE_LEVELS, check_trace_of_queue, trace_level
from hawser.memory.temporary_tracing import TemporaryTracing
from hawser.memory.trace_ring import TraceNames, switch
from hawser.record.trace import RECORD_BYTES, TraceKind, TraceRecord, trace_records

__all__ = ["trace_queue", "trace_topic"]

F = TypeVar("F", bound=Callable[..., Any])

_READ_RECORDS: Final = 4096
_PAUSE_SECONDS: Final = 0.01
# Interval of the search for new topics and queues to trace.
_LOOK_SECONDS: Final = 0.2
_ROLES: Final = {1: "writes", 2: "reads"}


def _options(function: F) -> F:
    for option in reversed(
        (
            click.argument("name", required=False),
            click.option(
                "--count", "times", type=click.IntRange(min=1), help="Stop after this many records."
            ),
            click.option("--seconds", type=click.FloatRange(min=0), help="Stop after this many seconds."),
            click.option(
                "--perfetto",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Write a file for ui.perfetto.dev instead of printing.",
            ),
            click.option(
                "--on/--off", "switched", default=None, help="Only switch tracing on or off permanently."
            ),
            click.option(
                "--level",
                type=click.Choice(["metadata", "payload"]),
                help="With --on: `payload` makes `hawser agent --trace` record the messages, too.",
            ),
            shared_options,
        )
    ):
        function = option(function)
    return function


@click.command("trace")
@_options
def trace_topic(name: str | None, switched: bool | None, level: str | None, **following: Any) -> None:
    """Print the operations on messages of one topic, or of all topics: publish, take, release, missed
    messages, and participants that join, leave or die.

    Tracing is on for all processes until this command ends, without restarting them. --on and --off switch it
    permanently, as the topic setting trace= does. Records that are overwritten before they are read are
    counted as lost.
    """
    _trace("topic", name, switched, level, **following)


@click.command("trace")
@_options
def trace_queue(name: str | None, switched: bool | None, level: str | None, **following: Any) -> None:
    """Print the operations on messages of one queue, or of all queues: put, claim, accept, returned,
    rejected, moved, and participants that join, leave or die.

    Tracing is on for all processes until this command ends, without restarting them. --on and --off switch it
    permanently, as the queue setting trace= does. Records that are overwritten before they are read are
    counted as lost.
    """
    _trace("queue", name, switched, level, **following)


def _trace(kind: str, name: str | None, switched: bool | None, level: str | None, **following: Any) -> None:
    url = chosen_url() or "shm://"
    if url.startswith("hawser:"):
        raise hawser.UsageError(
            "tracing works for processes that share memory on one host. On a cluster, read the topic that "
            "`hawser agent --trace` records into"
        )
    if level is not None and not switched:
        raise click.UsageError("--level needs --on.")
    if switched is not None and any(value is not None for value in following.values()):
        raise click.UsageError("--on and --off only switch tracing; run a second command to print records.")
    selection = _Selection(Domain.of_url(url), kind, name)
    if switched is None:
        _follow(selection, **following)
    else:
        _switch(selection, trace_level(level or "metadata") if switched else 0)


class _Selection:
    """The topics or queues of a command: one, which need not exist yet, or all."""

    def __init__(self, domain: Domain, kind: str, name: str | None) -> None:
        self.domain = domain
        self.kind = kind
        self.name = name
        self._left_out: set[str] = set()

    def __str__(self) -> str:
        return f"a {self.kind}" if self.name is None else f"{self.kind} {self.name!r}"

    def names(self) -> list[str]:
        """The existing ones. UsageError if the name is of the other kind."""
        if self.name is None:
            return self.domain.topics() if self.kind == "topic" else self.domain.queues()
        found = self.domain.kind_of(self.name)
        if found is not None and found != self.kind:
            raise hawser.UsageError(f"{self.name!r} is a {found}; see `hawser {found} trace`")
        return [] if found is None else [self.name]

    def attempt(self, name: str, work: Callable[[str], None]) -> bool:
        """Call `work` for one of them, and return whether it succeeded. A deleted one is skipped. If all are
        selected, one that cannot be read is skipped and named on standard error."""
        try:
            work(name)
        except hawser.Closed:
            return False
        except (hawser.Corrupt, hawser.SettingsMismatch, hawser.PermissionDenied) as error:
            if self.name is not None:
                raise
            if name not in self._left_out:
                notice(f"{self.kind} {name!r} is left out: {error}")
                self._left_out.add(name)
            return False
        return True

    def has(self, kind: str, name: str) -> bool:
        """Whether the selection includes the topic or queue of a record."""
        return kind in (self.kind, "") if self.name is None else (kind, name) == (self.kind, self.name)


def _switch(selection: _Selection, level: int) -> None:
    if selection.kind == "queue":
        check_trace_of_queue(level)
    names = selection.names()
    if not names and selection.name is not None:
        raise hawser.NotFound(f"no {selection} in {selection.domain.directory}")
    done = [
        name
        for name in names
        if selection.attempt(name, lambda name: _switch_one(selection.domain, name, level))
    ]
    if wants_json():
        print_json({f"{selection.kind}s": done, "traced": bool(level)})
    else:
        notice(f"tracing of {count(len(done))} {selection.kind}s is {'on' if level else 'off'}")


def _switch_one(domain: Domain, name: str, level: int) -> None:
    region = domain.watch(name)
    if region is not None:
        switch(domain, region, level)


def _follow(selection: _Selection, times: int | None, seconds: float | None, perfetto: Path | None) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    _wait_for(selection, end)
    names = TraceNames(selection.domain)
    written = 0
    with ExitStack() as stack:
        output = _file(stack, perfetto, names) if perfetto else _screen(selection.kind, names)
        if not selection.names():
            return
        tracing = stack.enter_context(TemporaryTracing(selection.domain))
        for record in _records(tracing, selection, end, output.lost):
            traced = names.region(record.region)
            if record.kind == TraceKind.NOTHING or not selection.has(*traced):
                continue
            output.show(record)
            written += 1
            if written == times:
                break
    if perfetto:
        notice(f"{perfetto}: {count(written)} records; open it at ui.perfetto.dev")


def _wait_for(selection: _Selection, end: float | None) -> None:
    said = False
    while not selection.names() and (end is None or time.monotonic() < end):
        if not said:
            notice(f"waiting for {selection} in {selection.domain.url}")
            said = True
        time.sleep(_LOOK_SECONDS)


def _records(
    tracing: TemporaryTracing, selection: _Selection, end: float | None, lost: Callable[[int], None]
) -> Iterator[TraceRecord]:
    """The records from now until `end`. Output is flushed when no next record is ready."""
    ring, look = tracing.ring, 0.0
    position = ring.head
    while True:
        now = time.monotonic()
        if now >= look:
            for name in selection.names():
                selection.attempt(name, tracing.cover)
            look = now + _LOOK_SECONDS
        first, data = ring.read(position, _READ_RECORDS)
        if first > position:
            lost(first - position)
        yield from trace_records(data)
        position = first + len(data) // RECORD_BYTES
        if end is not None and now >= end:
            return
        if not data:
            sys.stdout.flush()
            if first == ring.head and not ring.current:
                raise hawser.Closed("the trace ring was removed; start the command again to follow a new one")
            time.sleep(_PAUSE_SECONDS)


class _Output(NamedTuple):
    """Functions that print a record, and the number of lost records."""

    show: Callable[[TraceRecord], None]
    lost: Callable[[int], None]


def _file(stack: ExitStack, path: Path, names: TraceNames) -> _Output:
    from hawser.cli.trace.perfetto import PerfettoFile

    file = PerfettoFile(path)
    stack.callback(file.close)

    def lost(number: int) -> None:
        _report_lost(number)
        file.lost(number, time.time_ns())

    return _Output(lambda record: file.add(record, *_names_of(record, names)), lost)


def _screen(kind: str, names: TraceNames) -> _Output:
    if wants_json():
        return _Output(
            lambda record: print_json(_as_json(record, kind, *_names_of(record, names))), _report_lost
        )
    return _Output(lambda record: click.echo(_line(record, *_names_of(record, names))), _report_lost)


def _report_lost(number: int) -> None:
    notice(
        f"lost {count(number)} records of the domain: they were overwritten before they were read, or "
        "their writers died"
    )


def _names_of(record: TraceRecord, names: TraceNames) -> tuple[str, str]:
    """The names of the topic or queue and of the participant."""
    return names.region(record.region).name, names.participant(record.region, record.about)


def _as_json(record: TraceRecord, kind: str, name: str, participant: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "position": record.position,
        "time_ns": record.time_ns,
        "kind": record.what,
        kind: name,
        "participant": participant,
        "pid": record.pid,
    }
    if record.sequence:
        facts["offset"] = record.sequence
    if record.latency_ns is not None:
        facts["latency_ns"] = record.latency_ns
    if record.kind in (TraceKind.PUBLISH, TraceKind.PUT):
        facts["size"] = record.value
    elif record.kind == TraceKind.MISSED:
        facts["missed"] = record.value
    elif record.kind == TraceKind.SWITCHED:
        facts["trace"] = _level(record)
    elif record.kind == TraceKind.TAKE:
        facts["held"] = bool(record.deliveries)
    elif record.deliveries:
        facts["delivery"] = record.deliveries
    return facts


def _line(record: TraceRecord, name: str, participant: str) -> str:
    who = f"{participant or '-'} ({record.pid})"
    parts = [dimmed(clock(record.time_ns)), record.what.ljust(11), name or "-", who, _details(record)]
    return "  ".join(parts).rstrip()


def _details(record: TraceRecord) -> str:
    kind, number = record.kind, f"#{record.sequence}"
    if kind in (TraceKind.PUBLISH, TraceKind.PUT):
        return f"{number}  {byte_size(record.value)}"
    if kind == TraceKind.MISSED:
        return f"{count(record.value)} up to {number}"
    if kind == TraceKind.SWITCHED:
        return f"to {_level(record) or 'off'}"
    if kind == TraceKind.RECOVER:
        return "died; recovered by that process"
    if kind in (TraceKind.SUBSCRIBE, TraceKind.UNSUBSCRIBE):
        return _ROLES.get(record.value, "")
    again = f"  delivery {record.deliveries}" if kind != TraceKind.TAKE and record.deliveries > 1 else ""
    latency = record.latency_ns
    return f"{number}{'' if latency is None else '  after ' + _duration(latency)}{again}"


def _level(record: TraceRecord) -> str | None:
    return TRACE_LEVELS[record.value & len(TRACE_LEVELS) - 1]


def _duration(nanoseconds: int) -> str:
    for limit, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")):
        if nanoseconds >= limit:
            return f"{nanoseconds / limit:.3g} {unit}"
    return f"{nanoseconds} ns"
