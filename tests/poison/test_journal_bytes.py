"""Damaged files of a journal: damage is named, or harmless, or above the mark; no wrong entry is served."""

import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from random import Random

import msgspec
import pytest

from hawser.log.entry import Entry
from hawser.log.journal import Damaged, Journal, NotFormatted, OtherVersion, Settings
from hawser.log.journal.sealed import Magic, seal
from hawser.log.journal.segment import Segment
from hawser.log.protocol.events import Promise
from hawser.testing.disk import Fate, SimDisk

Record = Callable[[str, object], None]
SETTINGS = Settings(segment_bytes=1500, tail_bytes=0)
PROMISE = Promise(9, led=True, installed=4)
BLOCKS = {"one": b"1" * 600, "two": b"2" * 20}
# Small enough that whole segments, and both slots of a mark, are hit at once now and then.
MOST_DAMAGED_BYTES = 20_000


class Original:
    """A journal, what is in it, and through which entry a mark on disk covers it."""

    def __init__(self, trimmed: bool, settled: bool, syncs_a_mark: int = 1) -> None:
        self.disk = SimDisk()
        self.entries = [
            Entry.make(
                1 + index // 7, index, 1, bytes([index]) * (index * 37 % 400), transaction=b"t" * (index % 3)
            )
            for index in range(1, 41)
        ]
        settings = msgspec.structs.replace(SETTINGS, syncs_a_mark=syncs_a_mark)
        journal = Journal.format(self.disk, "shard", "node.disk", settings)
        journal.save_promise(PROMISE)
        for start in range(0, 40, 4):
            journal.append(self.entries[start : start + 4])
            journal.sync()
            if start == 28:
                for name, data in BLOCKS.items():
                    journal.write_block(name, data)
                journal.save_checkpoint(25, b"state" * 30, list(BLOCKS))
        if trimmed:
            journal.retain(20)
        if settled:
            journal.settle()
        self.first = journal.first
        entries_a_mark = 4 * syncs_a_mark
        self.covered = 40 if settled else 40 - entries_a_mark
        self.covered_without_a_slot = self.covered - entries_a_mark
        self.checkpoint = journal.checkpoint
        # Everything was synced but the last mark, and that the power takes.
        self.disk.crash_with([Fate.LOST] * self.disk.pending(), Random(0))


def flip_bit(disk: SimDisk, name: str, random: Random) -> str:
    return f"{disk.flip(random, name)}"


def flip_bits(disk: SimDisk, name: str, random: Random) -> str:
    """All over the file, so that a slot of the mark and a frame far from it may be hit at once."""
    return f"{[disk.flip(random, name) for _ in range(random.randint(2, 200))]}"


def scribble(disk: SimDisk, name: str, random: Random) -> str:
    start = random.randrange(disk.size(name))
    size = min(disk.size(name) - start, random.randint(1, MOST_DAMAGED_BYTES))
    data = random.randbytes(size) if random.random() < 0.5 else bytes(size)
    disk.write(name, start, data)
    return f"bytes {start} to {start + size} of {name}"


def shorten(disk: SimDisk, name: str, random: Random) -> str:
    size = random.randrange(disk.size(name))
    disk.truncate(name, size)
    return f"{name} cut to {size}"


def remove(disk: SimDisk, name: str, random: Random) -> str:
    disk.remove(name)
    return f"{name} removed"


def move_bytes(disk: SimDisk, name: str, random: Random) -> str:
    """Bytes that are good elsewhere: old frames, another segment's header, another slot."""
    source = random.choice(disk.names())
    size = random.randint(1, min(disk.size(name), disk.size(source), 6_000))
    align = random.choice((1, 4096))
    start = random.randrange(disk.size(source) - size + 1) // align * align
    target = random.randrange(disk.size(name) - size + 1) // align * align
    disk.write(name, target, disk.read(source, start, size))
    return f"bytes {start} of {source} over {target} of {name}"


WAYS = [flip_bit, flip_bit, flip_bits, scribble, scribble, shorten, remove, move_bytes]


def judge(original: Original, disk: SimDisk, covered: int) -> str:
    """What became of it: how it was refused, or what was answered; an AssertionError for a wrong answer.

    Entries through `covered` cannot have been taken for a torn tail."""
    try:
        journal = Journal.open(disk, SETTINGS)
    except (Damaged, OtherVersion) as refusal:
        return type(refusal).__name__.lower()
    except NotFormatted:
        raise AssertionError("a journal with entries was taken for none") from None
    assert journal.promise == PROMISE
    assert journal.first == original.first
    head = journal.head.index
    assert covered <= head <= 40, f"head {head}"
    assert journal.checkpoint == original.checkpoint or (journal.checkpoint is None and original.first == 1)
    answer = "whole" if head == 40 and journal.checkpoint else "cut above the mark"
    if journal.checkpoint is None:
        answer = "without its checkpoint"
    try:
        found = journal.read(journal.first, head, 1 << 30)
        assert found == original.entries[journal.first - 1 : head]
        for name in journal.checkpoint.blocks if journal.checkpoint else ():
            assert journal.read_block(name) == BLOCKS[name]
        assert list(journal.verify())
    except Damaged:
        return "named when read"
    return answer


def all_originals() -> list[Original]:
    return [Original(*how) for how in product((False, True), (False, True), (1, 3))]


def poison(first: int, count: int, originals: list[Original]) -> Counter[str]:
    """What became of `count` damaged journals."""
    answers: Counter[str] = Counter()
    for seed in range(first, first + count):
        random = Random(seed)
        original = random.choice(originals)
        disk = original.disk.copy()
        name = random.choice(disk.names())
        way = random.choice(WAYS)
        damage = way(disk, name, random)
        covered = original.covered_without_a_slot if way is flip_bits else original.covered
        try:
            answers[judge(original, disk, covered)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}, {damage}: {error!r}") from error
    return answers


@pytest.mark.parametrize(
    ("first", "count"), [(1, 6_000), pytest.param(100_000, 20_000, marks=pytest.mark.slow)]
)
def test_damage_is_named_or_harmless(first: int, count: int, record_property: Record) -> None:
    answers = poison(first, count, all_originals())
    for answer, times in sorted(answers.items()):
        record_property(answer, times)
    assert answers["damaged"] > count // 10 and answers["whole"] and answers["cut above the mark"]


def test_every_byte_that_counts(record_property: Record) -> None:
    """One bit of each byte of each file, none left out."""
    original = Original(trimmed=True, settled=True)
    answers: Counter[str] = Counter()
    for name in original.disk.names():
        for byte in range(original.disk.size(name)):
            if byte % 64 and not any(original.disk.read(name, byte // 64 * 64, 64)):
                continue
            disk = original.disk.copy()
            (old,) = disk.read(name, byte, 1)
            disk.write(name, byte, bytes([old ^ 1 << byte % 8]))
            answers[judge(original, disk, original.covered)] += 1
    for answer, times in sorted(answers.items()):
        record_property(answer, times)
    assert answers["damaged"] > 1000 and not answers["cut above the mark"]


@pytest.mark.soak
@pytest.mark.slow
def test_damage_for_as_long_as_told(soak_seconds: float, record_property: Record) -> None:
    until = time.monotonic() + soak_seconds
    first = int(time.time()) * 1_000
    answers: Counter[str] = Counter()
    while time.monotonic() < until:
        answers += poison(first + answers.total(), 2_000, all_originals())
    record_property("first seed", first)
    for answer, times in sorted(answers.items()):
        record_property(answer, times)


# Planted bugs.


class Agreeable:
    """A checksum that is always right."""

    def __ne__(self, other: object) -> bool:
        return False


def test_unchecked_frames_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = [Original(trimmed=False, settled=True)]
    for module in ("hawser.log.journal.recovery", "hawser.log.entry"):
        monkeypatch.setattr(f"{module}.crc32c", lambda data: Agreeable())
    with pytest.raises(AssertionError, match="seed"):
        poison(1, 2_000, originals)


def test_forgotten_marks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = [Original(trimmed=False, settled=True)]
    monkeypatch.setattr(Segment, "_unpacked_mark", lambda segment, pages, slot: (slot, 0))
    with pytest.raises(AssertionError, match="seed"):
        poison(1, 2_000, originals)


def test_a_vow_taken_from_the_older_slot_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    originals = [Original(trimmed=False, settled=True)]
    for original in originals:
        # As if a promise went to the first slot only.
        second = seal(Magic.PROMISE, msgspec.msgpack.encode([1, ["shard", "node.disk"], 1, 1, Promise()]))
        original.disk.write("vow", 4096, second.ljust(4096, b"\0"))
    with pytest.raises(AssertionError, match="seed"):
        poison(1, 2_000, originals)
