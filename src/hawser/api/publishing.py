"""Publishing, as topics and publishers do it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from hawser.record.record import Receipt

if TYPE_CHECKING:
    from hawser.api.loan import ArrayLoan
    from hawser.memory import Loan

__all__ = ["Publisher", "Publishing"]

T = TypeVar("T")


class Publishing(ABC, Generic[T]):
    """The publishing half of the API. Messages of one publisher keep their order; on a cluster in each
    partition."""

    name: str

    @abstractmethod
    def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Publish a copy of `data`.

        On one host it is then there for every subscriber; it waits while a reliable subscriber is too far
        behind: for ever, or `timeout` seconds, then Full. On a cluster a majority has it on disk; `timeout`
        is that of the connection if it is not given, and OutcomeUnknown says that it is perhaps published.
        Messages with the same key are in the same partition."""

    @abstractmethod
    def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Publish in order; one receipt for each partition touched. `keys` has one for each of the items.

        On one host a killed caller leaves a prefix published; so does an error, which carries its length as
        `published`. On a cluster all or none of those for one partition are published."""

    @abstractmethod
    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> "Loan":
        """`nbytes` to write into; published when its `with` block ends. On one host it is a slot of the topic
        and nothing is copied."""

    @abstractmethod
    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> "ArrayLoan":
        """A numpy array to write into; published when its `with` block ends."""


class Publisher(Publishing[T]):
    """A participant that publishes to one topic, until closed."""

    @property
    @abstractmethod
    def incarnation(self) -> int:
        """Which life of its name this is; a later one has a larger number."""

    @abstractmethod
    def close(self) -> None:
        """Leave the topic. What was published stays."""

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
