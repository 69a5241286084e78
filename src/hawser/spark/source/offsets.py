"""The offsets of a query, and what it reads next. Pure, so that tests reach every case.

An offset of Spark has, for each topic, its uuid and the next offset of each partition:

    {"orders": {"uuid": "5f0c...", "0": 23, "1": 7}}

Spark keeps the end of each micro-batch. It asks for the start of the first one each time that it runs it, and
the start may have moved by then. So the end of the first micro-batch records its start (`"began": {"0": 1,
"1": 1}` beside the uuid): its records are known, and a loss among them is reported.

Spark compares offsets as text, so topics and partitions are always in order. A new topic or partition joins
with its present start and is read from the next micro-batch on: the checkpoint has its start, and a later
loss is reported. A topic with another uuid is another topic, whatever its name.

A topic keeps its place in the offsets until a topic of the same name and another uuid replaces it. It keeps
the place even while the query does not ask for it, while the answering node does not list it, and after it
was deleted. If its place were dropped too early, the topic would be read again from the start. A place behind
the end of a log, as its leader confirms it, is a loss: the log was restored from a backup, or has lost its
newest records. Such a partition begins anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hawser.cluster.client.admin.offsets import Bounds
from hawser.errors import UsageError
from hawser.log.state.terms import TermRuns

__all__ = [
    "Bounded", "Loss", "Offsets", "Patience", "Range", "advance", "begun", "clipped", "ends", "from_json",
    "has_new", "is_at", "losses", "lost_text", "ranges", "rewound", "share", "starts", "to_json", "weights",
    "with_terms",
]  # fmt: skip


class Place(NamedTuple):
    """The next offset of each partition of a topic, and its start until a second micro-batch has read it.
    `terms` are those of the records before the next offsets, as far as they are known."""

    uuid: str
    partitions: dict[int, int]
    began: dict[int, int] | None = None
    terms: dict[int, int] | None = None


class Bounded(NamedTuple):
    """A topic as it is now."""

    uuid: str
    partitions: dict[int, Bounds]


Offsets = dict[str, Place]
_ASIDE: Final = ("uuid", "began", "terms")
_Partition = tuple[str, int]


class Range(NamedTuple):
    """The records from `first` up to but not including `end`."""

    topic: str
    uuid: str
    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        return self.end - self.first


class Patience:
    """Lets a query wait until a micro-batch has so many records, but no longer than so many seconds since the
    last micro-batch. The first micro-batch of a run never waits."""

    def __init__(self, records: int, seconds: float) -> None:
        self._records = records
        self._seconds = seconds
        self._last: float | None = None

    def waits(self, records: int, now: float, *, is_due: bool = False) -> bool:
        """Whether to wait for more than these; if not, or if it is due anyway, a micro-batch begins now."""
        if (
            not is_due
            and self._last is not None
            and records < self._records
            and now < self._last + self._seconds
        ):
            return True
        if records:
            self._last = now
        return False


class Loss(NamedTuple):
    """What a query can no longer read: a range of offsets, or all that a former topic had left."""

    text: str
    is_range: bool


def to_json(offsets: Offsets) -> dict[str, Any]:
    """As it is in the checkpoint."""
    return {
        topic: {
            "uuid": place.uuid,
            **_texts(place.partitions),
            **({} if place.began is None else {"began": _texts(place.began)}),
            **({"terms": _texts(place.terms)} if place.terms else {}),
        }
        for topic, place in sorted(offsets.items())
    }


def _texts(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(each): positions[each] for each in sorted(positions)}


def from_json(data: Mapping[str, Any]) -> Offsets:
    """UsageError unless it is what `to_json` makes."""
    try:
        return {
            topic: Place(
                str(place["uuid"]),
                _numbers({each: at for each, at in place.items() if each not in _ASIDE}),
                _numbers(place["began"]) if "began" in place else None,
                _numbers(place["terms"]) if "terms" in place else None,
            )
            for topic, place in data.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the checkpoint has offsets that this source did not write ({data!r}); it seems to belong to "
            "another query, so give this one a checkpoint of its own"
        ) from error


def _numbers(positions: Mapping[str, Any]) -> dict[int, int]:
    return {int(each): int(at) for each, at in positions.items()}


def begun(offsets: Offsets) -> Offsets:
    """The same as the place where a query begins."""
    return {name: place._replace(began=place.partitions) for name, place in offsets.items()}


def with_terms(offsets: Offsets, topics: Mapping[str, Bounded]) -> Offsets:
    """The offsets with the terms that the topics have at them. What `topics` lacks keeps those it had."""
    named = dict(offsets)
    for name, each in topics.items():
        place = offsets.get(name)
        if place is not None and place.uuid == each.uuid:
            found = {
                number: TermRuns(bounds.terms).at(place.partitions[number] - 1)
                for number, bounds in each.partitions.items()
                if number in place.partitions
            }
            terms = {**(place.terms or {}), **found}
            named[name] = place._replace(terms={number: term for number, term in terms.items() if term})
    return named


def _is_beyond(place: Place, number: int, bounds: Bounds) -> bool:
    """Whether the log, as it is now, ends before the offset, or has another record before it."""
    at = place.partitions[number]
    known = (place.terms or {}).get(number, 0)
    now = TermRuns(bounds.terms).at(at - 1)
    return at > bounds.end or (at >= bounds.start and 0 not in (known, now) and known != now)


def is_at(one: Offsets, other: Offsets) -> bool:
    """Whether both are the same place, apart from the start of the first micro-batch."""
    return {name: each[:2] for name, each in one.items()} == {name: each[:2] for name, each in other.items()}


def has_new(offsets: Offsets, topics: Mapping[str, Bounded]) -> bool:
    """Whether there is a topic or a partition that the offsets do not have yet."""
    return any(
        name not in offsets
        or offsets[name].uuid != each.uuid
        or not each.partitions.keys() <= offsets[name].partitions.keys()
        for name, each in topics.items()
    )


def starts(topics: Mapping[str, Bounded]) -> Offsets:
    """The start of every partition."""
    return {
        name: Place(each.uuid, {n: b.start for n, b in each.partitions.items()})
        for name, each in topics.items()
    }


def ends(topics: Mapping[str, Bounded]) -> Offsets:
    """The end of every partition."""
    return {
        name: Place(each.uuid, {n: b.end for n, b in each.partitions.items()})
        for name, each in topics.items()
    }


def clipped(topics: Mapping[str, Bounded], target: Offsets) -> dict[str, Bounded]:
    """The topics with ends no further than `target`."""
    return {
        name: Bounded(
            each.uuid,
            {
                number: bounds._replace(end=min(bounds.end, target[name].partitions[number]))
                for number, bounds in each.partitions.items()
                if number in target[name].partitions
            },
        )
        for name, each in topics.items()
        if name in target and target[name].uuid == each.uuid
    }


def advance(
    start: Offsets,
    topics: Mapping[str, Bounded],
    limit: int | None,
    weights: Mapping[tuple[str, int], int],
    turn: int = 0,
) -> Offsets:
    """The end of the next micro-batch, which has at most `limit`, shared fairly, or is a single record that
    weighs more. A record weighs 1, or the weight of its partition in `weights`. `turn` counts micro-batches:
    each partition gets at least one record in its turn. A topic or partition that `topics` lacks keeps its
    place."""
    behind = {(each.topic, each.partition): each.records for each in ranges(start, ends(topics))}
    rows = behind
    if limit is not None:
        ring = sorted((name, number) for name, each in topics.items() for number in each.partitions)
        rows = _limited(behind, limit, weights, ring, turn)
    # Only the end of a topic's first micro-batch has a `began` that differs.
    offsets = {
        name: place if place.began == place.partitions else place._replace(began=None)
        for name, place in start.items()
    }
    for name, each in topics.items():
        known = offsets.get(name)
        if known is None or known.uuid != each.uuid:
            known = Place(each.uuid, {})
        reached = {
            number: known.partitions.get(number, bounds.start) + rows.get((name, number), 0)
            for number, bounds in each.partitions.items()
        }
        offsets[name] = known._replace(partitions={**known.partitions, **reached})
    return offsets


def _limited(
    behind: Mapping[_Partition, int],
    limit: int,
    weights: Mapping[_Partition, int],
    ring: Sequence[_Partition],
    turn: int,
) -> dict[_Partition, int]:
    """How many records of each partition that has some.

    The share of a partition may be less than a record. Such a partition waits for as many turns as its record
    has shares, and so gets its share on average. No partition waits for more turns than there are
    partitions."""
    wanted = {name: count * weights.get(name, 1) for name, count in behind.items()}
    shares = share(wanted, limit)
    rows: dict[_Partition, int] = {}
    left = limit
    for place in range(turn, turn + len(ring)):
        name = ring[place % len(ring)]
        if name not in behind:
            continue
        weight = weights.get(name, 1)
        is_due = 0 < shares[name] < weight and (turn + place % len(ring)) % -(-weight // shares[name]) == 0
        if (place == turn or is_due) and (weight <= left or not rows):
            rows[name] = max(1, shares[name] // weight)
            left -= rows[name] * weight
    others = {name: want for name, want in wanted.items() if name not in rows}
    for name, room in share(others, max(0, left)).items():
        rows[name] = room // weights.get(name, 1)
    if behind and not any(rows.values()):
        rows[max(behind, key=lambda name: behind[name])] = 1
    return rows


def share(wanted: Mapping[Any, int], limit: int) -> dict[Any, int]:
    """Divide `limit` so that no partition gets more than it wants, and a partition that gets less than it
    wants gets no less than any other, apart from the remainder, which goes to those that want most."""
    shares: dict[Any, int] = {}
    for left, (name, want) in zip(
        range(len(wanted), 0, -1), sorted(wanted.items(), key=lambda item: item[1]), strict=True
    ):
        shares[name] = min(want, limit // left)
        limit -= shares[name]
    return shares


def ranges(start: Offsets, end: Offsets) -> Iterator[Range]:
    """The ranges between two offsets; none for a topic or partition that only one of them has. The start that
    `end` records takes precedence."""
    for name, place in end.items():
        known = start.get(name) if place.began is None else Place(place.uuid, place.began)
        if known is not None and known.uuid == place.uuid:
            for number, at in place.partitions.items():
                first = known.partitions.get(number)
                if first is not None and first < at:
                    yield Range(name, place.uuid, number, first, at)


def rewound(start: Offsets, topics: Mapping[str, Bounded]) -> Offsets:
    """Without the places that are not in their logs any more, so that those partitions begin anew."""
    offsets = dict(start)
    for name, place in start.items():
        now = topics.get(name)
        if now is not None and now.uuid == place.uuid:
            kept = {
                number: at
                for number, at in place.partitions.items()
                if number not in now.partitions or not _is_beyond(place, number, now.partitions[number])
            }
            if len(kept) < len(place.partitions):
                offsets[name] = Place(place.uuid, kept, None, place.terms)
    return offsets


def losses(start: Offsets, topics: Mapping[str, Bounded]) -> Iterator[Loss]:
    """The records behind `start` that no longer exist."""
    for name, place in start.items():
        now = topics.get(name)
        if now is None:
            yield Loss(f"topic {name!r} was deleted; what came behind {_told(place)} is lost", False)
        elif now.uuid != place.uuid:
            yield Loss(
                f"topic {name!r} was deleted and made anew; what came behind {_told(place)} of the former "
                "one is lost",
                False,
            )
        else:
            for number, at in place.partitions.items():
                bounds = now.partitions.get(number)
                if bounds is not None and at < bounds.start:
                    yield Loss(lost_text(name, number, at, bounds.start - 1), True)
                elif bounds is not None and at > bounds.end:
                    yield Loss(
                        f"topic {name!r}, partition {number}: the log ends at record {bounds.end - 1}, and "
                        f"this query has read up to record {at - 1}. So {at - bounds.end} records are gone, "
                        "as after a restored backup; going on means reading the partition from its start",
                        False,
                    )
                elif bounds is not None and _is_beyond(place, number, bounds):
                    yield Loss(
                        f"topic {name!r}, partition {number}: record {at - 1}, up to which this query has "
                        "read, is another one now. So the log was put back, as by a restored backup, and has "
                        "grown since; going on means reading the partition from its start",
                        False,
                    )


def lost_text(topic: str, partition: int, first: int, last: int) -> str:
    """The text that reports a lost range."""
    return (
        f"topic {topic!r}, partition {partition}: records {first} to {last} ({last - first + 1}) are no "
        "longer kept and were not read"
    )


def _told(place: Place) -> str:
    return ", ".join(
        f"offset {at - 1} of partition {number}" for number, at in sorted(place.partitions.items())
    )


def weights(
    behind: Sequence[Range], limit: int, sizes: Callable[[Sequence[Range]], Sequence[int]]
) -> dict[tuple[str, int], int]:
    """The bytes that a record of each partition counts for in a micro-batch of at most `limit` bytes.

    Sizes are known only by reading records. `sizes` reads the first records of each range and returns their
    size, at least 1. Records are read where the micro-batch begins, in its middle and at its end. If the
    later ones are larger, the micro-batch becomes shorter and is read again; each round but the last finds
    records of twice the size.
    """
    found = dict(zip(behind, sizes(behind), strict=True))
    growing = list(behind)
    while growing:
        looks = [_places(each, limit // found[each]) for each in growing]
        larger = iter(sizes([look for places in looks for look in places]))
        growing_still = []
        for each, places in zip(growing, looks, strict=True):
            before = found[each]
            found[each] = max([before, *(next(larger) for _ in places)])
            if found[each] >= 2 * before:
                growing_still.append(each)
        growing = growing_still
    return {(each.topic, each.partition): size for each, size in found.items()}


def _places(behind: Range, count: int) -> list[Range]:
    """The places at which a micro-batch of so many records is sampled."""
    count = min(count, behind.records)
    middle, last = behind.first + count // 2, behind.first + count - 1
    return [behind._replace(first=at, end=at + 1) for at in sorted({middle, last}) if at > behind.first]
