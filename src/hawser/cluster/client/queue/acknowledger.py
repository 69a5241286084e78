"""Acknowledgements of one session: settlements in batches, one batch in flight at a time.

    message state  meaning                                   next
    HELD           delivered to this session, not settled    WAITING, LOCKED; SETTLED if given back; LOST
    WAITING        a caller has settled it                   SENT; HELD if its caller's time is over
    SENT           in the batch in flight                    SETTLED, LOST; WAITING or HELD if not done
    SETTLED        the leader has applied the settlement     none
    LOCKED         a transaction settles it                  LOST if the transaction fails
    LOST           the leader delivers it again, or has      none

Promise: a settlement takes effect at most once, and each call learns its result or OutcomeUnknown.

- A batch has a stamp, and is sent to each successive leader until its outcome is known: a repeat changes
  nothing.
- A call waits no longer than its timeout. Messages that certainly were not settled are HELD again then. A
  batch in doubt is still sent until its outcome is known, so that no message stays with a session that forgot
  it.
- If the leader no longer has some messages of a batch delivered to this session, it applies none of the
  batch: those messages are LOST, and the rest goes into a batch of a new incarnation.
- After `close` no settlement begins, and every call that still waits gets its error.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, Literal

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, copy_of, ended, refused
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import TransportError
from hawser.errors import Closed, Fenced, HawserError, OutcomeUnknown, Unavailable
from hawser.log.queue.dispatcher import MOST_MOVED_BYTES
from hawser.log.state.results import Reason, Rejected, decode_result

__all__ = ["HeldMessage", "Acknowledger", "State", "Disposition", "ranges_of"]

_log = logging.getLogger("hawser.cluster.client")

Disposition = Literal["accept", "release", "reject"]
_Token = tuple[int, int]
# The most messages in one batch.
_MOST_SETTLED: Final = 5_000


class State(Enum):
    """The state of a delivered message; the module's table has the transitions."""

    HELD = "held"
    WAITING = "waiting to be settled"
    SENT = "being settled"
    SETTLED = "settled"
    LOCKED = "locked"
    LOST = "lost"


class Outcome:
    """The result of one call: done when all of its messages are settled or lost."""

    __slots__ = ("deadline", "future", "left", "messages")

    def __init__(
        self, messages: "list[HeldMessage]", future: "asyncio.Future[None]", deadline: float
    ) -> None:
        self.messages = messages
        self.left = len(messages)
        self.future = future
        self.deadline = deadline

    def count_down(self) -> None:
        self.left -= 1
        if not self.left and not self.future.done():
            self.future.set_result(None)


class HeldMessage:
    """A delivered message; its token is (epoch, number)."""

    __slots__ = ("epoch", "nbytes", "number", "offset", "outcome", "state", "disposition")

    def __init__(self, epoch: int, number: int, offset: int, nbytes: int) -> None:
        self.epoch = epoch
        self.number = number
        self.offset = offset
        self.nbytes = nbytes
        self.state = State.HELD
        self.disposition: Disposition = "accept"
        self.outcome: Outcome | None = None


class Acknowledger:
    """Lives in the event loop. Calls `ended` once for each message that is settled or lost."""

    def __init__(
        self,
        router: Router,
        queue: str,
        shard: str,
        subqueue: int,
        session: str,
        ended: Callable[[HeldMessage], None],
    ) -> None:
        self._router = router
        self._settings = router.settings
        self._loop = router.loop
        self._queue = queue
        self._shard = shard
        self._subqueue = subqueue
        self._session = session
        self._ended = ended
        self._incarnation, self._sequence = 1, 0
        self._waiting: deque[HeldMessage] = deque()
        self._under_way: list[HeldMessage] = []
        self._is_closed = False
        # The results that calls wait for, ordered by deadline.
        self._awaited: deque[Outcome] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        # Whether the batch in flight may have taken effect, and the last failure.
        self._is_in_doubt = False
        self._trouble = "it has no leader"
        # When the leader answered last.
        self.heard = 0.0

    def begin(self, messages: Iterable[HeldMessage], disposition: Disposition) -> Outcome:
        """Begin to settle those of the messages that are held. After `close` they are lost instead."""
        held = [each for each in messages if each.state is State.HELD]
        if self._is_closed:
            for each in held:
                each.state = State.LOST
            held = []
        deadline = self._loop.time() + self._settings.timeout
        outcome = Outcome(held, self._loop.create_future(), deadline)
        for each in held:
            each.state, each.disposition, each.outcome = State.WAITING, disposition, outcome
        self._waiting.extend(held)
        if held:
            self._go_on()
        else:
            outcome.future.set_result(None)
        return outcome

    async def settle(self, messages: Sequence[HeldMessage], disposition: Disposition) -> None:
        """Return when all of the messages are settled, by this call or by one before it. Fenced if some of
        them were lost meanwhile."""
        # Usually empty; this is a hot path.
        others = [each for each in messages if each.state is not State.HELD]
        known = {id(each) for each in others if each.state is State.LOST}
        under_way = {each.outcome for each in others if each.state in (State.WAITING, State.SENT)}
        outcome = self.begin(messages, disposition)
        self._awaited.append(outcome)
        if self._timer is None:
            self._timer = self._loop.call_at(outcome.deadline, self._expire)
        try:
            await outcome.future
        finally:
            while self._awaited and self._awaited[0].future.done():
                self._awaited.popleft()
        for other in under_way:
            if other is not None:
                await self._join(other)
        lost = [each for each in messages if each.state is State.LOST and id(each) not in known]
        if lost:
            raise self.fenced(lost)

    async def _join(self, outcome: Outcome) -> None:
        """Wait for a settlement that another call began; that call may have been cancelled or timed out."""
        if outcome.future.cancelled():
            if not outcome.left:
                return
            outcome.future = self._loop.create_future()
        if not outcome.future.done():
            await asyncio.wait((outcome.future,), timeout=self._settings.timeout)
        if any(each.state in (State.WAITING, State.SENT) for each in outcome.messages):
            raise self._late(outcome.messages)
        error = outcome.future.exception() if outcome.future.done() else None
        is_open = self._is_closed or any(each.state is State.HELD for each in outcome.messages)
        if isinstance(error, HawserError) and is_open:
            raise copy_of(error)

    def _expire(self) -> None:
        """Fail the calls whose time is over."""
        self._timer = None
        now = self._loop.time()
        while self._awaited and (self._awaited[0].deadline <= now or self._awaited[0].future.done()):
            outcome = self._awaited.popleft()
            if not outcome.future.done():
                outcome.future.set_exception(self._late(outcome.messages))
        if self._awaited:
            self._timer = self._loop.call_at(self._awaited[0].deadline, self._expire)

    def fenced(self, lost: Sequence[HeldMessage]) -> HawserError:
        """The error for messages that are not held any more."""
        if self._is_closed:
            return Closed(
                f"this consumer of queue {self._queue!r} was closed; what it held was given back, and is "
                "delivered again"
            )
        offsets = ", ".join(str(each.offset) for each in lost[:5]) + (", ..." if len(lost) > 5 else "")
        return Fenced(
            f"{len(lost)} messages of queue {self._queue!r} ({offsets}) are not held here any more: their "
            "lease or session was over, their loop went on to its next message, or the queue has another "
            "leader. Nothing was changed for them; they are delivered again, or were"
        )

    def _late(self, messages: Sequence[HeldMessage]) -> HawserError:
        """The error for a call whose time is over. What certainly was not settled is held again."""
        for each in messages:
            if each.state is State.WAITING or (each.state is State.SENT and not self._is_in_doubt):
                each.state = State.HELD
        self._waiting = deque(each for each in self._waiting if each.state is State.WAITING)
        what, seconds = f"settling messages of queue {self._queue!r}", self._settings.timeout
        if any(each.state is State.SENT for each in messages):
            return OutcomeUnknown(
                f"{what}: perhaps done, because no answer came within {seconds:g} s. The client still sends "
                "it; settle the message again to learn the outcome"
            )
        trouble = self._router.trouble() or self._trouble
        return Unavailable(
            f"{what}: not done within {seconds:g} s ({trouble}). The messages are held as before; try again, "
            "or see `hawser cluster status`"
        )

    async def close(self, timeout_seconds: float) -> None:
        """Settle what waits, if there is time. The end of the session releases the rest; calls that wait for
        it get OutcomeUnknown if it was sent, otherwise Closed."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=timeout_seconds)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for each in (*self._under_way, *self._waiting):
            if each.outcome is not None:
                self._tell(each.outcome, self._left_open(each))
            each.state = State.LOST
        self._under_way, self._waiting = [], deque()

    def _left_open(self, held_message: HeldMessage) -> HawserError:
        if held_message.state is State.SENT and self._is_in_doubt:
            return OutcomeUnknown(
                f"settling messages of queue {self._queue!r}: perhaps done, because the consumer was closed "
                "before an answer came. What was not done is delivered again"
            )
        return self.fenced([held_message])

    # The task that sends one batch after the other.

    def _go_on(self) -> None:
        if self._task is None and self._waiting:
            self._task = self._loop.create_task(self._settle_all())
            self._task.add_done_callback(self._stopped)

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("settling messages of queue %r failed", self._queue, exc_info=error)
        elif not task.cancelled():
            self._go_on()

    async def _settle_all(self) -> None:
        while self._waiting:
            together = self._under_way = self._next()
            try:
                await self._settle_together(together)
            except HawserError as error:
                self._failed(together, error)
            self._under_way = []
            # The callers that were woken run first, so that what they settle next joins this batch.
            await asyncio.sleep(0)

    def _next(self) -> list[HeldMessage]:
        """The next batch. The bytes of released and rejected messages are bounded, because those may move."""
        together: list[HeldMessage] = []
        moved_bytes = 0
        while self._waiting and len(together) < _MOST_SETTLED:
            each = self._waiting[0]
            if each.disposition != "accept":
                moved_bytes += each.nbytes
                if moved_bytes > MOST_MOVED_BYTES and together:
                    break
            together.append(self._waiting.popleft())
            each.state = State.SENT
        return together

    async def _settle_together(self, together: list[HeldMessage]) -> None:
        """Return when the outcome of the batch is known. Until it may have taken effect, a call whose time is
        over takes its messages out of the batch."""
        self._sequence += 1
        backoff, doubt = Backoff(self._settings), False
        while True:
            if not doubt:
                together[:] = [each for each in together if each.state is State.SENT]
                if not together:
                    self._sequence -= 1
                    return
            link = self._router.leader_link(self._shard)
            if link is not None:
                self._is_in_doubt = True
                try:
                    request = self._request(together)
                    body = wire.encode(request)
                    answer = checked(link, request, await ask(link, body, self._settings.attempt_seconds))
                except TransportError as error:
                    doubt, self._trouble = doubt or error.was_sent, str(error)
                else:
                    if not isinstance(answer, wire.Failed):
                        self.heard = self._loop.time()
                        self._decided(together, answer)
                        return
                    if not answer.retryable:
                        raise refused(answer, f"settling messages of queue {self._queue!r}", doubt)
                    doubt, self._trouble = doubt or answer.outcome == "unknown", answer.text
                    if self._router.note(self._shard, answer):
                        continue
                self._is_in_doubt = doubt
            await asyncio.sleep(backoff.next())
            try:
                await self._router.look_after(self._queue, self._shard)
            except Closed as closed:
                raise ended(closed, f"settling messages of queue {self._queue!r}", doubt) from None

    def _request(self, together: list[HeldMessage]) -> wire.QueueSettle:
        verdicts: dict[Disposition, list[_Token]] = {"accept": [], "release": [], "reject": []}
        for each in together:
            verdicts[each.disposition].append((each.epoch, each.number))
        return wire.QueueSettle(
            self._shard,
            self._subqueue,
            self._session,
            self._incarnation,
            self._sequence,
            *(ranges_of(tokens) for tokens in verdicts.values()),
        )

    def _decided(self, together: list[HeldMessage], answer: wire.Answer) -> None:
        if isinstance(answer, wire.Turned):
            lost = {(epoch, first + place) for epoch, first, n in answer.tokens for place in range(n)}
            self._turned(together, lambda each: (each.epoch, each.number) in lost)
            return
        assert isinstance(answer, wire.Executed), answer
        result = decode_result(answer.result)
        if not isinstance(result, Rejected) or result.outcome == "applied":
            self._end(together, State.SETTLED)
        elif result.reason is Reason.NOT_HELD and any(each.offset == result.given for each in together):
            self._turned(together, lambda each: each.offset == result.given)
        elif result.reason in (Reason.GAP, Reason.UNKNOWN_PRODUCER):
            # The leader has forgotten this session's sequence, because it was idle for long.
            self._turned(together, lambda each: False)
        else:
            raise HawserError(f"settling messages of queue {self._queue!r}: {result.text}")

    def _turned(self, together: list[HeldMessage], is_lost: Callable[[HeldMessage], bool]) -> None:
        """The leader applied nothing: the messages that are not lost are sent again, before all others."""
        self._incarnation, self._sequence = self._incarnation + 1, 0
        self._end([each for each in together if is_lost(each)], State.LOST)
        again = [each for each in together if each.state is State.SENT]
        for each in again:
            each.state = State.WAITING
        self._waiting.extendleft(reversed(again))

    def _end(self, messages: list[HeldMessage], state: State) -> None:
        for each in messages:
            each.state = state
            self._ended(each)
            if each.outcome is not None:
                each.outcome.count_down()

    def _failed(self, together: list[HeldMessage], error: HawserError) -> None:
        """The leader refused the batch: its messages are held as before, as far as is known."""
        self._incarnation, self._sequence = self._incarnation + 1, 0
        for each in together:
            each.state = State.HELD
            if each.outcome is not None:
                self._tell(each.outcome, error)

    def _tell(self, outcome: Outcome, error: HawserError) -> None:
        if not outcome.future.done():
            outcome.future.set_exception(copy_of(error))
            # Mark it retrieved: the caller may have gone.
            outcome.future.exception()


def ranges_of(tokens: Iterable[_Token]) -> tuple[wire.TokenRun, ...]:
    """Tokens in their wire form: ranges of consecutive numbers."""
    runs: list[wire.TokenRun] = []
    for epoch, number in sorted(tokens):
        if runs and (epoch, number) == (runs[-1][0], runs[-1][1] + runs[-1][2]):
            runs[-1] = (epoch, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((epoch, number, 1))
    return tuple(runs)
