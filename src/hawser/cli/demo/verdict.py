"""The proof of the demo: ledgers against the auditor, run by run."""

from collections import defaultdict
from itertools import accumulate, pairwise
from typing import Any

import hawser
from hawser.cli.demo.ledger import Note, read_note, read_numbers
from hawser.cli.demo.stage import Actor, Stage

__all__ = ["Books", "prove"]

_KEEPS_POSITION = frozenset({"group", "durable"})
_LOSES_NOTHING = frozenset({"reliable", "durable"})


class Books:
    """Everything counted, and every contradiction found. Proven means there is none."""

    def __init__(self) -> None:
        self.published = 0
        self.publishers: list[dict[str, Any]] = []
        self.subscribers: list[dict[str, Any]] = []
        self.topic: dict[str, Any] = {}
        self.contradictions: list[str] = []

    @property
    def proven(self) -> bool:
        return not self.contradictions

    def require(self, holds: bool, otherwise: str) -> bool:
        if not holds:
            self.contradictions.append(otherwise)
        return holds

    def as_dict(self) -> dict[str, Any]:
        return {
            "proven": self.proven,
            "published": self.published,
            "publishers": self.publishers,
            "subscribers": self.subscribers,
            "topic": self.topic,
            "contradictions": self.contradictions,
        }


def prove(stage: Stage, end: hawser.TopicInfo) -> Books:
    """Compare what everybody wrote down with what the auditor saw."""
    books = Books()
    auditor = stage.auditor
    books.published = end.head
    seen = f"the auditor saw {auditor.seen} messages and missed {auditor.missed} of {end.head}"
    books.require(auditor.seen == end.head and auditor.missed == 0, seen)
    books.require(auditor.faults == 0, f"the auditor found {auditor.faults} messages damaged or out of place")
    _prove_publishers(stage, books)
    sums = list(accumulate(auditor.checksums, initial=0))
    for subscriber in stage.subscribers:
        _prove_subscriber(subscriber, end.head, sums, books)
    _prove_slots(stage, end, books)
    return books


def _prove_publishers(stage: Stage, books: Books) -> None:
    offsets: dict[tuple[int, int], list[int]] = defaultdict(list)
    for offset in range(1, stage.auditor.seen + 1):
        publisher, run, number = stage.auditor.origin(offset)
        place = offsets[publisher, run]
        if number != len(place):
            text = f"publisher-{publisher + 1}, run {run}: message {number} is its number {len(place)}"
            books.require(False, f"{text}, at offset {offset}")
        place.append(offset)
    for actor in stage.publishers:
        row = {"name": actor.name, "runs": len(actor.runs), "killed": sum(actor.killed)}
        published = receipts = 0
        for assignment, killed in zip(actor.runs, actor.killed, strict=True):
            there = offsets.pop((assignment.index, assignment.run), [])
            noted = list(read_numbers(assignment.file("receipts")))
            unnoted = len(there) - len(noted)
            title = f"{actor.name}, run {assignment.run}"
            books.require(there[: len(noted)] == noted, f"{title}: receipts differ from the topic")
            text = f"{title}: {unnoted} messages without a receipt"
            books.require(0 <= unnoted <= int(killed), text)
            published += len(there)
            receipts += len(noted)
        unnoted = published - receipts
        books.publishers.append({**row, "published": published, "receipts": receipts, "unnoted": unnoted})
    books.require(not offsets, f"messages of unknown runs: {list(offsets)}")


def _prove_subscriber(actor: Actor, head: int, sums: list[int], books: Books) -> None:
    notes = [read_note(assignment.file("note")) for assignment in actor.runs]
    kept = [note for note in notes if note is not None]
    for assignment, note in zip(actor.runs, notes, strict=True):
        if note is not None:
            gaps = read_numbers(assignment.file("gaps"))
            _prove_run(f"{actor.name}, run {assignment.run}", note, gaps, sums, books)
    last = notes[-1]
    finished = last is not None and bool(last.finished) and last.position == head
    books.require(finished, f"{actor.name} did not read up to offset {head}")
    missed = sum(note.missed for note in kept)
    if actor.kind in _LOSES_NOTHING:
        books.require(missed == 0, f"{actor.name} is {actor.kind} and missed {missed} messages")
    repeated = _prove_chain(actor, kept, books) if actor.kind in _KEEPS_POSITION else 0
    books.subscribers.append(
        {
            "name": actor.name,
            "kind": actor.kind,
            "runs": len(actor.runs),
            "killed": sum(actor.killed),
            "published": sum(note.position - note.base for note in kept),
            "received": sum(note.received for note in kept),
            "missed": missed,
            "repeated": repeated,
        }
    )


def _prove_run(run: str, note: Note, gaps: tuple[int, ...], sums: list[int], books: Books) -> None:
    published = note.position - note.base
    balance = f"{run}: received {note.received} + missed {note.missed} is not published {published}"
    books.require(note.received + note.missed == published, balance)
    books.require(note.faults == 0, f"{run}: {note.faults} messages damaged or out of order")
    # A gap behind the last note was seen and not yet noted when the run was killed.
    pairs = [(first, last) for first, last in zip(gaps[::2], gaps[1::2], strict=True) if last < note.position]
    lost = sum(last - first + 1 for first, last in pairs)
    books.require(lost == note.missed, f"{run}: gaps of {lost} messages, and {note.missed} missed")
    digest = (
        sums[note.position] - sums[note.base] - sum(sums[last] - sums[first - 1] for first, last in pairs)
    )
    books.require(digest % (1 << 64) == note.digest, f"{run}: what it received is not what was published")


def _prove_chain(actor: Actor, notes: list[Note], books: Books) -> int:
    """Each run goes on at the last note of the one before it, or one message earlier; how many came twice."""
    repeated = 0
    for before, after in pairwise(notes):
        text = (
            f"{actor.name} stopped at {before.position} (before: {before.previous}), went on at {after.base}"
        )
        books.require(after.base in (before.position, before.previous), text)
        repeated += before.position - after.base
    return repeated


def _prove_slots(stage: Stage, end: hawser.TopicInfo, books: Books) -> None:
    counts = {
        "slots": end.slots,
        "leaked": end.slots_leaked,
        "lent": end.slots_lent,
        "referenced": end.slots_referenced,
        "participants": len(end.participants),
    }
    books.topic = {**counts, "kills": stage.kills, "returned_by_recovery": stage.slots_returned}
    books.topic["reads_ended_by_recovery"] = stage.references_returned
    for what in ("leaked", "lent", "referenced", "participants"):
        books.require(counts[what] == 0, f"after recovery there are {counts[what]} {what}")
    whole = end.slots_free + end.slots_carried == end.slots
    books.require(whole, f"{end.slots_free} free and {end.slots_carried} carried slots are not {end.slots}")
