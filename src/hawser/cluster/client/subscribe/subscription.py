"""A subscription: fetchers of some partitions, an inbox that they fill, and takes from it.

The event loop fills the inbox. `next_sample`, `next_samples` and `next_batches` take from it in the caller's
thread, one caller at a time, and never wait; `ready` waits, in the loop. A caller outside the loop's thread
uses `take_in_thread`, which holds `lock`. The loop holds it while it adds or drops a fetcher, so the position
that `drop` returns is final. Closing needs no lock.

A signal handler that interrupts a take runs while its thread holds the lock. If it takes or commits, it gets
UsageError. If it waits for the loop, the loop must not wait for the lock: after half a second it continues
without it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, TypeVar

from hawser.cluster.client.errors import copy_of
from hawser.cluster.client.router import Router
from hawser.cluster.client.sample import FetchedSample
from hawser.cluster.client.subscribe.fetcher import Chunk, Fetcher, Inbox
from hawser.cluster.wire import shard_of
from hawser.errors import Closed, HawserError, UsageError
from hawser.log.state.terms import TermRuns
from hawser.record.record import Record

__all__ = ["Consumer", "Taker"]

# A thread, or a task of an event loop.
Taker = threading.Thread | asyncio.Task[Any]
Taken = TypeVar("Taken")

# A take that holds the lock for longer was interrupted, or takes a great deal at once.
_TAKE_SECONDS: Final = 0.5


class Consumer:
    """Takes from the partitions that it has fetchers for. A fetcher keeps the position behind the last
    message taken, so that a take that ends after its partition was dropped moves no other fetcher."""

    def __init__(self, router: Router, topic: str, uuid: str, decode: Callable[[Any], Any] | None) -> None:
        self.router = router
        self.topic = topic
        self.uuid = uuid
        self.received = 0
        self.missed = 0
        self.last_offset = 0
        # Reentrant: a signal handler is refused instead of waiting for the take that it has interrupted.
        self.lock = threading.RLock()
        self._is_taking = False
        # The number of takes, and the take that the loop has found interrupted.
        self._takes = 0
        self._interrupted = -1
        self.inbox = Inbox(router.loop, router.settings.read_ahead_bytes)
        self._readers: dict[int, Fetcher] = {}
        # Of what was read last of each partition, also when it is dropped.
        self._terms: dict[int, TermRuns] = {}
        self._decode = decode
        self._errors: deque[Exception] = deque()
        self._chunk: Chunk | None = None
        self._records: Iterator[Record] | None = None
        self._offset = 0
        self._publisher = ""
        self._lost = 0

    def shard(self, partition: int) -> str:
        return shard_of(self.topic, self.uuid, partition)

    # The partitions, in the event loop.

    def read(self, partition: int, offset: int) -> None:
        """Begin to read a partition."""
        assert partition not in self._readers
        shard = self.shard(partition)
        with self.locked():
            terms = self._terms[partition] = TermRuns()
            self._readers[partition] = Fetcher(
                self.router, self.inbox, self.topic, partition, shard, offset, terms
            )

    def drop(self, partition: int) -> int | None:
        """Stop taking from a partition, and return the position behind the last message taken; None if the
        partition is not read."""
        with self.locked():
            reader = self._readers.pop(partition, None)
            if reader is None:
                return None
            reader.stop()
            return reader.position

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock, in the event loop; continue without it if a take was interrupted."""
        seconds = 0.0 if self._interrupted == self._takes else _TAKE_SECONDS
        is_held = self.lock.acquire(timeout=seconds)
        if not is_held:
            self._interrupted = self._takes
        try:
            yield
        finally:
            if is_held:
                self.lock.release()

    @property
    def positions(self) -> dict[int, int]:
        """The offset behind the last message taken, by partition."""
        return {partition: reader.position for partition, reader in list(self._readers.items())}

    @property
    def partitions(self) -> list[int]:
        """Those that are read."""
        return sorted(self._readers)

    @property
    def arrived(self) -> int:
        """The bytes fetched so far."""
        return self.inbox.arrived

    async def ready(self, timeout_seconds: float | None, arrived: int) -> bool:
        """Wait until there may be something to take; False if the time is over. `arrived` is that of before
        the caller's last attempt."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.inbox.filled(arrived)
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        """End the inbox: only messages that are already in it can still be taken."""
        self.inbox.fail(Closed(f"this subscription of {self.topic!r} was closed"))

    async def close(self) -> None:
        self.end()
        readers = list(self._readers.values())
        for reader in readers:
            reader.stop()
        # Without the lock: a signal handler may close the subscription whose take it has interrupted.
        self._readers.clear()
        await asyncio.gather(*(reader.close() for reader in readers))

    # Taking, in any thread.

    def take_in_thread(self, attempt: Callable[[], Taken]) -> tuple[Taken, int]:
        """Take outside the loop's thread: the result of `attempt`, and `arrived` of before it. UsageError in
        a signal handler that has interrupted a take."""
        with self.lock:
            self._check_not_taking()
            try:
                self._is_taking = True
                self._takes += 1
                arrived = self.arrived
                self.taking(threading.current_thread())
                return attempt(), arrived
            finally:
                self._is_taking = False

    def _check_not_taking(self) -> None:
        """UsageError if this thread is in the middle of a take. Its caller holds the lock."""
        if self._is_taking:
            raise UsageError(
                f"this subscription of {self.topic!r} is in the middle of a take, which a signal handler has "
                "interrupted; take and commit in the thread that is interrupted, after the handler"
            )

    def taking(self, taker: Taker) -> None:
        """Note that `taker` is about to take."""

    @property
    def decodes(self) -> bool:
        """Whether this consumer decodes values, which can fail."""
        return self._decode is not None

    def keep_error(self, error: Exception) -> None:
        """Keep the error for the next call, because this call has values to return."""
        self._errors.append(error)

    def raise_kept_error(self) -> None:
        """Raise the error that an earlier call kept."""
        try:
            error = self._errors.popleft()
        except IndexError:
            return
        raise error

    def next_sample(self) -> FetchedSample | None:
        """The next message; None if none has arrived. Raises the reason once none will come."""
        while True:
            chunk = self._chunk
            if chunk is not None and self._is_wanted(chunk):
                if self._records is None:
                    self._records = islice(chunk.batch.records(), chunk.skip, None)
                record = next(self._records, None)
                # The loop may have dropped the partition in the meantime.
                if record is not None and self._is_wanted(chunk):
                    return self._taken(chunk, record)
            if not self._open_next():
                return None

    def next_samples(self, count: int) -> list[FetchedSample]:
        """Up to `count` messages that have arrived."""
        found: list[FetchedSample] = []
        while len(found) < count:
            try:
                sample = self.next_sample()
            except HawserError:
                if found:
                    break
                raise
            if sample is None:
                break
            found.append(sample)
        return found

    def next_batches(self, count: int) -> list[Any]:
        """Up to `count` batches that have arrived, as pyarrow.RecordBatches with partition and offset."""
        found: list[Any] = []
        while len(found) < count:
            try:
                batch = self._next_batch()
            except HawserError:
                if found:
                    break
                raise
            if batch is None:
                break
            found.append(batch)
        return found

    def _next_batch(self) -> Any | None:
        """The records of the next batch that are not taken yet; None if none has arrived."""
        from hawser.cluster.client.sample import placed

        while self._chunk is None or not self._is_wanted(self._chunk) or self._at_end():
            if not self._open_next():
                return None
        chunk = self._chunk
        place = self._offset - chunk.first_offset
        data = placed(chunk.batch.to_arrow(), chunk.reader.partition, chunk.first_offset, place)
        if not self._is_wanted(chunk):
            # The loop has dropped the partition in the meantime.
            return self._next_batch()
        self.missed += self._lost
        self.received += data.num_rows
        self.last_offset = chunk.first_offset + chunk.batch.count - 1
        chunk.reader.position = self.last_offset + 1
        self._chunk = None
        return data

    @staticmethod
    def _is_wanted(chunk: Chunk) -> bool:
        return not chunk.reader.is_closed

    def _at_end(self) -> bool:
        assert self._chunk is not None
        return self._offset == self._chunk.first_offset + self._chunk.batch.count

    def _open_next(self) -> bool:
        """Open the next chunk; False if none has arrived."""
        self._chunk = chunk = self.inbox.take()
        if chunk is None:
            if self.inbox.failure is not None:
                raise copy_of(self.inbox.failure)
            return False
        self._records = None
        self._offset = chunk.first_offset + chunk.skip
        self._lost = chunk.lost
        producer = chunk.batch.header.producer
        self._publisher = producer.decode(errors="replace").rpartition("#")[0]
        return True

    def _taken(self, chunk: Chunk, record: Record) -> FetchedSample:
        partition, offset, lost = chunk.reader.partition, self._offset, self._lost
        self._offset = chunk.reader.position = offset + 1
        self._lost = 0
        self.missed += lost
        self.received += 1
        self.last_offset = offset
        return FetchedSample(record, partition, offset, self._publisher, lost, self._decode)
