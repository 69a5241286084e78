"""The parts of a verdict: runs of evidence, lines of a tier, and the findings of their minutes."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from hawser.spark.pipelines.auditing.comparison import WORD_MASK, compare
from hawser.spark.pipelines.auditing.document import Tier, Word
from hawser.spark.pipelines.ranges import Piece, Range, common, disjoint, doubled, merged, without

__all__ = ["VERDICT", "Finding", "Line", "Run", "Verdict", "behind", "by", "labelled"]

# A number that no region and no partition reaches.
_END: Final = 1 << 62
_MINUTE_US: Final = 60_000_000

VERDICT: Final = (
    "topic string, partition int, region string, tier string, who string, is_queue boolean, minute bigint, "
    "expected bigint, found bigint, compared bigint, bytes bigint, hash bigint, first bigint, last bigint, "
    "findings array<struct<word: string, first: bigint, last: bigint, reason: string>>"
)


_OfEach: TypeAlias = bytes


class Run(NamedTuple):
    """A row of evidence; see evidence.py. Events are runs of no messages, of the minute they happened in.
    `hashes` and `sizes` are empty where they were not read, `sized_hash` is 0 where sizes do not count."""

    what: str
    topic: str
    partition: int
    region: str
    who: str
    owner: int
    carrier: str
    at_first: int
    at_last: int
    minute: int
    is_late: bool
    first: int
    last: int
    hash: int
    bytes: int
    hashes: _OfEach = b""
    sizes: _OfEach = b""
    sized_hash: int = 0

    @property
    def piece(self) -> Piece:
        return Piece(self.first, self.last, self.minute)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Run":
        found: dict[str, Any] = {name: row[name] for name in cls._fields}
        if found["minute"] is None:
            found["minute"] = (row["first_us"] or 0) // _MINUTE_US * 60
        defaults = cls._field_defaults
        return cls(
            **{name: defaults.get(name, 0) if value is None else value for name, value in found.items()}
        )


class Finding(NamedTuple):
    """Messages `first` to `last`, of the same minute, and the word for them."""

    word: Word
    first: int
    last: int
    reason: str = ""


class Verdict(NamedTuple):
    """On the messages of one minute in one tier; see `document.Line` and `document.Minute`. The expected ones
    are numbered from `first` to `last`, which are 0 if there are none."""

    topic: str
    partition: int
    region: str
    tier: str
    who: str
    is_queue: bool
    minute: int
    expected: int
    found: int
    compared: int
    bytes: int
    hash: int
    first: int
    last: int
    findings: list[Finding]


class _Minute:
    def __init__(self) -> None:
        self.expected = self.found = self.compared = self.bytes = self.hash = self.first = self.last = 0
        self.findings: list[Finding] = []

    def expect(self, piece: Piece) -> None:
        # Numbers begin at 1, so 0 is none.
        self.expected += piece.size
        self.first = min(self.first or piece.first, piece.first)
        self.last = max(self.last, piece.last)

    def add(self, run: Run) -> None:
        self.bytes += run.bytes
        self.hash = self.hash + run.hash & WORD_MASK


class Line:
    """The messages of one region or partition that one tier has, and those that it should have. The tiers
    decide what is missing; double, late and damaged messages are found alike in all."""

    def __init__(
        self,
        tier: Tier,
        topic: str,
        runs: Sequence[Run],
        expected: Sequence[Piece],
        *,
        partition: int = -1,
        region: str = "",
        who: str = "",
        is_queue: bool = False,
    ) -> None:
        self.place = (topic, partition, region, tier, who, is_queue)
        self.runs = runs
        self.expected = expected
        # In the minute in which they are expected, so that one minute has both.
        found = disjoint(run.piece for run in runs)
        self.found = sorted([*common(expected, found), *without(found, expected)])
        self.absent = without(expected, self.found)
        self._compared: list[Piece] = []
        self._words: list[tuple[Word, Sequence[Piece], str]] = []
        self._twice = doubled(run.piece for run in runs)
        self.say("duplicate", common(self.found, self._twice))
        self.say("late", common(self.found, merged(run.piece for run in runs if run.is_late)))

    def say(self, word: Word, pieces: Sequence[Piece], reason: str = "") -> None:
        """Give these messages this word."""
        if pieces:
            self._words.append((word, pieces, reason))

    def compare(self, before: Sequence[Run], unknown: str, *, with_sizes: bool = False) -> None:
        """By hashes with the tier before. What this tier has and could not be compared is uncompared;
        `unknown` is the reason if the tier before does not have it."""
        found = compare(before, self.runs, with_sizes)
        self._compared = common(self.found, found.compared)
        self.say("damaged", common(self.found, found.damaged))
        rest, known = without(self.found, found.compared), merged(run.piece for run in before)
        self.say("uncompared", without(rest, known), unknown)
        self.say("uncompared", common(rest, known), "too many blocks differ to compare each message")

    def check_order(self, carrier: Callable[[Run], Hashable]) -> None:
        """A message behind a greater number is reordered, unless it had come before."""
        late: list[Range] = []
        for runs in by(self.runs, carrier).values():
            reached = 0
            at_once: list[Run] = []
            for run in sorted(runs, key=lambda run: (run.at_first, run.first)):
                if at_once and at_once[0].at_last < run.at_first:
                    reached = max(reached, *(each.last for each in at_once))
                    at_once = []
                if run.first <= reached:
                    late.append(Range(run.first, min(run.last, reached)))
                at_once.append(run)
        self.say("reordered", common(self.found, without(merged(late), self._twice)))

    def verdicts(self) -> Iterator[Verdict]:
        """A verdict for each minute with expected or found messages."""
        minutes: defaultdict[int, _Minute] = defaultdict(_Minute)
        for piece in self.expected:
            minutes[piece.at].expect(piece)
        for piece in self.found:
            minutes[piece.at].found += piece.size
        for piece in self._compared:
            minutes[piece.at].compared += piece.size
        firsts = [piece.first for piece in self.found]
        for run in self.runs:
            minutes[self.found[bisect_right(firsts, run.first) - 1].at].add(run)
        for word, pieces, reason in self._words:
            for piece in pieces:
                minutes[piece.at].findings.append(Finding(word, piece.first, piece.last, reason))
        for at, each in sorted(minutes.items()):
            figures = (each.expected, each.found, each.compared, each.bytes, _signed(each.hash))
            yield Verdict(*self.place, at, *figures, each.first, each.last, sorted(each.findings))


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


Key = TypeVar("Key", bound=Hashable)


def by(runs: Iterable[Run], key: Callable[[Run], Key]) -> dict[Key, list[Run]]:
    found: defaultdict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)


def behind(pieces: Sequence[Piece], reached: int) -> list[Piece]:
    """The part of the pieces after that number."""
    return common(pieces, [Range(reached + 1, _END)])


def labelled(ranges: Iterable[Range], runs: Iterable[Run]) -> list[Piece]:
    """Messages without evidence count in the minute of the last message before them that has evidence; in
    minute 0 if there is none."""
    minutes = sorted((run.first, run.minute) for run in runs) or [(0, 0)]
    return [
        Piece(*each, minutes[max(bisect_right(minutes, (each.first, _END)) - 1, 0)][1]) for each in ranges
    ]
