"""A publisher that reports the outcome of each message.

    in doubt -> published   its receipt arrived
             -> refused     an error says that it is certainly not published
             -> unknown     an error leaves the outcome open

A message is in doubt from the start of the call that publishes it. A signal may interrupt the publisher
between any two statements, so the counts change in one assignment and are true at any time. A message whose
call is interrupted stays in doubt.
"""

from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any, Final, NamedTuple

import hawser

__all__ = ["CountedPublisher", "Counts", "Failure"]

_MOST_IN_FLIGHT: Final = 4096
# Half of a client's buffer for one partition. Beyond the buffer the client would refuse messages.
_MOST_BYTES_IN_FLIGHT: Final = 32 << 20


class Counts(NamedTuple):
    """The outcomes of the messages up to number `through`."""

    through: int = 0
    published: int = 0
    published_bytes: int = 0
    unknown: int = 0
    first_offset: int = 0
    last_offset: int = 0


class _InFlight(NamedTuple):
    number: int
    size: int
    receipt: Future[hawser.Receipt]


class Failure(NamedTuple):
    """The error of message `number`, counted from 1."""

    number: int
    error: Exception

    @property
    def is_refusal(self) -> bool:
        """Whether the message was certainly not published."""
        return isinstance(self.error, hawser.HawserError) and self.error.outcome == "none"


class CountedPublisher:
    """Publishes messages in order. On a cluster without a timeout many are in flight, otherwise one.

    Errors are not raised but appended to `failures`, in the order of the messages.
    """

    def __init__(self, topic: "hawser.Topic[Any]", timeout: float | None = None) -> None:
        self._topic = topic
        self._timeout = timeout
        self._is_pipelined = timeout is None and bool(topic.info().partitions)
        self._begun = 0
        self._settled = Counts()
        self._in_flight: deque[_InFlight] = deque()
        self._bytes_in_flight = 0
        self.failures: deque[Failure] = deque()

    @property
    def sent(self) -> int:
        """The number of messages given to the bus, whatever their outcome."""
        return self._begun

    @property
    def counts(self) -> Counts:
        """The counts now; a message in doubt counts as unknown."""
        settled = self._settled
        return settled._replace(unknown=settled.unknown + self._begun - settled.through)

    def failed_numbers(self) -> tuple[list[int], list[int]]:
        """The numbers of the refused and of the unknown messages."""
        refused = [failure.number for failure in self.failures if failure.is_refusal]
        unknown = [failure.number for failure in self.failures if not failure.is_refusal]
        return refused, unknown + list(range(self._settled.through + 1, self._begun + 1))

    def publish(self, payload: bytes, key: bytes | None, headers: dict[str, bytes] | None) -> None:
        """Publish the next message; on a cluster, wait while too many are in flight."""
        size = (
            len(payload)
            + len(key or b"")
            + sum(len(name) + len(value) for name, value in (headers or {}).items())
        )
        while self._in_flight and (
            self._in_flight[0].receipt.done()
            or len(self._in_flight) >= _MOST_IN_FLIGHT
            or self._bytes_in_flight + size > _MOST_BYTES_IN_FLIGHT
        ):
            self._await_oldest()
        self._begun += 1
        receipt = self._receipt(payload, key, headers)
        self._in_flight.append(_InFlight(self._begun, size, receipt))
        self._bytes_in_flight += size

    def drain(self) -> None:
        """Wait until nothing is in flight."""
        while self._in_flight:
            self._await_oldest()

    def _receipt(
        self, payload: bytes, key: bytes | None, headers: dict[str, bytes] | None
    ) -> Future[hawser.Receipt]:
        try:
            if self._is_pipelined:
                return self._topic.publish_nowait(payload, key=key, headers=headers)
            receipt: Future[hawser.Receipt] = Future()
            receipt.set_result(self._topic.publish(payload, key=key, headers=headers, timeout=self._timeout))
        except hawser.HawserError as error:
            receipt = Future()
            receipt.set_exception(error)
        return receipt

    def _await_oldest(self) -> None:
        oldest = self._in_flight[0]
        if oldest.number > self._settled.through:
            self._settle(oldest)
        self._in_flight.popleft()
        self._bytes_in_flight -= oldest.size

    def _settle(self, message: _InFlight) -> None:
        before = self._settled
        try:
            receipt = message.receipt.result()
        except (hawser.HawserError, CancelledError) as error:
            failure = Failure(message.number, error)
            if not self.failures or self.failures[-1].number != message.number:
                self.failures.append(failure)
            self._settled = before._replace(
                through=message.number, unknown=before.unknown + (not failure.is_refusal)
            )
        else:
            self._settled = before._replace(
                through=message.number,
                published=before.published + 1,
                published_bytes=before.published_bytes + message.size,
                first_offset=before.first_offset or receipt.first_offset,
                last_offset=receipt.first_offset,
            )
