"""Frames: whatever the pieces a stream comes in, the same frames come out of it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hawser.cluster.transport.errors import Malformed
from hawser.cluster.transport.frames import HEADER, MAX_FRAME_BYTES, FrameKind, FrameReader
from tests.support.links import frame

Given = tuple[int, int, bytes]


def feed(reader: FrameReader, data: bytes) -> list[Given]:
    """Put bytes in as the event loop does, and take the frames out."""
    frames = []
    view = memoryview(data)
    while view:
        room = reader.buffer()
        count = min(len(room), len(view))
        assert count, "no room"
        room[:count] = view[:count]
        view = view[count:]
        frames += [(kind, number, bytes(body)) for kind, number, body in reader.received(count)]
    return frames


def stream(frames: list[Given]) -> bytes:
    return b"".join(frame(*each) for each in frames)


bodies = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 300_000).map(lambda size: bytes([size % 251]) * size),
)
some_frames = st.lists(st.tuples(st.integers(0, 255), st.integers(0, (1 << 64) - 1), bodies), max_size=6)


@settings(max_examples=150, deadline=None)
@given(some_frames, st.lists(st.integers(0, 1_000_000), max_size=12))
def test_any_pieces_give_the_same_frames(frames: list[Given], cuts: list[int]) -> None:
    data = stream(frames)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    reader = FrameReader()
    taken = []
    for first, last in pairwise(places):
        taken += feed(reader, data[first:last])
    assert taken == frames


@pytest.mark.parametrize("size", [0, 1, 64 << 10, (64 << 10) + 1, (256 << 10) - HEADER.size, 256 << 10])
def test_sizes_at_which_the_way_changes(size: int) -> None:
    frames = [(4, 7, b"a" * size), (5, 8, b"b" * size), (6, 9, b"c")]
    data = stream(frames)
    whole = FrameReader()
    assert feed(whole, data) == frames
    reader = FrameReader()
    taken = feed(reader, data[:5])
    taken += feed(reader, data[5 : HEADER.size + size // 2])
    taken += feed(reader, data[HEADER.size + size // 2 :])
    assert taken == frames


def test_byte_by_byte() -> None:
    frames = [(int(FrameKind.TELL), 0, b"x" * 300), (int(FrameKind.ASK), 1, b""), (255, (1 << 64) - 1, b"y")]
    reader = FrameReader()
    taken = [taken for place in stream(frames) for taken in feed(reader, bytes([place]))]
    assert taken == frames


def test_a_long_body_is_received_where_it_stays() -> None:
    reader = FrameReader()
    assert feed(reader, frame(4, 0, bytes(1 << 20))[: HEADER.size + 10]) == []
    assert len(reader.buffer()) == (1 << 20) - 10


def test_frames_before_the_malformed_one_are_given_out() -> None:
    reader = FrameReader(100)
    data = frame(4, 0, b"good") + frame(4, 0, b"x" * 101)
    room = reader.buffer()
    room[: len(data)] = data
    frames = reader.received(len(data))
    assert next(frames)[2] == b"good"
    with pytest.raises(Malformed, match="101 bytes, where at most 100"):
        next(frames)


def test_the_limit_may_be_raised_between_two_frames() -> None:
    reader = FrameReader(10)
    data = frame(2, 0, b"welcome") + frame(4, 0, b"x" * 11)
    reader.buffer()[: len(data)] = data
    frames = reader.received(len(data))
    next(frames)
    reader.most_bytes = MAX_FRAME_BYTES
    assert next(frames)[2] == b"x" * 11


@given(st.binary(max_size=2000))
def test_random_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        frames = feed(FrameReader(1000), data)
    except Malformed:
        return
    assert sum(HEADER.size + len(body) for _, _, body in frames) <= len(data)
