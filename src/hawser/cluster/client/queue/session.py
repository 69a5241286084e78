"""A consumer's session at the leader of a queue: it receives, prefetches and keeps leases alive.

    state         when                                             next
    idle          no task: nothing held, wanted or in doubt        requesting, on `get`
    requesting    one numbered QueueGet is in flight               resting, or requesting again
    long polling  as requesting; the leader waits for messages     requesting, on an answer or an interrupt
    resting       the task sleeps until it has something to do     requesting, on a caller or a due heartbeat
    failed        `_failure` is set: closed, or deleted            none

Promise: a message is received by one caller, or given back without counting a delivery.

- At most one request is in flight. Each names the token received last, so the leader delivers again,
  uncounted, what a lost answer contained. A lost request is never repeated; the next request, possibly for
  zero messages, supersedes it.
- A long poll is interrupted by a caller that does not wait (timeout 0), and by messages to give back.
- While the session holds messages, its requests and settlements are its heartbeats.
- Prefetched messages go back, uncounted, after a quarter of their lease, and when the leader changes.
- A session of transactions gets unconfirmed reads; a stale leader is detected at commit.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Any, Final

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, copy_of, given_up, refused
from hawser.cluster.client.queue.acknowledger import Acknowledger, Disposition, HeldMessage, State, ranges_of
from hawser.cluster.client.queue.waiters import Waiters
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import TransportError
from hawser.errors import Closed, Full, HawserError
from hawser.log.queue.claims import NO_TOKEN, DeliveryPolicy, Token
from hawser.log.queue.dispatcher import DeliveryBatch, nbytes_of
from hawser.log.state.queue import DEAD_LETTERS
from hawser.record.batch import Batch
from hawser.record.record import Record

__all__ = ["MOST_HELD", "QueueSession", "Make"]

_log = logging.getLogger("hawser.cluster.client")

# (message, its record, its producer, its delivery count, whether it may have been delivered before).
Make = Callable[[HeldMessage, Record, str, int, bool], Any]
# A prefetched message, the object made of it, and the time it arrived.
_Ahead = tuple[HeldMessage, Any, float]
# A prefetched message waits here for at most this part of its lease; its consumer needs most of it.
_LEASE_PART: Final = 0.25
# The least time that `close` has for the last request.
_LAST_SECONDS: Final = 0.5
# The most messages that a session holds, and that one request names.
MOST_HELD: Final = DeliveryPolicy(session_duration=1).most_held


class _Interrupted(Exception):
    """A long poll was interrupted."""


class QueueSession:
    """Lives in the event loop; `take_back` and `get_nothing_ahead` may be called in any thread. `make` makes
    the messages that callers get."""

    def __init__(
        self,
        router: Router,
        queue: str,
        shard: str,
        subqueue: int,
        name: str,
        make: Make,
        prefetch: int = 0,
        lease_seconds: float = inf,
        for_transactions: bool = False,
    ) -> None:
        self.router = router
        self._settings = router.settings
        self._loop = router.loop
        self.queue = queue
        self.shard = shard
        self._subqueue = subqueue
        self._make = make
        self._prefetch = prefetch
        self._ahead_seconds = _LEASE_PART * lease_seconds
        self._for_transactions = for_transactions
        # A secret: it authenticates the requests of this session.
        self.session = f"{name}#{secrets.token_hex(16)}"
        self._acknowledger = Acknowledger(router, queue, shard, subqueue, self.session, self._ended)
        self._request = 0
        self._received = NO_TOKEN
        # Until then the leader may have delivered messages in an answer that was lost.
        self._doubt_until = 0.0
        self._leader = ""
        self._waiters = Waiters(router.loop, self._late)
        # Prefetched messages, and the tokens to give back as never seen.
        self._ahead: deque[_Ahead] = deque()
        self._unseen: set[tuple[int, int]] = set()
        self._held = 0
        self._failure: HawserError | None = None
        # Closed by this client; a deleted queue sets `_failure` alone.
        self.is_closed = False
        # Whether a long poll is in flight, and whether it was interrupted.
        self._is_polling = self._is_interrupted = False
        self._is_refused = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Getting.

    async def get(self, count: int, timeout: float | None) -> list[Any]:
        """Up to `count` messages; none if none arrive in time. With timeout 0 an empty result means that the
        queue had none to deliver. Full if the session holds as many messages as it may."""
        if self._failure is not None:
            raise copy_of(self._failure)
        if self._ahead:
            self._return_stale()
        if self._ahead and not self._waiters:
            found = self._take(count)
            self._go_on()
            return [message for _, message, _ in found]
        if self._held >= MOST_HELD:
            raise Full(
                f"this consumer holds {self._held} messages of queue {self.queue!r}, as many as it may; "
                "accept or release some"
            )
        looks = timeout == 0
        if looks:
            self._interrupt()
        seconds = self._settings.timeout if looks else inf if timeout is None else timeout
        waiter = self._waiters.add(count, looks, seconds)
        self._go_on()
        try:
            return [message for _, message, _ in await waiter.future]
        except asyncio.CancelledError:
            self._waiters.leave(waiter)
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self._put_back(future.result())
            raise

    def _late(self) -> HawserError:
        trouble = self.router.trouble() or "it has no leader"
        return given_up(f"getting from queue {self.queue!r}", self._settings.timeout, trouble, False)

    def _take(self, count: int) -> list[_Ahead]:
        return [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]

    def give_back(self, unseen: Iterable[HeldMessage]) -> None:
        """Give back messages that no caller has seen: their delivery is not counted."""
        before = len(self._unseen)
        for held_message in unseen:
            if held_message.state is State.HELD:
                held_message.state = State.SETTLED
                self._unseen.add((held_message.epoch, held_message.number))
                self._ended(held_message)
        if len(self._unseen) > before:
            self._interrupt()
            self._go_on()

    def _put_back(self, found: list[_Ahead]) -> None:
        """Return messages of a caller that was cancelled: a waiter gets them, or the queue."""
        self._ahead.extendleft(each for each in reversed(found) if each[0].state is State.HELD)
        self._waiters.serve(self._take)
        self._return_too_many()
        self._go_on()

    def _return_too_many(self) -> None:
        """Give back what exceeds the prefetch: the callers that wanted it have gone."""
        if len(self._ahead) > self._prefetch:
            gone = [self._ahead.pop() for _ in range(len(self._ahead) - self._prefetch)]
            self.give_back(held_message for held_message, _, _ in gone)

    def _return_ahead(self) -> None:
        self.give_back(held_message for held_message, _, _ in self._take(len(self._ahead)))

    def _return_stale(self) -> None:
        now = self._loop.time()
        while self._ahead and self._stale_at <= now:
            self.give_back(held_message for held_message, _, _ in self._take(1))

    @property
    def _stale_at(self) -> float:
        """When the first prefetched message has to go back."""
        return self._ahead[0][2] + self._ahead_seconds if self._ahead else inf

    def get_nothing_ahead(self) -> None:
        """Stop prefetching, and give back what was prefetched. May be called in any thread at any time."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_getting_ahead)

    def _stop_getting_ahead(self) -> None:
        self._prefetch = 0
        self._return_ahead()

    # Requests.

    @property
    def _wanted(self) -> int:
        """How many messages to ask for. Prefetching alone asks once half of its messages are missing."""
        wanted = self._waiters.wanted
        missing = 0 if self._is_refused else max(0, self._prefetch - len(self._ahead))
        return min(wanted + missing, MOST_HELD) if wanted or 2 * missing > self._prefetch else 0

    @property
    def _is_in_doubt(self) -> bool:
        return self._loop.time() < self._doubt_until

    @property
    def _has_to_ask(self) -> bool:
        """Whether it holds, wants or gives back messages, or is in doubt."""
        return bool(self._held or self._unseen or self._wanted or self._is_in_doubt)

    def _go_on(self) -> None:
        self._news.set()
        if self._task is None and self._failure is None and self._has_to_ask:
            self._task = self._loop.create_task(self._ask_on())
            self._task.add_done_callback(self._stopped)

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
        self._go_on()

    def _interrupt(self) -> None:
        """End a long poll; the next request follows at once."""
        if self._is_polling and not self._is_interrupted and self._task is not None:
            self._is_interrupted = True
            self._task.cancel()

    async def _ask_on(self) -> None:
        """Send one request after the other while `_has_to_ask`."""
        backoff = Backoff(self._settings)
        while self._has_to_ask:
            self._return_stale()
            wanted = self._wanted
            if not (wanted or self._unseen or self._is_in_doubt or self._loop.time() >= self._silent_until):
                await self._rest()
                continue
            looking = self._waiters.looking
            wait_seconds = 0.0 if looking or not wanted else self._wait_seconds
            try:
                answer = await self._poll(wanted, wait_seconds)
            except _Interrupted:
                continue
            if isinstance(answer, wire.Delivered):
                backoff = Backoff(self._settings)
                self._lent(answer.delivery_batches)
                if looking:
                    self._waiters.dismiss(looking)
            elif isinstance(answer, wire.Failed) and not answer.retryable:
                self._refuse(refused(answer, f"getting from queue {self.queue!r}", False))
                await asyncio.sleep(backoff.next())
            else:
                await self._look_elsewhere(answer, backoff)

    async def _poll(self, most: int, wait_seconds: float) -> wire.Answer | None:
        """As `_ask_for`; `_Interrupted` if a long poll was interrupted."""
        self._is_polling, self._is_interrupted = wait_seconds > 0, False
        try:
            return await self._ask_for(most, wait_seconds)
        except asyncio.CancelledError:
            # Another caller may have cancelled the task at the same time.
            if self._is_interrupted and self._task is not None and not self._task.uncancel():
                raise _Interrupted from None
            raise
        finally:
            self._is_polling = False

    @property
    def _silent_until(self) -> float:
        """When the next heartbeat is due."""
        return self._acknowledger.heard + self._settings.session_seconds / 3 if self._held else inf

    @property
    def _wait_seconds(self) -> float:
        """How long a request may wait at the leader: it is a heartbeat, too."""
        seconds = min(self._settings.fetch_wait_seconds, self._settings.session_seconds / 3)
        return min(seconds, max(0.0, self._stale_at - self._loop.time()))

    async def _rest(self) -> None:
        """Sleep until there is something to do."""
        self._news.clear()
        until = min(self._silent_until, self._stale_at)
        timer = self._loop.call_at(until, self._news.set) if until < inf else None
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _ask_for(
        self, most: int, wait_seconds: float = 0.0, is_last: bool = False
    ) -> wire.Answer | None:
        """The leader's answer; None if there is none."""
        link = self.router.leader_link(self.shard)
        if link is None:
            return None
        self._request += 1
        unseen = tuple(islice(self._unseen, MOST_HELD))
        request = wire.QueueGet(
            self.shard,
            self._subqueue,
            self.session,
            self._request,
            self._received,
            most,
            self._settings.fetch_bytes,
            self._settings.session_seconds,
            wait_seconds,
            ranges_of(unseen),
            is_last,
            self._for_transactions,
            0 if is_last else self._prefetch,
        )
        before = self._doubt_until
        if most:
            # By then the leader has forgotten a session from which it heard nothing.
            self._doubt_until = self._loop.time() + wait_seconds + self._settings.session_seconds
        try:
            seconds = wait_seconds + self._settings.attempt_seconds
            answer = checked(link, request, await ask(link, wire.encode(request), seconds))
        except TransportError:
            return None
        # The wait is over: nothing is left to interrupt.
        self._is_polling = False
        if isinstance(answer, wire.Delivered) and self._is_outdated(answer.delivery_batches):
            return None
        if isinstance(answer, wire.Delivered):
            self._acknowledger.heard = self._loop.time()
            self._doubt_until = 0.0
            self._unseen.difference_update(unseen)
            if link.address != self._leader:
                # Deliveries of another leader can only be given back.
                self._leader = link.address
                self._return_ahead()
        else:
            self._doubt_until = before
        return answer

    def _is_outdated(self, delivery_batches: tuple[DeliveryBatch, ...]) -> bool:
        """Whether a leader sent them that has lost its leadership and does not know it."""
        return bool(delivery_batches) and delivery_batches[0].token.epoch < self._received.epoch

    async def _look_elsewhere(self, answer: wire.Answer | None, backoff: Backoff) -> None:
        if isinstance(answer, wire.Failed) and self.router.note(self.shard, answer):
            return
        await asyncio.sleep(backoff.next())
        await self.router.look_after(self.queue, self.shard)

    def _lent(self, delivery_batches: tuple[DeliveryBatch, ...]) -> None:
        self._is_refused = False
        if delivery_batches and self._received.epoch < delivery_batches[0].token.epoch:
            self._return_ahead()
        now = self._loop.time()
        for delivery_batch in delivery_batches:
            batch = Batch.read(delivery_batch.batch)
            publisher = batch.header.producer.decode(errors="replace").rpartition("#")[0]
            epoch, number = delivery_batch.token.epoch, delivery_batch.token.number
            told = (publisher, delivery_batch.delivery_count, delivery_batch.redelivered)
            for place, record in enumerate(batch.records()):
                held_message = HeldMessage(
                    epoch, number + place, delivery_batch.offset + place, nbytes_of(record)
                )
                self._ahead.append((held_message, self._make(held_message, record, *told), now))
            self._received = Token(epoch, number + delivery_batch.count - 1)
            self._held += delivery_batch.count
        self._waiters.serve(self._take)
        self._return_too_many()

    def _fail(self, error: BaseException) -> None:
        """End the session with an error: every later `get` raises it."""
        if not isinstance(error, HawserError):
            _log.error("getting from queue %r failed", self.queue, exc_info=error)
            error = HawserError(f"getting from queue {self.queue!r} failed: {error!r}; report it")
        self._failure = error
        self._refuse(error)

    def _refuse(self, error: HawserError) -> None:
        """Fail the callers that wait. The next caller asks again; prefetching stops until an answer comes."""
        self._is_refused = True
        self._waiters.fail(error)

    # Settling.

    def disposition(self, wanted: Disposition) -> Disposition:
        """The disposition sent to the leader: a rejected dead letter is released."""
        return "release" if wanted == "reject" and self._subqueue == DEAD_LETTERS else wanted

    def settle(self, messages: Sequence[HeldMessage], disposition: Disposition) -> Coroutine[Any, Any, None]:
        """As `Acknowledger.settle`."""
        return self._acknowledger.settle(messages, disposition)

    def fenced(self, lost: Sequence[HeldMessage]) -> HawserError:
        """As `Acknowledger.fenced`."""
        return self._acknowledger.fenced(lost)

    async def settle_one(self, held_message: HeldMessage, disposition: Disposition) -> None:
        """Return when the message is settled; at once if a transaction has it. Fenced if it is lost, also if
        another thread took it back a moment ago."""
        if held_message.state is State.LOST:
            raise self.fenced([held_message])
        if held_message.state not in (State.SETTLED, State.LOCKED):
            await self._acknowledger.settle([held_message], disposition)

    def take_back(self, held_message: HeldMessage) -> None:
        """Release a message if it is held and the loop still runs; its holder loses it. May be called in any
        thread at any time."""
        if held_message.state is State.HELD:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_back, held_message)

    def _take_back(self, held_message: HeldMessage) -> None:
        if held_message.state is State.HELD:
            self.unlock((held_message,))

    # Transactions.

    def lock(self, messages: Iterable[HeldMessage]) -> None:
        """Hand held messages to a transaction, which settles them from then on."""
        for each in messages:
            assert each.state is State.HELD
            each.state, each.disposition = State.LOCKED, "accept"

    def locked(self, messages: Sequence[HeldMessage]) -> None:
        """The leader has locked these messages; they do not count as held by this session any more."""
        self._held -= len(messages)

    def unlock(self, lost: Iterable[HeldMessage], held: Iterable[HeldMessage] = ()) -> "asyncio.Future[None]":
        """Release `lost`, whose lock the leader never saw, and those of `held` that are held. Done when the
        leader has them. The holders of `lost` lose them."""
        released = [*held]
        for each in lost:
            each.state = State.LOST
            released.append(HeldMessage(each.epoch, each.number, each.offset, each.nbytes))
        return self._acknowledger.begin(released, "release").future

    def lock_of(self, messages: Iterable[HeldMessage]) -> wire.QueueLock:
        """The command by which a transaction locks these messages."""
        tokens = ranges_of((each.epoch, each.number) for each in messages)
        return wire.QueueLock(self._subqueue, self.session, tokens)

    def _ended(self, _: HeldMessage) -> None:
        self._held -= 1

    def end(self) -> None:
        """Receive nothing more; callers that wait get Closed."""
        if not self.is_closed:
            self.is_closed = True
            self._fail(Closed(f"this consumer of queue {self.queue!r} was closed"))
        self._waiters.close()

    async def close(self) -> None:
        """Finish the settlements in progress, give back everything else, and end the session at the
        leader."""
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._return_ahead()
        deadline = self._loop.time() + min(self._settings.attempt_seconds, self._settings.timeout)
        deadline = min(deadline, self.router.leave_by - _LAST_SECONDS)
        await self._acknowledger.close(deadline - self._loop.time())
        if self._request:
            # If this request is lost, the leader ends the session at its timeout.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(deadline, self._loop.time() + _LAST_SECONDS)):
                    await self._ask_for(0, is_last=True)
