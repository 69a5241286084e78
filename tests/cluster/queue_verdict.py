"""What must be true of a queue, whatever was killed: judged from the notes of its clients and what is left.

Every message that was put is accepted once, or is left, or is a dead letter: one of these. None is there that
was not put. Poison is never accepted, and ends among the dead letters.
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


def judge(notes: list[dict[str, Any]], left: list[str], letters: list[str]) -> dict[str, object]:
    """Figures; Violation with the first promise that was broken."""
    by_state: dict[tuple[str, str], Counter[str]] = {}
    for note in notes:
        by_state.setdefault((note["deed"], note["state"]), Counter())[note["value"]] += 1

    def values(deed: str, state: str) -> Counter[str]:
        return by_state.get((deed, state), Counter())

    put, begun = values("put", "ok"), values("put", "begin")
    accepted, wanted = values("accept", "ok"), values("accept", "begin")
    ends = Counter(left) + Counter(letters)
    seen = set(values("get", "ok")) | set(accepted) | set(ends)
    _none(seen - set(begun), "was never put")
    _none(set(values("put", "refused")) & seen, "was refused, and is there")
    _none({each for each, times in (accepted + ends).items() if times > 1}, "is there, or accepted, twice")
    _none({each for each in accepted if each.endswith(POISON)}, "is poison, and was accepted")
    # Whoever was killed while it asked, or did not hear the answer, may have accepted it.
    unclear = {each for each in wanted if wanted[each] > values("accept", "fenced")[each]}
    _none(set(put) - set(accepted) - set(ends) - unclear, "is lost")
    _none({each for each in put if each.endswith(POISON)} - set(letters), "is poison, and no dead letter")
    _none(set(values("lie", "believed")), "was a lie, and believed")
    return {
        "put": len(put),
        "put perhaps": len(set(begun) - set(put) - set(values("put", "refused"))),
        "delivered": values("get", "ok").total(),
        "accepted": len(accepted),
        "accepts fenced": values("accept", "fenced").total(),
        "accepts unknown": len(unclear - set(accepted) - set(ends)),
        "redelivered": sum(bool(note.get("again")) for note in notes),
        "dead letters": len(letters),
        "left": len(left),
        "lies refused": values("lie", "refused").total(),
    }


def _none(values: set[str], what: str) -> None:
    if values:
        raise Violation(f"{len(values)} messages, of which {sorted(values)[0]!r} {what}")
