"""What every journal of a storm over a queue must say: each message is done once, by one consumer.

A message is known by who put it and its number. Whoever was killed in the middle of an accept may have
accepted it or not; otherwise each is accepted once, in the queue or among its dead letters, and nothing is
accepted or delivered that nobody put. In the end nothing waits, nobody holds anything, and no slot is lost.
"""

from collections import ChainMap, Counter, defaultdict
from dataclasses import dataclass, field
from typing import ClassVar

from .journal import Kind
from .judge import Life, Verdict, judge_receipts
from .queue_workers import Outcome, is_poison


@dataclass
class QueueVerdict:
    """What was found, and how much was looked at."""

    counts: ClassVar = ("messages", "deliveries", "redelivered", "accepted", "fenced", "letters", "unsure")

    violations: list[str] = field(default_factory=list)
    messages: int = 0
    deliveries: int = 0
    redelivered: int = 0
    accepted: int = 0
    fenced: int = 0
    letters: int = 0
    unsure: int = 0

    def complain(self, text: str) -> None:
        self.violations.append(text)


@dataclass
class Fate:
    """What became of a message, on one side: in the queue, or among the dead letters."""

    offsets: set[int] = field(default_factory=set)
    deliveries: Counter[int] = field(default_factory=Counter)
    accepted: int = 0
    rejected: int = 0
    unsure: int = 0


Fates = dict[int, Fate]


def judge_queue(
    name: str, lives: list[Life], left: dict[str, dict[str, int]], max_deliveries: int | None, has_lease: bool
) -> QueueVerdict:
    """Compare all journals of a queue and of its dead letters, and what is left of both at the end, which is
    nothing."""
    verdict = QueueVerdict()
    queue = read_fates([life for life in lives if life.role not in ("put", "undertake")], verdict)
    letters = read_fates([life for life in lives if life.role == "undertake"], verdict)
    judge_producers([life for life in lives if life.role == "put"], queue, letters, verdict)
    for message in queue.keys() | letters.keys():
        judge_message(message, queue.get(message, Fate()), letters.get(message, Fate()), verdict)
        if not has_lease:
            judge_counts(message, queue.get(message, Fate()), max_deliveries, verdict)
        if is_poison(message) and max_deliveries and message not in letters:
            verdict.complain(f"{title(message)} is poison, and not among the dead letters")
    for side, numbers in left.items():
        for what, number in numbers.items():
            if number:
                verdict.complain(f"at the end {what} of {side} is {number}")
    verdict.messages = len(queue.keys() | letters.keys())
    verdict.letters = len(letters)
    verdict.violations = [f"{name}: {text}" for text in verdict.violations]
    return verdict


def title(message: int) -> str:
    return f"message {message & 0xFFFFFFFF} of run {message >> 32}"


def read_fates(lives: list[Life], verdict: QueueVerdict) -> Fates:
    fates: Fates = defaultdict(Fate)
    for life in lives:
        settling: set[tuple[int, int, int]] = set()
        for event in life.events:
            fate = fates[event.second]
            if event.kind == Kind.GOT:
                verdict.deliveries += 1
                verdict.redelivered += event.small > 1
                fate.offsets.update({event.first} - {0})
                fate.deliveries[event.small] += event.small > 0
            elif event.kind == Kind.SETTLING:
                settling.add(event[1:])
            else:
                settling.discard(event[1:])
                done = event.kind == Kind.SETTLED
                fate.accepted += done and event.small == Outcome.ACCEPT
                fate.rejected += done and event.small == Outcome.REJECT
                verdict.accepted += done and event.small == Outcome.ACCEPT
                verdict.fenced += event.kind == Kind.FENCED
        for outcome, _, message in settling:
            fates[message].unsure += outcome == Outcome.ACCEPT
        if settling and not life.killed:
            verdict.complain(f"{life.title}: ended while it settled a message")
        verdict.unsure += len(settling)
    return dict(fates)


def judge_message(message: int, queue: Fate, letters: Fate, verdict: QueueVerdict) -> None:
    """Accepted once, on one side."""
    accepted = queue.accepted + letters.accepted
    if accepted > 1:
        verdict.complain(f"{title(message)} was accepted {accepted} times")
    if accepted == 0 and not queue.unsure + letters.unsure:
        verdict.complain(f"{title(message)} is lost: nobody accepted it")
    if queue.accepted and letters.offsets:
        verdict.complain(f"{title(message)} was accepted, and is among the dead letters")
    if queue.rejected and not letters.deliveries.total() and not letters.unsure and not letters.accepted:
        verdict.complain(f"{title(message)} was rejected, and is not among the dead letters")
    for side, fate in (("the queue", queue), ("the dead letters", letters)):
        if len(fate.offsets) > 1:
            verdict.complain(f"{title(message)} is in {side} at {sorted(fate.offsets)}")


def judge_counts(message: int, queue: Fate, max_deliveries: int | None, verdict: QueueVerdict) -> None:
    """Each delivery has a number of its own, and none is beyond the last."""
    twice = [count for count, times in queue.deliveries.items() if times > 1]
    if twice:
        verdict.complain(f"{title(message)} has two deliveries with the number {twice}")
    most = max(queue.deliveries, default=0)
    if max_deliveries is not None and most > max_deliveries:
        verdict.complain(f"{title(message)} was delivered {most} times")


def judge_producers(producers: list[Life], queue: Fates, letters: Fates, verdict: QueueVerdict) -> None:
    """Nothing was put that was not tried, everything is there that was promised, and each run in order."""
    offsets = {message: min(fate.offsets) for message, fate in queue.items() if fate.offsets}
    numbers: dict[int, list[int]] = defaultdict(list)
    for message in queue.keys() | letters.keys():
        numbers[message >> 32].append(message & 0xFFFFFFFF)
    runs = {life.run: life for life in producers}
    # Where a message is that only copies were got of is not known.
    places = {offset: message for message, offset in offsets.items()}
    for run in numbers.keys() - runs.keys():
        verdict.complain(f"messages of run {run}, which never put any")
    for run, life in runs.items():
        known = {event.second: run << 32 | event.first for event in life.of_kind(Kind.PUBLISHED)}
        receipts = Verdict()
        promised, attempted = judge_receipts(life, ChainMap(places, known), receipts)
        for text in receipts.violations:
            verdict.complain(text)
        there = sorted(numbers[run])
        if there != list(range(1, len(there) + 1)):
            verdict.complain(f"{life.title}: its messages are not dense")
        if not promised <= len(there) <= (attempted if life.killed else promised):
            verdict.complain(
                f"{life.title}: {len(there)} messages are there, {promised} to {attempted} expected"
            )
        order = [offsets[message] for number in there if (message := run << 32 | number) in offsets]
        if order != sorted(order):
            verdict.complain(f"{life.title}: its messages are out of order")
