"""The progress of a pipeline on standard error: a live table on a terminal, otherwise lines."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from hawser.cli.output import count, notice

if TYPE_CHECKING:
    from hawser.errors import HawserError
    from hawser.spark.pipelines.directory import Place
    from hawser.spark.pipelines.update import Event

__all__ = ["Lines", "displayed"]

_REDRAW_SECONDS: Final = 0.25
_STYLES: Final = {"COMPLETED": "green", "RUNNING": "cyan", "FAILED": "red", "SKIPPED": "yellow"}


class _Flow:
    """The state of one table and its committed rows."""

    def __init__(self, rows: int) -> None:
        self.state = "QUEUED"
        self.rows_before = rows
        self.rows = rows
        self.seconds = 0.0
        self._since: float | None = None

    def note(self, state: str) -> None:
        now = time.monotonic()
        if self._since is None and state in ("STARTING", "RUNNING"):
            self._since = now
        if self._since is not None:
            self.seconds = now - self._since
        self.state = state

    @property
    def rate(self) -> float:
        return (self.rows - self.rows_before) / self.seconds if self.seconds > 0 else 0.0


class Lines:
    """A watcher of a run that prints a line for each event."""

    def __init__(self, place: "Place") -> None:
        self._place = place
        self._began = time.monotonic()
        self._rows_at_first: dict[str, int] = {}
        self.flows: dict[str, _Flow] = {}
        self.updates = 0

    @property
    def rows(self) -> dict[str, dict[str, int]]:
        """The rows of each table now, and how many of them were added since the run began. A run that is
        stopped during an update does not report the rows that this update committed."""
        now = {name: self._count(name) for name in self.flows}
        return {name: {"rows": rows, "new": rows - self._rows_at_first[name]} for name, rows in now.items()}

    def say(self, text: str) -> None:
        notice(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def begin(self, tables: list[str]) -> None:
        self.flows = {name: _Flow(self._count(name)) for name in tables}
        self._rows_at_first = {name: flow.rows for name, flow in self.flows.items()} | self._rows_at_first

    def tell(self, event: "Event") -> None:
        flow = self.flows.get(event.table)
        if flow is None:
            return
        flow.note(event.state)
        if event.state == "COMPLETED":
            flow.rows = self._count(event.table)
            if self.updates == 0 or flow.rows != flow.rows_before:
                self.say(f"{event.table}: {count(flow.rows)} rows, {count(flow.rows - flow.rows_before)} new")
        elif event.state in ("FAILED", "SKIPPED"):
            self.say(f"{event.table} {event.state.lower()}")

    def end(self, failure: "HawserError | None") -> None:
        # Spark may report the last completed tables too late.
        for name, flow in self.flows.items():
            flow.rows = self._count(name)
        self.updates += 1

    def look(self) -> None:
        """Count the rows that running tables have committed."""
        for name, flow in self.flows.items():
            if flow.state == "RUNNING":
                flow.note("RUNNING")
                flow.rows = self._count(name)

    def _count(self, table: str) -> int:
        from hawser.spark.pipelines import tables

        return tables.count(self._place.directory, table)


class _Screen(Lines):
    """A watcher that redraws a table."""

    def __init__(self, place: "Place", live: Any) -> None:
        super().__init__(place)
        self._live = live
        self._what = ""

    def say(self, text: str) -> None:
        self._what = text

    def begin(self, tables: list[str]) -> None:
        super().begin(tables)
        self._what = f"update {self.updates + 1}"

    def end(self, failure: "HawserError | None") -> None:
        super().end(failure)
        self._what = "waiting" if failure is None else str(failure)

    def draw(self) -> None:
        self._live.update(self._view(), refresh=True)

    def _view(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("table")
        for title in ("rows", "new", "rows/s"):
            table.add_column(title, justify="right")
        table.add_column("state")
        for name, flow in self.flows.items():
            new = flow.rows - flow.rows_before
            state = Text(flow.state.lower(), style=_STYLES.get(flow.state, "dim"))
            table.add_row(name, count(flow.rows), count(new), count(flow.rate) if new else "", state)
        heading = Text(f"{time.monotonic() - self._began:6.1f} s  {self._what}", style="bold")
        return Group(heading, Text(), table) if self.flows else heading


@contextmanager
def displayed(place: "Place") -> Iterator[Lines]:
    """The watcher of a run, shown during the block."""
    if not sys.stderr.isatty():
        yield Lines(place)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        screen = _Screen(place, live)
        with _drawn(screen):
            yield screen


@contextmanager
def _drawn(screen: _Screen) -> Iterator[None]:
    """Redraw in a thread, because the run waits for Spark most of the time."""
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.wait(_REDRAW_SECONDS):
            screen.look()
            screen.draw()

    thread = threading.Thread(target=draw, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        screen.draw()
