"""The XA interface on a cluster in an event loop."""

from collections.abc import Awaitable
from typing import TypeVar

from hawser.api.aio.transaction import AsyncWork
from hawser.api.cluster.aio.transaction import AsyncStarter, ClusterAsyncWork
from hawser.api.cluster.xa import XACalls, check_xid
from hawser.api.xa import AsyncXA, Vote
from hawser.cluster.client.transaction.xa import OpenBranch
from hawser.transaction.identity import Xid

__all__ = ["ClusterAsyncXA"]

Result = TypeVar("Result")


class _ClusterAsyncBranch(ClusterAsyncWork):
    """The work of this session in a branch."""

    def __init__(self, bus: AsyncStarter, branch: OpenBranch) -> None:
        super().__init__(bus)
        self._branch = branch

    @property
    def id(self) -> str:
        return str(self._branch.inner.id)

    async def _working(self) -> OpenBranch:
        self._branch.check()
        return self._branch


class ClusterAsyncXA(AsyncXA):
    """The XA session of one bus."""

    def __init__(self, bus: AsyncStarter) -> None:
        self._bus = bus
        self._works: dict[Xid, _ClusterAsyncBranch] = {}

    async def _calls(self) -> XACalls:
        return XACalls((await self._bus._started()).resource)

    async def start(self, xid: Xid, join: bool = False, resume: bool = False) -> AsyncWork:
        branch = await self._call((await self._calls()).start(xid, join, resume))
        work = self._works[xid] = _ClusterAsyncBranch(self._bus, branch)
        return work

    async def end(self, xid: Xid, suspend: bool = False, fail: bool = False) -> None:
        work = self._works.get(check_xid(xid))
        try:
            await (await self._calls()).end(xid, suspend, fail)
        finally:
            if work is not None and not work._branch.is_open:
                if self._works.get(xid) is work:
                    del self._works[xid]
                work._release()

    async def _call(self, call: Awaitable[Result]) -> Result:
        """Run the call and return its result. If it ends the work of this session, the messages are given
        back."""
        try:
            return await call
        finally:
            for xid, work in list(self._works.items()):
                if work._branch.is_over:
                    del self._works[xid]
                    work._release()

    async def prepare(self, xid: Xid) -> Vote:
        return await self._call((await self._calls()).prepare(xid))

    async def commit(self, xid: Xid, one_phase: bool = False) -> None:
        await self._call((await self._calls()).commit(xid, one_phase))

    async def rollback(self, xid: Xid) -> None:
        await self._call((await self._calls()).rollback(xid))

    async def recover(self) -> list[Xid]:
        return await (await self._calls()).recover()

    async def forget(self, xid: Xid) -> None:
        await self._call((await self._calls()).forget(xid))

    async def set_timeout(self, xid: Xid, seconds: int) -> None:
        await self._call((await self._calls()).set_timeout(xid, seconds))

    async def get_timeout(self, xid: Xid) -> int:
        return await self._call((await self._calls()).get_timeout(xid))
