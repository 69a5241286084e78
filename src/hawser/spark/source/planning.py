"""Ranges of offsets as the tasks of Spark: large ones are cut, so that one hot partition uses every core."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from hawser.spark.source.offsets import Range

__all__ = ["Split", "plan"]

# A task costs some milliseconds: below this a cut costs more than it gains.
_LEAST_ROWS: Final = 50_000
# And one that fails is done again: above this it would cost too much.
_MOST_ROWS: Final = 2_000_000


@dataclass
class Split(InputPartition):
    """What one task reads. `turn` spreads the tasks over the replicas: the newest records are asked of the
    leader, because the others may not have them yet."""

    wanted: Range
    turn: int


def plan(ranges: Iterable[Range], min_partitions: int | None, max_records: int | None = None) -> list[Split]:
    """Tasks for all of it, of at most `max_records` each, and at least `min_partitions` if there are so many
    records."""
    whole = [each for each in ranges if each.records]
    total = sum(each.records for each in whole)
    if min_partitions is not None:
        most = max(1, total // min_partitions)
    else:
        most = min(max(math.ceil(total / (os.cpu_count() or 1)), _LEAST_ROWS), _MOST_ROWS)
    if max_records is not None:
        most = min(most, max_records)
    return [cut for each in whole for cut in _cut(each, math.ceil(each.records / most))]


def _cut(whole: Range, pieces: int) -> list[Split]:
    """As equal as can be."""
    places = [whole.first + whole.records * place // pieces for place in range(pieces + 1)]
    return [
        Split(whole._replace(first=first, end=end), pieces - turn)
        for turn, (first, end) in enumerate(pairwise(places), 1)
    ]
