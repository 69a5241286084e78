"""The sink without transactions: the same rows in the same batches, published at least once.

A task that runs again writes its rows again. The difference to the real sink is the cost of exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from hawser.cluster import wire
from hawser.log.state.results import Accepted, decode_result
from hawser.spark.connection import Connection, connection
from hawser.spark.python_workers import set_imports_aside
from hawser.spark.sink.options import Options
from hawser.spark.sink.targets import Targets

if TYPE_CHECKING:
    from hawser.cluster.client.transaction.application_batch import Operation

# The bound of the real sink.
_MOST_UNDER_WAY_BYTES: Final = 16 << 20
_TIMEOUT_SECONDS: Final = 60.0


class _Publishing:
    """Batches in flight, in the event loop of a connection."""

    def __init__(self, cluster: Connection) -> None:
        self._router = cluster.router
        self._under_way: dict[asyncio.Task[None], int] = {}
        # Per shard: more in flight would only wait longer and time out.
        self._places: dict[str, asyncio.Semaphore] = {}

    async def publish(self, operations: list[Operation]) -> None:
        """Wait until there is room for another batch."""
        for operation in operations:
            task = self._router.loop.create_task(self._ask(operation))
            self._under_way[task] = len(operation.payload)
        while sum(self._under_way.values()) > _MOST_UNDER_WAY_BYTES:
            await self._some()

    async def flush(self) -> None:
        while self._under_way:
            await self._some()

    async def _some(self) -> None:
        done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._under_way[task]
            task.result()

    async def _ask(self, operation: Operation) -> None:
        router, name, shard = self._router, operation.name, operation.shard
        request = wire.Publish(shard, operation.payload)
        async with self._places.setdefault(shard, asyncio.Semaphore(router.settings.in_flight)):
            deadline = router.loop.time() + _TIMEOUT_SECONDS
            answer = await router.ask_leader(name, shard, request, "publishing plainly", deadline)
        assert isinstance(answer, wire.Executed), answer
        assert isinstance(decode_result(answer.result), Accepted), answer


class _Writing:
    """The common part of both writers."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        cluster = connection(self._options.endpoints)
        publishing = _Publishing(cluster)
        targets = Targets(cluster, self._options)
        for part in iterator:
            cluster.call(publishing.publish(list(targets.operations(part))))
        cluster.call(publishing.publish(list(targets.rest())))
        cluster.call(publishing.flush())
        set_imports_aside()
        return WriterCommitMessage()


class PlainWriter(_Writing, DataSourceArrowWriter):
    """The writer of a batch."""


class PlainStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of a stream."""


class PlainSink(DataSource):
    """`format("plainly")`, with the options of the sink."""

    @classmethod
    def name(cls) -> str:
        return "plainly"

    def writer(self, schema: StructType, overwrite: bool) -> PlainWriter:
        return PlainWriter(Options.of(self.options, streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlainStreamWriter:  # noqa: N802
        return PlainStreamWriter(Options.of(self.options, streaming=True))
