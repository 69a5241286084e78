"""The base of asynchronous objects: they open when they are awaited, or at their first use."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

__all__ = ["LazyHandle"]


class LazyHandle(ABC):
    """Awaiting it returns itself, open; leaving its block closes it."""

    async def _open(self) -> None:  # noqa: B027
        """Open it; on one host it is already open."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from self._open().__await__()
        return self

    @abstractmethod
    async def close(self) -> None:
        """Close this object and everything that was made from it, after the publishes that `publish_nowait`
        has begun. If this is cancelled, close again to wait for the end."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
