"""The frame of an entry: what is read is what was made, and a wrong bit anywhere is found."""

import random
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as some

from hawser.log.entry import HEADER_BYTES, MAX_BODY_BYTES, NO_ENTRY, BadFrame, Entry, EntryId, Kind

Recorder = Callable[[str, object], None]

numbers = some.integers(1, (1 << 64) - 1)
entries = some.builds(
    Entry.make,
    numbers,
    numbers,
    some.integers(0, 255),
    some.binary(max_size=300),
    version=some.integers(0, 255),
    transaction=some.binary(max_size=60),
)


def sealed(fields: bytes) -> bytes:
    """A frame with a checksum that is right, whatever it says."""
    return struct.pack("<I", crc32c(fields)) + fields


@given(entries)
def test_what_is_read_is_what_was_made(entry: Entry) -> None:
    read = Entry.read(entry.frame)
    assert read == entry and hash(read) == hash(entry)
    assert (read.id, read.kind, read.version) == (entry.id, entry.kind, entry.version)
    assert (read.transaction, bytes(read.payload)) == (entry.transaction, bytes(entry.payload))


@given(some.integers(1, 9), some.binary(max_size=50), some.binary(max_size=50))
def test_transaction_and_payload_are_told_apart(epoch: int, transaction: bytes, payload: bytes) -> None:
    entry = Entry.make(epoch, 1, Kind.BATCH, payload, transaction=transaction)
    assert (entry.transaction, bytes(entry.payload)) == (transaction, payload)


@given(some.lists(entries, max_size=5), some.binary(max_size=5))
def test_frames_are_read_one_behind_the_other(made: list[Entry], front: bytes) -> None:
    data = front + b"".join(entry.frame for entry in made)
    start = len(front)
    for entry in made:
        read = Entry.read(memoryview(data), start)
        assert read == entry
        start += len(read.frame)
    assert start == len(data)


def test_the_frame_byte_by_byte() -> None:
    """As docs/formats has it."""
    entry = Entry.make(5, 6, Kind.TRIM, b"pay", version=2, transaction=b"tx")
    assert entry.frame[4:8] == (5).to_bytes(4, "little")
    assert entry.frame[8:16] == (5).to_bytes(8, "little")
    assert entry.frame[16:24] == (6).to_bytes(8, "little")
    assert entry.frame[24:28] == bytes((2, 2, 2, 0))
    assert entry.frame[28:] == bytes(4) + b"txpay"
    assert entry.frame[:4] == struct.pack("<I", crc32c(entry.frame[4:]))


def test_every_flipped_bit_is_found(record_property: Recorder) -> None:
    frame = Entry.make(3, 7, Kind.BATCH, b"some payload", transaction=b"t").frame
    for place in range(len(frame) * 8):
        wrong = bytearray(frame)
        wrong[place // 8] ^= 1 << place % 8
        with pytest.raises(BadFrame):
            Entry.read(wrong)
    record_property("bits flipped", len(frame) * 8)


def test_every_cut_is_found(record_property: Recorder) -> None:
    frame = Entry.make(3, 7, Kind.BATCH, b"some payload").frame
    for size in range(len(frame)):
        with pytest.raises(BadFrame, match="cut off"):
            Entry.read(frame[:size])
    record_property("cuts", len(frame))


def test_garbage_is_no_frame(record_property: Recorder) -> None:
    chance = random.Random(5)
    for _ in range(20_000):
        with pytest.raises(BadFrame):
            Entry.read(chance.randbytes(chance.randrange(120)))
    record_property("pieces of garbage", 20_000)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (struct.pack("<IQQBBHI", 0, 0, 1, 0, 1, 0, 0), "impossible header"),
        (struct.pack("<IQQBBHI", 0, 1, 0, 0, 1, 0, 0), "impossible header"),
        (struct.pack("<IQQBBHI", 0, 1, 1, 0, 1, 0, 9), "impossible header"),
        (struct.pack("<IQQBBHI", 0, 1, 1, 0, 1, 1, 0), "impossible length"),
        (struct.pack("<IQQBBHI", MAX_BODY_BYTES + 1, 1, 1, 0, 1, 0, 0), "impossible length"),
    ],
)
def test_a_right_checksum_does_not_make_it_right(fields: bytes, reason: str) -> None:
    with pytest.raises(BadFrame, match=reason):
        Entry.read(sealed(fields))


def test_zeros_are_no_entry() -> None:
    """What is behind the end of a log."""
    with pytest.raises(BadFrame):
        Entry.read(bytes(4096))


def test_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        Entry.make(1, 1, 0, b"", transaction=bytes(1 << 16))
    with pytest.raises(ValueError, match="at most"):
        Entry.make(1, 1, 0, bytes(MAX_BODY_BYTES), transaction=b"x")


def test_names_are_ordered_by_epoch_then_index() -> None:
    assert EntryId(1, 2) < EntryId(2, 1) < EntryId(2, 3)
    assert EntryId(1, 1) > NO_ENTRY
    assert str(EntryId(3, 14)) == "3:14"
    assert repr(Entry.make(3, 14)) == f"Entry(3:14, kind 0, {HEADER_BYTES} bytes)"
    assert Entry.make(1, 1) != Entry.make(1, 1).frame


def test_canary_a_reader_without_a_checksum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hawser.log.entry.crc32c", lambda data: 0)
    frame = b"\0\0\0\0" + Entry.make(3, 7, Kind.BATCH, b"some payload").frame[4:]
    with pytest.raises(pytest.fail.Exception):
        for place in range(32, len(frame) * 8):
            wrong = bytearray(frame)
            wrong[place // 8] ^= 1 << place % 8
            with pytest.raises(BadFrame):
                Entry.read(wrong)
