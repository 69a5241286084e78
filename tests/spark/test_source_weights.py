"""A micro-batch with a limit of bytes, over records of any sizes; no cluster."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hawser.spark.source.offsets import Range, weights

some_sizes = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 1 << 20)), min_size=1, max_size=8)


class Log:
    """Partitions of one topic, each a list of sizes, and how often they were looked at."""

    def __init__(self, partitions: Sequence[list[int]]) -> None:
        self.partitions = partitions
        self.behind = [Range("t", "u", n, 1, len(each) + 1) for n, each in enumerate(partitions)]
        self.looks = 0

    def sizes(self, wanted: Sequence[Range]) -> list[int]:
        self.looks += 1
        return [self.partitions[each.partition][each.first - 1] for each in wanted]

    def weights(self, limit: int) -> list[int]:
        return list(weights(self.behind, limit, self.sizes).values())


@given(st.lists(some_sizes, min_size=1, max_size=4), st.integers(1, 1 << 24))
def test_records_that_grow_keep_to_the_limit(runs: list[list[tuple[int, int]]], limit: int) -> None:
    log = Log([sorted(size for count, size in each for _ in range(count)) for each in runs])
    for partition, weight in zip(log.partitions, log.weights(limit), strict=True):
        assert weight >= partition[0]
        assert sum(partition[: limit // weight]) <= limit


@given(st.lists(some_sizes, min_size=1, max_size=4), st.integers(1, 1 << 24))
def test_the_looks_end_and_weigh_no_more_than_the_largest(
    runs: list[list[tuple[int, int]]], limit: int
) -> None:
    log = Log([[size for count, size in each for _ in range(count)] for each in runs])
    for partition, weight in zip(log.partitions, log.weights(limit), strict=True):
        assert partition[0] <= weight <= max(partition)
    assert log.looks <= 2 + (1 << 20).bit_length()


def test_records_of_one_size_are_looked_at_twice() -> None:
    log = Log([[100] * 1000, [7] * 10])
    assert log.weights(5000) == [100, 7] and log.looks == 2
