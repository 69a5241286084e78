"""What must be true of a queue, whatever was killed: judged from the notes of its clients, who left nothing.

Every message that was put is accepted once, or buried as a dead letter once, and not both. None is there that
was not put. Poison is never accepted, and is buried.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tests.cluster.queue_worker import POISON

__all__ = ["Violation", "judge", "read_notes"]


class Violation(AssertionError):
    """Something that was promised did not hold."""


def read_notes(files: Iterable[Path]) -> list[dict[str, Any]]:
    """All notes; the last line of a killed process may be cut off."""
    notes = []
    for file in files:
        for line in file.read_bytes().split(b"\n")[:-1]:
            notes.append(msgspec.json.decode(line))
    return notes


def judge(notes: list[dict[str, Any]]) -> dict[str, object]:
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
    return {
        "put": len(put),
        "put perhaps": len(set(begun) - set(put) - set(values("put", "refused"))),
        "delivered": values("get", "ok").total(),
        "accepted": len(accepted),
        "accepts fenced": values("accept", "fenced").total(),
        "accepts unknown": len(unclear("accept") - done),
        "redelivered": sum(bool(note.get("again")) for note in notes),
        "dead letters": len(buried),
        "burials unknown": len(unclear("bury") - done),
        "lies refused": values("lie", "refused").total(),
    }


def _none(values: set[str], what: str) -> None:
    if values:
        raise Violation(f"{len(values)} messages, of which {sorted(values)[0]!r} {what}")
