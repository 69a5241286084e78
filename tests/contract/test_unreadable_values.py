"""Batches of values in which one cannot be decoded: the others are not lost to it. Both scopes."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import hawser

PATIENCE_SECONDS = 30
UNREADABLE = (3, 4, 7)
_numbers = itertools.count()
reading: list[bool] = []


class Value(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if reading and self.n in UNREADABLE:
            raise ValueError("cannot be decoded")


@pytest.fixture(autouse=True)
def readable() -> Iterator[None]:
    yield
    reading.clear()


def test_a_value_that_cannot_be_decoded_takes_no_other_along(worker: Any) -> None:
    """On a cluster the values of the whole batch were lost with it."""
    topic = worker.topic(f"unreadable {next(_numbers)}", schema=Value)
    topic.publish_many([Value(n) for n in range(1, 9)])
    reading.append(True)
    told: list[Any] = []
    subscription = topic.subscribe(start="earliest", group="g")
    while len(told) < 8:
        try:
            values = subscription.take_values(8, PATIENCE_SECONDS)
            assert values, f"nothing came behind {told}"
            told += [value.n for value in values]
        except hawser.Corrupt:
            told.append("error")
    assert told == [1, 2, "error", "error", 5, 6, "error", 8]
    subscription.commit()
    assert subscription.take_values(8, 0) == []
