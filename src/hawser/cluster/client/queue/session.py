"""A session of a client at a queue: the messages that it is lent.

One request is under way at a time; whoever wants messages waits for its answer. Requests are numbered, and
each says which token was received last: what the answer to an earlier one had lent, and nobody got, is lent
again and not counted. So a request that is lost is not repeated but followed by the next, which wants nothing
if nobody does. So is one that waits for messages when somebody comes who only wants to know whether there are
any, or when there are some to be given back.

While it holds messages it is heard of, whether somebody wants more or not. What was got ahead goes back
uncounted before much of its lease is over, and when the queue has another leader.

A session of transactions is answered by a leader that has not asked the others whether it still is one.
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

# (message, its record, who put it, how often it was delivered, whether it may have been before).
Make = Callable[[HeldMessage, Record, str, int, bool], Any]
# With when it came.
_Ahead = tuple[HeldMessage, Any, float]
# Whoever gets a message has most of its lease before him: it lies here for no longer than this part of it.
_LEASE_PART: Final = 0.25
# A session that closes late has at least so long for its last request.
_LAST_SECONDS: Final = 0.5
# A session holds no more, and names no more in a request.
MOST_HELD: Final = DeliveryPolicy(session_duration=1).most_held


class _Interrupted(Exception):
    """A request that waited for messages is not waited for any more."""


class QueueSession:
    """Everything happens in the event loop; `drop` may be called anywhere. `make` makes the messages that are
    handed out."""

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
        # A secret: whoever knows it speaks for this session.
        self.session = f"{name}#{secrets.token_hex(16)}"
        self._acknowledger = Acknowledger(router, queue, shard, subqueue, self.session, self._ended)
        self._request = 0
        self._received = NO_TOKEN
        # Until then the leader may have lent something in an answer that nobody got.
        self._doubt_until = 0.0
        self._leader = ""
        self._waiters = Waiters(router.loop, self._late)
        # What is here for whoever comes next, and what nobody saw and the leader is to know of.
        self._ahead: deque[_Ahead] = deque()
        self._unseen: set[tuple[int, int]] = set()
        self._held = 0
        self._failure: HawserError | None = None
        # Here; a queue that was deleted is another thing.
        self.is_closed = False
        # Whether a request waits for messages, and whether the next is to follow it at once.
        self._is_polling = self._is_interrupted = False
        self._is_refused = False
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # Getting.

    async def get(self, count: int, timeout: float | None) -> list[Any]:
        """Messages, at most `count`; none if none came in time. With 0 it is certain that there were none.
        Full if as many are held as a session may."""
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
        trouble = self.router.trouble() or "nobody leads it"
        return given_up(f"getting from queue {self.queue!r}", self._settings.timeout, trouble, False)

    def _take(self, count: int) -> list[_Ahead]:
        return [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]

    def give_back(self, unseen: Iterable[HeldMessage]) -> None:
        """Those of these that are held were seen by nobody, and are for others: no delivery is counted."""
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
        """Give these back unseen: the next consumer gets them, here or elsewhere."""
        self._ahead.extendleft(each for each in reversed(found) if each[0].state is State.HELD)
        self._waiters.serve(self._take)
        self._return_too_many()
        self._go_on()

    def _return_too_many(self) -> None:
        """Give back messages beyond those to be got ahead: the callers that wanted them have gone."""
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
        """When the first of what was got ahead has to go back."""
        return self._ahead[0][2] + self._ahead_seconds if self._ahead else inf

    def get_nothing_ahead(self) -> None:
        """From any thread, and at any time: from here on nobody comes for what is got ahead."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop_getting_ahead)

    def _stop_getting_ahead(self) -> None:
        self._prefetch = 0
        self._return_ahead()

    # Asking.

    @property
    def _wanted(self) -> int:
        """How many messages to ask for. What is got ahead is asked for in batches."""
        wanted = self._waiters.wanted
        missing = 0 if self._is_refused else max(0, self._prefetch - len(self._ahead))
        return min(wanted + missing, MOST_HELD) if wanted or 2 * missing > self._prefetch else 0

    @property
    def _is_in_doubt(self) -> bool:
        return self._loop.time() < self._doubt_until

    @property
    def _has_to_ask(self) -> bool:
        """Whether there is something to hold, to get, or to be told of."""
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
        """A request that waits is followed by the next at once."""
        if self._is_polling and not self._is_interrupted and self._task is not None:
            self._is_interrupted = True
            self._task.cancel()

    async def _ask_on(self) -> None:
        """One request after the other, as long as there is something to ask for or to tell."""
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
        """As `_ask_for`; one that waits may be interrupted."""
        self._is_polling, self._is_interrupted = wait_seconds > 0, False
        try:
            return await self._ask_for(most, wait_seconds)
        except asyncio.CancelledError:
            # Whoever ends the task may have done so at the same time.
            if self._is_interrupted and self._task is not None and not self._task.uncancel():
                raise _Interrupted from None
            raise
        finally:
            self._is_polling = False

    @property
    def _silent_until(self) -> float:
        """When the leader has to hear of this session again."""
        return self._acknowledger.heard + self._settings.session_seconds / 3 if self._held else inf

    @property
    def _wait_seconds(self) -> float:
        """How long a request may wait: meanwhile it is what is heard of the session."""
        seconds = min(self._settings.fetch_wait_seconds, self._settings.session_seconds / 3)
        return min(seconds, max(0.0, self._stale_at - self._loop.time()))

    async def _rest(self) -> None:
        """Until there is something to do."""
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
        """The answer of the leader, if there is one."""
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
            # By then the leader has forgotten a session that it did not hear of again.
            self._doubt_until = self._loop.time() + wait_seconds + self._settings.session_seconds
        try:
            seconds = wait_seconds + self._settings.attempt_seconds
            answer = checked(link, request, await ask(link, wire.encode(request), seconds))
        except TransportError:
            return None
        # What follows is no waiting that could be interrupted.
        self._is_polling = False
        if isinstance(answer, wire.Delivered) and self._is_outdated(answer.delivery_batches):
            return None
        if isinstance(answer, wire.Delivered):
            self._acknowledger.heard = self._loop.time()
            self._doubt_until = 0.0
            self._unseen.difference_update(unseen)
            if link.address != self._leader:
                # What another one lent can only be given back.
                self._leader = link.address
                self._return_ahead()
        else:
            self._doubt_until = before
        return answer

    def _is_outdated(self, delivery_batches: tuple[DeliveryBatch, ...]) -> bool:
        """Whether they are of a leader that is none any more, and does not know it."""
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
        """Nothing can be got any more."""
        if not isinstance(error, HawserError):
            _log.error("getting from queue %r failed", self.queue, exc_info=error)
            error = HawserError(f"getting from queue {self.queue!r} failed: {error!r}; report it")
        self._failure = error
        self._refuse(error)

    def _refuse(self, error: HawserError) -> None:
        """Whoever waits is told; who comes next asks again, but nothing is got ahead meanwhile."""
        self._is_refused = True
        self._waiters.fail(error)

    # Settling.

    def disposition(self, wanted: Disposition) -> Disposition:
        """What is asked of the leader: a dead letter that is rejected stays one."""
        return "release" if wanted == "reject" and self._subqueue == DEAD_LETTERS else wanted

    def settle(self, messages: Sequence[HeldMessage], disposition: Disposition) -> Coroutine[Any, Any, None]:
        """As `Acknowledger.settle`."""
        return self._acknowledger.settle(messages, disposition)

    def fenced(self, lost: Sequence[HeldMessage]) -> HawserError:
        """As `Acknowledger.fenced`."""
        return self._acknowledger.fenced(lost)

    async def settle_one(self, held_message: HeldMessage, disposition: Disposition) -> None:
        """Return when the message is settled, unless a transaction has it. Fenced if it is lost, also if
        another thread took it back a moment ago."""
        if held_message.state is State.LOST:
            raise self.fenced([held_message])
        if held_message.state not in (State.SETTLED, State.LOCKED):
            await self._acknowledger.settle([held_message], disposition)

    def take_back(self, held_message: HeldMessage) -> None:
        """Release a message if it is held and the loop still runs. For its holder the message is lost. May be
        called from any thread at any time."""
        if held_message.state is State.HELD:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_back, held_message)

    def _take_back(self, held_message: HeldMessage) -> None:
        if held_message.state is State.HELD:
            self.unlock((held_message,))

    # Transactions.

    def lock(self, messages: Iterable[HeldMessage]) -> None:
        """A transaction has these, which are held: it says what becomes of them, and this does not."""
        for each in messages:
            assert each.state is State.HELD
            each.state, each.disposition = State.LOCKED, "accept"

    def locked(self, messages: Sequence[HeldMessage]) -> None:
        """The leader knows it, too, and lends them to this session no longer."""
        self._held -= len(messages)

    def unlock(self, lost: Iterable[HeldMessage], held: Iterable[HeldMessage] = ()) -> "asyncio.Future[None]":
        """Release these messages, which the leader still has delivered to this session, and with them those
        that are held; return when that is done. For their holders the first ones are lost."""
        released = [*held]
        for each in lost:
            each.state = State.LOST
            released.append(HeldMessage(each.epoch, each.number, each.offset, each.nbytes))
        return self._acknowledger.begin(released, "release").future

    def lock_of(self, messages: Iterable[HeldMessage]) -> wire.QueueLock:
        """What the leader is told so that a transaction has these."""
        tokens = ranges_of((each.epoch, each.number) for each in messages)
        return wire.QueueLock(self._subqueue, self.session, tokens)

    def _ended(self, _: HeldMessage) -> None:
        self._held -= 1

    def end(self) -> None:
        """Get nothing more; callers that wait get Closed."""
        if not self.is_closed:
            self.is_closed = True
            self._fail(Closed(f"this consumer of queue {self.queue!r} was closed"))
        self._waiters.close()

    async def close(self) -> None:
        """Settle what is being settled, and give back all the rest."""
        self.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._return_ahead()
        deadline = self._loop.time() + min(self._settings.attempt_seconds, self._settings.timeout)
        deadline = min(deadline, self.router.leave_by - _LAST_SECONDS)
        await self._acknowledger.close(deadline - self._loop.time())
        if self._request:
            # If no node is told, the session ends by itself.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(deadline, self._loop.time() + _LAST_SECONDS)):
                    await self._ask_for(0, is_last=True)
