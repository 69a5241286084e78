"""The delivery of a queue's messages to consumers, while this node leads its shard.

There is one dispatcher for messages and one for dead letters (`hawser.log.queue.dispatcher`). They exist from
when this leader has applied all earlier entries and knows the settings of the queue until its term ends. A
get waits in line. The leader confirms with a majority that its state is the newest, then serves the get, and
serves it again whenever messages become available, until it gets some or its time is over. A get for a
transaction takes what is there without that read; a stale leader is detected at commit. An empty answer
always needs the read.

A session belongs to a client, not to a link, so a client that reconnects keeps the messages that it holds:

    new --first get--> live --leaves, or silent for session_seconds--> ended; its messages are delivered again

A waiting get counts as a heartbeat. A session has one get at a time: a later one ends the earlier one.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, Protocol

from hawser.cluster.transport import Request
from hawser.cluster.wire import (
    Code,
    Delivered,
    Executed,
    Failed,
    Looked,
    QueueGet,
    QueueLock,
    QueueLook,
    QueueSettle,
    Setting,
    TokenRun,
    Turned,
)
from hawser.errors import Corrupt
from hawser.log.entry import Kind
from hawser.log.queue.claims import DeliveryPolicy, Token
from hawser.log.queue.delivery_batch import batch_of
from hawser.log.queue.dispatcher import (
    Dispatcher,
    Get,
    Proposal,
    RefusalReason,
    Settlement,
    SettlementRefusal,
    shown_as,
)
from hawser.log.replica import Replica
from hawser.log.state.commands import QueueLimit, encode_command
from hawser.log.state.queue import CAPACITY_BYTES, DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.results import Place, Reason, Rejected, encode_result
from hawser.transaction.participant import locks

__all__ = ["TOO_EARLY", "QueueDelivery"]

_log = logging.getLogger("hawser.cluster.node")

_SESSION_SECONDS: Final = 10.0
# The most messages that a session holds, or that a request names.
_MOST_HELD: Final = 10_000
_MOST_DELIVERED_BYTES: Final = 8 << 20


class Host(Protocol):
    """The shard."""

    name: str
    replica: Replica

    def propose(self, kind: int, payload: bytes, tag: Any = None) -> None: ...
    def read(self, tag: Any) -> None: ...


class _PendingGet:
    """A get that waits for messages; also the tag of the reads that are made for it."""

    __slots__ = (
        "answer", "delivery", "dispatcher", "for_transactions", "is_asking", "is_known", "line", "timer",
        "wanted"
    )  # fmt: skip

    def __init__(
        self,
        delivery: "QueueDelivery",
        dispatcher: Dispatcher,
        line: "_PendingGets",
        wanted: Get,
        for_transactions: bool,
        answer: "_Answer",
    ) -> None:
        self.delivery = delivery
        self.dispatcher = dispatcher
        self.line = line
        self.wanted = wanted
        self.for_transactions = for_transactions
        self.answer = answer
        # Whether a read is in flight, and whether one has succeeded.
        self.is_asking = self.is_known = False
        self.timer: asyncio.TimerHandle | None = None
        assert wanted.session not in line
        line[wanted.session] = self

    @property
    def is_in_line(self) -> bool:
        return self.line.get(self.wanted.session) is self

    def done(self) -> bool:
        return False

    def set_result(self, refused: Failed | None) -> None:
        self.is_asking = False
        self.delivery.served(self, refused)


# By session, in the order of arrival.
_PendingGets = dict[str, _PendingGet]
_Answer = Callable[[Any], None]


class _SettlementTag:
    """The tag of a settlement's entry. The dispatcher has to learn the result even if the client is gone."""

    __slots__ = ("_answer", "_dispatcher", "_proposal")

    def __init__(self, dispatcher: Dispatcher, proposal: Proposal, answer: _Answer | None) -> None:
        self._dispatcher = dispatcher
        self._proposal = proposal
        self._answer = answer

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self._dispatcher.resolve(self._proposal)
        if self._answer is not None:
            self._answer(result if isinstance(result, Failed) else Executed(encode_result(result)))


class QueueDelivery:
    """The delivery of one queue, named `queue`, in the term that began in `epoch`."""

    def __init__(self, host: Host, queue: str, epoch: int, settings: dict[str, Setting]) -> None:
        self.queue = queue
        self.epoch = epoch
        self._host = host
        self._machine = host.replica.machine
        self._queue = self._machine.part(Queue)
        self._loop = asyncio.get_running_loop()
        self._dead_letters_to = settings.get("dead_letter")
        capacity = settings.get("capacity_bytes")
        self._capacity_bytes = capacity if isinstance(capacity, int) else CAPACITY_BYTES
        self._limiting: asyncio.Future[Any] | None = None
        lease, deliveries = settings.get("lease"), settings.get("max_deliveries")
        policy = DeliveryPolicy(
            session_duration=_milliseconds(_SESSION_SECONDS),
            lease_duration=max(1, _milliseconds(lease)) if isinstance(lease, int | float) else 0,
            max_deliveries=deliveries if isinstance(deliveries, int) else 0,
            most_held=_MOST_HELD,
        )
        dead_letters = DeliveryPolicy(policy.session_duration, policy.lease_duration, most_held=_MOST_HELD)
        self._dispatchers = [
            Dispatcher(self._machine, host.replica.entry, epoch, each, subqueue, queue)
            for subqueue, each in ((MESSAGES, policy), (DEAD_LETTERS, dead_letters))
        ]
        self._lines: list[_PendingGets] = [{}, {}]
        # For messages and for dead letters: the first offset, and when that message arrived.
        self._oldest: list[tuple[int, int]] = [(0, 0), (0, 0)]
        # The last error of reading messages; it is logged once.
        self._damage = ""
        self.limit()

    @property
    def _now(self) -> int:
        return _milliseconds(self._loop.time())

    # Get.

    def get(self, message: QueueGet, request: Request, answer: _Answer) -> None:
        """Calls `answer` once, now or when there are messages, unless the request is cancelled."""
        if message.subqueue == DEAD_LETTERS and self._dead_letters_to is not None:
            answer(_elsewhere(self._dead_letters_to))
            return
        if _count(message.unseen) > _MOST_HELD:
            answer(_TOO_MANY)
            return
        dispatcher, line = self._dispatchers[message.subqueue], self._lines[message.subqueue]
        wanted = Get(
            message.session,
            message.request,
            message.received,
            message.most,
            min(message.most_bytes, _MOST_DELIVERED_BYTES),
            tuple(_tokens(message.unseen)),
            _milliseconds(message.session_seconds),
            message.ahead,
        )
        self._end_earlier_get(dispatcher, line, wanted)
        if message.is_last:
            dispatcher.claims.leave(message.session)
            self._end_expired(dispatcher)
        is_outdated = (
            dispatcher.claims.is_outdated(message.session, message.request) or message.session in line
        )
        if message.is_last or not message.most or is_outdated:
            answer(Delivered())
            return
        waiting = _PendingGet(self, dispatcher, line, wanted, message.for_transactions, answer)
        request.on_cancel = lambda: self._leave(waiting)
        if message.wait_seconds > 0:
            # The session must not expire while its get waits.
            seconds = min(message.wait_seconds, message.session_seconds / 2)
            waiting.timer = self._loop.call_later(seconds, self._time_is_over, waiting)
        self._ask(waiting)

    def _end_earlier_get(self, dispatcher: Dispatcher, line: _PendingGets, wanted: Get) -> None:
        """A later get ends the session's earlier one, and returns the messages that only the earlier answer
        carried. This needs no read, because nothing is delivered."""
        before = len(dispatcher.claims)
        dispatcher.hear(wanted, self._now)
        earlier = line.get(wanted.session)
        if earlier is not None and earlier.wanted.request <= wanted.request:
            self._answer(earlier, Delivered())
        if len(dispatcher.claims) < before:
            self.wake()

    def _ask(self, waiting: _PendingGet) -> None:
        # A get without a read must not overtake earlier ones that need a read.
        is_first = next(iter(waiting.line.values())) is waiting
        if waiting.for_transactions and is_first and self._deliver(waiting):
            return
        if not waiting.is_asking:
            waiting.is_asking = True
            self._host.read(waiting)

    def served(self, waiting: _PendingGet, refused: Failed | None) -> None:
        """The read has ended: the state is the newest, or `refused` says why that is not known."""
        if not waiting.is_in_line:
            return
        if refused is not None:
            self._answer(waiting, refused)
            return
        waiting.is_known = True
        if not self._deliver(waiting) and waiting.timer is None:
            self._answer(waiting, Delivered())

    def _deliver(self, waiting: _PendingGet) -> bool:
        """Whether the get has been answered."""
        try:
            delivery_batches = waiting.dispatcher.deliver(waiting.wanted, self._now)
        except (Corrupt, OSError) as error:
            self._answer(waiting, _damaged(error))
            return True
        self._end_expired(waiting.dispatcher)
        if delivery_batches:
            self._answer(waiting, Delivered(tuple(delivery_batches)))
        return bool(delivery_batches)

    def _time_is_over(self, waiting: _PendingGet) -> None:
        if waiting.is_known:
            waiting.dispatcher.claims.hear(waiting.wanted.session, self._now)
            self._answer(waiting, Delivered())
        else:
            text = "the leader cannot reach a majority of the shard's members; ask again"
            self._answer(waiting, Failed(Code.BUSY, text, True))

    def _answer(self, waiting: _PendingGet, answer: Delivered | Failed) -> None:
        self._leave(waiting)
        waiting.answer(answer)

    def _leave(self, waiting: _PendingGet) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.is_in_line:
            del waiting.line[waiting.wanted.session]

    def wake(self) -> None:
        """Messages may have become available, after an apply or a release. Serves the first gets in line, as
        many as there are messages."""
        for dispatcher, line, subqueue in zip(
            self._dispatchers, self._lines, self._queue.subqueues, strict=True
        ):
            if line and dispatcher.claims.is_any_ready:
                ready = max(1, subqueue.count - len(dispatcher.claims))
                for waiting in list(islice(line.values(), ready)):
                    self._ask(waiting)

    # Settle.

    def settle(self, message: QueueSettle, answer: _Answer) -> None:
        """Calls `answer` once, now or when the entry is applied."""
        runs = (*message.accepted, *message.released, *message.rejected)
        if _count(runs) > _MOST_HELD:
            answer(_TOO_MANY)
            return
        dispatcher = self._dispatchers[message.subqueue]
        wanted = Settlement(
            message.session,
            message.incarnation,
            message.sequence,
            tuple(_tokens(message.accepted)),
            tuple(_tokens(message.released)),
            tuple(_tokens(message.rejected)),
        )
        try:
            found = dispatcher.settle(wanted, self._now)
        except (Corrupt, OSError) as error:
            answer(_damaged(error))
            return
        if isinstance(found, Proposal):
            self._propose(dispatcher, found, answer)
        elif not isinstance(found, SettlementRefusal):
            answer(Executed(encode_result(found)))
        elif found.why is RefusalReason.OTHER_LEADER:
            answer(Failed(Code.NOT_LEADER, found.why.value, True))
        elif found.why is RefusalReason.TOO_MUCH:
            answer(Failed(Code.BAD_REQUEST, found.why.value, False))
        else:
            answer(Turned(found.why.value, tuple((each.epoch, each.number, 1) for each in found.tokens)))

    def lock(self, message: QueueLock) -> Proposal | Rejected | Failed:
        """The entry that gives these messages to a transaction. The caller calls `resolve` with it when the
        entry is applied or refused."""
        if _count(message.tokens) > _MOST_HELD:
            return _TOO_MANY
        claims = self._dispatchers[message.subqueue].claims
        claims.hear(message.session, self._now)
        found = locks.lock(claims, message.subqueue, message.session, _tokens(message.tokens))
        if isinstance(found, Proposal):
            return found
        if found.why is RefusalReason.OTHER_LEADER:
            return Failed(Code.NOT_LEADER, found.why.value, True)
        return Rejected(Reason.NOT_HELD)

    def resolve(self, subqueue: int, proposal: Proposal) -> None:
        """The entry of a lock was applied or refused."""
        self._dispatchers[subqueue].resolve(proposal)

    def _propose(self, dispatcher: Dispatcher, proposal: Proposal, answer: _Answer | None = None) -> None:
        self._host.propose(Kind.QUEUE_SETTLE, proposal.payload, _SettlementTag(dispatcher, proposal, answer))

    def _end_expired(self, dispatcher: Dispatcher) -> None:
        """Ends expired deliveries at once instead of at the next tick: other consumers may wait for these
        messages."""
        if dispatcher.claims.is_any_over:
            self._tick(dispatcher)

    def _tick(self, dispatcher: Dispatcher) -> None:
        try:
            proposal = dispatcher.tick(self._now)
        except (Corrupt, OSError) as error:
            if str(error) != self._damage:
                self._damage = str(error)
                _log.error(
                    "shard %s: a message that should become a dead letter cannot be read: %s",
                    self._host.name,
                    error,
                )
        else:
            if proposal is not None:
                self._propose(dispatcher, proposal)

    # Status.

    def look(self, message: QueueLook) -> Looked | Failed:
        """The state of the queue, for a caller that has read the newest state."""
        dispatcher, subqueue = self._dispatchers[message.subqueue], self._queue.subqueues[message.subqueue]
        try:
            bounds = min(message.most, _MOST_HELD), min(message.most_bytes, _MOST_DELIVERED_BYTES)
            between = message.between
            delivery_batches = (
                dispatcher.peek(message.first, *bounds)
                if between is None
                else dispatcher.read(*between, *bounds)
            )
            oldest_ns = self.oldest_ns(message.subqueue)
        except (Corrupt, OSError) as error:
            return _damaged(error)
        return Looked(
            subqueue.count,
            len(dispatcher.claims),
            {shown_as(session): held for session, held in dispatcher.claims.holders.items()},
            subqueue.end,
            oldest_ns,
            self._queue.dead_letters.count,
            self._queue.used_bytes,
            self._queue.capacity_bytes,
            tuple(delivery_batches),
        )

    def held(self, subqueue: int) -> int:
        """How many messages consumers hold."""
        return len(self._dispatchers[subqueue].claims)

    def oldest_ns(self, number: int) -> int | None:
        """When the first message that is not accepted arrived, or the earliest message of its batch."""
        subqueue = self._queue.subqueues[number]
        if subqueue.start == subqueue.end:
            return None
        if self._oldest[number][0] != subqueue.start:
            place = subqueue.locate(subqueue.start)
            assert isinstance(place, Place)
            self._oldest[number] = (
                subqueue.start,
                batch_of(self._host.replica.entry(place.index)).header.earliest_ns,
            )
        return self._oldest[number][1]

    @property
    def has_dead_letters(self) -> bool:
        """Whether there are dead letters to forward to another queue."""
        return self._dead_letters_to is not None and self._queue.dead_letters.count > 0

    # Time.

    def tick(self) -> None:
        """Ends expired sessions, leases and deliveries, and keeps the capacity as the settings say."""
        for dispatcher in self._dispatchers:
            if not dispatcher.is_idle:
                self._tick(dispatcher)
        self.limit()

    def limit(self) -> None:
        """Proposes the capacity that the settings say, if the queue has another one. The entry precedes any
        put that is proposed later."""
        is_limiting = self._limiting is not None and not self._limiting.done()
        if self._queue.capacity_bytes != self._capacity_bytes and not is_limiting:
            self._limiting = self._loop.create_future()
            payload = encode_command(QueueLimit(self._capacity_bytes))
            self._host.propose(Kind.QUEUE_LIMIT, payload, self._limiting)

    def close(self, refused: Failed) -> None:
        """The term is over: pending gets are answered with `refused`."""
        for line in self._lines:
            for waiting in list(line.values()):
                self._answer(waiting, refused)


TOO_EARLY: Final = Failed(
    Code.BUSY, "the new leader does not know the settings of the queue yet; ask again", True
)
_TOO_MANY: Final = Failed(
    Code.BAD_REQUEST, f"a request may name at most {_MOST_HELD} messages; split it into several", False
)


def _damaged(error: Exception) -> Failed:
    return Failed(Code.DAMAGED, str(error), False)


def _elsewhere(queue: Setting) -> Failed:
    return Failed(
        Code.BAD_REQUEST, f"the dead letters of this queue go to queue {queue!r}; use that queue", False
    )


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _count(runs: tuple[TokenRun, ...]) -> int:
    return sum(run[2] for run in runs)


def _tokens(runs: tuple[TokenRun, ...]) -> list[Token]:
    return [Token(epoch, first + place) for epoch, first, count in runs for place in range(count)]
