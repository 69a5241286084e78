"""Answers put together by hand decode to what was meant, whatever the sizes of their batches."""

import pytest

from hawser.cluster import wire
from hawser.cluster.node.answers import encode_answer


@pytest.mark.parametrize(
    "sizes", [[], [0], [10, 200], [16 << 10], [70_000, 1], [1 << 20, 0, 300_000], [5] * 70_000]
)
def test_batches_of_every_size_are_read_as_they_were(sizes: list[int]) -> None:
    data = b"batch" * (1 + max(sizes, default=0) // 5)
    batches = tuple((1 + place * 1000, memoryview(data)[:size]) for place, size in enumerate(sizes))
    body = encode_answer(wire.Batches(batches, 1, 1 << 40))
    joined = b"".join(body) if isinstance(body, tuple) else bytes(body)
    expected = wire.Batches(batches, 1, 1 << 40)
    assert wire.decode_answer(joined) == expected


def test_long_batches_are_not_copied() -> None:
    long = memoryview(b"l" * (1 << 20))
    body = encode_answer(wire.Batches(((1, long), (9, long)), 1, 17))
    assert isinstance(body, tuple)
    assert [piece is long for piece in body] == [False, True, False, True, False]


def test_other_answers_are_encoded_as_ever() -> None:
    answer = wire.Failed(wire.Code.BUSY, "busy", True)
    assert encode_answer(answer) == wire.encode(answer)
