"""How many bytes a record of each partition counts for in a micro-batch that has a limit of bytes.

The sizes of records are known only by reading them. Some are looked at: where the micro-batch begins, in its
middle and at its end. If the later ones are larger, it becomes shorter, and is looked at again. So a
partition whose records grow keeps to the limit, and one whose records vary does so about.
"""

from collections.abc import Callable, Sequence

from hawser.spark.source.offsets import Range

__all__ = ["weights"]


def weights(
    behind: Sequence[Range], limit: int, sizes: Callable[[Sequence[Range]], Sequence[int]]
) -> dict[tuple[str, int], int]:
    """For each partition. `sizes` gives of each range how large the records at its beginning are, at least 1.
    The looks end: each of them but the last finds records that are twice as large as those before."""
    found = dict(zip(behind, sizes(behind), strict=True))
    growing = list(behind)
    while growing:
        looks = [_places(each, limit // found[each]) for each in growing]
        larger = iter(sizes([look for places in looks for look in places]))
        growing_still = []
        for each, places in zip(growing, looks, strict=True):
            before = found[each]
            found[each] = max([before, *(next(larger) for _ in places)])
            if found[each] >= 2 * before:
                growing_still.append(each)
        growing = growing_still
    return {(each.topic, each.partition): size for each, size in found.items()}


def _places(behind: Range, count: int) -> list[Range]:
    """Where to look at a micro-batch of so many records."""
    count = min(count, behind.records)
    middle, last = behind.first + count // 2, behind.first + count - 1
    return [behind._replace(first=at, end=at + 1) for at in sorted({middle, last}) if at > behind.first]
