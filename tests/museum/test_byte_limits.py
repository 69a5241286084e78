"""Partitions that a stream with maxBytesPerTrigger never read. Found by review.

The share of a partition with large records was less than one of them, so it had none as long as other
partitions were busy: after a thousand micro-batches it was still at its start, until retention took them.
"""

import random

from hawser.cluster.client.admin.offsets import Bounds
from hawser.spark.source.offsets import Bounded, advance, ends, ranges, starts

MIB = 1 << 20


def test_large_records_have_their_share_beside_busy_partitions() -> None:
    """20 partitions, 8 MB for each micro-batch: 400 kB of them are the share of the large records."""
    bounds = {"t": Bounded("u", {0: Bounds(1, 1001), **{n: Bounds(1, 1001) for n in range(1, 20)}})}
    weights = {("t", 0): MIB, **{("t", n): 1000 for n in range(1, 20)}}
    at = starts(bounds)
    for turn in range(1000):
        at = advance(at, bounds, 8_000_000, weights, turn)
        # There is always more in each of the others, and no more in partition 0.
        grown = {n: Bounds(1, each.end + (900 if n else 0)) for n, each in bounds["t"].partitions.items()}
        bounds = {"t": Bounded("u", grown)}
    large, *small = (at["t"].partitions[n] - 1 for n in range(20))
    assert large >= 1000 * 400_000 // MIB * 8 // 10
    assert min(small) >= 1000 * 400 * 8 // 10


def test_every_partition_has_its_turn_among_all_of_them() -> None:
    """Whatever records weigh, whichever of the others are busy, from wherever the query counts."""
    for seed in range(150):
        chance = random.Random(seed)
        count, limit = chance.randint(1, 12), chance.randint(1, 200)
        bounds = {"t": Bounded("u", {n: Bounds(1, chance.randint(1, 40)) for n in range(count)})}
        weights = {} if seed % 2 else {("t", n): chance.choice([1, 7, 90, 400]) for n in range(count)}
        at, waited, first = starts(bounds), dict.fromkeys(range(count), 0), chance.randrange(1000)
        for turn in range(first, first + 60):
            following = advance(at, bounds, limit, weights, turn)
            read = {each.partition: each.records for each in ranges(at, following)}
            size = sum(rows * weights.get(("t", n), 1) for n, rows in read.items())
            assert size <= limit or sum(read.values()) == 1, seed
            left = {each.partition for each in ranges(at, ends(bounds))}
            assert bool(read) == bool(left), seed
            waited = {n: waited[n] + 1 if n in left and n not in read else 0 for n in waited}
            assert max(waited.values()) < count, (seed, turn)
            at = following
            more = {n: each.end + chance.choice([0, 0, 9]) for n, each in bounds["t"].partitions.items()}
            bounds = {"t": Bounded("u", {n: Bounds(1, end) for n, end in more.items()})}
