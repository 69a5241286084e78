"""A task of a query: it turns its range of a partition into Arrow batches as records arrive.

A batch for Spark has up to twenty thousand rows, or fewer large ones; small batches of the log are joined and
large ones cut. Sizes are those in memory, not in storage: compressed records may become a thousand times as
large. So two answers of a node, one batch of the log and one for Spark bound the memory of a task, however
long its range.
"""

from collections.abc import Iterator
from typing import Any, Final

from hawser.cluster.client.subscribe.range_reader import BatchSlice, LostRange
from hawser.errors import Closed
from hawser.spark.connection import connection
from hawser.spark.python_workers import set_imports_aside
from hawser.spark.source.columns import Chunk, Rows, Table
from hawser.spark.source.offsets import lost_text
from hawser.spark.source.options import Options
from hawser.spark.source.planning import Split, lost

__all__ = ["read_split"]

_MOST_ROWS: Final = 20_000
_MOST_BYTES: Final = 8 << 20


_Piece = tuple[Chunk, int, int, int]


def read_split(split: Split, options: Options, table: Table) -> Iterator[Any]:
    """The pyarrow.RecordBatches of a task."""
    wanted = split.wanted
    waiting: list[_Piece] = []
    rows = size = 0
    for piece in _pieces(split, options):
        chunk, _, count, _ = piece
        cost = chunk.unpacked_bytes * count // chunk.batch.count
        if waiting and (rows + count > _MOST_ROWS or size + cost > _MOST_BYTES):
            yield from table.of(Rows(wanted.topic, wanted.uuid, wanted.partition, waiting))
            waiting, rows, size = [], 0, 0
        waiting.append(piece)
        rows, size = rows + count, size + cost
    if waiting:
        yield from table.of(Rows(wanted.topic, wanted.uuid, wanted.partition, waiting))
    set_imports_aside()


def _pieces(split: Split, options: Options) -> Iterator[_Piece]:
    """The batches of the log, none of them larger than one for Spark may be."""
    wanted = split.wanted
    next_offset = wanted.first
    try:
        for found in _found(split, options):
            if isinstance(found, LostRange):
                lost(lost_text(wanted.topic, wanted.partition, *found), options.fail_on_data_loss)
                next_offset = found.last + 1
                continue
            for batch, skip, count, offset in found:
                assert offset == next_offset, (split, offset, next_offset)
                next_offset += count
                chunk = Chunk(batch)
                step = min(_MOST_ROWS, max(1, _MOST_BYTES * batch.count // chunk.unpacked_bytes))
                for place in range(0, count, step):
                    yield chunk, skip + place, min(step, count - place), offset + place
    except Closed:
        # Every run repeats the micro-batch that the checkpoint has: without this no run could continue.
        text = lost_text(wanted.topic, wanted.partition, next_offset, wanted.end - 1)
        lost(f"{text}, because the topic was deleted", options.fail_on_data_loss)
        next_offset = wanted.end
    assert next_offset == wanted.end, (split, next_offset)


def _found(split: Split, options: Options) -> Iterator[list[BatchSlice] | LostRange]:
    cluster = connection(options.endpoints)
    return (
        cluster.read(split.wanted, split.turn) if options.queue is None else cluster.read_queue(split.wanted)
    )
