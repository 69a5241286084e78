"""The exact model of a topic, and what every journal must say about it.

The witness is a reliable subscriber that is never killed: what it took is the sequence of the topic. All
other journals are compared with it, and the publishers' receipts, too.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .journal import Event, Kind


@dataclass
class Life:
    """One run of one worker, as its journal tells it."""

    role: str
    name: str
    run: int
    options: dict[str, Any]
    killed: bool
    events: list[Event]

    @property
    def title(self) -> str:
        return f"{self.name} (run {self.run}{', killed' if self.killed else ''})"

    def of_kind(self, kind: Kind) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


@dataclass
class Verdict:
    """What was found, and how much was looked at."""

    counts: ClassVar = ("messages", "taken", "missed", "receipts", "refused", "resumed")

    violations: list[str] = field(default_factory=list)
    messages: int = 0
    taken: int = 0
    missed: int = 0
    receipts: int = 0
    refused: int = 0
    resumed: int = 0

    def complain(self, text: str) -> None:
        self.violations.append(text)


def judge(topic: str, lives: list[Life], state: dict[str, int], settings: dict[str, int]) -> Verdict:
    """Compare all journals of a topic, and what is left of it at the end, with the witness."""
    verdict = Verdict()
    witness = next(life for life in lives if life.name == "witness")
    sequence = {event.first: event.second for event in witness.of_kind(Kind.TAKEN)}
    head = state["head"]
    verdict.messages = head
    if sorted(sequence) != list(range(1, head + 1)):
        verdict.complain(f"{topic}: the witness took {len(sequence)} of {head} samples")
        return verdict
    publishers = {life.run: life for life in lives if life.role == "publish"}
    judge_publishers(publishers, sequence, verdict)
    followers: dict[str, list[Life]] = defaultdict(list)
    for life in lives:
        if life.role == "subscribe":
            judge_subscriber(life, sequence, head, settings["history"], verdict)
            followers[life.name].append(life)
    for runs in followers.values():
        judge_positions(sorted(runs, key=lambda life: life.run), verdict)
    judge_slots(state, verdict)
    verdict.violations = [f"{topic}: {text}" for text in verdict.violations]
    return verdict


def judge_publishers(publishers: dict[int, Life], sequence: dict[int, int], verdict: Verdict) -> None:
    """Every run's numbers are there once, dense and in order; every receipt names the right offsets."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for offset in sorted(sequence):
        numbers[sequence[offset] >> 32].append(sequence[offset] & 0xFFFFFFFF)
    for run in numbers:
        if run not in publishers:
            verdict.complain(f"messages of run {run}, which never published")
    for run, life in publishers.items():
        there = numbers.get(run, [])
        if there != list(range(1, len(there) + 1)):
            verdict.complain(f"{life.title}: its messages are not dense and in order")
        promised, attempted = judge_receipts(life, sequence, verdict)
        most = attempted if life.killed else promised
        if not promised <= len(there) <= most:
            verdict.complain(f"{life.title}: {len(there)} messages are there, {promised} to {most} expected")


def judge_receipts(life: Life, sequence: Mapping[int, int], verdict: Verdict) -> tuple[int, int]:
    """How many messages certainly went out, and how many at most."""
    promised = attempted = 0
    for event in life.events:
        if event.kind == Kind.PUBLISHING:
            attempted = event.first + event.small - 1
        elif event.kind == Kind.REFUSED:
            verdict.refused += 1
            promised = attempted = event.first + event.second - 1
        elif event.kind == Kind.PUBLISHED:
            verdict.receipts += event.small
            promised = event.first + event.small - 1
            if sequence.get(event.second) != life.run << 32 | event.first:
                verdict.complain(f"{life.title}: receipt for offset {event.second}, where another message is")
    return promised, attempted


def judge_subscriber(life: Life, sequence: dict[int, int], head: int, history: int, verdict: Verdict) -> None:
    """From its start on everything is taken or counted as missed, in order and unchanged."""
    if not life.events:
        return
    start = life.events[0]
    judge_start(life, start, head, history, verdict)
    position, received, missed = start.first - start.small, 0, 0
    for event in life.of_kind(Kind.TAKEN):
        if event.first != position + event.small + 1:
            verdict.complain(
                f"{life.title}: took {event.first} after {position} and says it lost {event.small}"
            )
        if sequence.get(event.first) != event.second:
            verdict.complain(f"{life.title}: sample {event.first} is not what was published")
        position = event.first
        received += 1
        missed += event.small
    verdict.taken += received
    verdict.missed += missed
    judge_misses(life, missed, start.small, verdict)
    for end in life.of_kind(Kind.ENDED):
        published = end.first - start.first + start.small
        if end.second + end.small != published or end.first != head or end.second != received:
            verdict.complain(
                f"{life.title}: received {end.second} + missed {end.small} of {published} up to {end.first}, "
                f"newest is {head}, journal says {received}"
            )
    if not life.killed and not life.of_kind(Kind.ENDED):
        verdict.complain(f"{life.title}: never came to its end")


def judge_misses(life: Life, missed: int, at_start: int, verdict: Verdict) -> None:
    """A reliable one misses nothing while it lives, a durable one never."""
    reliable = life.options.get("reliable")
    if missed > (0 if reliable == "durable" else at_start) and reliable:
        verdict.complain(f"{life.title}: reliable={reliable}, and missed {missed}")


def judge_start(life: Life, start: Event, head: int, history: int, verdict: Verdict) -> None:
    """A new subscription starts `history` before some head it may have seen."""
    if life.options.get("resume") or life.options.get("reliable"):
        return
    lowest = start.second - min(life.options.get("history", 0), start.second, history)
    if not lowest <= start.first <= head:
        verdict.complain(f"{life.title}: started at {start.first}, {lowest} or later expected")


def judge_positions(runs: list[Life], verdict: Verdict) -> None:
    """A kept position is exactly what the run before had released without a gap."""
    options = runs[0].options
    if not (options.get("resume") or options.get("reliable") == "durable"):
        return
    bounds: tuple[int, int] | None = None
    for life in runs:
        if not life.events:
            continue
        start = life.events[0].first - life.events[0].small
        if bounds is not None:
            verdict.resumed += 1
            if not bounds[0] <= start <= bounds[1]:
                verdict.complain(f"{life.title}: resumed at {start}, {bounds[0]} to {bounds[1]} expected")
        bounds = released_up_to(life, reliable=bool(options.get("reliable")))


def released_up_to(life: Life, *, reliable: bool) -> tuple[int, int]:
    """Lowest and highest mark this life may have left behind."""
    taken = [event.first for event in life.of_kind(Kind.TAKEN)]
    surely = {event.first for event in life.of_kind(Kind.RELEASED)}
    perhaps = {event.first for event in life.of_kind(Kind.RELEASING)}
    start = life.events[0].first

    def mark(done: set[int]) -> int:
        """Missed samples before one that was taken count as done with."""
        held = next((offset for offset in taken if offset not in done), None)
        if held is not None:
            return held - 1
        return taken[-1] if taken else start

    highest = mark(perhaps)
    all_released = not any(offset not in perhaps for offset in taken)
    # A plain subscriber killed after a take it could not write down may have skipped any number.
    return mark(surely), highest if reliable or not all_released else 1 << 48


def judge_slots(state: dict[str, int], verdict: Verdict) -> None:
    """Nothing is lent, read or leaked any more: all slots are free but those the ring carries."""
    carried = min(state["head"], state["ring"])
    expected = {
        "slots_leaked": 0,
        "slots_lent": 0,
        "slots_referenced": 0,
        "slots_carried": carried,
        "slots_free": state["slots"] - carried,
        "participants": 0,
    }
    for name, value in expected.items():
        if state[name] != value:
            verdict.complain(f"at the end {name} is {state[name]}, {value} expected")
