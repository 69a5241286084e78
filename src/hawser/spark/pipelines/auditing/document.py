"""The findings of an audit as one document; the page and the exit code are made of it.

A message passes through tiers, and each tier is compared with the tier before it:

    published   the trace of a host says so                        region, sequence
    delivered   to a subscriber; of a queue: settled, once         region, sequence, who
    recorded    in the log, by a recorder                          region, sequence, who, partition
    replicated  in the log                                         partition, offset
    in Spark    read by a batch that the landing has committed     partition, offset
    landed      in the landing's table of raw records              partition, offset

Messages of a host are named by region and sequence, those of a log by partition and offset. A word names each
fault, with a number and the exact ranges:

| word | means | a mismatch |
|---|---|---|
| missing | the tier before has it, this one has not, and has later ones | yes |
| duplicate | it is there more than once | yes |
| reordered | it came behind later ones | yes |
| damaged | as many, of the same numbers, and of another time or content | yes |
| missed | a subscriber was too slow for it, and was told so | no |
| late | it came, later than allowed after its time | no |
| pending | the tier before has it, this one is not so far | if completeness is asked for |
| unwitnessed | it passed, and the trace or log that would say so was lost or not switched on | undecided |
| uncompared | it is there, and the tier before does not have it to compare it with | undecided |

An audit without mismatches is undecided, and not complete, if anything is unwitnessed or uncompared, if
records of the trace were lost, or if a tier that it was to look at has no evidence at all.

Times are seconds since 1970, UTC. Durations are seconds. Hashes are 16 hexadecimal digits.
"""

from typing import Final, Literal

import msgspec

__all__ = [
    "MISMATCHES", "TIERS", "UNKNOWN", "WORDS", "Document", "Event", "Latency", "Line", "Loss", "Minute",
    "Problem", "TierTotal", "Tier", "Word",
]  # fmt: skip

Tier = Literal["published", "delivered", "recorded", "replicated", "in Spark", "landed"]
Word = Literal[
    "missing", "duplicate", "reordered", "damaged", "missed", "late", "pending", "unwitnessed", "uncompared",
]  # fmt: skip

TIERS: Final[tuple[Tier, ...]] = ("published", "delivered", "recorded", "replicated", "in Spark", "landed")
WORDS: Final[tuple[Word, ...]] = (
    "missing", "duplicate", "reordered", "damaged", "missed", "late", "pending", "unwitnessed", "uncompared",
)  # fmt: skip
UNKNOWN: Final[frozenset[Word]] = frozenset({"unwitnessed", "uncompared"})
MISMATCHES: Final[frozenset[Word]] = frozenset({"missing", "duplicate", "reordered", "damaged"})


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the messages of one minute, by their own times. `words` has what is wrong, with how many
    messages; it is empty if all is complete. `found` counts a message once, `bytes` and `hash` are of
    all that was found; neither is known of messages in Spark."""

    at: int
    expected: int
    found: int
    bytes: int
    hash: str
    words: dict[Word, int] = {}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of one topic and partition, or of one region on a host, which has no partition; of one
    subscriber or recorder, `who`. `compared` is how many messages were compared by their hashes with the tier
    before."""

    topic: str
    partition: int | None
    region: str
    tier: Tier
    who: str
    is_queue: bool
    first: int
    last: int
    expected: int
    found: int
    bytes: int
    hash: str
    compared: int
    words: dict[Word, int]
    minutes: list[Minute]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Messages `first` to `last` of a line, of the minute `at`. `reason` is empty, or what is known of it."""

    topic: str
    partition: int | None
    region: str
    tier: Tier
    who: str
    word: Word
    first: int
    last: int
    at: int
    is_mismatch: bool
    reason: str

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


class TierTotal(msgspec.Struct, frozen=True, kw_only=True):
    """All lines of a tier."""

    tier: Tier
    lines: int
    expected: int
    found: int
    bytes: int
    compared: int
    words: dict[Word, int]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """From a message's time until `hop`: taken or claimed by `who`, or landed. Seconds by percentile, "50",
    "90", "99", "99.9", each at most 5 percent too high, and "100", which is exact."""

    topic: str
    hop: Literal["taken", "claimed", "landed"]
    who: str
    messages: int
    percentiles: dict[str, float]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event beside messages. `who` caused it; of "recovered", `who` is the participant that died."""

    at: float
    kind: Literal["joined", "left", "recovered", "missed", "batch"]
    topic: str
    who: str
    process: int
    text: str


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Records `first` to `last` of a trace that were overwritten before they were read."""

    ring: str
    first: int
    last: int


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `verdict` is a sentence, `is_whole` whether there is no mismatch, and `is_proven`
    whether, moreover, nothing is unwitnessed, uncompared or lost. `uncompared` counts messages of all lines.
    Of `problems` the first ones only, mismatches first: `problems_left_out` is how many more ranges there
    are; of `events` and `losses` likewise. `traced` and `lost` count records of the trace."""

    verdict: str
    is_whole: bool
    is_proven: bool
    url: str
    directory: str
    landing: str
    trace: str
    written: str
    seconds: float
    late_seconds: float
    messages: int
    uncompared: int
    tiers: list[TierTotal]
    lines: list[Line]
    problems: list[Problem]
    problems_left_out: int
    latencies: list[Latency]
    events: list[Event]
    events_left_out: int
    traced: int
    lost: int
    losses: list[Loss]
