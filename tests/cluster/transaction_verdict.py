"""What must be true of tokens that transactions moved in a ring, whatever was killed.

A transaction takes tokens from one queue, puts them into others and writes a line about each into a topic,
the trail. A message and its line are the same text, `token:hop:author`, and the author is the transaction; so
everything that was ever seen says which transaction it came from. Judged from the notes of the workers and
from what is there at the end:

- every token is in one queue, once, and its lines are its hops from the first to the last, each once;
- of a transaction all lines are there or none: all if it was committed, none if it was rolled back, either if
  nobody heard; a line without a transaction, and a message that was seen and has no line, are there never;
- a line that was written in the same entry as the message stands before those of all later hops. Between
  shards there is no order: there a later line may stand first, which is counted;
- a reader has read what the trail says; and whoever copies the echo, with the position of its group in the
  same transaction, has copied every line up to there once.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["COLOCATED", "START", "Found", "Violation", "judge", "token_of"]

START: Final = "start"
# The queue that is on the trail's shard.
COLOCATED: Final = 0


class Violation(AssertionError):
    """Something that was promised did not hold."""


class Found(NamedTuple):
    """What is there when everything is over: the messages of all queues; the topics, the echo by partitions;
    and how much of each partition the group has behind it."""

    left: list[str]
    trail: list[str]
    echo: list[list[str]]
    copied: list[str]
    positions: list[int]


class _Attempt(msgspec.Struct):
    """A transaction: each token that it takes, what it makes of it and the queue that this goes to. `echo`:
    its lines are in a second topic too."""

    id: str
    moves: list[tuple[str, str, int]]
    echo: bool
    kind: str
    state: str = "begun"

    @property
    def lines(self) -> list[str]:
        return [line for _, line, _ in self.moves]


def token_of(text: str) -> tuple[str, int, str]:
    """Token, hop and author."""
    token, hop, author = text.split(":")
    return token, int(hop), author


def judge(notes: list[dict[str, Any]], tokens: Iterable[str], found: Found) -> dict[str, int]:
    """Figures; Violation with the first promise that was broken."""
    attempts = _attempts(notes)
    _judge_tokens(set(tokens), found)
    _judge_attempts(attempts, Counter(found.trail), Counter(chain.from_iterable(found.echo)))
    _judge_chains(attempts, found.trail)
    overtaken = _judge_order(attempts, found.trail)
    _judge_eyes(notes, found)
    _judge_copies(found)
    states = Counter(each.state for each in attempts.values())
    there = set(found.trail)
    done = [each for each in attempts.values() if each.lines[0] in there]
    return {
        "transactions": len(attempts),
        "committed": states["committed"],
        "rolled back": states["aborted"],
        "unheard": states["begun"] + states["unknown"],
        "unheard and done": sum(each.state in ("begun", "unknown") for each in done),
        **{f"done by {kind}": count for kind, count in sorted(Counter(each.kind for each in done).items())},
        "lines": len(found.trail),
        "lines overtaken": overtaken,
        "copied": len(found.copied),
    }


def _attempts(notes: list[dict[str, Any]]) -> dict[str, _Attempt]:
    attempts: dict[str, _Attempt] = {}
    for note in notes:
        if note["deed"] == "begin":
            moves = [(taken, line, to) for taken, line, to in note["moves"]]
            attempts[note["id"]] = _Attempt(note["id"], moves, note["echo"], note["kind"])
    for note in notes:
        attempt = attempts.get(note.get("id", ""))
        if note["deed"] == "end" and attempt is not None:
            if {attempt.state, note["state"]} == {"committed", "aborted"}:
                raise Violation(f"{note['id']} was said to be committed, and to be rolled back")
            attempt.state = note["state"]
    return attempts


def _judge_tokens(tokens: set[str], found: Found) -> None:
    there = Counter(token_of(text)[0] for text in found.left)
    _none({each for each, times in there.items() if times > 1}, "is in the queues twice")
    _none(tokens - set(there), "is lost")
    _none(set(there) - tokens, "was never put")
    hops: dict[str, list[int]] = {token: [] for token in tokens}
    for line in found.trail:
        token, hop, _ = token_of(line)
        _none({token} - tokens, "was never put, and left a line")
        hops[token].append(hop)
    last = {token_of(line)[0]: line for line in sorted(found.trail, key=lambda line: token_of(line)[1])}
    for text in found.left:
        token, hop, author = token_of(text)
        if sorted(hops[token]) != list(range(1, hop + 1)):
            raise Violation(f"{text} is left, and the hops of its lines are {sorted(hops[token])}")
        if hop and last[token] != text:
            raise Violation(f"{text} is left, and its last line is {last[token]}")
        if not hop and author != START:
            raise Violation(f"{text} is left, and nobody put it")


def _judge_attempts(attempts: dict[str, _Attempt], trail: Counter[str], echo: Counter[str]) -> None:
    _none({line for line in trail | echo if token_of(line)[2] not in attempts}, "is of no transaction")
    for attempt in attempts.values():
        wanted = Counter(attempt.lines)
        written = Counter({line: trail[line] for line in wanted if trail[line]})
        echoed = Counter({line: echo[line] for line in wanted if echo[line]})
        may_be = {
            "committed": [wanted],
            "aborted": [Counter[str]()],
        }.get(attempt.state, [wanted, Counter[str]()])
        if written not in may_be:
            raise Violation(f"{attempt.id} is {attempt.state}, and of {wanted} there is {written}")
        if echoed != (written if attempt.echo else Counter[str]()):
            raise Violation(f"{attempt.id} has {written} on the trail and {echoed} in the echo")


def _judge_chains(attempts: dict[str, _Attempt], trail: list[str]) -> None:
    """What a transaction took is what the one before had put."""
    lines = {token_of(line)[:2]: line for line in trail}
    for line in trail:
        token, hop, author = token_of(line)
        (taken,) = (taken for taken, put, _ in attempts[author].moves if put == line)
        before = lines.get((token, hop - 1), f"{token}:0:{START}")
        if taken != before:
            raise Violation(f"{line} was made of {taken}, and its hop before is {before}")


def _judge_order(attempts: dict[str, _Attempt], trail: list[str]) -> int:
    """How many lines stand behind one of a later hop: they may where the message was on another shard."""
    together = {
        line for each in attempts.values() for _, line, destination in each.moves if destination == COLOCATED
    }
    by_token: dict[str, list[str]] = {}
    for line in trail:
        by_token.setdefault(token_of(line)[0], []).append(line)
    overtaken = 0
    for lines in by_token.values():
        highest = 0
        for line in lines:
            hop = token_of(line)[1]
            if hop < highest:
                overtaken += 1
                if line in together:
                    raise Violation(f"{line} stands behind a later hop, {highest}, on one shard")
            highest = max(highest, hop)
    return overtaken


def _judge_eyes(notes: list[dict[str, Any]], found: Found) -> None:
    """Whatever somebody saw was committed."""
    there = set(found.trail)
    for note in notes:
        if note["deed"] == "got":
            seen = {text for text in note["values"] if token_of(text)[1] > 0}
            _none(seen - there, "was got from a queue, and was never committed")
        elif note["deed"] == "read":
            for (before, _), (after, _) in pairwise(note["records"]):
                if after != before + 1:
                    raise Violation(f"offset {after} was read behind {before}")
            for offset, text in note["records"]:
                if offset > len(found.trail) or found.trail[offset - 1] != text:
                    raise Violation(f"{text} was read at offset {offset}, and is not there")


def _judge_copies(found: Found) -> None:
    behind = [line for lines, end in zip(found.echo, found.positions, strict=True) for line in lines[:end]]
    if Counter(found.copied) != Counter(behind):
        raise Violation(
            f"{len(found.copied)} lines were copied of the {len(behind)} that the group has behind it, and "
            f"not the same: {_difference(found.copied, behind)}"
        )


def _difference(one: list[str], other: list[str]) -> str:
    more, less = Counter(one) - Counter(other), Counter(other) - Counter(one)
    return f"too many {sorted(more)[:3]}, missing {sorted(less)[:3]}"


def _none(texts: set[str], what: str) -> None:
    if texts:
        raise Violation(f"{len(texts)}, of which {sorted(texts)[0]!r} {what}")
