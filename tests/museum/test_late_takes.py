"""A take that is interrupted by a signal handler, which has its partition read again.

Found by reading: the take went on and wrote its position over that of the partition that was read again.
So the next commit left out what was rolled back.
"""

import signal
from collections.abc import Iterator
from typing import Any, cast

from hawser.cluster.client.subscribe.fetcher import Chunk
from hawser.record.batch import Batch
from hawser.record.record import Record
from tests.support.cluster import RunningCluster

SECONDS = 60


class InterruptedBatch:
    """A batch; a signal comes while its 50th record is read."""

    def __init__(self, batch: Batch) -> None:
        self.header, self.data, self.count = batch.header, batch.data, batch.count
        self._batch = batch

    def records(self) -> Iterator[Record]:
        for number, record in enumerate(self._batch.records()):
            if number == 49:
                signal.raise_signal(signal.SIGUSR1)
            yield record


def test_a_take_that_is_interrupted_by_a_rollback_moves_no_position(cluster: RunningCluster) -> None:

    bus: Any = cluster.connect()
    topic = bus.topic("museum/interrupted-take")
    topic.publish(b"first")
    with topic.subscribe(start="earliest") as subscription:
        assert subscription.take(timeout=SECONDS) is not None
        consumer = subscription._consumer
        batch = InterruptedBatch(Batch.of([Record(b"x") for _ in range(100)]))

        async def put() -> None:
            consumer.inbox.put(Chunk(consumer._readers[0], cast(Any, batch), 2, 0, 0))

        async def read_again() -> int:
            position = consumer.drop(0)
            consumer.read(0, 1)
            return int(position)

        bus._thread.call(put())
        dropped: list[int] = []
        before = signal.signal(signal.SIGUSR1, lambda *_: dropped.append(bus._thread.call(read_again())))
        try:
            taken = [consumer.take_in_thread(consumer.next_sample)[0] for _ in range(49)]
            assert consumer.positions == {0: 51}
            consumer.take_in_thread(consumer.next_sample)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [each.offset for each in taken] == list(range(2, 51)) and dropped == [51]
        assert consumer.positions[0] <= 2
