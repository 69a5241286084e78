"""The report's section of each topic: its minutes, its problems with exact ranges, its latencies and every
compared line. Long lists are folded; very long ones are cut, with the number of the rest."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

from hawser.spark.pipelines.auditing.document import TIERS, Document, Event, Latency, Line, Problem, Word
from hawser.spark.pipelines.auditing.report.timeline import picture
from hawser.spark.pipelines.auditing.report.words import chip, chips
from hawser.spark.pipelines.ranges import Range
from hawser.spark.pipelines.report.elements import Markup, clock, ranges_text, table
from hawser.spark.pipelines.report.plots import Spread, size, spreads

__all__ = ["fold", "in_html", "topics_of"]

_MOST_TOPICS: Final = 20
_MOST_PROBLEMS: Final = 20
_MOST_RANGES: Final = 4
_MOST_LATENCIES: Final = 8
_MOST_LINES: Final = 12
_MOST_FOLDED_LINES: Final = 200
_LONGEST_NAME: Final = 30
_RANGE_TITLES: Final = ("What", "#Messages", "Exactly", "Tier", "Of", "Minute, UTC", "What is known")
_BY_SEQUENCE: Final = frozenset({"published", "delivered", "recorded"})


class Topic(NamedTuple):
    """Everything in the document about one topic or queue."""

    name: str
    lines: list[Line]
    problems: list[Problem]
    latencies: list[Latency]
    events: list[Event]

    @property
    def words(self) -> Counter[Word]:
        words: Counter[Word] = Counter()
        for line in self.lines:
            words.update(line.words)
        return words


def topics_of(document: Document) -> list[Topic]:
    """The topics, by name."""
    found = {each.topic: Topic(each.topic, [], [], [], []) for each in document.lines}
    for line in document.lines:
        found[line.topic].lines.append(line)
    for problem in document.problems:
        found.setdefault(problem.topic, Topic(problem.topic, [], [], [], [])).problems.append(problem)
    for latency in document.latencies:
        found.setdefault(latency.topic, Topic(latency.topic, [], [], [], [])).latencies.append(latency)
    for event in document.events:
        if event.topic in found:
            found[event.topic].events.append(event)
    return [found[name] for name in sorted(found)]


def in_html(topics: Sequence[Topic], mismatches: Collection[Word]) -> Iterator[str]:
    """A section for each; of very many, for those with mismatches and for as many others as there is room."""
    shown, others = list(topics), []
    if len(topics) > _MOST_TOPICS:
        ordered = sorted(topics, key=lambda each: _gravity(each, mismatches))
        shown, others = ordered[:_MOST_TOPICS], ordered[_MOST_TOPICS:]
    for topic in shown:
        yield from _section(topic, mismatches)
    if others:
        lines = [[each.name, _verdict(each, mismatches)] for each in others]
        yield f"<h2>{len(others):,} more topics</h2>" + table(["Topic", "Verdict"], lines)
        ranges = [[each.topic, *_problem(each, mismatches)] for topic in others for each in topic.problems]
        if ranges:
            yield fold(f"All {len(ranges):,} ranges, one by one", table(["Topic", *_RANGE_TITLES], ranges))


def _gravity(topic: Topic, mismatches: Collection[Word]) -> tuple[int, int, str]:
    words = topic.words
    return -sum(words[word] for word in mismatches), -sum(words.values()), topic.name


def _section(topic: Topic, mismatches: Collection[Word]) -> Iterator[str]:
    kind = "Queue" if any(line.is_queue for line in topic.lines) else "Topic"
    yield f"<h2>{kind} {escape(topic.name)}</h2><p>{_verdict(topic, mismatches)}</p>"
    yield picture(topic.lines, topic.events, mismatches, f"{topic.name} by minute")
    yield from _problems(topic.problems, mismatches)
    yield from _latencies(topic.latencies)
    yield from _lines(topic.lines, mismatches)


def _verdict(topic: Topic, mismatches: Collection[Word]) -> Markup:
    if not any(line.expected or line.found for line in topic.lines):
        return Markup('<span class="soft">no messages</span>')
    return chips(topic.words, mismatches)


def _problems(problems: Sequence[Problem], mismatches: Collection[Word]) -> Iterator[str]:
    if not problems:
        return
    ranges = table(_RANGE_TITLES, [_problem(each, mismatches) for each in problems])
    yield "<h3>What differs</h3>"
    if len(problems) <= _MOST_PROBLEMS:
        yield ranges
        return
    titles = ["What", "#Messages", "#Ranges", "Exactly", "Tier", "Of"]
    groups = [_group(each, mismatches) for each in _grouped(problems)]
    yield table(titles, groups[:_MOST_PROBLEMS])
    if len(groups) > _MOST_PROBLEMS:
        rest = groups[_MOST_PROBLEMS:]
        yield fold(f"{len(rest):,} more places", table(titles, rest))
    yield fold(f"All {len(problems):,} ranges, one by one", ranges)


def _grouped(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Those of one word and one line together, in the order of the first of each."""
    found: dict[tuple[object, ...], list[Problem]] = {}
    for each in problems:
        key = (each.word, each.is_mismatch, each.tier, each.partition, each.region, each.who)
        found.setdefault(key, []).append(each)
    return list(found.values())


def _group(problems: Sequence[Problem], mismatches: Collection[Word]) -> list[str]:
    first = problems[0]
    told = ranges_text([Range(each.first, each.last) for each in problems], _MOST_RANGES)
    return [
        chip(first.word, mismatches if first.is_mismatch else ()),
        f"{sum(each.messages for each in problems):,}",
        f"{len(problems):,}",
        f"{_number(first)} {told}",
        first.tier,
        _place(first.partition, first.region, first.who),
    ]


def _problem(problem: Problem, mismatches: Collection[Word]) -> list[str]:
    return [
        chip(problem.word, mismatches if problem.is_mismatch else ()),
        f"{problem.messages:,}",
        _together(f"{_number(problem)} {ranges_text([Range(problem.first, problem.last)])}"),
        problem.tier,
        _place(problem.partition, problem.region, problem.who),
        _together(clock(problem.at) if problem.at else ""),
        problem.reason,
    ]


def _number(problem: Problem) -> str:
    """The label of the numbers of a line."""
    return "sequence" if problem.tier in _BY_SEQUENCE else "offset"


def _together(text: str) -> Markup:
    """On one line, however narrow the page."""
    return Markup(f'<span class="together">{escape(text)}</span>')


def _place(partition: int | None, region: str, who: str) -> Markup:
    """Partition or region, and whose."""
    parts = [] if partition is None else [f"partition {partition:,}"]
    if region:
        parts.append(f"<code>{escape(region)}</code>")
    if who:
        parts.append(escape(who))
    return Markup(", ".join(parts))


def _latencies(latencies: Sequence[Latency]) -> Iterator[str]:
    """The slowest first."""
    if not latencies:
        return
    ordered = sorted(latencies, key=lambda each: -each.percentiles.get("99", 0.0))
    yield "<h3>How long messages took, from their own time</h3>"
    yield _spreads(ordered[:_MOST_LATENCIES])
    if len(ordered) > _MOST_LATENCIES:
        rest = ordered[_MOST_LATENCIES:]
        yield fold(f"{len(rest):,} more, all of them faster", _spreads(rest))


def _spreads(latencies: Sequence[Latency]) -> str:
    shown = []
    for each in latencies:
        who = f" by {_shortened(each.who)}" if each.who else ""
        shown.append(Spread(f"{each.hop}{who}, {each.messages:,} messages", each.percentiles))
    return f'<div class="scroll wide">{spreads(shown, "latencies, on a logarithmic scale")}</div>'


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _lines(lines: Sequence[Line], mismatches: Collection[Word]) -> Iterator[str]:
    """The HTML of the compared lines, in the order of the tiers; of many, those with problems stand first,
    and the rest is folded or only counted."""
    titles = ["Tier", "Of", "#First", "#Last", "#Expected", "#Found", "#Size", "Verdict", "Hash"]
    is_many = len(lines) > _MOST_LINES
    ordered = sorted(
        lines, key=lambda each: (is_many and not each.words, TIERS.index(each.tier), each.partition or 0)
    )
    shown, folded = ordered[:_MOST_LINES], ordered[_MOST_LINES : _MOST_LINES + _MOST_FOLDED_LINES]
    left_out = len(ordered) - len(shown) - len(folded)
    yield "<h3>What was compared</h3>"
    yield table(titles, [_line(each, mismatches) for each in shown])
    if folded:
        more = f'<p class="soft">{left_out:,} more are in audit.json.</p>' if left_out else ""
        told = table(titles, [_line(each, mismatches) for each in folded]) + more
        yield fold(f"{len(folded) + left_out:,} more lines: {_tally(ordered[_MOST_LINES:])}", told)


def _line(line: Line, mismatches: Collection[Word]) -> list[str]:
    numbers = [f"{value:,}" for value in (line.first, line.last, line.expected, line.found)]
    return [
        line.tier,
        _place(line.partition, line.region, line.who),
        *numbers,
        size(line.bytes) if line.bytes else "",
        chips(line.words, mismatches),
        Markup(f"<code>{escape(line.hash)}</code>") if line.hash.strip("0") else "not known",
    ]


def _tally(lines: Iterable[Line]) -> str:
    whole = Counter("with problems" if line.words else "complete" for line in lines)
    return ", ".join(f"{count:,} {what}" for what, count in sorted(whole.items()))


def fold(title: str, content: str) -> str:
    """A folded part of the page."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
