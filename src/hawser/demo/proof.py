"""The proofs of the demo: for each part of the path, what had to come of it against what has, one by one."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["Proof", "compare", "some"]

_SHOWN = 5


class Proof:
    """Everything counted, and every contradiction found. Proven means there is none. `remarks` say what the
    figures do not."""

    def __init__(self, title: str, expected: int, found: int = 0) -> None:
        self.title = title
        self.expected = expected
        self.found = found
        self.lost = 0
        self.doubled = 0
        self.damaged = 0
        self.invented = 0
        self.out_of_order = 0
        self.contradictions: list[str] = []
        self.remarks: list[str] = []

    @property
    def proven(self) -> bool:
        return not self.contradictions

    def require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.contradictions.append(otherwise)

    def as_dict(self) -> dict[str, Any]:
        return {"proven": self.proven, **vars(self)}


def compare(
    title: str, expected: Sequence[Hashable], found: Sequence[Hashable], is_ordered: bool = True
) -> Proof:
    """Each of the expected, which are all different, is found once, nothing else is, and, if that is asked
    for, in the same order."""
    proof = Proof(title, len(expected), len(found))
    places = {each: place for place, each in enumerate(expected)}
    assert len(places) == len(expected), "a message is expected once"
    times = Counter(found)
    lost = [each for each in expected if each not in times]
    doubled = [each for each, count in times.items() if count > 1]
    invented = [each for each in times if each not in places]
    proof.lost = len(lost)
    proof.doubled = sum(times[each] for each in doubled) - len(doubled)
    proof.invented = sum(times[each] for each in invented)
    proof.require(not lost, f"{proof.lost} are nowhere: {some(lost)}")
    proof.require(not doubled, f"{proof.doubled} are there twice: {some(doubled)}")
    proof.require(not invented, f"{proof.invented} should not be there: {some(invented)}")
    if is_ordered:
        order = (places[each] for each in found if each in places)
        proof.out_of_order = sum(later < earlier for earlier, later in pairwise(order))
        proof.require(proof.out_of_order == 0, f"{proof.out_of_order} come behind one that is newer")
    return proof


def some(found: Iterable[object]) -> str:
    """The first few of them, as text."""
    listed = list(found)
    shown = ", ".join(map(str, listed[:_SHOWN]))
    return f"{shown}, ..." if len(listed) > _SHOWN else shown
