"""Messages of a queue on a cluster, and the sessions that hold them: the common part of threads and event
loops."""

import weakref
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from hawser.cluster.client.queue.acknowledger import Disposition, HeldMessage, State
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.queue.session import Make, QueueSession
from hawser.cluster.client.sample import FetchedSample
from hawser.errors import UsageError
from hawser.record.record import Record

__all__ = ["LentSample", "Session", "ahead_of", "take_back", "values_of"]

# The default prefetch of an iteration: enough to hide a round trip, few enough to leave others some.
_PREFETCH: Final = 16
_SAID: Final = {"accept": "accepted", "release": "released", "reject": "rejected"}


class LentSample(FetchedSample):
    """A message in memory of its own, held by a session. Dropped without being settled it is released."""

    __slots__ = (
        "delivery_count",
        "redelivered",
        "_held_message",
        "_queue_session",
        "_session",
        "__weakref__",
    )

    # A message that a caller has keeps its session alive; a prefetched one does not.
    _session: "Session"

    def __init__(
        self,
        queue_session: QueueSession,
        held_message: HeldMessage,
        record: Record,
        publisher: str,
        delivery_count: int,
        redelivered: bool,
        decode: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(record, 0, held_message.offset, publisher, 0, decode)
        self.delivery_count = delivery_count
        self.redelivered = redelivered
        self._held_message = held_message
        self._queue_session = queue_session

    def __del__(self) -> None:
        self._queue_session.take_back(self._held_message)

    def _check_free(self) -> None:
        """UsageError if a transaction has accepted it."""
        if self._held_message.state is State.LOCKED:
            raise UsageError(
                f"message {self.offset} was accepted in a transaction; commit that transaction or roll it "
                "back"
            )

    def _check_said(self, disposition: Disposition) -> None:
        """UsageError if it was settled otherwise."""
        said = self._held_message.disposition
        if self._held_message.state is State.SETTLED and said != self._queue_session.disposition(disposition):
            raise UsageError(
                f"message {self.offset} was {_SAID[said]} already; a message can be settled only once"
            )

    def __repr__(self) -> str:
        return f"<Message {self.offset}, delivery {self.delivery_count}, {len(self)} bytes>"


class Session:
    """A session in the event loop. It closes when nothing refers to it or to one of its messages."""

    def __init__(
        self, queue: QueueHandle, make: Make, prefetch: int = 0, for_transactions: bool = False
    ) -> None:
        self._queue = queue
        self.queue_session = queue.queue_session(make, prefetch, for_transactions)
        self._abandon = weakref.finalize(self, queue.abandon, self.queue_session)
        self._abandon.atexit = False

    def belongs_to(self, consumer: object) -> None:
        """Stop prefetching when nothing refers to the consumer."""
        weakref.finalize(consumer, self.queue_session.get_nothing_ahead).atexit = False

    async def get(self, count: int, timeout: float | None) -> list[Any]:
        """As `QueueSession.get`."""
        found = await self.queue_session.get(count, timeout)
        for message in found:
            message._session = self
        return found

    async def give_back(self, messages: Sequence[LentSample]) -> None:
        """Give back messages that no caller has seen: no delivery is counted."""
        self.queue_session.give_back(message._held_message for message in messages)

    async def close(self) -> None:
        self._abandon.detach()
        await self._queue.release(self.queue_session)


def take_back(message: LentSample | None) -> None:
    """Release a message if it is still held; settling it later raises Fenced."""
    if message is not None:
        message._queue_session.take_back(message._held_message)


def ahead_of(queue: QueueHandle, prefetch: int | None) -> int:
    """How many messages an iteration prefetches: by default none under a lease, which could end meanwhile."""
    if prefetch is not None:
        return prefetch
    return _PREFETCH if queue.lease_seconds == inf else 0


def values_of(messages: Sequence[Any]) -> tuple[list[Any], Exception | None]:
    """The values of the first messages that can be decoded, and the error of the one behind them."""
    values: list[Any] = []
    for message in messages:
        try:
            values.append(message.value)
        except Exception as error:
            return values, error
    return values, None
