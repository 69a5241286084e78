"""Publishing, as topics and publishers do it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from hawser.api.loan import ArrayLoan, Loan
from hawser.errors import HawserError
from hawser.memory import Publisher as NativePublisher
from hawser.record.payload import as_payloads
from hawser.record.receipt import Receipt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.record.schema import Codec

__all__ = ["Publisher", "Publishing"]

T = TypeVar("T")


class Publishing(ABC, Generic[T]):
    """The publishing half of the API. Messages of one publisher keep their order."""

    name: str
    _codec: "Codec[T] | None"

    def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Copy a message in and deliver it to every subscriber.

        Waits while a reliable subscriber is too far behind: for ever, or `timeout` seconds, then Full.
        """
        payload = data if self._codec is None else self._codec.encode(data)
        return cast("Receipt", self._native().publish(payload, key=key, headers=headers, timeout=timeout))

    def publish_many(self, items: Iterable[T], *, timeout: float | None = None) -> list[Receipt]:
        """Publish in order; one receipt for all of them.

        A killed caller leaves a prefix published; so does an error, which carries its length as
        `published`."""
        return [self._publish_payloads(self._payloads(items), timeout)]

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Loan:
        """A slot to write `nbytes` into without a copy; published when its `with` block ends."""
        return self._native().loan(nbytes, key=key, headers=headers, timeout=timeout)

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> ArrayLoan:
        """A slot as a numpy array to write into; published when its `with` block ends."""
        from hawser.record.arrays import array_layout

        sizes, element, nbytes = array_layout(shape, dtype)
        loan = self._native().loan(nbytes, key=key, headers=headers)
        return ArrayLoan(loan, timeout, sizes, element)

    def _payloads(self, items: Iterable[T]) -> "Iterable[Buffer]":
        return as_payloads(items, None if self._codec is None else self._codec.encode)

    def _publish_payloads(self, payloads: "Iterable[Buffer]", timeout: float | None) -> Receipt:
        try:
            return cast("Receipt", self._native().publish_many(payloads, timeout))
        except HawserError as error:
            if error.published:
                error.outcome = "applied"
            raise

    def _use(self, participant: NativePublisher) -> None:
        """Put the native calls in the place of the methods above: a message then costs no Python frame."""
        vars(self)["loan"] = participant.loan
        if self._codec is None:
            vars(self)["publish"] = participant.publish

    @abstractmethod
    def _native(self) -> NativePublisher:
        """The participant that publishes."""


class Publisher(Publishing[T]):
    """A participant that publishes to one topic, until closed."""

    def __init__(self, name: str, participant: NativePublisher, codec: "Codec[T] | None") -> None:
        self.name = name
        self._codec = codec
        self._participant = participant
        self._use(participant)

    @property
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""
        return self._participant.incarnation

    def close(self) -> None:
        """Leave the topic. What was published stays."""
        self._participant.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Publisher of {self.name!r}>"

    def _native(self) -> NativePublisher:
        return self._participant
