"""Publishing on one host, as topics and publishers do it."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hawser.api.loan import ArrayLoan
from hawser.api.publishing import Publisher, Publishing
from hawser.errors import HawserError, UsageError
from hawser.memory import Loan
from hawser.memory import Publisher as NativePublisher
from hawser.record.payload import as_payloads
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.record.schema import Codec

__all__ = ["LocalPublisher", "LocalPublishing"]

T = TypeVar("T")


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
        payloads, given = self._batch(items, keys)
        return [self._publish_payloads(payloads, given, timeout)]

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
        from hawser.record.payload import array_layout

        sizes, element, nbytes = array_layout(shape, dtype)
        loan = self._native().loan(nbytes, key=key, headers=headers)
        return ArrayLoan(loan, timeout, sizes, element)

    def _batch(
        self, items: Iterable[T], keys: Iterable[bytes | None] | None
    ) -> "tuple[Iterable[Buffer], list[bytes | None] | None]":
        """The messages, as they are asked for, and their keys; with keys all of them at once."""
        payloads = as_payloads(items, None if self._codec is None else self._codec.encode)
        if keys is None:
            return payloads, None
        payloads, keys = list(payloads), list(keys)
        if len(payloads) != len(keys):
            raise UsageError(f"there are {len(keys)} keys for {len(payloads)} messages; give one for each")
        return payloads, keys

    def _publish_payloads(
        self, payloads: "Iterable[Buffer]", keys: list[bytes | None] | None, timeout: float | None
    ) -> Receipt:
        try:
            receipt: Receipt = self._native().publish_many(payloads, timeout, keys)
            return receipt
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
