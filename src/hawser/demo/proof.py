"""The proofs of the demo: the expected messages of each part, compared one by one with the found ones."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

__all__ = ["Proof", "compare", "some"]

_SHOWN = 5


class Proof:
    """Counts and contradictions of one comparison; it is proven if there is no contradiction. `remarks`
    explain the counts."""

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
    """Compare messages: each expected one, all distinct, must be found once, and nothing else, and with
    `is_ordered` in the same order."""
    proof = Proof(title, len(expected), len(found))
    places = {each: place for place, each in enumerate(expected)}
    assert len(places) == len(expected), "expected messages are distinct"
    times = Counter(found)
    lost = [each for each in expected if each not in times]
    doubled = [each for each, count in times.items() if count > 1]
    invented = [each for each in times if each not in places]
    proof.lost = len(lost)
    proof.doubled = sum(times[each] for each in doubled) - len(doubled)
    proof.invented = sum(times[each] for each in invented)
    proof.require(not lost, f"{proof.lost} are lost: {some(lost)}")
    proof.require(not doubled, f"{proof.doubled} are duplicates: {some(doubled)}")
    proof.require(not invented, f"{proof.invented} are not expected: {some(invented)}")
    if is_ordered:
        order = (places[each] for each in found if each in places)
        proof.out_of_order = sum(later < earlier for earlier, later in pairwise(order))
        proof.require(proof.out_of_order == 0, f"{proof.out_of_order} come after a newer one")
    return proof


def some(found: Iterable[object]) -> str:
    """The first few items as text."""
    listed = list(found)
    shown = ", ".join(map(str, listed[:_SHOWN]))
    return f"{shown}, ..." if len(listed) > _SHOWN else shown
