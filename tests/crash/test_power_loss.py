"""The power goes before every operation of every deed of a journal, with every outcome the disk can have."""

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from random import Random
from typing import Any

import msgspec
import pytest

from hawser.log.journal import Journal, Sync
from hawser.log.journal.promise import PromiseFile
from hawser.log.journal.sealed import Magic, seal
from hawser.log.journal.segment import Segment
from hawser.log.protocol.events import Promise
from hawser.testing.disk import SimDisk

from .power_loss import SETTINGS, Scenario, Violation, Witness, attack, attack_opening

Record = Callable[[str, object], None]


def formatting(witness: Witness) -> None:
    witness.format()


def appending(witness: Witness) -> None:
    """Batches within a segment and over its end, one larger than a segment, synced and not."""
    witness.format()
    witness.append(2)
    witness.sync()
    witness.append(2)
    witness.append(1)
    witness.sync()
    witness.append(3)
    witness.append(6)
    witness.sync()
    witness.append(1, size=900)
    witness.sync()
    witness.settle()
    witness.append(1)


def syncing_beside(witness: Witness) -> None:
    """Entries and a new segment come while a sync is under way."""
    witness.format()
    witness.append(3)
    witness.sync_beside(lambda: witness.append(2))
    witness.append(2)
    witness.sync_beside(lambda: witness.append(4))
    witness.sync_beside(lambda: witness.truncate(6))
    witness.append(1)
    witness.sync()


def reserving(witness: Witness) -> None:
    """Room is reserved, used in part, and reserved again for more."""
    witness.format()
    witness.append(3)
    witness.sync()
    witness.reserve(300)
    witness.reserve(700)
    witness.append(4)
    witness.append(5)
    witness.sync()


def promising(witness: Witness) -> None:
    witness.format()
    for epoch in range(1, 4):
        witness.save_promise(Promise(epoch, led=epoch % 2 == 0, installed=epoch - 1))


def truncating(witness: Witness) -> None:
    """Within a segment, at its first entry, over several, of synced and of unsynced entries, then others."""
    witness.format()
    witness.append(4)
    witness.sync()
    witness.append(4)
    witness.sync()
    witness.append(4)
    witness.settle()
    witness.truncate(11)
    witness.next_epoch()
    witness.append(2)
    witness.truncate(7)
    witness.next_epoch()
    witness.append(3)
    witness.sync()
    witness.truncate(2)
    witness.next_epoch()
    witness.append(1)
    witness.sync()
    witness.truncate(0)


def checkpointing(witness: Witness) -> None:
    """Checkpoints with old and new blocks, then segments go."""
    witness.format()
    for _ in range(3):
        witness.append(4)
        witness.sync()
    witness.save_checkpoint(5, b"five", {"one": b"1" * 100})
    witness.save_checkpoint(9, b"nine" * 50, {"one": b"1" * 100, "two": b"2"})
    witness.retain(7)
    witness.append(4)
    witness.sync()
    witness.save_checkpoint(12, b"", {"three": b"3" * 700})
    witness.retain(100)


@cache
def other_member(entries: int, kept_from: int) -> Witness:
    """A member with a checkpoint, some entries before it gone and some behind it."""
    other = Witness(SimDisk())
    other.format()
    other.next_epoch()
    for _ in range(entries // 3):
        other.append(3)
        other.sync()
    other.save_checkpoint(entries - 2, b"theirs" * 20, {"block": b"b" * 300, "another": b""})
    other.retain(kept_from)
    return other


def installing(witness: Witness) -> None:
    """A snapshot in place of a log, and one more in place of that."""
    witness.format()
    witness.append(4)
    witness.sync()
    witness.save_checkpoint(2, b"mine", {"block": b"other content"})
    witness.install(other_member(12, 6), Promise(3, installed=3))
    witness.next_epoch()
    witness.append(2)
    witness.sync()
    witness.install(other_member(21, 15), Promise(5, installed=5))
    witness.next_epoch()
    witness.append(1)
    witness.sync()


def destroying(witness: Witness) -> None:
    witness.format()
    witness.append(9)
    witness.sync()
    witness.save_checkpoint(3, b"state", {"block": b"content"})
    witness.destroy()


def opening(witness: Witness) -> None:
    """An unsynced tail is read back and then counts."""
    witness.format()
    witness.append(4)
    witness.sync()
    witness.append(2)
    witness.open()
    witness.append(4)
    witness.append(4)
    witness.open()


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        formatting, appending, syncing_beside, reserving, promising, truncating, checkpointing, installing,
        destroying, opening,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_outcome(name: str, record_property: Record) -> None:
    figures = attack(SCENARIOS[name], Random(name))
    record_property("points", figures.points)
    record_property("outcomes", figures.outcomes)
    record_property("most pending", figures.most_pending)
    assert figures.outcomes > figures.points


@pytest.mark.parametrize("name", SCENARIOS)
def test_power_goes_again_while_opening(name: str, record_property: Record) -> None:
    figures = attack_opening(SCENARIOS[name], Random(name), outcomes_a_point=3)
    record_property("points", figures.points)
    record_property("outcomes", figures.outcomes)
    assert figures.outcomes >= figures.points


def wandering(seed: int, witness: Witness) -> None:
    """Whatever may be done, in any order."""
    random = Random(seed)
    others = [other_member(12, 6), other_member(21, 1)]
    witness.format()
    for _ in range(random.randint(5, 40)):
        head, world = witness.journal.head.index, witness.world
        checkpoint = witness.journal.checkpoint
        covered = checkpoint.index if checkpoint else 0
        deeds: list[Callable[[], None]] = [
            partial(witness.append, random.randint(1, 6), random.choice((0, 40, 200, 700))),
            witness.sync,
            witness.settle,
            witness.open,
            witness.next_epoch,
            partial(witness.save_promise, Promise(witness.journal.promise.epoch + 1)),
            partial(witness.truncate, random.randint(covered, head)),
            partial(witness.sync_beside, partial(witness.append, random.randint(1, 3))),
            partial(witness.sync_beside, partial(witness.truncate, random.randint(covered, head))),
            partial(witness.retain, max(witness.journal.first, random.randint(1, head + 1))),
            partial(witness.install, random.choice(others), Promise(witness.journal.promise.epoch + 1)),
        ]
        if covered <= world.floor:
            index = random.randint(covered, world.floor)
            blocks = {f"at{index}": bytes([index % 256]) * 50} if random.random() < 0.5 else {}
            deeds.append(partial(witness.save_checkpoint, index, b"state", blocks))
        random.choice(deeds)()


def wander(first: int, seeds: Iterable[int]) -> dict[str, int]:
    counts = {"seeds": 0, "points": 0, "outcomes": 0}
    for seed in seeds:
        # Every point needs the same deeds again, so each run gets a fresh source of the same chance.
        scenario = partial(wandering, first + seed)
        try:
            figures = attack(scenario, Random(seed), most=3, samples=4)
        except Violation as violation:
            raise AssertionError(f"seed {first + seed}: {violation}") from violation
        counts["seeds"] += 1
        counts["points"] += figures.points
        counts["outcomes"] += figures.outcomes
    return counts


@pytest.mark.parametrize(("first", "count"), [(0, 12), pytest.param(1_000, 30, marks=pytest.mark.slow)])
def test_any_order_of_deeds(first: int, count: int, record_property: Record) -> None:
    for name, number in wander(first, range(count)).items():
        record_property(name, number)


@pytest.mark.soak
@pytest.mark.slow
def test_any_order_for_as_long_as_told(soak_seconds: float, record_property: Record) -> None:
    until = time.monotonic() + soak_seconds
    first = int(time.time()) * 1_000
    seeds = 0
    while time.monotonic() < until:
        wander(first, [seeds])
        seeds += 1
    record_property("first seed", first)
    record_property("seeds", seeds)


# Planted bugs, each with the scenario that must catch it.


def acknowledging_before_syncing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sync, "run", lambda sync: None)


def marking_before_syncing(patch: pytest.MonkeyPatch) -> None:
    begin_sync = Journal.begin_sync

    def begin(journal: Journal, with_marks: bool = False) -> Sync:
        active = journal._segments.active
        if not active.mark_is_pending:
            active.write_mark(journal.head.index)
        return begin_sync(journal, with_marks)

    patch.setattr(Journal, "begin_sync", begin)


def truncating_under_the_mark(patch: pytest.MonkeyPatch) -> None:
    write_mark = Segment.write_mark

    def write_unless_lower(segment: Segment, index: int) -> None:
        if index >= segment.mark:
            write_mark(segment, index)
        segment.mark = index

    patch.setattr(Segment, "write_mark", write_unless_lower)


def leaving_the_old_segment_unsynced(patch: pytest.MonkeyPatch) -> None:
    begin_sync = Journal.begin_sync

    def begin(journal: Journal, with_marks: bool = False) -> Sync:
        sync = begin_sync(journal, with_marks)
        sync.segments = sync.segments[-1:]
        return sync

    patch.setattr(Journal, "begin_sync", begin)


def promising_in_one_slot(patch: pytest.MonkeyPatch) -> None:
    def write_the_first(promises: PromiseFile, name: str) -> None:
        data = seal(Magic.PROMISE, msgspec.msgpack.encode(promises._body))
        promises._storage.write(name, 0, data.ljust(4096, b"\0"))
        promises._storage.sync(name)

    patch.setattr(PromiseFile, "_write_slots", write_the_first)


def two_marks_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "mark_is_pending", property(lambda segment: False, lambda segment, value: None))


def switching_before_syncing(patch: pytest.MonkeyPatch) -> None:
    sync = SimDisk.sync

    def sync_unless_new(disk: SimDisk, name: str) -> None:
        if "-00000001" in name or name.startswith("vow"):
            sync(disk, name)

    patch.setattr(SimDisk, "sync", sync_unless_new)


def renaming_before_the_names_are_synced(patch: pytest.MonkeyPatch) -> None:
    sync_names = SimDisk.sync_names

    def sync_after_renaming(disk: SimDisk) -> None:
        if not any(name.endswith(".new") for name in disk.names()):
            sync_names(disk)

    patch.setattr(SimDisk, "sync_names", sync_after_renaming)


CANARIES: list[tuple[Callable[[pytest.MonkeyPatch], Any], Scenario]] = [
    (acknowledging_before_syncing, appending),
    (marking_before_syncing, appending),
    (truncating_under_the_mark, truncating),
    (leaving_the_old_segment_unsynced, appending),
    (promising_in_one_slot, promising),
    (two_marks_at_once, truncating),
    (switching_before_syncing, installing),
    (renaming_before_the_names_are_synced, checkpointing),
]


@pytest.mark.parametrize(("plant", "scenario"), CANARIES, ids=lambda part: part.__name__)
def test_canary_is_caught(
    plant: Callable[[pytest.MonkeyPatch], Any], scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Violation):
        attack(scenario, Random(1))


def test_the_scenarios_fill_several_segments() -> None:
    witness = Witness(SimDisk())
    appending(witness)
    assert len([name for name in witness.disk.names() if name.startswith("log-")]) > 3
    assert SETTINGS.segment_bytes < 900
