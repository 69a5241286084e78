"""Publishing on one host, for event loops."""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from hawser.api.aio.bus import AsyncLoan, AsyncPublishing
from hawser.api.loan import ArrayLoan
from hawser.api.local.publishing import LocalPublishing
from hawser.api.local.waiter_thread import until_space
from hawser.api.subscription import check_timeout
from hawser.errors import Full, HawserError
from hawser.memory import Loan
from hawser.record.record import Receipt

__all__ = ["LocalAsyncPublishing"]

T = TypeVar("T")


class LocalAsyncLoan(AsyncLoan):
    """Awaits space at the end of its block."""

    def __init__(
        self, loan: Loan | ArrayLoan, publishing: LocalPublishing[Any], timeout: float | None
    ) -> None:
        self._loan = loan
        self._publishing = publishing
        self._timeout = timeout

    @property
    def receipt(self) -> Receipt | None:
        return self._loan.receipt

    async def __aenter__(self) -> Any:
        return self._loan.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._loan.__exit__(kind, error, traceback)
            return
        try:
            self._loan._seal()
            publisher = self._publishing._native()
            await until_space(lambda: self._loan.publish(0), publisher, self._timeout)
        finally:
            self._loan.drop()


class _Batch:
    """A batch that goes out in as many parts as there is space for."""

    def __init__(
        self, publishing: LocalPublishing[Any], items: Iterable[Any], keys: Iterable[bytes | None] | None
    ) -> None:
        self._publishing = publishing
        payloads, self._keys = publishing._batch(items, keys)
        self._payloads = list(payloads)
        self._first: Receipt | None = None
        self.done = 0

    def publish_rest(self) -> Receipt:
        """Publish what is left; Full when there is no space even for one message."""
        if self._first is None:
            # Alone, because only a completely published part has a known first offset.
            self._first = self._publish(slice(1))
            self.done = self._first.count
        while self.done < len(self._payloads):
            try:
                self.done += self._publish(slice(self.done, None)).count
            except HawserError as error:
                self.done += error.published
                if not (isinstance(error, Full) and error.published):
                    raise
        return self._first._replace(count=self.done)

    def _publish(self, part: slice) -> Receipt:
        keys = None if self._keys is None else self._keys[part]
        return self._publishing._publish_payloads(self._payloads[part], keys, 0)


class LocalAsyncPublishing(AsyncPublishing[T]):
    """The publishing half of the API."""

    def __init__(self, publishing: LocalPublishing[T]) -> None:
        self._publishing = publishing
        # Each publish_nowait in flight. They take turns in order, even if one of them is cancelled.
        self._begun: set[asyncio.Task[Receipt]] = set()
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._publishing.name

    async def publish(
        self,
        data: T,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        await self.flush()
        return await self._publish(data, key, headers, timeout)

    async def publish_many(
        self,
        items: Iterable[T],
        *,
        keys: Iterable[bytes | None] | None = None,
        timeout: float | None = None,
    ) -> list[Receipt]:
        await self.flush()
        batch = _Batch(self._publishing, items, keys)
        try:
            return [await until_space(batch.publish_rest, self._publishing._native(), timeout)]
        except HawserError as error:
            error.published = batch.done
            error.outcome = "applied" if batch.done else error.outcome
            raise

    def publish_nowait(
        self, data: T, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> "asyncio.Future[Receipt]":
        async def in_turn() -> Receipt:
            async with self._turn:
                return await self._publish(data, key, headers, None)

        task = asyncio.get_running_loop().create_task(in_turn())
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    @property
    def is_busy(self) -> bool:
        """Whether a `publish_nowait` is in flight."""
        return bool(self._begun)

    async def flush(self) -> None:
        while self._begun:
            await asyncio.wait(self._begun)

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> LocalAsyncLoan:
        loan = self._publishing.loan(nbytes, key=key, headers=headers)
        return LocalAsyncLoan(loan, self._publishing, timeout)

    def loan_array(
        self,
        shape: Any,
        dtype: Any = "u1",
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> LocalAsyncLoan:
        loan = self._publishing.loan_array(shape, dtype, key=key, headers=headers)
        return LocalAsyncLoan(loan, self._publishing, timeout)

    async def _publish(
        self, data: T, key: bytes | None, headers: Mapping[str, bytes] | None, timeout: float | None
    ) -> Receipt:
        check_timeout(timeout)
        publishing = self._publishing
        native = publishing._native()
        try:
            return publishing.publish(data, key=key, headers=headers, timeout=0)
        except Full:
            if timeout == 0:
                raise
        return await until_space(
            lambda: publishing.publish(data, key=key, headers=headers, timeout=0), native, timeout
        )
