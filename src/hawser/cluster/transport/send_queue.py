"""The frames that a link has to send, from the call until the system has them.

Everything that is sent in one turn of the event loop goes out in one write. The transport underneath holds at
most one chunk and gets the next when it is empty, so the queue here is counted exactly. Short bodies are
joined into a chunk; long ones are written without a copy.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from hawser.cluster.transport.errors import LinkClosed
from hawser.cluster.transport.frames import HEADER, MAX_FRAME_BYTES
from hawser.cluster.transport.settings import Counters

__all__ = ["Body", "SendQueue"]

# A body may come in pieces. Long pieces are not copied: they must not change until they are sent.
Piece = bytes | bytearray | memoryview
Body = Piece | tuple[Piece, ...]

_CHUNK_BYTES: Final = 256 << 10
_MOST_JOINED_BYTES: Final = 16 << 10


class SendQueue:
    """The queue of one link. `put` never waits; `drained` does, until the queue is within its limit."""

    __slots__ = (
        "queued_bytes",
        "written_bytes",
        "most_bytes",
        "is_corked",
        "is_paused",
        "_loop",
        "_transport",
        "_counters",
        "_queue",
        "_is_scheduled",
        "_waiting",
        "_on_room",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        most_bytes: int,
        counters: Counters,
        on_room: Callable[[], None],
    ) -> None:
        """`on_room` is called after each write that leaves the queue within its limit."""
        self.queued_bytes = 0
        self.written_bytes = 0
        self.most_bytes = most_bytes
        # While set, nothing is written; the caller that sets it writes at the end.
        self.is_corked = False
        # The system's buffer is full.
        self.is_paused = False
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._counters = counters
        self._queue: deque[Piece] = deque()
        self._is_scheduled = False
        self._waiting: list[asyncio.Future[None]] = []
        self._on_room = on_room

    @property
    def is_overfull(self) -> bool:
        return self.queued_bytes > self.most_bytes

    def connect(self, transport: asyncio.WriteTransport) -> None:
        # The transport pauses as soon as it buffers anything. Not 0: TLS would count an empty buffer as full.
        transport.set_write_buffer_limits(high=1, low=0)
        self._transport = transport

    def put(self, kind: int, number: int, body: Body) -> None:
        """Queue a frame; it goes out at the end of this turn of the loop, or when there is room."""
        if isinstance(body, bytes) and len(body) <= _MOST_JOINED_BYTES:
            size = len(body)
            self._queue.append(HEADER.pack(size, kind, number) + body)
        else:
            size = self._put_pieces(kind, number, body if isinstance(body, tuple) else (body,))
        self.queued_bytes += size + HEADER.size
        self._counters.frames_out += 1
        if not (self._is_scheduled or self.is_corked or self.is_paused):
            self._is_scheduled = True
            self._loop.call_soon(self.flush)

    def _put_pieces(self, kind: int, number: int, pieces: tuple[Piece, ...]) -> int:
        views = [memoryview(piece).cast("B") for piece in pieces]
        size = sum(map(len, views))
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {size} bytes is too long: at most {MAX_FRAME_BYTES} go into one")
        header = HEADER.pack(size, kind, number)
        if size <= _MOST_JOINED_BYTES:
            self._queue.append(b"".join((header, *views)))
        else:
            self._queue.append(header)
            self._queue.extend(view for view in views if view)
        return size

    def flush(self) -> None:
        """Writes as much as the system accepts now."""
        self._is_scheduled = False
        if self.is_paused or not self._queue or self._transport is None:
            return
        if self.queued_bytes <= _CHUNK_BYTES:
            self._write(b"".join(self._queue) if len(self._queue) > 1 else self._queue[0])
            self._queue.clear()
        else:
            while self._queue and not self.is_paused:
                self._write(self._next_chunk())
        if not self.is_overfull:
            if self._waiting:
                self._wake(None)
            self._on_room()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.flush()

    def close(self, reason: str) -> None:
        """Discards everything; waiting callers fail with the reason."""
        self._queue.clear()
        self.queued_bytes = 0
        self.is_paused = True
        self._wake(reason)

    async def drained(self) -> None:
        """Returns when the queue is within its limit; LinkClosed if it never will be."""
        while self.is_overfull:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter

    def _next_chunk(self) -> Piece:
        """Take at most a chunk off the queue: a slice of a long piece, or short ones joined."""
        first = self._queue.popleft()
        if len(first) > _CHUNK_BYTES:
            view = memoryview(first)
            self._queue.appendleft(view[_CHUNK_BYTES:])
            return view[:_CHUNK_BYTES]
        pieces = [first]
        size = len(first)
        while self._queue and size + len(self._queue[0]) <= _CHUNK_BYTES:
            piece = self._queue.popleft()
            size += len(piece)
            pieces.append(piece)
        return b"".join(pieces) if len(pieces) > 1 else first

    def _write(self, chunk: Piece) -> None:
        assert self._transport is not None
        size = len(chunk)
        self.queued_bytes -= size
        self.written_bytes += size
        self._counters.bytes_out += size
        self._transport.write(chunk)

    def _wake(self, reason: str | None) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if waiter.done():
                continue
            if reason is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(LinkClosed(reason))
