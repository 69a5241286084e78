"""What must be true of a queue, whatever was killed: judged from the notes of its clients, who left nothing.

Every message that was put is accepted once, or buried as a dead letter once, and not both. None is there that
was not put. Poison is never accepted, and is buried. Whoever gets a message that somebody had before is told,
and deliveries are counted, whoever leads: of those with one number one is given back at the most.
"""

from collections import Counter
from typing import Any

from tests.cluster.queue_worker import MAX_DELIVERIES, POISON

__all__ = ["Violation", "judge"]


class Violation(AssertionError):
    """Something that was promised did not hold."""


def judge(notes: list[dict[str, Any]]) -> dict[str, int]:
    """Figures; Violation with the first promise that was broken."""
    by_state: dict[tuple[str, str], Counter[str]] = {}
    for note in notes:
        by_state.setdefault((note["deed"], note["state"]), Counter())[note["value"]] += 1

    def values(deed: str, state: str) -> Counter[str]:
        return by_state.get((deed, state), Counter())

    def unclear(deed: str) -> set[str]:
        """Whoever was killed while it asked, or did not hear the answer, may have done it."""
        return {each for each, times in values(deed, "begin").items() if times > values(deed, "fenced")[each]}

    put, begun = values("put", "ok"), values("put", "begin")
    accepted, buried = values("accept", "ok"), values("bury", "ok")
    done = set(accepted) | set(buried)
    seen = set(values("get", "ok")) | set(values("accept", "begin")) | set(values("bury", "begin"))
    poison = {each for each in begun if each.endswith(POISON)}
    _none(seen - set(begun), "was never put")
    _none(set(values("put", "refused")) & seen, "was refused, and is there")
    _none({each for each, times in (accepted + buried).items() if times > 1}, "is accepted or buried twice")
    _none(set(accepted) & poison, "is poison, and was accepted")
    _none(set(put) - done - unclear("accept") - unclear("bury"), "is lost")
    _none(set(put) & poison - set(buried) - unclear("bury"), "is poison, and no dead letter")
    _none(set(values("lie", "believed")), "was a lie, and believed")
    _judge_counts([note for note in notes if note["deed"] in ("get", "release")])
    return {
        "put": len(put),
        "put perhaps": len(set(begun) - set(put) - set(values("put", "refused"))),
        "delivered": values("get", "ok").total(),
        "accepted": len(accepted),
        "accepts fenced": values("accept", "fenced").total(),
        "accepts unknown": len(unclear("accept") - done),
        "redelivered": sum(bool(note.get("again")) for note in notes),
        "given back": values("release", "ok").total(),
        "dead letters": len(buried),
        "burials unknown": len(unclear("bury") - done),
        "lies refused": values("lie", "refused").total(),
    }


def _judge_counts(notes: list[dict[str, Any]]) -> None:
    got = [note for note in notes if note["deed"] == "get"]
    _none({note["value"] for note in got if note["count"] > MAX_DELIVERIES}, "was delivered too often")
    _none({note["value"] for note in got if note["count"] > 1 and not note["again"]}, "is said to be new")
    new = Counter(note["value"] for note in got if not note["again"])
    _none({value for value, times in new.items() if times > 1}, "was new twice")
    ended = Counter((note["value"], note["count"]) for note in notes if note["deed"] == "release")
    _none({value for (value, _), times in ended.items() if times > 1}, "came again, and it was not counted")


def _none(values: set[str], what: str) -> None:
    if values:
        raise Violation(f"{len(values)} messages, of which {sorted(values)[0]!r} {what}")
