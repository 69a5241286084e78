"""The pipeline of requests to one shard: entries of a client's transactions, batched and in order.

    state       meaning                                              next
    sending     entries wait, or up to `in_flight` requests are out  failed
    failed      a request was lost or refused; nothing new is sent   recovering, once no request is out
    recovering  everything unanswered is sent again, in order        sending, when all is answered

Promise: the entries of each transaction reach the shard in order, and are repeated until they are answered.

- The entries that wait when a request may be sent share it, whichever transactions they are of.
- A repeat changes nothing: each entry has a number or ends its transaction.
- The coordinator shard answers once the participants have, so each transaction has a pipeline of its own to
  it.
- When many transactions run in lockstep, half of the results are delivered first, so that two requests stay
  in flight and neither the client nor the leader waits for the other.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet, WeakValueDictionary

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, refused
from hawser.cluster.client.loop_primitives import SharedTimer
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.transport import Link, TransportError
from hawser.errors import HawserError
from hawser.log.state.results import Result, decode_result
from hawser.transaction.client import Request

__all__ = ["ShardPipeline", "ShardPipelines", "Leftover", "Sender"]

_log = logging.getLogger("hawser.cluster.client")

# The most entries in one request.
_MOST_ENTRIES: Final = 1_000
# The least number of results to deliver in two halves.
_WORTH_HALVING: Final = 16
# How long an operation waits for others to share its request.
_SOON_SECONDS: Final = 0.02


class Sender(Protocol):
    """A transaction. `doubts` counts its commit entries that may have arrived without an answer."""

    doubts: int

    def heard(self, request: Request, result: Result) -> None:
        """Handle the result of a request."""

    def lost(self, shard: str, error: HawserError) -> None:
        """Handle the loss of a shard: its requests will not be answered, for this reason."""

    def unanswered(self, shard: str) -> list[Request]:
        """The requests to this shard that are not answered, sent or not."""

    def send_waiting(self) -> None:
        """Send the operations that wait for others to share their request."""


_Item = tuple[Sender, Request]


class Leftover:
    """The cleanup requests of a transaction whose caller has left. They are sent until they are answered, or
    until the shards have ended the transaction by themselves. A `Sender`."""

    def __init__(self, requests: Sequence[Request], until: float) -> None:
        self.doubts = 0
        self._until = until
        self._requests = list(requests)

    def heard(self, request: Request, result: Result) -> None:
        with suppress(ValueError):
            self._requests.remove(request)

    def lost(self, shard: str, error: HawserError) -> None:
        self._requests = [each for each in self._requests if each.shard != shard]

    def unanswered(self, shard: str) -> list[Request]:
        if asyncio.get_running_loop().time() >= self._until:
            return []
        return [each for each in self._requests if each.shard == shard]

    def send_waiting(self) -> None:
        """A leftover buffers nothing."""


class ShardPipeline:
    """Sends to one shard of the topic or queue `name`. Lives in the event loop."""

    def __init__(self, router: Router, name: str, shard: str) -> None:
        self._router = router
        self._settings = router.settings
        self._name = name
        self._shard = shard
        # The senders with unanswered requests.
        self._senders: dict[Sender, None] = {}
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._open_requests = self._open_entries = 0
        self._link: Link | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovery: asyncio.Task[None] | None = None
        self._is_due = self._has_failed = self._is_sent_elsewhere = False
        # Whether at least half of the transactions answered last had more to send at once.
        self._is_in_step = False
        # The last failure.
        self.trouble = "the shard has no leader"

    def carry(self, sender: Sender, requests: Sequence[Request]) -> None:
        """Send these, in order, as soon as possible."""
        self._senders[sender] = None
        if not self._has_failed:
            for request in requests:
                self._queue.append((sender, request))
                self._queued_bytes += len(request.payload)
            if not self._is_due:
                self._send_what_waits()

    def leave(self, sender: Sender) -> None:
        """Send nothing more for this sender, and give it no more results."""
        self._senders.pop(sender, None)

    def apart(self) -> "ShardPipeline":
        """A second pipeline to the same shard."""
        return ShardPipeline(self._router, self._name, self._shard)

    async def close(self) -> None:
        """Stop sending."""
        self._senders.clear()
        tasks = [*self._tasks, *(() if self._recovery is None else (self._recovery,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Sending.

    def _send_what_waits(self) -> None:
        while self._queue and not self._has_failed and self._may_send():
            self._send_part()

    def _send_part(self) -> None:
        """Send one request with as much as fits."""
        link = self._router.leader_link(self._shard)
        if link is None or (self._open_requests and link is not self._link):
            self._failed()
            return
        self._link = link
        items = next(self._parts(self._waiting()), None)
        if items is not None:
            self._open_requests += 1
            self._open_entries += len(items)
            task = self._router.loop.create_task(self._request_batch(items, link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _may_send(self) -> bool:
        """Whether another request may go out. While one is in flight, entries wait to share the next, unless
        they are more than it has, or about as many in lockstep."""
        if self._open_requests == 0:
            return True
        settings, waiting, open_entries = self._settings, len(self._queue), self._open_entries
        enough = open_entries // 2 if self._is_in_step and waiting >= _WORTH_HALVING // 2 else open_entries
        is_much = self._queued_bytes >= settings.batch_bytes or waiting > enough
        return is_much and self._open_requests < settings.in_flight

    def _waiting(self) -> Iterator[_Item]:
        while self._queue:
            sender, request = self._queue.popleft()
            self._queued_bytes -= len(request.payload)
            if sender in self._senders:
                yield sender, request

    def _parts(self, items: Iterable[_Item]) -> Iterator[list[_Item]]:
        """Split items into requests: each of about one batch, or of one larger item."""
        part: list[_Item] = []
        nbytes = 0
        for item in items:
            part.append(item)
            nbytes += len(item[1].payload)
            if nbytes >= self._settings.batch_bytes or len(part) >= _MOST_ENTRIES:
                yield part
                part, nbytes = [], 0
        if part:
            yield part

    async def _request_batch(self, items: list[_Item], link: Link) -> None:
        try:
            if not await self._ask(items, link):
                self._has_failed = True
        finally:
            self._open_requests -= 1
            self._open_entries -= len(items)
        if not self._open_requests:
            self._forget_those_who_heard()
        if not self._is_due:
            # The senders that were answered run first, so that what they send next goes along.
            self._is_due = True
            self._router.loop.call_soon(self._go_on, len(items))

    def _go_on(self, heard: int) -> None:
        self._is_due = False
        self._is_in_step = 2 * len(self._queue) >= heard
        if self._has_failed:
            self._failed()
        else:
            self._send_what_waits()

    def _forget_those_who_heard(self) -> None:
        """Forget the senders that have every answer. One that lacks an answer and has nothing queued fails
        the pipeline, which asks again."""
        waiting = {sender for sender, _ in self._queue}
        for sender in [each for each in self._senders if each not in waiting]:
            if sender.unanswered(self._shard):
                self._has_failed = True
            else:
                del self._senders[sender]

    async def _ask(self, items: list[_Item], link: Link) -> bool:
        """Send items; whether they were answered. Senders that have left are skipped."""
        items = [item for item in items if item[0] in self._senders]
        if not items:
            return True
        entries = tuple(wire.Labelled(each.kind, each.payload, each.label) for _, each in items)
        transact = wire.Transact(self._shard, entries)
        for sender, request in items:
            sender.doubts += request.commits
        try:
            body = wire.encode(transact)
            answer = checked(link, transact, await ask(link, body, self._settings.attempt_seconds))
        except TransportError as error:
            self.trouble = str(error)
            if not error.was_sent:
                self._did_not_arrive(items)
            return False
        if isinstance(answer, wire.Transacted):
            is_worth_it = self._is_in_step and self._open_requests == 1 and len(items) >= _WORTH_HALVING
            half = len(items) // 2 if is_worth_it else 0
            for place, ((sender, request), result) in enumerate(zip(items, answer.results, strict=True)):
                if half and place == half:
                    await self._send_ahead(link)
                if sender in self._senders:
                    self._tell(sender, request, decode_result(result))
            return True
        assert isinstance(answer, wire.Failed), answer
        self.trouble = answer.text
        if answer.retryable:
            if answer.outcome == "none":
                self._did_not_arrive(items)
            self._is_sent_elsewhere = self._router.note(self._shard, answer)
            return False
        return await self._refused(items, link, answer)

    def _tell(self, sender: Sender, request: Request, result: Result) -> None:
        """Deliver a result. One that its transaction cannot handle must not affect the others."""
        try:
            sender.heard(request, result)
        except Exception as error:
            _log.exception("a transaction cannot handle a result of shard %s", self._shard)
            text = f"a transaction on {self._name!r} cannot handle a result: {error!r}; report it"
            self._lose((sender,), HawserError(text))

    async def _send_ahead(self, link: Link) -> None:
        """Send the next entries of the senders that have their results, before the others get theirs."""
        await asyncio.sleep(0)
        if self._queue and not self._has_failed:
            self._send_part()
            await asyncio.sleep(0)
            link.flush()

    def _did_not_arrive(self, items: list[_Item]) -> None:
        for sender, request in items:
            sender.doubts -= request.commits

    async def _refused(self, items: list[_Item], link: Link, answer: wire.Failed) -> bool:
        """The leader refused one of the transactions for good without saying which: send each alone."""
        senders = dict.fromkeys(sender for sender, _ in items)
        if len(senders) == 1:
            self._did_not_arrive(items)
            self._lose(senders, refused(answer, f"a transaction on {self._name!r}", False))
            return True
        alone = [await self._ask([item for item in items if item[0] is each], link) for each in senders]
        return all(alone)

    def _lose(self, senders: Iterable[Sender], error: HawserError) -> None:
        for sender in list(senders):
            if sender in self._senders:
                del self._senders[sender]
                sender.lost(self._shard, error)

    # Recovery.

    def _failed(self) -> None:
        """Stop sending; once no request is in flight, recover."""
        self._has_failed = True
        if self._recovery is None and not self._open_requests:
            self._recovery = self._router.loop.create_task(self._recover())
            self._recovery.add_done_callback(self._recovered)

    def _recovered(self, recovery: asyncio.Task[None]) -> None:
        self._recovery = None
        self._has_failed = False
        error = None if recovery.cancelled() else recovery.exception()
        if error is not None and not isinstance(error, HawserError):
            _log.error("sending again to %s failed", self._shard, exc_info=error)
            error = HawserError(f"a transaction on {self._name!r} cannot go on: {error!r}; report it")
        if isinstance(error, HawserError):
            self._lose(self._senders, error)
        if self._senders and not recovery.cancelled():
            self._failed()

    async def _recover(self) -> None:
        backoff = Backoff(self._settings)
        self._queue.clear()
        self._queued_bytes = 0
        while items := self._unanswered():
            if not self._is_sent_elsewhere:
                await asyncio.sleep(backoff.next())
                await self._router.look_after(self._name, self._shard)
                items = self._unanswered()
            self._is_sent_elsewhere = False
            link = self._router.leader_link(self._shard)
            for part in self._parts(items):
                if link is None or not await self._ask(part, link):
                    break

    def _unanswered(self) -> list[_Item]:
        """The unanswered requests of all senders; senders without any are forgotten."""
        wanted = {sender: sender.unanswered(self._shard) for sender in self._senders}
        self._senders = {sender: None for sender, requests in wanted.items() if requests}
        return [(sender, request) for sender, requests in wanted.items() for request in requests]


class ShardPipelines:
    """The pipelines of one client, one for each shard that its transactions touch, and the timer after which
    buffered operations are sent."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self.soon: SharedTimer[Sender] = SharedTimer(
            router.loop, _SOON_SECONDS, lambda sender: sender.send_waiting()
        )
        # Alive while a transaction uses them or a request is in flight.
        self._shards: WeakValueDictionary[str, ShardPipeline] = WeakValueDictionary()
        self._apart: WeakSet[ShardPipeline] = WeakSet()

    def to(self, name: str, shard: str) -> ShardPipeline:
        """The pipeline to a shard that all transactions share."""
        pipeline = self._shards.get(shard)
        if pipeline is None:
            pipeline = self._shards[shard] = ShardPipeline(self._router, name, shard)
        return pipeline

    def apart(self, shared: ShardPipeline) -> ShardPipeline:
        """A pipeline to the same shard for a single transaction."""
        pipeline = shared.apart()
        self._apart.add(pipeline)
        return pipeline

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in [*self._shards.values(), *self._apart]))
