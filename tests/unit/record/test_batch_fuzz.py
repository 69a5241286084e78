"""Batches that were changed in transit: each is refused, or read alike in every way it can be read."""

import random
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hawser.record import arrow, batch_body
from hawser.record.batch import BadBatch, Batch, Compression
from hawser.record.record import NO_STAMP, Record, Stamp

Record_property = Callable[[str, object], None]
T = TypeVar("T")


def outcome(read: Callable[[], T]) -> T | None:
    """What was read; None if it was refused. Anything else that is raised is a fault."""
    try:
        return read()
    except BadBatch:
        return None


def passes(batch: Batch) -> bool:
    try:
        batch.check()
    except BadBatch:
        return False
    return True


def judge(data: bytes) -> str:
    """Which of the three it is: a bad header, a bad body, a batch."""
    batch = outcome(lambda: Batch.read(data))
    if batch is None:
        return "bad headers"
    plain = outcome(lambda: list(batch.records()))
    if plain != outcome(lambda: list(arrow.records(batch.to_arrow()))):
        raise AssertionError("the two readings differ")
    checked = passes(batch)
    if plain is None:
        assert not checked
        return "bad bodies"
    times = [record.timestamp_ns for record in plain]
    assert len(plain) == batch.count
    assert checked == ((min(times), max(times)) == (batch.header.earliest_ns, batch.header.latest_ns))
    return "still batches"


def some_batch(chance: random.Random) -> Batch:
    records = [
        Record(
            chance.randbytes(chance.randrange(30)),
            chance.choice([None, bytes(chance.randrange(5))]),
            chance.choice([{}, {"name": b"1"}]),
            chance.choice([5, chance.randrange(1 << 40)]),
        )
        for _ in range(chance.randrange(1, 12))
    ]
    stamp = chance.choice([NO_STAMP, Stamp(b"producer", 1, 1)])
    compression = chance.choice([Compression.NONE, *Compression])
    if chance.random() < 0.2:
        return Batch.of_arrow(Batch.of(records).to_arrow(), stamp, compression)
    return Batch.of(records, stamp, compression)


def change(data: bytes | memoryview, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(changed))
        changed[place] = chance.choice([0, 0x7F, 0x80, 0xFF, changed[place] ^ 1 << chance.randrange(8)])
    if chance.random() < 0.1:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed)


def attack(seed: int, batches: int) -> Counter[str]:
    chance = random.Random(seed)
    return Counter(judge(change(some_batch(chance).data, chance)) for _ in range(batches))


def test_changed_batches(record_property: Record_property) -> None:
    counts = attack(1, 6000)
    for name, count in sorted(counts.items()):
        record_property(name, count)
    assert set(counts) == {"bad headers", "bad bodies", "still batches"}


@pytest.mark.soak
@pytest.mark.slow
def test_soak_changed_batches(soak_seconds: float, record_property: Record_property) -> None:
    rounds = max(1, int(soak_seconds / 2))
    counts: Counter[str] = Counter()
    for seed in range(2, 2 + rounds):
        counts += attack(seed, 3000)
    for name, count in sorted(counts.items()):
        record_property(name, count)
    assert counts.total() == 3000 * rounds


@given(st.binary(max_size=200))
@example(b"")
def test_garbage_is_refused(data: bytes) -> None:
    judge(data)


@given(st.binary(max_size=120), st.integers(0, 15), st.integers(0, 20), st.none() | st.just(3))
def test_a_bare_body_of_garbage_is_refused_or_read(
    body: bytes, columns: int, records: int, timestamp_ns: int | None
) -> None:
    split = outcome(lambda: batch_body.split(memoryview(body), columns, records + 1, timestamp_ns))
    if split is not None:
        plain = outcome(lambda: list(batch_body.records(split)))
        assert plain == outcome(lambda: list(arrow.records(arrow.from_columns(split))))


def test_canary_offsets_that_go_back(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    monkeypatch.setattr(batch_body, "sorted", list, raising=False)
    with pytest.raises(AssertionError, match="differ") as caught:
        attack(1, 6000)
    record_property("caught", caught.value)


def test_canary_a_column_that_is_longer_than_its_data(
    monkeypatch: pytest.MonkeyPatch, record_property: Record_property
) -> None:
    def careless(
        body: memoryview, records: int, offsets: int, data: int, bits: int | None
    ) -> batch_body.Binaries:
        end = offsets + 4 * (records + 1)
        size = int.from_bytes(body[end - 4 : end], "little")
        validity = None if bits is None else body[bits : bits + (records + 7) // 8]
        return batch_body.Binaries(body[offsets:end], body[data : data + size], validity)

    monkeypatch.setattr(batch_body, "_binaries", careless)
    with pytest.raises(AssertionError, match="differ") as caught:
        attack(1, 6000)
    record_property("caught", caught.value)
