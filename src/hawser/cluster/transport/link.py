"""A link: one connection between two processes, which carries messages and requests both ways.

    GREETING ──▶ OPEN ──▶ LEAVING ──▶ CLOSED
        └──────────┴─────────┴───────────▲

- GREETING: the dialer has sent HELLO, or the listener waits for it.
- OPEN: frames go both ways. A peer's frames are handled in order; answers come in any order.
- LEAVING: the last frame is queued. Arriving bytes are discarded, because a closed socket with unread bytes
  would discard the last frame, too. The peer closes when it has read that frame, or the time is up.

A message sent with `tell` may be lost: if the link closes, or if the queue is over its limit. A request ends
exactly once. Nothing is delivered twice or out of order on one link.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from enum import Enum
from inspect import iscoroutine
from math import ceil
from typing import Final, cast

from hawser.cluster.transport import handshake
from hawser.cluster.transport.errors import (
    MALFORMED,
    AskTimeout,
    LinkClosed,
    Malformed,
    Refused,
    TransportError,
    Unreachable,
)
from hawser.cluster.transport.frames import MAX_HELLO_BYTES, Frame, FrameKind, FrameReader
from hawser.cluster.transport.handshake import Identity, Introduction
from hawser.cluster.transport.incoming_requests import Handler, IncomingRequests
from hawser.cluster.transport.outgoing_requests import OutgoingRequests, RequestCredits
from hawser.cluster.transport.send_queue import Body, SendQueue
from hawser.cluster.transport.settings import Counters, LinkSettings

__all__ = ["Link"]

_log = logging.getLogger("hawser.cluster.transport")

# A leaving link reads into this and discards it.
_SCRAP: Final = memoryview(bytearray(64 << 10))

_TELL: Final = int(FrameKind.TELL)
_ASK: Final = int(FrameKind.ASK)
_ANSWER: Final = int(FrameKind.ANSWER)


class _State(Enum):
    GREETING = 1
    OPEN = 2
    LEAVING = 3
    CLOSED = 4


_OPEN: Final = _State.OPEN


class Link(asyncio.BufferedProtocol):
    """One connection. `peer` is the other process, once the link is open. All calls belong into its event
    loop."""

    def __init__(
        self,
        handler: Handler,
        introduce: Callable[[], Identity],
        settings: LinkSettings,
        counters: Counters,
        *,
        dials: str | None = None,
        among: "set[Link] | None" = None,
    ) -> None:
        """`dials` is the address on the dialing side, else None. The link is in `among` while it has a
        connection."""
        self._loop = loop = asyncio.get_running_loop()
        self.address = dials or "an unknown address"
        self.counters = counters
        self.settings = settings
        self.opening: asyncio.Future[None] = loop.create_future()
        self.peer: Identity | None = None
        self.version = 0
        self._among = set() if among is None else among
        self._send_queue = SendQueue(loop, settings.most_outgoing_bytes, counters, self._has_room)
        self._outgoing_requests = OutgoingRequests(loop, counters, self._cancel_ask)
        self._credits = RequestCredits(lambda: not self._send_queue.is_overfull)
        self._incoming_requests = IncomingRequests(self, self._send_queue, counters)
        self._reader = FrameReader(MAX_HELLO_BYTES)
        self._frames: Iterator[Frame] = iter(())
        self._handler = handler
        self._introduce = introduce
        self._is_dialer = dials is not None
        self._is_heard = False
        self._is_held = False
        self._silent_ticks = 0
        self._written_bytes = 0
        self._state = _State.GREETING
        self._reason = ""
        self._ended: asyncio.Future[None] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def __str__(self) -> str:
        return f"{self.peer or 'a peer'} at {self.address}"

    # For the users of the link.

    @property
    def is_open(self) -> bool:
        return self._state is _OPEN

    @property
    def is_overfull(self) -> bool:
        """Whether `tell` would drop a message now."""
        return self._send_queue.is_overfull

    @property
    def queued_bytes(self) -> int:
        """The bytes that wait to be sent."""
        return self._send_queue.queued_bytes

    @property
    def reason(self) -> str:
        """Why the link is closed; empty while it is not."""
        return self._reason

    def tell(self, body: Body) -> bool:
        """Sends a message that may be lost. False: it was dropped at once."""
        send_queue = self._send_queue
        if self._state is not _OPEN or send_queue.queued_bytes > send_queue.most_bytes:
            self.counters.tells_dropped += 1
            return False
        send_queue.put(_TELL, 0, body)
        return True

    async def ask(self, body: Body, timeout_seconds: float | None) -> bytes | bytearray:
        """Sends a request and returns its answer; AskFailed, AskTimeout or LinkClosed if there is none. Waits
        for a credit while the peer serves as many requests as it can, or the queue is over-full. If it is
        cancelled, it tells the peer to stop."""
        self._check_open()
        if not self._credits.try_take():
            timeout_seconds = await self._take_credit(timeout_seconds)
        try:
            self._check_open()
            number, future = self._outgoing_requests.begin(timeout_seconds)
            try:
                self._send_queue.put(_ASK, number, body)
                return await future
            finally:
                # Still pending only if this task was cancelled or the body was refused.
                if self._outgoing_requests.drop(number):
                    self._cancel_ask(number)
        finally:
            self._credits.give(1)

    async def drained(self) -> None:
        """Returns when the queue is within its limit; LinkClosed if the link is closed or closes
        meanwhile."""
        await self._send_queue.drained()
        self._check_open()

    def flush(self) -> None:
        """Passes what is queued to the system now, not at the end of this turn of the loop."""
        self._send_queue.flush()

    async def close(self, reason: str = "closed on purpose", seconds: float | None = None) -> None:
        """Sends what is queued, then the reason, and returns when the connection is gone: within
        `goodbye_seconds`, or within `seconds` if that is less."""
        self._leave(FrameKind.GOODBYE, reason, f"{self} was closed here: {reason}")
        if self._transport is not None and seconds is not None:
            _, late = await asyncio.wait((self._ended,), timeout=seconds)
            if late:
                self._transport.abort()
        await self.wait_closed()

    def abort(self, reason: str) -> None:
        """Cuts the connection now; what is queued is lost."""
        self._shut(f"the link to {self} was cut here: {reason}")
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Returns when the connection is gone."""
        if self._transport is not None:
            await asyncio.shield(self._ended)

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._is_dialer:
            peer = transport.get_extra_info("peername") or ("unknown", 0)
            self.address = f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
        self.counters.links += 1
        self._among.add(self)
        self._send_queue.connect(self._transport)
        if self._is_dialer:
            self._send_queue.put(FrameKind.HELLO, 0, handshake.write_hello(self._introduction()))
        self._timer = self._loop.call_later(self.settings.connect_seconds, self._give_up_greeting)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SCRAP if self._reason else self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.counters.bytes_in += nbytes
        self._is_heard = True
        assert not self._is_held, "read while it was held"
        if not self._reason:
            self._frames = self._reader.received(nbytes)
            self._take_frames()

    def eof_received(self) -> None:
        self._shut(f"{self} closed the connection")
        self._depart()

    def pause_writing(self) -> None:
        self._send_queue.pause()

    def resume_writing(self) -> None:
        self._send_queue.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shut(f"the connection to {self} was lost: {exc}" if exc else f"{self} closed the connection")
        self._state = _State.CLOSED
        if self._timer is not None:
            self._timer.cancel()
        self._send_queue.close(self._reason)
        self.counters.links -= 1
        self._among.discard(self)
        self._transport = None
        if not self._ended.done():
            self._ended.set_result(None)

    # For its parts.

    def request_ended(self) -> None:
        """Reads again if requests were held back and there is room now."""
        if self._is_held and not self._must_hold():
            self._is_held = False
            self._loop.call_soon(self._go_on)

    def close_malformed(self, error: Exception) -> None:
        """The peer has sent bytes that no correct peer sends."""
        if self._reason:
            return
        self.counters.links_malformed += 1
        _log.warning("%s sent something malformed and is closed: %s", self, error)
        is_refusal = self._state is _State.GREETING and not self._is_dialer
        kind = FrameKind.REFUSAL if is_refusal else FrameKind.GOODBYE
        # A dialer that waits for the link to open gets this error.
        odd = Unreachable(
            f"{self.address} does not answer as a node of Hawser: {error}. Is the address right?"
        )
        self._leave(kind, f"malformed: {error}", f"{self} sent something malformed: {error}", odd)

    # Frames.

    def _take_frames(self) -> None:
        """Handles the received frames, until they end, the link closes, or too many requests are in
        progress."""
        handler, send_queue = self._handler, self._send_queue
        count = 0
        # Everything that the handlers send goes out in one write at the end.
        send_queue.is_corked = True
        try:
            for kind, number, body in self._frames:
                count += 1
                if self._state is not _OPEN:
                    self._greet(kind, body)
                elif kind == _TELL:
                    try:
                        handler.told(self, body)
                    except MALFORMED:
                        raise
                    except Exception:
                        _log.exception("a message from %s failed unexpectedly", self)
                elif kind == _ANSWER:
                    self._outgoing_requests.answered(number, body)
                elif kind == _ASK:
                    self._serve(number, body)
                    if self._must_hold():
                        self._hold()
                        break
                else:
                    self._take_control(kind, number, body)
                if self._reason:
                    break
        except MALFORMED as error:
            self.close_malformed(error)
        finally:
            self.counters.frames_in += count
            send_queue.is_corked = False
            send_queue.flush()

    def _serve(self, number: int, body: bytes | bytearray) -> None:
        request = self._incoming_requests.begin(number, body)
        try:
            result = self._handler.asked(self, request)
        except MALFORMED:
            raise
        except Exception as error:
            self._incoming_requests.failed(request, error)
            return
        if iscoroutine(result):
            self._incoming_requests.run(request, result)
        elif result is not None:
            request.answer(cast(Body, result))

    def _take_control(self, kind: int, number: int, body: bytes | bytearray) -> None:
        if kind == FrameKind.FAILURE:
            self._outgoing_requests.failed(number, body)
        elif kind == FrameKind.CANCEL:
            self._incoming_requests.cancel(number)
        elif kind == FrameKind.PING:
            # A peer that does not read gets no pong; the queued frames show that this side lives.
            if not self._send_queue.is_overfull:
                self._send_queue.put(FrameKind.PONG, 0, b"")
        elif kind == FrameKind.GOODBYE:
            self._shut(f"{self} closed the link: {handshake.readable(body)}")
            self._depart()
        elif kind != FrameKind.PONG:
            raise Malformed(f"a frame of the kind {kind}, which does not belong here")

    # Back-pressure: this side stops reading from a peer that exceeds its requests or does not read its
    # answers.

    def _must_hold(self) -> bool:
        # A peer within its number of requests is read on: it may send cancellations.
        return len(self._incoming_requests) > self.settings.most_requests or self._send_queue.is_overfull

    def _hold(self) -> None:
        self._is_held = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """Handles the frames that were held back; then reads on."""
        if self._reason or self._transport is None:
            return
        self._transport.resume_reading()
        self._take_frames()

    def _has_room(self) -> None:
        """The queue is within its limit again."""
        self._credits.hand_out()
        self.request_ended()

    async def _take_credit(self, timeout_seconds: float | None) -> float | None:
        """Waits for a credit, and returns the time that is left."""
        started_at = self._loop.time()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._credits.take()
        except TimeoutError:
            text = f"{self} accepted no more requests for {timeout_seconds:g} s"
            raise AskTimeout(text, was_sent=False) from None
        if timeout_seconds is None:
            return None
        return max(0.0, timeout_seconds - (self._loop.time() - started_at))

    def _cancel_ask(self, number: int) -> None:
        if self._state is _OPEN:
            self._send_queue.put(FrameKind.CANCEL, number, b"")

    # Greeting.

    def _introduction(self) -> Introduction:
        return Introduction(identity=self._introduce(), most_requests=self.settings.most_requests)

    def _greet(self, kind: int, body: bytes | bytearray) -> None:
        if self._is_dialer and kind == FrameKind.REFUSAL:
            self._fail_opening(Refused(f"{self.address} refuses: {handshake.read_refusal(body)}"))
        elif self._is_dialer and kind == FrameKind.WELCOME:
            version, introduction = handshake.read_welcome(body)
            reason = handshake.objection(self._introduce(), introduction.identity)
            if reason is None:
                self._open(version, introduction)
            else:
                self._leave(FrameKind.GOODBYE, reason, reason, Refused(f"{self.address}: {reason}"))
        elif not self._is_dialer and kind == FrameKind.HELLO:
            self._admit(body)
        else:
            raise Malformed(f"a frame of the kind {kind} where a greeting belongs")

    def _admit(self, body: bytes | bytearray) -> None:
        try:
            lowest, highest, rest = handshake.read_hello(body)
            version = handshake.choose_version(lowest, highest)
            introduction = handshake.read_introduction(rest)
            mine, theirs = self._introduce(), introduction.identity
            reason = handshake.objection(mine, theirs) or self._handler.admit(theirs)
            if reason is not None:
                raise Refused(reason)
        except Refused as refused:
            self.counters.links_refused += 1
            _log.warning("%s is refused: %s", self, refused)
            self._leave(FrameKind.REFUSAL, str(refused), f"{self} was refused: {refused}")
            return
        self._send_queue.put(FrameKind.WELCOME, 0, handshake.write_welcome(self._introduction(), version))
        self._open(version, introduction)

    def _open(self, version: int, introduction: Introduction) -> None:
        self.version = version
        self.peer = introduction.identity
        self._state = _OPEN
        self._reader.most_bytes = self.settings.most_frame_bytes
        self._credits.give(introduction.most_requests)
        self.counters.links_opened += 1
        assert self._timer is not None
        self._timer.cancel()
        self._timer = self._loop.call_later(self.settings.ping_seconds, self._tick)
        if not self.opening.done():
            self.opening.set_result(None)
        _log.debug("the link to %s is open", self)
        try:
            self._handler.opened(self)
        except Exception:
            _log.exception("the handler of the new link to %s failed", self)
            self._leave(FrameKind.GOODBYE, "failed unexpectedly", "its handler failed when it was opened")

    def _give_up_greeting(self) -> None:
        text = f"no greeting within {self.settings.connect_seconds:g} s"
        kind = FrameKind.GOODBYE if self._is_dialer else FrameKind.REFUSAL
        error = Unreachable(
            f"{self.address} accepts connections but sends nothing: {text}. Does a node of Hawser listen "
            "there, and do both sides agree on TLS?"
        )
        self._leave(kind, text, f"{self} said nothing: {text}", error)

    def _fail_opening(self, error: TransportError) -> None:
        self._shut(str(error), error)
        self._depart()

    # Heartbeats and the end.

    def _tick(self) -> None:
        """Pings a silent peer, and closes the link if it stays silent."""
        settings = self.settings
        if self._is_heard or self._is_excused():
            self._silent_ticks = 0
        else:
            self._silent_ticks += 1
        self._is_heard, self._written_bytes = False, self._send_queue.written_bytes
        # Counted in ticks, not by a clock: after this process itself was stopped, it must not blame its
        # peers.
        if self._silent_ticks >= ceil(settings.silence_seconds / settings.ping_seconds):
            self.counters.links_silent += 1
            _log.warning("%s was silent for %g s and is cut", self, settings.silence_seconds)
            self.abort(f"silent for {settings.silence_seconds:g} s")
            return
        if self._is_held:
            self._send_queue.put(FrameKind.PONG, 0, b"")
        elif self._silent_ticks:
            self._send_queue.put(FrameKind.PING, 0, b"")
        self._timer = self._loop.call_later(settings.ping_seconds, self._tick)

    def _is_excused(self) -> bool:
        """Whether silence proves nothing: this side does not read because it has enough requests, or the peer
        is busy reading."""
        send_queue = self._send_queue
        if send_queue.is_paused and send_queue.written_bytes != self._written_bytes:
            return True
        return self._is_held and not send_queue.is_overfull

    def _leave(
        self, kind: FrameKind, last_word: str, reason: str, error: TransportError | None = None
    ) -> None:
        """Sends the last frame and waits until the other side has closed."""
        if self._reason:
            return
        self._shut(reason, error)
        if self._transport is None:
            return
        write = handshake.write_refusal if kind is FrameKind.REFUSAL else handshake.shortened
        self._send_queue.put(kind, 0, write(last_word))
        self._send_queue.flush()
        if self._is_held:
            self._is_held = False
            self._transport.resume_reading()
        self._timer = self._loop.call_later(self.settings.goodbye_seconds, self._transport.abort)

    def _depart(self) -> None:
        """Closes the connection; the other side has sent its last frame."""
        if self._transport is None:
            return
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.settings.goodbye_seconds, self._transport.abort)

    def _shut(self, reason: str, error: TransportError | None = None) -> None:
        """Ends all messages and requests; pending ones fail with `reason`."""
        if self._reason:
            return
        assert reason
        was_open = self._state is _OPEN
        self._state, self._reason = _State.LEAVING, reason
        if self._timer is not None:
            self._timer.cancel()
        self._incoming_requests.close()
        self._outgoing_requests.close(reason)
        self._credits.close(reason)
        if not self.opening.done():
            self.opening.set_exception(error or Unreachable(reason))
            # Only a dialer waits for it.
            self.opening.exception()
        if was_open:
            _log.debug("the link is closed: %s", reason)
            try:
                self._handler.closed(self, reason)
            except Exception:
                _log.exception("the handler of a closed link failed: %s", reason)

    def _check_open(self) -> None:
        if self._state is not _OPEN:
            raise LinkClosed(self._reason or f"the link to {self} is not open yet")
