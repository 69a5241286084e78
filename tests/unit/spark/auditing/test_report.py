"""The page of an audit: it says exactly what the document says, to whoever reads it, however much it is."""

import itertools
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hawser.spark.pipelines.auditing.document import (
    TIERS,
    UNKNOWN,
    Document,
    Event,
    Latency,
    Line,
    Loss,
    Minute,
    Problem,
    Tier,
    TierTotal,
    Word,
)
from hawser.spark.pipelines.auditing.report.page import page_of
from hawser.spark.pipelines.report.plots import Spread, duration, spreads

BEGAN = 1_763_240_400
REGION = "5f2c9a01b7e3d468"
EVIL = """<script>alert("1")</script> & 'two' </title></style>"""
VOID = {"meta"}
CHROMIUM = shutil.which("chromium")


class Page(HTMLParser):
    """A page as a browser finds it: every element closed where it was opened, and what is in it."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: Counter[str] = Counter()
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == [], "elements that nobody closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self._open:
            self.rows[-1][-1] += data
        self.texts[f"{self._open[-1] if self._open else ''}: {data}"] += 1

    def text_of(self, tag: str) -> list[str]:
        return [text.removeprefix(f"{tag}: ") for text in self.texts if text.startswith(f"{tag}: ")]

    def of_class(self, *names: str) -> list[dict[str, str | None]]:
        found = [each for _, each in self.elements]
        return [each for each in found if set(names) <= set((each.get("class") or "").split())]


def line(topic: str, tier: Tier, minutes: int, a_minute: int, **changes: Any) -> Line:
    """A whole one, which has as many messages each minute."""
    numbers = 1 if tier in {"published", "delivered", "recorded"} else 0
    total = minutes * a_minute
    made = [
        Minute(at=BEGAN + 60 * each, expected=a_minute, found=a_minute, bytes=a_minute * 120, hash="0" * 16)
        for each in range(minutes)
    ]
    values: dict[str, Any] = {
        "topic": topic,
        "partition": None if numbers else 0,
        "region": REGION if numbers else "",
        "tier": tier,
        "who": {"delivered": "planner", "recorded": "recorder:host-1"}.get(tier, ""),
        "is_queue": False,
        "first": numbers,
        "last": total - 1 + numbers,
        "expected": total,
        "found": total,
        "bytes": 0 if tier == "in Spark" else total * 120,
        "hash": "9ae16a3b2f90404f",
        "compared": 0 if tier == "published" else total,
        "words": {},
        "minutes": made,
    }
    return Line(**{**values, **changes})


def problem(topic: str, tier: Tier, word: Word, first: int, last: int, **changes: Any) -> Problem:
    numbers = tier in {"published", "delivered", "recorded"}
    values: dict[str, Any] = {
        "topic": topic,
        "partition": None if numbers else 0,
        "region": REGION if numbers else "",
        "tier": tier,
        "who": "",
        "word": word,
        "first": first,
        "last": last,
        "at": BEGAN + 60,
        "is_mismatch": word in {"missing", "duplicate", "reordered", "damaged"},
        "reason": "",
    }
    return Problem(**{**values, **changes})


def told(lines: Iterable[Line], problems: Sequence[Problem]) -> list[Line]:
    """The lines, with the words of the problems in their totals and minutes."""
    found = []
    for each in lines:
        key = (each.topic, each.tier, each.partition)
        mine = [one for one in problems if (one.topic, one.tier, one.partition) == key]
        words: Counter[Word] = Counter()
        minutes = {one.at: one for one in each.minutes}
        for one in mine:
            words[one.word] += one.messages
            minute = minutes[one.at]
            count = minute.words.get(one.word, 0) + one.messages
            minutes[one.at] = Minute(
                at=minute.at, expected=minute.expected, found=minute.found - (one.word == "missing"),
                bytes=minute.bytes, hash=minute.hash, words={**minute.words, one.word: count},
            )  # fmt: skip
        values = {name: getattr(each, name) for name in each.__struct_fields__}
        values |= {"words": dict(words), "minutes": [minutes[at] for at in sorted(minutes)]}
        found.append(Line(**{**values, "found": each.found - words["missing"]}))
    return found


def totals(lines: Sequence[Line]) -> list[TierTotal]:
    found = []
    for tier in TIERS:
        mine = [each for each in lines if each.tier == tier]
        words: Counter[Word] = Counter()
        for each in mine:
            words.update(each.words)
        found.append(
            TierTotal(
                tier=tier,
                lines=len(mine),
                expected=sum(each.expected for each in mine),
                found=sum(each.found for each in mine),
                bytes=sum(each.bytes for each in mine),
                compared=sum(each.compared for each in mine),
                words=dict(words),
            )
        )
    return found


def document(lines: Sequence[Line], problems: Sequence[Problem] = (), **changes: Any) -> Document:
    """Of these lines, with the words of these problems added to them."""
    marked = told(lines, problems)
    values: dict[str, Any] = {
        "verdict": "every message once, in every tier that was seen",
        "is_whole": not any(each.is_mismatch for each in problems),
        "is_proven": not changes.get("lost")
        and not any(each.is_mismatch or each.word in UNKNOWN for each in problems),
        "uncompared": sum(each.messages for each in problems if each.word == "uncompared"),
        "url": "hawser://127.0.0.1:7400",
        "directory": "audit",
        "landing": "landed",
        "trace": "trace",
        "written": "2026-11-15T22:00:00+00:00",
        "seconds": 31.2,
        "late_seconds": 60.0,
        "messages": max((each.expected for each in totals(marked)), default=0),
        "tiers": totals(marked),
        "lines": marked,
        "problems": list(problems),
        "problems_left_out": 0,
        "latencies": [],
        "events": [],
        "events_left_out": 0,
        "traced": 2_400_000,
        "lost": 0,
        "losses": [],
    }
    return Document(**{**values, **changes})


def whole(topic: str = "camera/front", minutes: int = 6, a_minute: int = 20_000) -> list[Line]:
    """A topic of one host, recorded and landed."""
    return [line(topic, tier, minutes, a_minute) for tier in TIERS]


def latencies(topic: str, subscribers: int = 2) -> list[Latency]:
    spread = {"50": 8e-6, "90": 21e-6, "99": 95e-6, "99.9": 8e-4, "100": 0.0123}
    taken = [
        Latency(
            topic=topic,
            hop="taken",
            who=f"planner-{each}",
            messages=120_000,
            percentiles={name: value * (1 + each / 2) for name, value in spread.items()},
        )
        for each in range(subscribers)
    ]
    landed = {"50": 1.4, "90": 2.9, "99": 7.7, "99.9": 9.1, "100": 14.05}
    return [*taken, Latency(topic=topic, hop="landed", who="", messages=120_000, percentiles=landed)]


def event(
    kind: Any, seconds: float, topic: str = "camera/front", who: str = "planner", text: str = ""
) -> Event:
    return Event(at=BEGAN + seconds, kind=kind, topic=topic, who=who, process=4711, text=text)


def few_problems() -> Document:
    """One of each word, with crashes, losses and two topics."""
    problems = [
        problem("camera/front", "landed", "missing", 20_417, 20_417),
        problem("camera/front", "landed", "duplicate", 20_991, 20_993),
        problem("camera/front", "replicated", "damaged", 31_000, 31_000, reason="its time differs by 1 s"),
        problem("camera/front", "delivered", "reordered", 20_500, 20_500, who="planner"),
        problem("camera/front", "delivered", "missed", 40_001, 40_264, who="planner", at=BEGAN + 120),
        problem("camera/front", "landed", "late", 60_000, 60_411, at=BEGAN + 180),
        problem("camera/front", "landed", "pending", 119_000, 119_999, at=BEGAN + 300),
        problem("camera/front", "published", "unwitnessed", 77_001, 77_120, at=BEGAN + 180),
        problem("camera/front", "delivered", "uncompared", 77_001, 77_120, at=BEGAN + 180, who="planner"),
    ]
    events = [
        *[
            event("joined", 1.5),
            event("joined", 2.0, who="recorder"),
            event("joined", 131),
            event("left", 340),
        ],
        *[event("recovered", 130.25, text="by tracker"), event("missed", 132, text="264 samples")],
        *[event("batch", 30 + 20 * each, who="", text=f"batch {each} of landing") for each in range(15)],
    ]
    return document(
        [*whole(), *(line("orders", tier, 6, 900) for tier in ("replicated", "in Spark", "landed"))],
        problems,
        verdict="4 mismatches: 1 message missing and 3 double in landed, 1 damaged, 1 reordered",
        latencies=[*latencies("camera/front"), *latencies("orders", 0)],
        events=events,
        lost=120,
        losses=[Loss(ring="a90d33c1f0e27b55", first=154_002, last=154_121)],
    )


def very_much(minutes: int = 3_000, partitions: int = 300) -> Document:
    """Two days of minutes, hundreds of partitions, a thousand ranges, thousands of events."""
    lines = [line("clicks", "replicated", minutes, 1_000, partition=0)]
    lines += [
        line("clicks", tier, 20, 1_000, partition=each)
        for each in range(1, partitions)
        for tier in ("replicated", "in Spark", "landed")
    ]
    problems = [
        problem(
            "clicks",
            "landed",
            "missing",
            7 * each,
            7 * each + 1,
            partition=each % 90 + 1,
            at=BEGAN + each % 20 * 60,
        )
        for each in range(1_000)
    ]
    return document(
        lines,
        problems,
        verdict="2,000 messages are missing in landed, and more",
        problems_left_out=41_200,
        latencies=latencies("clicks", 60),
        events=[event("recovered", each * 60.0, "clicks", f"worker-{each}") for each in range(2_000)],
        events_left_out=512,
    )


def parsed(shown: Document) -> Page:
    return Page(page_of(shown))


def exactly(each: Problem) -> list[str]:
    """The row of a problem, up to its line."""
    number = "sequence" if each.tier in {"published", "delivered", "recorded"} else "offset"
    ends = f"{each.first:,}" if each.first == each.last else f"{each.first:,} to {each.last:,}"
    letter = (
        "?"
        if each.word == "unwitnessed"
        else {"damaged": "X", "missed": "S"}.get(each.word, each.word[0].upper())
    )
    return [f"{letter}{each.word}", f"{each.messages:,}", f"{number} {ends}", each.tier]


@pytest.mark.parametrize("shown", [document(whole()), few_problems(), very_much(), document([])])
def test_the_page_needs_nothing_but_itself(shown: Document) -> None:
    markup = page_of(shown)
    page = Page(markup)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    assert {name for _, each in page.elements for name in each}.isdisjoint(
        {"src", "href", "style", "onclick"}
    )
    assert not re.search(r"@import|url\(", markup)
    assert len(markup) < 2_000_000


def test_the_verdict_comes_first() -> None:
    for shown, mood, word in (
        (document(whole()), "good", "complete"),
        (document(whole(), lost=3), "unsure", "undecided"),
        (
            document(whole(), [problem("camera/front", "landed", "uncompared", 9, 9)]),
            "unsure",
            "undecided",
        ),
        (
            document(whole(), [problem("camera/front", "landed", "pending", 9, 9)]),
            "unsure",
            "complete, as far as seen",
        ),
        (document(whole(), [problem("camera/front", "landed", "late", 9, 9)]), "good", "complete"),
        (few_problems(), "bad", "mismatch"),
        (document([]), "unsure", "nothing seen"),
    ):
        page = parsed(shown)
        body = [each for each in page.elements if each[0] in {"p", "h1", "h2"}]
        assert body[0] == ("p", {"class": f"badge {mood}"}) and body[1] == ("h1", {"class": mood})
        assert page.texts[f"p: {word}"] == 1
        assert page.texts[f"h1: {shown.verdict[0].upper()}{shown.verdict[1:]}"] == 1
        assert page.text_of("title")[0] == f"Audit: {shown.verdict}"


@pytest.mark.parametrize("shown", [few_problems(), very_much()])
def test_every_range_is_told_exactly(shown: Document) -> None:
    told = Counter(tuple(row[:4]) for row in parsed(shown).rows if len(row) == 7)
    assert told == Counter(tuple(exactly(each)) for each in shown.problems)


def test_many_ranges_are_grouped_and_none_is_kept_quiet() -> None:
    shown = very_much()
    page = parsed(shown)
    groups = [row for row in page.rows if len(row) == 6 and row[4] == "landed"]
    assert len(groups) == 90 and sum(int(row[2]) for row in groups) == len(shown.problems)
    told = "offset 0 to 1, 630 to 631, 1,260 to 1,261, 1,890 to 1,891 and 8 more ranges"
    assert groups[0] == ["Mmissing", "24", "12", told, "landed", "partition 1"]
    everything = " ".join(page.texts)
    for left_out in ("41,200 more are not", "512 more are not told", "more are in audit.json"):
        assert left_out in everything


def test_of_very_many_topics_each_is_told_of() -> None:
    names = [f"topic-{number}" for number in range(60)]
    problems = [problem(name, "landed", "missing", 7, 7) for name in names[30:]]
    page = parsed(document([each for name in names for each in whole(name, 3, 10)], problems))
    sections = [text for text in page.text_of("h2") if text.startswith("Topic ")]
    assert len(sections) == 20 and all(int(text.split("-")[1]) >= 30 for text in sections)
    assert {row[0] for row in page.rows if len(row) == 2} >= set(names) - {text[6:] for text in sections}
    assert sum(row[-5:-3] == ["offset 7", "landed"] for row in page.rows) == len(problems)


def test_the_path_says_why_neighbours_have_different_numbers() -> None:
    straight = [line("orders", tier, 6, 900) for tier in ("replicated", "in Spark", "landed")]
    page = parsed(document([*whole(), *straight, line("jobs", "published", 1, 20, is_queue=True)]))
    assert page.texts["small: 5,400 begin here"] == page.texts["small: 20 go no further"] == 1
    assert not any("begin" in text or "further" in text for text in parsed(document(whole())).texts)


def test_a_cell_shows_the_worst_of_its_minute_by_colour_letter_and_words() -> None:
    page = parsed(few_problems())
    assert "landed, 2025-11-15 21:01 UTC: 19,999 of 20,000, 1 missing, 3 duplicate" in page.text_of("title")
    # All topics together, and the one.
    assert len(page.of_class("cell", "bad")) == 2 * 3
    assert len(page.of_class("cell", "unsure")) == 2 * 2
    assert len(page.of_class("cell", "open")) == 2 * 3
    assert [page.texts[f"text: {letter}"] for letter in "MDRXSLP?"] == [2, 0, 2, 2, 2, 2, 2, 2]


def test_thousands_of_minutes_share_columns_and_the_worst_still_shows() -> None:
    minutes = 5_000
    late = BEGAN + 60 * 4_321
    page = parsed(
        document(
            [line("slow", tier, minutes, 10) for tier in ("replicated", "landed")],
            [problem("slow", "landed", "missing", 43_210, 43_210, at=late)],
        )
    )
    assert len(page.of_class("cell")) <= 2 * 80
    assert len(page.of_class("cell", "bad")) == 1
    (told,) = [
        title for title in page.text_of("title") if "1 missing" in title and title.startswith("landed")
    ]
    assert told == "landed, 2025-11-18 20:24 to 2025-11-18 21:26 UTC: 629 of 630, 1 missing"


def test_a_topic_without_messages_is_not_called_complete() -> None:
    nothing = line("idle", "replicated", 0, 0)
    page = parsed(document([*whole(), nothing]))
    assert page.texts["span: no messages"] == 1 and page.texts["h2: Topic idle"] == 1


def test_what_is_pending_is_a_mismatch_if_the_audit_says_so() -> None:
    asked = problem("camera/front", "landed", "pending", 9, 12, is_mismatch=True)
    page = parsed(document(whole(), [asked]))
    assert len(page.of_class("cell", "bad")) == 1
    assert ["Ppending", "the tier before has it, and this one is not so far yet", "a mismatch"] in page.rows


def test_names_are_text_wherever_they_stand() -> None:
    evil = {"topic": EVIL, "who": EVIL, "region": EVIL}
    shown = document(
        [line(EVIL, tier, 2, 10, who=EVIL, region=EVIL) for tier in TIERS],
        [problem(EVIL, "delivered", "missing", 3, 4, who=EVIL, region=EVIL, reason=EVIL)],
        verdict=EVIL,
        url=EVIL,
        directory=EVIL,
        landing=EVIL,
        trace=EVIL,
        written=EVIL,
        latencies=[
            Latency(topic=EVIL, hop="taken", who=EVIL, messages=1, percentiles={"50": 1e-6, "100": 1.0})
        ],
        events=[event("recovered", 61, EVIL, EVIL, EVIL)],
        lost=1,
        losses=[Loss(ring=EVIL, first=1, last=1)],
    )
    page = parsed(shown)
    assert "script" not in {tag for tag, _ in page.elements}
    assert len([tag for tag, _ in page.elements if tag == "style"]) == 1
    assert sum(text.count(EVIL[:27]) for text in page.texts) >= len(evil) + 8


def test_a_logarithmic_scale_gives_every_decade_the_same_room() -> None:
    drawn = Page(spreads([Spread("taken", {"50": 1e-3, "90": 1e-2, "99": 1e-1, "100": 1.0})], "plot"))
    places = [float(each["cx"] or 0) for tag, each in drawn.elements if tag == "circle"]
    places += [float(each["x"] or 0) + 1.5 for tag, each in drawn.elements if tag == "rect"]
    steps = [after - before for before, after in itertools.pairwise(places)]
    assert len(steps) == 3 and max(steps) - min(steps) < 0.2 and min(steps) > 200


def test_durations_have_the_unit_that_fits() -> None:
    told = [duration(seconds) for seconds in (0, 4e-9, 8.2e-6, 0.0123, 0.99999, 59.0, 61.0, 7200.0, -0.5)]
    assert told == ["0 ns", "4 ns", "8.2 µs", "12.3 ms", "1 s", "59 s", "1.02 min", "2 h", "-500 ms"]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: no page was laid out")
def test_the_page_is_no_wider_than_a_phone_or_a_screen(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    frames = ""
    for name, shown in (("few", few_problems()), ("much", very_much())):
        (tmp_path / f"{name}.html").write_text(page_of(shown), encoding="utf-8")
        frames += "".join(
            f'<iframe src="{name}.html" width="{width}" onload="measure(this)"></iframe>'
            for width in (360, 700, 1100)
        )
    # Before the frames: one that is there sooner would not be measured.
    script = "function measure(frame) { const page = frame.contentDocument.documentElement;"
    script += "frame.after(`${page.clientWidth} has ${page.scrollWidth}.`); }"
    (tmp_path / "frames.html").write_text(f"<script>{script}</script>{frames}", encoding="utf-8")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
        (tmp_path / "frames.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    measured = [(int(width), int(needed)) for width, needed in re.findall(r"(\d+) has (\d+)\.", done.stdout)]
    assert len(measured) == 6, done.stdout[-500:]
    assert [needed for _, needed in measured] == [width for width, _ in measured]
