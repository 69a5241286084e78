"""What the directory of an audit has evidence of: it may grow, and never changes.

A stream that reads another table goes on as if it was the same, and evidence knows a topic by its name:
either would count messages twice. So what was read once is read on, whether it is asked for or not; another
trace or landing needs another directory, and a topic that was created anew needs evidence made anew.
"""

from collections.abc import Collection
from pathlib import Path

import msgspec

from hawser.errors import Corrupt, UsageError
from hawser.spark.pipelines.paper import put

__all__ = ["Scope", "widened"]


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`trace` and `landing` are empty as long as there is none. `uuids` are those of the topics by their
    names, also of topics that only the landing has."""

    topics: list[str]
    trace: str
    landing: str
    uuids: dict[str, str] = {}


def widened(directory: Path, asked: Scope, made_anew: Collection[str] = ()) -> Scope:
    """What there is evidence of, and what is asked for; written down before anything is read. UsageError if
    the two contradict each other, unless the tables of evidence that do are `made_anew`."""
    path = directory / "scope.json"
    known = _read(path) if path.exists() else Scope([], "", "")
    for name, before, now in (("trace", known.trace, asked.trace), ("landing", known.landing, asked.landing)):
        if before and now and before != now:
            raise UsageError(
                f"{directory} has evidence of the {name} {before}, not of {now}: give that, or another --dir"
            )
    topics = list(dict.fromkeys([*known.topics, *asked.topics]))
    trace, landing = known.trace or asked.trace, known.landing or asked.landing
    changed = [
        name
        for name in [*asked.topics, *([trace] if trace else [])]
        if known.uuids.get(name, asked.uuids.get(name)) != asked.uuids.get(name)
    ]
    evidence = ["log_runs", *(["trace_runs"] if trace else []), *(["landed_runs"] if landing else [])]
    is_made_anew = set(evidence) <= set(made_anew)
    if changed and not is_made_anew:
        cure = " ".join(f"--full-refresh {each}" for each in evidence)
        raise UsageError(
            f"{directory} has evidence of topic {changed[0]!r}, which was deleted and created anew since. "
            f"Make the evidence anew with {cure}, or give another --dir"
        )
    first, second = (known.uuids, asked.uuids) if is_made_anew else (asked.uuids, known.uuids)
    scope = Scope(topics, trace, landing, {**first, **second})
    directory.mkdir(parents=True, exist_ok=True)
    put(path, msgspec.json.encode(scope))
    return scope


def _read(path: Path) -> Scope:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scope)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} is damaged ({error}); take another directory") from error
