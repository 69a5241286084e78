"""Messages as they are taken from a cluster."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from hawser.record.record import Record

__all__ = ["FetchedSample"]


class FetchedSample:
    """A message of a partition. It has its own memory: nothing needs to be released."""

    __slots__ = ("lost_before", "offset", "partition", "publisher", "_decode", "_record")

    def __init__(
        self,
        record: Record,
        partition: int,
        offset: int,
        publisher: str,
        lost_before: int,
        decode: Callable[[Any], Any] | None,
    ) -> None:
        self._record = record
        self.partition = partition
        self.offset = offset
        self.publisher = publisher
        self.lost_before = lost_before
        self._decode = decode

    @property
    def data(self) -> memoryview:
        """The message, read-only."""
        return memoryview(self._record.value)

    @property
    def key(self) -> bytes | None:
        return self._record.key

    @property
    def headers(self) -> dict[str, bytes]:
        return dict(self._record.headers)

    @property
    def timestamp_ns(self) -> int:
        """When it was published, by the publisher's clock."""
        return self._record.timestamp_ns

    @property
    def value(self) -> Any:
        """Decoded by the topic's schema; the bytes themselves without one."""
        return self._record.value if self._decode is None else self._decode(self)

    def array(self, dtype: Any = "u1", shape: Any = None) -> Any:
        """A read-only numpy array over the message."""
        from hawser.record.arrays import as_array

        return as_array(self._record.value, dtype, shape)

    def arrow(self) -> Any:
        """The Arrow data in the message."""
        from hawser.record.arrays import as_arrow

        return as_arrow(self._record.value)

    def release(self) -> None:
        """Nothing to do on a cluster; here for programs that run in both scopes."""

    def __bytes__(self) -> bytes:
        return self._record.value

    def __len__(self) -> int:
        return len(self._record.value)

    def __bool__(self) -> Literal[True]:
        """An empty one is a message, too."""
        return True

    def __eq__(self, other: object) -> bool:
        """As any object; a TypeError instead of a False that hides a mistake."""
        if isinstance(other, bytes | bytearray | memoryview | str):
            raise TypeError(
                f"a message cannot be compared with {type(other).__name__}; compare bytes(it), or its value"
            )
        return self is other

    __hash__ = object.__hash__

    def __buffer__(self, flags: int, /) -> memoryview:
        return memoryview(self._record.value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Sample {self.offset} of partition {self.partition}, {len(self)} bytes>"
