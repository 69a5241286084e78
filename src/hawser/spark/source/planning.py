"""Ranges of offsets as the tasks of Spark: large ones are cut, so that one hot partition uses every core.

Spark plans a source in Python in a process that knows nothing of the cluster. But it inherits the variables
of the driver, and among these `hawser.spark.session()` puts how many cores the cluster has, as far as the
settings say so. Otherwise the source assumes more than a few: a task more costs little, an idle core much.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from hawser.spark.source.offsets import Range

__all__ = ["Split", "plan"]

CORES_VARIABLE: Final = "HAWSER_SPARK_CORES"
_ASSUMED_CORES: Final = 16

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
        most = min(max(math.ceil(total / _cores()), _LEAST_ROWS), _MOST_ROWS)
    if max_records is not None:
        most = min(most, max_records)
    return [cut for each in whole for cut in _cut(each, math.ceil(each.records / most))]


def _cores() -> int:
    """Of the cluster on which the tasks run."""
    told = os.environ.get(CORES_VARIABLE, "")
    return max(1, int(told)) if told.isdecimal() else _ASSUMED_CORES


def _cut(whole: Range, pieces: int) -> list[Split]:
    """As equal as can be."""
    places = [whole.first + whole.records * place // pieces for place in range(pieces + 1)]
    return [
        Split(whole._replace(first=first, end=end), pieces - turn)
        for turn, (first, end) in enumerate(pairwise(places), 1)
    ]
