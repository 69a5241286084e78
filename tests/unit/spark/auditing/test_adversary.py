"""Faults anywhere in any tier: the audit names exactly what is wrong, or exactly what it could not compare.

What it should say is worked out a second time, number by number from sets, without ranges, runs and hashes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hawser.record.trace import TraceKind
from hawser.spark.pipelines.auditing import lines
from hawser.spark.pipelines.auditing.comparison import Comparison
from hawser.spark.pipelines.auditing.document import MISMATCHES, UNKNOWN, Document
from hawser.spark.pipelines.auditing.evidence import BLOCK_MESSAGES
from hawser.spark.pipelines.auditing.lines import Run
from hawser.spark.pipelines.ranges import common, merged
from tests.support.audits import LATE_NS, Record, Row, Step, World, audited

Place = tuple[str, int | None, str]
"""A line: its tier, its partition, and whose it is."""
Told = dict[tuple[Place, str], set[int]]
Fault = Callable[[World], list[tuple[Place, int]]]

LANDED: tuple[Place, Place] = (("landed", 0, ""), ("landed", 1, ""))
RECORDED: Place = ("recorded", 0, "agent")


def said(document: Document) -> Told:
    found: defaultdict[tuple[Place, str], set[int]] = defaultdict(set)
    for each in document.problems:
        place = (each.tier, each.partition, each.who)
        found[place, each.word] |= set(range(each.first, each.last + 1))
    return dict(found)


# What is true, by sets.


def truth(world: World) -> Told:
    steps = [each for each in world.trace if each is not None]
    published = {each.number: each for each in steps if each.kind == TraceKind.PUBLISH}
    recorded = [each for each in world.log if each.producer == world.recorder]
    taken = {each.number for each in steps if each.kind == TraceKind.TAKE}
    found: Told = {}
    known = {*published, *taken, *(each.number for each in recorded if each.number)}
    whole = set(range(min(known, default=0), max(known, default=-1) + 1))
    if published or taken:
        found[("published", None, ""), "unwitnessed"] = whole - published.keys()
    for owner in {each.owner for each in steps if each.kind == TraceKind.SUBSCRIBE}:
        found |= _of_subscriber([each for each in steps if each.owner == owner], published)
    if recorded:
        found |= _of_recorder(world, recorded, published)
    for partition in (0, 1):
        found |= _of_partition(world, partition)
    return {key: numbers for key, numbers in found.items() if numbers}


def _of_subscriber(steps: list[Step], published: dict[int, Step]) -> Told:
    place: Place = ("delivered", None, steps[0].who)
    takes = [each for each in steps if each.kind == TraceKind.TAKE]
    (joined,) = [each.number for each in steps if each.kind == TraceKind.SUBSCRIBE]
    left = [each.number + 1 for each in steps if each.kind == TraceKind.UNSUBSCRIBE]
    numbers = {each.number for each in takes}
    newest = max([joined, *numbers, *left])
    return {
        (place, "missing"): set(range(joined + 1, newest + 1)) - numbers - set(left),
        (place, "pending"): set() if left else {each for each in published if each > newest},
        **_in_order(place, [each.number for each in takes]),
        (place, "damaged"): {
            each.number for each in takes
            if each.number in published and each.time_us != published[each.number].time_us
        },
        (place, "uncompared"): numbers - published.keys(),
    }  # fmt: skip


def _in_order(place: Place, numbers: list[int]) -> Told:
    twice = {number for number, count in Counter(numbers).items() if count > 1}
    late = {number for at, number in enumerate(numbers) if number < max(numbers[:at], default=0)}
    return {(place, "duplicate"): twice, (place, "reordered"): late - twice}


def _of_recorder(world: World, recorded: list[Record], published: dict[int, Step]) -> Told:
    offsets = {each.offset for each in world.log if each.partition == 0}
    places = {each.number or 0: each.offset for each in recorded}
    newest = max(places)
    absent = {each for each in range(1, newest) if each not in places}
    unknown = set()
    for number in absent:
        before = places[max(each for each in places if each < number)] if number > min(places) else 1
        after = places[min(each for each in places if each > number)]
        if before > after:
            before, after = 1, max(offsets)
        if not set(range(before, after + 1)) <= offsets:
            unknown.add(number)
    return {
        (RECORDED, "missing"): absent - unknown,
        (RECORDED, "unwitnessed"): unknown,
        (RECORDED, "pending"): {each for each in published if each > newest},
        **_in_order(RECORDED, [each.number or 0 for each in recorded]),
        (RECORDED, "damaged"): {
            each.number for each in recorded
            if each.number in published and (each.time_us, each.size)
            != (published[each.number].time_us, published[each.number].value)
        },
        (RECORDED, "uncompared"): places.keys() - published.keys(),
    }  # fmt: skip


def _of_partition(world: World, partition: int) -> Told:
    log = {each.offset: each.content for each in world.log if each.partition == partition}
    table: defaultdict[int, list[Row]] = defaultdict(list)
    for row in world.table:
        if row.partition == partition:
            table[row.offset].append(row)
    committed = world.committed[world.topic, partition]
    first, last = min([committed.first, *table]), max([committed.last, *table])
    known = {*log, *table}
    whole = set(range(min(known, default=1), max(known, default=0) + 1))
    expected = {*known, *range(first, last + 1)} - set(range(first))
    to_come = {each for each in expected if each > last}
    place = LANDED[partition]
    return {
        (("replicated", partition, ""), "unwitnessed"): {
            each for each in whole - log.keys() if each <= max(log or table)
        },
        (("in Spark", partition, ""), "pending"): to_come,
        (place, "pending"): to_come - table.keys(),
        (place, "missing"): expected - table.keys() - to_come,
        (place, "duplicate"): {each for each, rows in table.items() if len(rows) > 1},
        (place, "late"): {
            each for each, rows in table.items()
            if any((row.landed_us - row.time_us) * 1000 > LATE_NS for row in rows)
        },
        (place, "damaged"): {
            each for each, rows in table.items()
            if each in log and any(row.content != log[each] for row in rows)
        },
        (place, "uncompared"): table.keys() - log.keys(),
    }  # fmt: skip


# Faults. Each says which messages of which lines it touched.


def some_row(world: World) -> int:
    return world.random.randrange(len(world.table))


def some_record(world: World) -> int:
    """The last record of the log's partition 0 is the recorder's, and retention leaves it."""
    places = [place for place, each in enumerate(world.log) if each.producer == world.recorder]
    return world.random.choice(places)


def some_step(world: World, kind: TraceKind) -> int | None:
    places = [place for place, each in enumerate(world.trace) if each is not None and each.kind == kind]
    return world.random.choice(places) if places else None


def row_is_dropped(world: World) -> list[tuple[Place, int]]:
    row = world.table.pop(some_row(world))
    return [(LANDED[row.partition], row.offset)]


def row_is_doubled(world: World) -> list[tuple[Place, int]]:
    row = world.table[some_row(world)]
    world.table.insert(world.random.randint(0, len(world.table)), row)
    return [(LANDED[row.partition], row.offset)]


def row_is_flipped(world: World) -> list[tuple[Place, int]]:
    place = some_row(world)
    row = world.table[place]
    world.table[place] = row._replace(content=row.content ^ 1 << world.random.randrange(63))
    return [(LANDED[row.partition], row.offset)]


def rows_are_swapped(world: World) -> list[tuple[Place, int]]:
    one, other = some_row(world), some_row(world)
    first, second = world.table[one], world.table[other]
    world.table[one] = first._replace(content=second.content)
    world.table[other] = second._replace(content=first.content)
    return [] if one == other else [(LANDED[row.partition], row.offset) for row in (first, second)]


def row_is_moved(world: World) -> list[tuple[Place, int]]:
    """To the other partition, where it has the number of another row, or of none."""
    place = some_row(world)
    row = world.table[place]
    world.table[place] = row._replace(partition=1 - row.partition)
    return [(line, row.offset) for line in LANDED]


def row_is_late(world: World) -> list[tuple[Place, int]]:
    place = some_row(world)
    row = world.table[place]
    world.table[place] = row._replace(landed_us=row.time_us + LATE_NS // 1000 + 1)
    return [(LANDED[row.partition], row.offset)]


def topic_is_created_anew(world: World) -> list[tuple[Place, int]]:
    """The log has other messages than those that landed, under the same numbers."""
    end = world.random.randint(1, max(each.offset for each in world.log if each.partition == 1))
    world.log = [
        each._replace(content=world.random.getrandbits(63)) if each.partition == 1 else each
        for each in world.log
        if each.partition == 0 or each.offset <= end
    ]
    return [(LANDED[1], row.offset) for row in world.table if row.partition == 1]


def recorder_leaves_one_out(world: World) -> list[tuple[Place, int]]:
    """A recorder of which there is no record at all is not known."""
    place = some_record(world)
    record = world.log[place]
    world.log[place] = record._replace(producer="somebody", number=1)
    is_known = any(each.producer == world.recorder for each in world.log)
    return [(RECORDED, record.number or 0)] if is_known else []


def recorder_writes_one_twice(world: World) -> list[tuple[Place, int]]:
    number = world.log[some_record(world)].number or 0
    world.record(number)
    return [(RECORDED, number)]


def recorder_changes_one(world: World) -> list[tuple[Place, int]]:
    place = some_record(world)
    record = world.log[place]
    if world.random.random() < 0.5:
        world.log[place] = record._replace(time_us=record.time_us + 1)
    else:
        world.log[place] = record._replace(size=record.size + 1)
    return [(RECORDED, record.number or 0)]


def recorder_swaps_two(world: World) -> list[tuple[Place, int]]:
    one, other = sorted((some_record(world), some_record(world)))
    first, second = world.log[one], world.log[other]

    def as_if(record: Record, like: Record) -> Record:
        return record._replace(number=like.number, time_us=like.time_us, size=like.size)

    world.log[one], world.log[other] = as_if(first, second), as_if(second, first)
    return [] if one == other else [(RECORDED, first.number or 0)]


def recorder_swaps_sizes_of_two(world: World) -> list[tuple[Place, int]]:
    """The numbers, the times and the sum of the sizes stay as they are."""
    one, other = some_record(world), some_record(world)
    first, second = world.log[one], world.log[other]
    world.log[one], world.log[other] = first._replace(size=second.size), second._replace(size=first.size)
    return [] if first.size == second.size else [(RECORDED, each.number or 0) for each in (first, second)]


def log_loses_one(world: World) -> list[tuple[Place, int]]:
    """In the middle: neither at its begin, where retention would, nor at its end."""
    places = [
        place for place, each in enumerate(world.log)
        if 1 < each.offset < max(one.offset for one in world.log if one.partition == each.partition)
    ]  # fmt: skip
    if not places:
        return []
    record = world.log.pop(world.random.choice(places))
    return [(("replicated", record.partition, ""), record.offset)]


def take_is_dropped(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.TAKE)
    return [] if place is None else [_of_step(world.trace.pop(place))]


def take_is_doubled(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.TAKE)
    if place is None:
        return []
    step = world.trace[place]
    world.trace.insert(world.random.randint(place, len(world.trace)), step)
    return [_of_step(step)]


def take_is_changed(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.TAKE)
    if place is None:
        return []
    step = world.trace[place]
    assert step is not None
    world.trace[place] = step._replace(time_us=step.time_us + 1, value=step.value + 1000)
    return [_of_step(step)]


def takes_are_swapped(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.TAKE)
    if place is None:
        return []
    step = world.trace[place]
    assert step is not None
    mine = [at for at, each in enumerate(world.trace) if each and _is_take_of(each, step.owner)]
    other = world.random.choice(mine)
    world.trace[place], world.trace[other] = world.trace[other], step
    return [] if other == place else [_of_step(world.trace[max(place, other)])]


def _is_take_of(step: Step, owner: int) -> bool:
    return step.kind == TraceKind.TAKE and step.owner == owner


def _of_step(step: Step | None) -> tuple[Place, int]:
    assert step is not None
    return ("delivered", None, step.who), step.number


def publish_is_not_traced(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.PUBLISH)
    assert place is not None
    step = world.trace.pop(place)
    assert step is not None
    return [(RECORDED, step.number)]


def publish_is_changed(world: World) -> list[tuple[Place, int]]:
    place = some_step(world, TraceKind.PUBLISH)
    assert place is not None
    step = world.trace[place]
    assert step is not None
    world.trace[place] = step._replace(time_us=step.time_us + 1)
    return [(RECORDED, step.number)]


FAULTS: list[Fault] = [
    row_is_dropped, row_is_doubled, row_is_flipped, rows_are_swapped, row_is_moved, row_is_late,
    topic_is_created_anew, recorder_leaves_one_out, recorder_writes_one_twice, recorder_changes_one,
    recorder_swaps_two, recorder_swaps_sizes_of_two, log_loses_one, take_is_dropped, take_is_doubled,
    take_is_changed, takes_are_swapped, publish_is_not_traced, publish_is_changed,
]  # fmt: skip


# Those that leave the places of the others as they are.
INDEPENDENT: list[Fault] = [row_is_flipped, row_is_late, recorder_changes_one, take_is_changed]


def world_of(seed: int, *, is_trimmed: bool, topic: str = "topic") -> World:
    """Subscribers come and go, and a landing covers some of it; with retention, perhaps."""
    world = World(topic, seed)
    world.fill(world.size())
    if is_trimmed:
        for partition in (0, 1):
            most = max(each.offset for each in world.log if each.partition == partition) - 1
            world.trim(partition, world.random.choice([0, min(1, most), world.random.randint(0, most)]))
    return world


def is_told(told: Told, place: Place, number: int) -> bool:
    return any(number in numbers for (where, _), numbers in told.items() if where == place)


def is_silent(document: Document) -> bool:
    """Whether a tier has nothing at all, as if no subscriber took anything."""
    return "nothing is known of" in document.verdict


def check(document: Document, told: Told) -> None:
    """The sentence says no more than the words do."""
    words = {word for _, word in told}
    is_open = bool(words & UNKNOWN) or document.lost > 0 or is_silent(document)
    assert document.is_whole == (not words & MISMATCHES)
    assert document.is_proven == (document.is_whole and not is_open)
    assert document.verdict.startswith("complete:") == document.is_proven, document.verdict
    assert not document.problems_left_out


SEEDS = st.integers(0, (1 << 32) - 1)


@settings(max_examples=60)
@given(SEEDS, st.booleans())
def test_a_world_without_faults(seed: int, is_trimmed: bool) -> None:
    world = world_of(seed, is_trimmed=is_trimmed)
    document = audited(world)
    assert said(document) == truth(world)
    check(document, said(document))
    assert document.is_whole
    if not is_trimmed and not is_silent(document):
        assert document.is_proven, "subscribers and landings that begin late are compared from there on"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@settings(max_examples=25)
@given(SEEDS, st.booleans())
def test_a_fault_is_named_exactly(fault: Fault, seed: int, is_trimmed: bool) -> None:
    world = world_of(seed, is_trimmed=is_trimmed)
    planted = fault(world)
    document = audited(world)
    told = said(document)
    assert told == truth(world)
    check(document, told)
    for place, number in planted:
        gone = is_trimmed and place == RECORDED
        assert is_told(told, place, number) or gone, (place, number, told)


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_in_several_blocks_is_named_exactly(seed: int) -> None:
    world = World("topic", seed)
    world.fill(BLOCK_MESSAGES + world.random.randint(-3, 500), subscribers=1)
    planted = [told for fault in world.random.sample(INDEPENDENT, 3) for told in fault(world)]
    document = audited(world)
    told = said(document)
    assert told == truth(world)
    check(document, told)
    assert planted and all(is_told(told, *each) for each in planted)


@settings(max_examples=150)
@given(SEEDS, st.sampled_from(FAULTS))
def test_what_a_lapped_trace_may_have_told_is_never_complete(seed: int, fault: Fault) -> None:
    world = world_of(seed, is_trimmed=False)
    fault(world)
    full = truth(world)
    first = world.random.randrange(len(world.trace))
    count = world.random.randint(1, len(world.trace) - first)
    world.trace[first : first + count] = [None] * count
    document = audited(world)
    told = said(document)
    check(document, told)
    assert document.lost == count and not document.is_proven
    for (place, word), numbers in told.items():
        is_in_order = (place, "duplicate") not in full and (place, "reordered") not in full
        if word in MISMATCHES and is_in_order:
            assert numbers <= full.get((place, word), set()), "the trace is weaker, never wrong"
    of_log = ("replicated", "in Spark", "landed")
    assert [
        {key: numbers for key, numbers in each.items() if key[0][0] in of_log} for each in (told, full)
    ] == [{key: numbers for key, numbers in full.items() if key[0][0] in of_log}] * 2


@pytest.mark.parametrize("fault", [row_is_flipped, take_is_changed, recorder_changes_one])
def test_canary_an_audit_that_compares_nothing_is_caught(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(before: Sequence[Run], after: Sequence[Run], _: bool) -> Comparison:
        both = common(merged(run.piece for run in after), merged(run.piece for run in before))
        return Comparison(both, [])

    monkeypatch.setattr(lines, "compare", blind)
    worlds = [world_of(seed, is_trimmed=False) for seed in range(10)]
    assert any(fault(world) and said(audited(world)) != truth(world) for world in worlds)
