"""The API for event loops as if it were the plain one: every call is awaited, in a loop of its own thread. So
one suite is for both."""

import asyncio
import inspect
import threading
from types import TracebackType
from typing import Any

from hawser import aio

__all__ = ["Loop"]


class Loop:
    """An event loop in a thread, until its block ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def connect(self, url: str, **options: Any) -> Any:
        """A bus that is used like any other."""
        return self.call(aio.connect, url, **options)

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """What it gives, awaited and to be used in the same way."""
        given = [_inner(each) for each in arguments]

        async def work() -> Any:
            found = function(*given, **named)
            return await found if inspect.isawaitable(found) else found

        return self.wrapped(asyncio.run_coroutine_threadsafe(work(), self.loop).result())

    def wrapped(self, found: Any) -> Any:
        if isinstance(found, list) and type(found).__module__.startswith("hawser"):
            return _LoopedList(self, found)
        is_ours = "Async" in type(found).__name__
        return _Looped(self, found) if is_ours else found

    def __enter__(self) -> "Loop":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class _Looped:
    """An object of the API for event loops."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop = loop
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return self._loop.wrapped(found)
        if name == "run_transaction":
            return self._run_transaction
        return lambda *arguments, **named: self._loop.call(found, *arguments, **named)

    def _run_transaction(self, fn: Any, *arguments: Any, **named: Any) -> Any:
        async def awaited(transaction: Any) -> Any:
            return await asyncio.to_thread(fn, _Looped(self._loop, transaction))

        return self._loop.call(self.inner.run_transaction, awaited, *arguments, **named)

    def __iter__(self) -> Any:
        return self._loop.call(self.inner.__aiter__)

    def __next__(self) -> Any:
        try:
            return self._loop.call(self.inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        return self._loop.call(self.inner.__aenter__)

    def __exit__(self, *raised: Any) -> Any:
        return self._loop.call(self.inner.__aexit__, *raised)

    def __bytes__(self) -> bytes:
        return bytes(self.inner)

    def __bool__(self) -> bool:
        return bool(self.inner)


class _LoopedList(list[Any]):
    """Messages that were got together."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        super().__init__(loop.wrapped(each) for each in inner)
        self._loop = loop
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(_Looped(self._loop, self.inner), name)

    def __enter__(self) -> Any:
        return self._loop.call(self.inner.__aenter__)

    def __exit__(self, *raised: Any) -> Any:
        return self._loop.call(self.inner.__aexit__, *raised)


def _inner(given: Any) -> Any:
    if isinstance(given, _Looped | _LoopedList):
        return given.inner
    return [_inner(each) for each in given] if isinstance(given, list) else given
