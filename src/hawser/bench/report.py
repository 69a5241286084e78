"""A figure of the report: its value, the compared values, and its targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A target of a figure. `met` is None if the peer it names is not installed."""

    text: str
    measured: float | None
    met: bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of Hawser and the same figure of peers, all in `unit`. `note` explains them."""

    name: str
    value: float
    unit: str
    compared: Mapping[str, float] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether a target of this row was measured and not met."""
        return any(target.met is False for target in self.targets)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def at_least(text: str, measured: float | None, bound: float) -> Target:
    """The target that `measured` is `bound` or more."""
    return Target(text, measured, None if measured is None else measured >= bound)


def at_most(text: str, measured: float | None, bound: float) -> Target:
    """The target that `measured` is `bound` or less."""
    return Target(text, measured, None if measured is None else measured <= bound)


def ratio(value: float, other: float | None) -> float | None:
    """`value` divided by `other`; None without `other`."""
    return value / other if other else None


_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def in_words(value: float, unit: str) -> str:
    """A figure with a unit: 1.25 M/s, 640 ns, 83.1 us."""
    if unit == "ns":
        for step, name in _TIMES:
            if value >= step:
                return f"{value / step:.3g} {name}"
        return f"{value:.0f} ns"
    for step, prefix in _PREFIXES if unit else ():
        if value >= step:
            return f"{value / step:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}".strip()


def lines(row: Row) -> Iterator[tuple[str, str, str, str, str, str, str]]:
    """The row as lines of a table: figure, library, value, Hawser's ratio to it, target, measured, met."""
    shown = [("hawser", in_words(row.value, row.unit), "")]
    for name, value in row.compared.items():
        shown.append((name, in_words(value, row.unit), f"{row.value / value:.3g}" if value else ""))
    answered = [(target.text, _measured(target), _verdict(target)) for target in row.targets]
    for place, (who, target) in enumerate(zip_longest(shown, answered, fillvalue=("", "", ""))):
        yield ("" if place else row.name, *who, *target)


def _measured(target: Target) -> str:
    return "not installed" if target.measured is None else f"{target.measured:.4g}"


def _verdict(target: Target) -> str:
    return {True: "yes", False: "no", None: "-"}[target.met]
