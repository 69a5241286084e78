"""Collects the document of an audit from its tables, without Spark."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from hawser.errors import NotFound
from hawser.spark.pipelines import tables
from hawser.spark.pipelines.auditing.comparison import WORD_MASK
from hawser.spark.pipelines.auditing.document import (
    MISMATCHES,
    TIERS,
    UNKNOWN,
    WORDS,
    Document,
    Event,
    Latency,
    Line,
    Loss,
    Minute,
    Problem,
    TierTotal,
    Word,
)
from hawser.spark.pipelines.auditing.evidence import BUCKETS_PER_OCTAVE
from hawser.spark.pipelines.auditing.lines import Run
from hawser.spark.pipelines.auditing.witness import Witness
from hawser.spark.pipelines.stream_progress import Batch

__all__ = ["Asked", "collect", "document_of"]

_MOST_PROBLEMS: Final = 1000
_MOST_EVENTS: Final = 2000
_MOST_LOSSES: Final = 200
_MOST_TOLD: Final = 3
# Ordinary events: if there are too many, these are left out first.
_USUAL: Final = ("joined", "left", "batch")
_PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
_HOPS: Final = {"taken": "taken", "claimed": "claimed", "landed": "landed"}
_PLACE: Final = ("topic", "partition", "region", "tier", "who", "is_queue")

Rows = list[dict[str, Any]]


class Asked(NamedTuple):
    """The scope of the audit, and its time."""

    url: str
    topics: tuple[str, ...]
    trace: str
    landing: str
    late_seconds: float
    is_complete_wanted: bool
    began: float


def collect(directory: Path, asked: Asked, batches: Sequence[Batch]) -> Document:
    """The document of the tables in `directory`. `batches` are those of the landing."""
    found = {name: _read(directory, name) for name in ("verdicts", "events", "latencies")}
    return document_of(directory, asked, batches, **found)


def document_of(
    directory: Path, asked: Asked, batches: Sequence[Batch], verdicts: Rows, events: Rows, latencies: Rows
) -> Document:
    """The document of these rows."""
    lines = _lines(verdicts, asked.topics)
    pending: frozenset[Word] = frozenset({"pending"})
    mismatches = MISMATCHES | pending if asked.is_complete_wanted else MISMATCHES
    problems = sorted(_problems(verdicts, mismatches), key=_importance)
    happened = sorted(
        [*_events(events), *_batches(batches)], key=lambda event: (event.kind in _USUAL, event.at)
    )
    losses = list(_losses(events))
    totals = [_total(tier, [line for line in lines if line.tier == tier]) for tier in TIERS]
    messages = _messages(lines)
    lost = sum(loss.last - loss.first + 1 for loss in losses)
    silence = _silence(asked, {line.tier for line in lines}, lost)
    is_whole = not any(problem.is_mismatch for problem in problems)
    return Document(
        verdict=_sentence(messages, lines, problems, silence),
        is_whole=is_whole,
        is_proven=is_whole and not silence and not any(UNKNOWN & line.words.keys() for line in lines),
        url=asked.url,
        directory=str(directory),
        landing=asked.landing,
        trace=asked.trace,
        written=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(time.time() - asked.began, 1),
        late_seconds=asked.late_seconds,
        messages=messages,
        uncompared=sum(line.words.get("uncompared", 0) for line in lines),
        tiers=[total for total in totals if total.lines],
        lines=lines,
        problems=problems[:_MOST_PROBLEMS],
        problems_left_out=max(0, len(problems) - _MOST_PROBLEMS),
        latencies=list(_latencies(latencies, asked.topics)),
        events=sorted(happened[:_MOST_EVENTS], key=lambda event: event.at),
        events_left_out=max(0, len(happened) - _MOST_EVENTS),
        traced=sum(row["last"] - row["first"] + 1 for row in events if row["what"] == "traced"),
        lost=lost,
        losses=losses[:_MOST_LOSSES],
    )


def _read(directory: Path, table: str) -> Rows:
    try:
        found: Rows = tables.read(directory, table).to_pylist()
    except NotFound:
        return []
    return found


# Lines and problems.


def _place(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: row[name] for name in _PLACE}
    found["partition"] = None if row["partition"] < 0 else row["partition"]
    return found


def _lines(rows: Rows, topics: Iterable[str]) -> list[Line]:
    by_line: defaultdict[tuple[Any, ...], Rows] = defaultdict(list)
    for row in rows:
        by_line[tuple(row[name] for name in _PLACE)].append(row)
    lines = [_line(found) for found in by_line.values()]
    lines.sort(
        key=lambda line: (line.topic, TIERS.index(line.tier), line.partition or 0, line.region, line.who)
    )
    silent = sorted(set(topics) - {line.topic for line in lines})
    return lines + [_line_of_nothing(topic) for topic in silent]


def _line(rows: Rows) -> Line:
    rows = sorted(rows, key=lambda row: int(row["minute"]))
    minutes = [_minute(row) for row in rows]
    return Line(
        **_place(rows[0]),
        first=min((row["first"] for row in rows if row["expected"]), default=0),
        last=max(row["last"] for row in rows),
        expected=sum(minute.expected for minute in minutes),
        found=sum(minute.found for minute in minutes),
        bytes=sum(minute.bytes for minute in minutes),
        hash=_digits(sum(row["hash"] for row in rows)),
        compared=sum(row["compared"] for row in rows),
        words=_summed(minute.words for minute in minutes),
        minutes=minutes,
    )


def _line_of_nothing(topic: str) -> Line:
    return Line(
        topic=topic, partition=None, region="", tier="replicated", who="", is_queue=False, first=0, last=0,
        expected=0, found=0, bytes=0, hash=_digits(0), compared=0, words={}, minutes=[],
    )  # fmt: skip


def _minute(row: Mapping[str, Any]) -> Minute:
    return Minute(
        at=row["minute"],
        expected=row["expected"],
        found=row["found"],
        bytes=row["bytes"],
        hash=_digits(row["hash"]),
        words=_summed({each["word"]: each["last"] - each["first"] + 1} for each in row["findings"]),
    )


def _digits(number: int) -> str:
    return f"{number & WORD_MASK:016x}"


def _summed(several: Iterable[Mapping[Word, int]]) -> dict[Word, int]:
    """The counts, in the order of WORDS."""
    found: defaultdict[Word, int] = defaultdict(int)
    for words in several:
        for word, count in words.items():
            found[word] += count
    return {word: found[word] for word in WORDS if word in found}


def _problems(rows: Rows, mismatches: frozenset[Word]) -> Iterator[Problem]:
    for row in rows:
        place = _place(row)
        del place["is_queue"]
        for each in row["findings"]:
            yield Problem(**place, **each, at=row["minute"], is_mismatch=each["word"] in mismatches)


def _importance(problem: Problem) -> tuple[Any, ...]:
    place = (problem.topic, problem.partition or 0, problem.region, TIERS.index(problem.tier), problem.who)
    return not problem.is_mismatch, WORDS.index(problem.word), *place, problem.first


def _total(tier: Any, lines: Sequence[Line]) -> TierTotal:
    return TierTotal(
        tier=tier,
        lines=len(lines),
        expected=sum(line.expected for line in lines),
        found=sum(line.found for line in lines),
        bytes=sum(line.bytes for line in lines),
        compared=sum(line.compared for line in lines),
        words=_summed(line.words for line in lines),
    )


def _messages(lines: Sequence[Line]) -> int:
    """The number of messages, each once: in the log, or only on a host."""
    recorded = {line.region for line in lines if line.tier == "recorded"}
    return sum(
        line.expected
        for line in lines
        if line.tier == "replicated" or (line.tier == "published" and line.region not in recorded)
    )


def _sentence(messages: int, lines: Sequence[Line], problems: Sequence[Problem], silence: str) -> str:
    """The verdict: complete only if nothing differs and everything could be judged."""
    wrong = _counted(problem for problem in problems if problem.is_mismatch)
    unknown = _counted(problem for problem in problems if problem.word in UNKNOWN)
    if wrong:
        return f"not complete: {wrong}" + (f"; beside that {unknown}" if unknown else "") + silence
    if unknown or silence:
        what = f", but {unknown}" if unknown else ""
        return f"undecided: nothing wrong was found among {messages:,} messages{what}{silence}"
    beside = _summed(line.words for line in lines)
    told = "".join(f", {count:,} {word}" for word, count in beside.items())
    return f"complete: {messages:,} messages, each once in every tier that was looked at{told}"


def _counted(problems: Iterable[Problem]) -> str:
    counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for problem in problems:
        counts[problem.word, problem.tier, problem.topic] += problem.messages
    told = ", ".join(
        f"{count:,} {word} in {tier} of {topic}"
        for (word, tier, topic), count in list(counts.items())[:_MOST_TOLD]
    )
    more = len(counts) - _MOST_TOLD
    return told + (f", and {more:,} more such" if more > 0 else "")


def _silence(asked: Asked, tiers: Collection[str], lost: int) -> str:
    """The lost part of the trace, and the tiers that have no evidence though they should."""
    wanted = [*(["published", "delivered"] if asked.trace else []), *(["landed"] if asked.landing else [])]
    silent = [tier for tier in wanted if tier not in tiers]
    told = f"; {lost:,} records of the trace were lost" if lost else ""
    return told + (f"; nothing is known of {', '.join(silent)}" if silent else "")


# Latencies and events.


def _latencies(rows: Rows, topics: Collection[str]) -> Iterator[Latency]:
    hops: defaultdict[tuple[str, str, str], Rows] = defaultdict(list)
    for row in rows:
        if row["what"] == "landed" and row["topic"] not in topics:
            continue
        hops[row["topic"], row["what"], row["who"]].append(row)
    for (topic, what, who), found in sorted(hops.items()):
        yield Latency(
            topic=topic,
            hop=_HOPS[what],  # type: ignore[arg-type]
            who=who,
            messages=sum(row["messages"] for row in found),
            percentiles=_percentiles(found),
        )


def _percentiles(rows: Rows) -> dict[str, float]:
    """The upper end of the bucket in which each one is."""
    slowest = max(row["slowest_ns"] for row in rows)
    buckets: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        buckets[row["bucket"]] += row["messages"]
    total = sum(buckets.values())
    found, counted, wanted = {}, 0, list(_PERCENTILES)
    for bucket, count in sorted(buckets.items()):
        counted += count
        while wanted and counted >= total * wanted[0] / 100:
            end_ns = min(2.0 ** ((bucket + 1) / BUCKETS_PER_OCTAVE), slowest)
            found[f"{wanted.pop(0):g}"] = round(end_ns / 1e9, 9)
    return {**found, "100": slowest / 1e9}


def _events(rows: Rows) -> Iterator[Event]:
    for row in rows:
        # "sender joined" is one, too.
        kind = row["what"].rpartition(" ")[2]
        if kind in ("traced", "lost"):
            continue
        who = row["who"] or f"participant {row['owner'] & 0xFFFF}"
        text = ""
        if row["what"] == "missed":
            text = f"{row['last'] - row['first'] + 1:,} messages, {row['first']:,} to {row['last']:,}"
        elif row["what"] == "recovered":
            text = f"it had died; process {row['process']} recovered it"
        yield Event(
            at=row["first_us"] / 1e6,
            kind=kind,
            topic=row["topic"],
            who=who,
            process=row["process"],
            text=text,
        )


def _batches(batches: Iterable[Batch]) -> Iterator[Event]:
    for batch in batches:
        text = f"batch {batch.number:,}" + ("" if batch.is_committed else ", not committed")
        yield Event(at=batch.began, kind="batch", topic="", who="landing", process=0, text=text)


def _losses(rows: Rows) -> Iterator[Loss]:
    def runs(what: str) -> list[Run]:
        empty = dict.fromkeys(Run._fields)
        return [Run.of({**empty, **row}) for row in rows if row["what"] == what]

    witness = Witness(runs("traced"), runs("lost"), lambda run: run.carrier)
    for carrier, lost in witness.losses.items():
        for each in lost:
            yield Loss(ring=str(carrier).rpartition("/")[2], first=each.first, last=each.last)
