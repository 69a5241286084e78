"""Answers put together by hand decode to what was meant, whatever the sizes of their batches."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.node.requests import encode_answer
from hawser.cluster.node.shard import Shard


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


def test_waiting_fetches_are_looked_through_only_when_the_topic_grows() -> None:
    """Not for each entry of its groups, its transactions, or its queue."""

    async def run() -> None:
        looks = []

        class Waiters(dict[Any, int]):
            def items(self) -> Any:
                looks.append(1)
                return super().items()

        shard: Any = Shard.__new__(Shard)
        topic = SimpleNamespace(end=5)
        shard.replica = SimpleNamespace(machine=SimpleNamespace(part=lambda _: topic))
        shard._woken_at, shard._waiters = 5, Waiters()
        waiting = [asyncio.get_running_loop().create_future() for _ in range(3)]
        shard._waiters.update(dict.fromkeys(waiting, 5))
        for _ in range(10):
            shard._wake()
        assert not looks and not any(each.done() for each in waiting)
        topic.end = 6
        shard._wake()
        assert all(each.done() for each in waiting) and not shard._waiters

    asyncio.run(run())
