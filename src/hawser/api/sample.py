"""Messages as subscribers take them."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Literal, Self

__all__ = ["Sample"]


class Sample(ABC):
    """A message of a topic. On one host it is a view of the topic's memory and keeps its slot until it is
    released, which ends its data, but not its key and headers; on a cluster it has its own memory."""

    __slots__ = ()

    data: memoryview
    """The message, read-only."""
    offset: int
    """Dense, from 1; per topic on one host, per partition on a cluster."""
    timestamp_ns: int
    publisher: str
    key: bytes | None
    headers: dict[str, bytes]
    partition: int
    lost_before: int
    """How many messages right before this one were overwritten, or trimmed, before they could be taken."""
    value: Any
    """Decoded by the topic's schema; bytes without one."""

    @abstractmethod
    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """A read-only numpy array over the message."""

    @abstractmethod
    def arrow(self) -> Any:
        """The Arrow data in the message."""

    @abstractmethod
    def release(self) -> None:
        """Release the sample; BufferError while views of it are alive."""

    @abstractmethod
    def __bytes__(self) -> bytes: ...

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __bool__(self) -> Literal[True]:
        """An empty message is true, too."""

    @abstractmethod
    def __buffer__(self, flags: int, /) -> memoryview: ...

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
