"""Histories written by hand, an operation a line."""

from typing import Any

from tests.history.events import Event, Name, Operation, operations

__all__ = ["Story", "numbered"]


def numbered(values: str, start: int = 1) -> list[tuple[int, str]]:
    """The words of `values` at offsets from `start` on."""
    return list(enumerate(values.split(), start))


class Story:
    """Operations one after the other, unless `at` says from when until when; about one object."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._time = 0

    def publish(self, process: str, values: str, offset: int | None = None, **how: Any) -> "Story":
        return self.tell(process, "publish", {"values": values.split()}, {"offset": offset}, **how)

    def poll(self, process: str, values: str, start: int = 1, **how: Any) -> "Story":
        return self.tell(process, "poll", {}, {"records": numbered(values, start)}, **how)

    def read(self, process: str, offset: int, values: str, end: int | None = None, **how: Any) -> "Story":
        given = {"records": numbered(values, offset), "end": end}
        return self.tell(process, "read", {"offset": offset}, given, **how)

    def final(self, values: str, start: int = 1) -> "Story":
        return self.tell("auditor", "final", {}, {"records": numbered(values, start)})

    def state(self, process: str, end: int, **how: Any) -> "Story":
        return self.tell(process, "state", {}, {"end": end}, **how)

    def seek(self, process: str, offset: int | None) -> "Story":
        return self.tell(process, "seek", {"offset": offset}, {})

    def trim(self, offset: int) -> "Story":
        return self.tell("trimmer", "trim", {"offset": offset}, {})

    def take(self, process: str, values: str, start: int = 1, **how: Any) -> "Story":
        return self.tell(process, "take", {"group": "g"}, {"records": numbered(values, start)}, **how)

    def commit(self, process: str, offset: int, **how: Any) -> "Story":
        return self.tell(process, "commit", {"group": "g", "offset": offset}, {}, **how)

    def position(self, process: str, offset: int, **how: Any) -> "Story":
        return self.tell(process, "position", {"group": "g"}, {"offset": offset}, **how)

    def tell(
        self,
        process: str,
        name: Name,
        asked: dict[str, Any],
        result: dict[str, Any],
        outcome: Any = "ok",
        at: tuple[int, int] | None = None,
    ) -> "Story":
        """Any operation; `outcome` "" leaves it without an end."""
        began, ended = at or (self._time + 1, self._time + 2)
        self._time = max(self._time, ended)
        identity = str(len(self.events))
        self.events.append(
            Event(
                type="invoke", id=identity, process=process, time=began, operation=name, object="log", **asked
            )
        )
        if outcome:
            given = result if outcome == "ok" else {}
            self.events.append(Event(type=outcome, id=identity, process=process, time=ended, **given))
        return self

    def operations(self) -> list[Operation]:
        return operations(sorted(self.events, key=lambda event: event.time))
