"""Publishing on one host, as topics and publishers do it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hawser.api.loan import ArrayLoan, Loan
from hawser.api.publishing import Publisher, Publishing
from hawser.errors import HawserError, UsageError
from hawser.memory import Publisher as NativePublisher
from hawser.record.payload import as_payloads
from hawser.record.receipt import Receipt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.record.schema import Codec

__all__ = ["KeyedProgress", "LocalPublisher", "LocalPublishing"]

T = TypeVar("T")


class KeyedProgress:
    """A batch that goes out one by one: an error in its block says how many did."""

    def __init__(self) -> None:
        self._first: Receipt | None = None
        self._published = 0

    def add(self, receipt: Receipt) -> None:
        self._first = self._first or receipt
        self._published += 1

    def receipt(self) -> Receipt:
        """Of all of them."""
        if self._first is None:
            raise UsageError("a batch has at least one message; there is nothing to publish")
        return self._first._replace(count=self._published)

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, ValueError) and not isinstance(error, HawserError):
            error = UsageError("publish_many was given not as many keys as messages; give one for each")
            self._tell(error)
            raise error from None
        if isinstance(error, HawserError):
            self._tell(error)

    def _tell(self, error: HawserError) -> None:
        error.published = self._published
        error.outcome = "applied" if self._published else error.outcome


class LocalPublishing(Publishing[T]):
    """The publishing half of the API, over a native participant."""

    _codec: "Codec[T] | None"

    def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        payload = data if self._codec is None else self._codec.encode(data)
        return cast("Receipt", self._native().publish(payload, key=key, headers=headers, timeout=timeout))

    def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        if keys is not None:
            return [self._publish_with_keys(self._payloads(items), keys, timeout)]
        return [self._publish_payloads(self._payloads(items), timeout)]

    def _publish_with_keys(
        self, payloads: "Iterable[Buffer]", keys: Iterable[bytes | None], timeout: float | None
    ) -> Receipt:
        """One by one: a batch has no keys on one host."""
        progress = KeyedProgress()
        with progress:
            for payload, key in zip(payloads, keys, strict=True):
                progress.add(self._native().publish(payload, key=key, headers=None, timeout=timeout))
        return progress.receipt()

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Loan:
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


class LocalPublisher(LocalPublishing[T], Publisher[T]):
    """A participant that publishes to one topic, until closed."""

    def __init__(self, name: str, participant: NativePublisher, codec: "Codec[T] | None") -> None:
        self.name = name
        self._codec = codec
        self._participant = participant
        self._use(participant)

    @property
    def incarnation(self) -> int:
        return self._participant.incarnation

    def close(self) -> None:
        self._participant.close()

    def _native(self) -> NativePublisher:
        return self._participant
