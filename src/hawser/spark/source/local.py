"""Topics in the shared memory of one host, as a batch: what their histories hold when a task reads them."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import hawser
from hawser.errors import UsageError
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.spark.source.columns import Chunk, Rows
from hawser.spark.source.options import Options
from hawser.spark.source.schema import table_of

__all__ = ["LocalReader"]


_MOST_ROWS: Final = 1024
_MOST_BYTES: Final = 8 << 20


@dataclass
class _Topic(InputPartition):
    """A topic in the memory of the host where the query was planned, up to what was its newest sample."""

    name: str
    url: str
    host: str
    boot: str
    last: int
    at_once: int


class LocalReader(DataSourceReader):
    """A task for each topic; all of them on the host of the driver."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with hawser.connect(self._options.endpoints) as bus:
            return [self._plan(bus, name) for name in self._options.topics]

    def _plan(self, bus: hawser.Bus, name: str) -> _Topic:
        info = bus.topic(name, create=False).info()
        at_once = min(_MOST_ROWS, max(1, _MOST_BYTES // int(info.settings["slot_size"])))
        # The default domain depends on the user and the environment of the driver; resolve it here.
        return _Topic(name, bus.url, platform.node(), _boot(), info.head, at_once)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Topic)
        if _boot() != partition.boot:
            raise UsageError(
                f"topic {partition.name!r} is in the memory of host {partition.host}, and this task runs on "
                f"{platform.node()}; use a local master, or record the topic into a cluster"
            )
        table = table_of(self._options, self._schema)
        with hawser.connect(partition.url) as bus:
            topic, after = bus.topic(partition.name, create=False), 0
            while after < partition.last:
                samples, after, _ = topic.read_oldest(partition.at_once, after)
                parts = [_part(sample) for sample in samples if sample.offset <= partition.last]
                if not parts:
                    break
                yield from table.of(Rows(partition.name, "", 0, parts))


def _part(sample: Any) -> tuple[Chunk, int, int, int]:
    record = Record(bytes(sample.data), sample.key, sample.headers, sample.timestamp_ns)
    stamp = Stamp(sample.publisher.encode(), 1, sample.offset)
    return Chunk(Batch.of([record], stamp)), 0, 1, sample.offset


def _boot() -> str:
    """The identity of this boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
