"""What becomes of messages that a session was lent: settlements, one under way at a time, each with all that
waited for it.

A settlement has a stamp, and is sent until its outcome is known, to whoever leads by then: a repeat changes
nothing. Whoever waits for it waits no longer than a call may take. What then certainly was not done is held
as before; what is in doubt goes on by itself, so no message stays with a session that has forgotten it. If
some of its messages are not held any more, nothing of it was done: those are lost, and the others go again
under a new incarnation. When the session closes, nothing begins any more, and whoever still waits is told.
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
# A settlement ends at most so many deliveries.
_MOST_SETTLED: Final = 5_000


class State(Enum):
    """Of a message that was lent."""

    HELD = "held"
    WAITING = "waiting to be settled"
    SENT = "being settled"
    SETTLED = "settled"
    # A transaction has it, and says what becomes of it.
    LOCKED = "locked"
    LOST = "lost"


class Outcome:
    """Of messages that somebody wants settled together, and waits for until a deadline."""

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
    """A message that a session was lent, with this epoch and number in its token."""

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
    """Of one session, in its event loop. `ended` is called once for each message that is settled or lost."""

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
        # What somebody waits for, in the order in which that ends.
        self._awaited: deque[Outcome] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        # Whether the settlement that is under way may have taken effect, and what was wrong last.
        self._is_in_doubt = False
        self._trouble = "nobody leads it"
        # When the leader answered last.
        self.heard = 0.0

    def begin(self, messages: Iterable[HeldMessage], disposition: Disposition) -> Outcome:
        """Settle those of the messages that are held; the rest is what it is. Once this is closed all of them
        are lost."""
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
        """Return when those of the messages that are held are settled, and those that were being settled
        already; Fenced if some of them were lost meanwhile."""
        # Mostly none: this is on the way of every message.
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
        """Wait for what another call has begun; it may have been cancelled, or given up, or go on."""
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
        """Whoever has waited for too long is told so."""
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
        """Nobody waits any more: what certainly was not done is held as before."""
        for each in messages:
            if each.state is State.WAITING or (each.state is State.SENT and not self._is_in_doubt):
                each.state = State.HELD
        self._waiting = deque(each for each in self._waiting if each.state is State.WAITING)
        what, seconds = f"settling messages of queue {self._queue!r}", self._settings.timeout
        if any(each.state is State.SENT for each in messages):
            return OutcomeUnknown(
                f"{what}: perhaps done, because no answer came within {seconds:g} s. It goes on by itself; "
                "ask again to hear what became of it"
            )
        trouble = self._router.trouble() or self._trouble
        return Unavailable(
            f"{what}: not done within {seconds:g} s ({trouble}). They are held as before; try again, or see "
            "`hawser cluster status`"
        )

    async def close(self, timeout_seconds: float) -> None:
        """Settle what waits, if there is time; what is then still open is left to the end of the session, and
        whoever waits for it is told: OutcomeUnknown if it was sent, otherwise Closed."""
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

    # One settlement after the other.

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
            # Those who heard of it have their turn: what they want next goes along.
            await asyncio.sleep(0)

    def _next(self) -> list[HeldMessage]:
        """The next ones that can be settled together: those that may move are bounded by their bytes."""
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
        """Return when it is known what became of them. As long as nothing can have been done, whoever waits
        no longer takes his messages back."""
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
            # It was idle for so long that it is forgotten where it was.
            self._turned(together, lambda each: False)
        else:
            raise HawserError(f"settling messages of queue {self._queue!r}: {result.text}")

    def _turned(self, together: list[HeldMessage], is_lost: Callable[[HeldMessage], bool]) -> None:
        """Nothing of it was done; those that are not lost go again, before all others."""
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
        """They are held as before, as far as is known."""
        self._incarnation, self._sequence = self._incarnation + 1, 0
        for each in together:
            each.state = State.HELD
            if each.outcome is not None:
                self._tell(each.outcome, error)

    def _tell(self, outcome: Outcome, error: HawserError) -> None:
        if not outcome.future.done():
            outcome.future.set_exception(copy_of(error))
            # Whoever wanted it may have gone.
            outcome.future.exception()


def ranges_of(tokens: Iterable[_Token]) -> tuple[wire.TokenRun, ...]:
    """Tokens as they travel."""
    runs: list[wire.TokenRun] = []
    for epoch, number in sorted(tokens):
        if runs and (epoch, number) == (runs[-1][0], runs[-1][1] + runs[-1][2]):
            runs[-1] = (epoch, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((epoch, number, 1))
    return tuple(runs)
