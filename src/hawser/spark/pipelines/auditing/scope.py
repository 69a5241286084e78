"""What the directory of an audit has evidence of: it may grow, and never changes.

A stream that leaves a topic out forgets where it was in it, and one that reads another table goes on as if it
was the same. Either would count messages twice. So what was read once is read on, whether it is asked for or
not, and who asks for another trace or landing needs another directory.
"""

from pathlib import Path

import msgspec

from hawser.errors import Corrupt, UsageError
from hawser.spark.pipelines.paper import put

__all__ = ["Scope", "widened"]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`trace` and `landing` are empty as long as there is none."""

    topics: list[str]
    trace: str
    landing: str


def widened(directory: Path, asked: Scope) -> Scope:
    """What there is evidence of, and what is asked for; written down before anything is read. UsageError if
    the two contradict each other."""
    path = directory / "scope.json"
    known = _read(path) if path.exists() else Scope([], "", "")
    for name, before, now in (("trace", known.trace, asked.trace), ("landing", known.landing, asked.landing)):
        if before and now and before != now:
            raise UsageError(
                f"{directory} has evidence of the {name} {before}, not of {now}: give that, or another --dir"
            )
    topics = list(dict.fromkeys([*known.topics, *asked.topics]))
    scope = Scope(topics, known.trace or asked.trace, known.landing or asked.landing)
    directory.mkdir(parents=True, exist_ok=True)
    put(path, msgspec.json.encode(scope))
    return scope


def _read(path: Path) -> Scope:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scope)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} is damaged ({error}); take another directory") from error
