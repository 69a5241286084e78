"""Prefetching of a partition for one subscription, bounded by bytes."""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Any

from hawser.cluster import wire
from hawser.cluster.client.admin import offsets
from hawser.cluster.client.errors import Backoff, error_of
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import TransportError
from hawser.errors import HawserError, OffsetOutOfRange, Unavailable
from hawser.log.state.terms import TermRuns
from hawser.record.batch import Batch

__all__ = ["Chunk", "Inbox", "Fetcher"]

_log = logging.getLogger("hawser.cluster.client")


class Chunk:
    """A fetched batch: its records from place `skip` on are to be taken. `lost` records before them are no
    longer kept."""

    __slots__ = ("batch", "first_offset", "lost", "reader", "skip")

    def __init__(self, reader: "Fetcher", batch: Batch, first_offset: int, skip: int, lost: int) -> None:
        self.reader = reader
        self.batch = batch
        self.first_offset = first_offset
        self.skip = skip
        self.lost = lost


class Inbox:
    """Fetched batches that are not taken yet. The event loop fills it; one thread at a time takes from it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most_bytes: int) -> None:
        self.failure: HawserError | None = None
        self._loop = loop
        self._most_bytes = most_bytes
        self._chunks: deque[Chunk] = deque()
        # Only the loop writes the first, only the taker the second, so neither needs a lock.
        self._put_bytes = 0
        self._taken_bytes = 0
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._is_full = False

    @property
    def arrived(self) -> int:
        """The bytes fetched so far."""
        return self._put_bytes

    def put(self, chunk: Chunk) -> None:
        self._put_bytes += len(chunk.batch.data)
        self._chunks.append(chunk)
        self._filled.set()

    def fail(self, error: HawserError) -> None:
        """End it with an error; what is here can still be taken."""
        self.failure = self.failure or error
        self._filled.set()

    def wake(self) -> None:
        """Wake the takers that wait, to check again."""
        self._filled.set()

    def take(self) -> Chunk | None:
        """The next chunk of an open fetcher; None if there is none."""
        while self._chunks:
            chunk = self._chunks.popleft()
            self._taken_bytes += len(chunk.batch.data)
            if self._is_full and self._put_bytes - self._taken_bytes <= self._most_bytes // 2:
                self._is_full = False
                self._loop.call_soon_threadsafe(self._drained.set)
            if not chunk.reader.is_closed:
                return chunk
        return None

    async def filled(self, arrived: int) -> None:
        """Return when there may be something to take: at once if more than `arrived` bytes came, because
        another thread may have taken a chunk and left most of its records."""
        if not self._chunks and self.failure is None and self._put_bytes == arrived:
            self._filled.clear()
            await self._filled.wait()

    async def has_room(self) -> None:
        """Return when more may be fetched."""
        while self._put_bytes - self._taken_bytes >= self._most_bytes:
            self._drained.clear()
            self._is_full = True
            # If the inbox was emptied before `_is_full` was set, no take sets `_drained`.
            if self._put_bytes - self._taken_bytes >= self._most_bytes // 2:
                await self._drained.wait()


class Fetcher:
    """Fetches one partition from `offset` on, until closed or its topic is gone. Notes the terms of what it
    has read in `terms`, so that a log that was put back is told from the one that was read."""

    def __init__(
        self,
        router: Router,
        inbox: Inbox,
        topic: str,
        partition: int,
        shard: str,
        offset: int,
        terms: TermRuns,
    ) -> None:
        self.partition = partition
        self.shard = shard
        self.start = offset
        # The offset behind the last message taken; the taker writes it.
        self.position = offset
        self.is_closed = False
        self._router = router
        self._inbox = inbox
        self._topic = topic
        self._offset = offset
        self._lost = 0
        self._terms = terms
        self._backoff = Backoff(router.settings)
        self._task: asyncio.Task[Any] = router.loop.create_task(self._read())

    def stop(self) -> None:
        """Stop fetching, and discard what was fetched and not taken."""
        self.is_closed = True
        self._task.cancel()

    async def close(self) -> None:
        """As `stop`, and wait until the reader has ended."""
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                await self._inbox.has_room()
                await self._fetch()
        except HawserError as error:
            self._inbox.fail(error)
        except Exception as error:
            # The takers must learn that nothing more comes.
            _log.exception("reading shard %s failed", self.shard)
            self._inbox.fail(
                HawserError(
                    f"reading topic {self._topic!r}, partition {self.partition} cannot go on: {error!r}; "
                    "report it, and subscribe again"
                )
            )

    async def _fetch(self) -> None:
        settings = self._router.settings
        link = self._router.reading_link(self.shard)
        if link is None:
            await self._pause()
            return
        request = wire.Fetch(
            self.shard,
            self._offset,
            settings.fetch_bytes,
            settings.fetch_wait_seconds,
            self._terms.at(self._offset - 1),
        )
        try:
            seconds = settings.fetch_wait_seconds + settings.attempt_seconds
            answer = checked(link, request, await ask(link, wire.encode(request), seconds))
        except TransportError:
            await self._pause()
            return
        if isinstance(answer, wire.Batches):
            self._backoff = Backoff(settings)
            before = self._offset - 1
            for first_offset, data in answer.batches:
                self._fetched(first_offset, Batch.read(data))
            for first, term in answer.terms:
                if before <= first < self._offset:
                    self._terms.begin(first, term)
            if not answer.batches:
                # A partitioned replica never has anything new; another one may lead.
                await self._look_around()
        else:
            assert isinstance(answer, wire.Failed), answer
            await self._refused(answer)

    def _fetched(self, first_offset: int, batch: Batch) -> None:
        assert first_offset <= self._offset < first_offset + batch.count
        self._inbox.put(Chunk(self, batch, first_offset, self._offset - first_offset, self._lost))
        self._lost = 0
        self._offset = first_offset + batch.count

    async def _refused(self, failed: wire.Failed) -> None:
        """Go on after a refusal: skip and count records that retention has removed; let the leader decide
        whether the log was put back; follow the leader. Any other refusal that is final is raised."""
        if failed.code is wire.Code.OUT_OF_RANGE and self._offset < failed.start:
            self._lost += failed.start - self._offset
            self._offset = failed.start
            self._terms.clear()
        elif failed.code in (wire.Code.OTHER_LOG, wire.Code.OUT_OF_RANGE):
            await self.check_if_answered()
            await self._pause()
        elif not failed.retryable:
            raise error_of(failed, f"reading topic {self._topic!r}, partition {self.partition}")
        elif not self._router.note(self.shard, failed):
            await self._pause()

    async def check(self) -> None:
        """OffsetOutOfRange if the leader confirms that records that were read are not in the log any more: it
        ends before the offset, or has others there. A lagging replica has merely not applied them yet."""
        router, offset, begin = self._router, self._offset, self._terms.first
        deadline = router.loop.time() + router.settings.timeout
        found = await offsets.inspect(router, self._topic, self.shard, deadline, terms_from=begin)
        end = min(offset, found.end)
        first = self._terms.first_difference(TermRuns(found.terms), end)
        if first is not None or end < offset:
            raise OffsetOutOfRange(
                f"topic {self._topic!r}, partition {self.partition}: the log was put back, as by a restored "
                f"backup. Records {first or end} to {offset - 1}, which this subscription has read, are not "
                f"in it any more; it ends at record {found.end - 1}. Subscribe again: a group resumes from "
                "its position in the log; without a group choose where to begin with start="
            )

    async def check_if_answered(self) -> None:
        """As `check`, but nothing if no leader answers."""
        with suppress(Unavailable):
            await self.check()

    async def _pause(self) -> None:
        await asyncio.sleep(self._backoff.next())
        await self._look_around()

    async def _look_around(self) -> None:
        await self._router.look_after(self._topic, self.shard)
