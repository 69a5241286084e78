"""The XA interface: a cluster as one resource of a distributed transaction with an outside coordinator."""

from abc import ABC, abstractmethod
from typing import Final, Literal

from hawser.api.aio.transaction import AsyncWork
from hawser.api.transaction import Work
from hawser.errors import HawserError
from hawser.transaction.identity import Xid

__all__ = ["XA", "AsyncXA", "Vote", "XAError", "Xid"]

Vote = Literal["ok", "readonly"]


class XAError(HawserError):
    """An answer of the XA interface other than ok. Its `code`: `not-found`, `illegal-state`,
    `command-invalid`, `not-allowed`, `invalid-argument`, `rb-rollback`, `rb-timeout`, `heur-com`, `heur-rb`
    or `heur-mix`. If an administrator had already decided what was asked for, `outcome` is "applied"."""

    def __init__(self, message: str = "", code: str = "", is_applied: bool = False) -> None:
        super().__init__(message)
        self.code: Final = code
        if is_applied:
            self.outcome = "applied"


class XA(ABC):
    """A bus as an XA resource. The bus is the session: it works in one branch at a time, and any bus may
    complete prepared branches. An answer other than ok is an XAError; without an answer the call may be
    repeated."""

    @abstractmethod
    def start(self, xid: Xid, join: bool = False, resume: bool = False) -> Work:
        """Begin to work in a new branch, in one that other sessions have begun (`join`), or in one that this
        session has suspended (`resume`)."""

    @abstractmethod
    def end(self, xid: Xid, suspend: bool = False, fail: bool = False) -> None:
        """Stop working in the branch: for good, for a while (`suspend`), or so that it can only be rolled
        back (`fail`, which is answered with rb-rollback). Work with a refused operation ends as failed.
        Messages that were received and not accepted are released, also by `suspend`. Both flags at once are
        refused, and change nothing."""

    @abstractmethod
    def prepare(self, xid: Xid) -> Vote:
        """Promise that the branch can be committed, however long that takes; or answer that there is nothing
        to commit ("readonly"), and forget it. rb-rollback or rb-timeout if it can only be rolled back."""

    @abstractmethod
    def commit(self, xid: Xid, one_phase: bool = False) -> None:
        """Commit a branch that is prepared; with `one_phase` one that is ended and not prepared."""

    @abstractmethod
    def rollback(self, xid: Xid) -> None:
        """Roll the branch back."""

    @abstractmethod
    def recover(self) -> list[Xid]:
        """Every branch that is prepared, or heuristically decided and not forgotten; a linearizable read."""

    @abstractmethod
    def forget(self, xid: Xid) -> None:
        """Forget an administrator's heuristic decision about the branch."""

    @abstractmethod
    def set_timeout(self, xid: Xid, seconds: int) -> None:
        """Bound the time until the branch is prepared, in seconds from now: at most 3600; 0 is the default,
        60."""

    @abstractmethod
    def get_timeout(self, xid: Xid) -> int:
        """The bound on the time until the branch is prepared, in seconds."""


class AsyncXA(ABC):
    """As `XA`."""

    @abstractmethod
    async def start(self, xid: Xid, join: bool = False, resume: bool = False) -> AsyncWork:
        """As `XA.start`."""

    @abstractmethod
    async def end(self, xid: Xid, suspend: bool = False, fail: bool = False) -> None:
        """As `XA.end`."""

    @abstractmethod
    async def prepare(self, xid: Xid) -> Vote:
        """As `XA.prepare`."""

    @abstractmethod
    async def commit(self, xid: Xid, one_phase: bool = False) -> None:
        """As `XA.commit`."""

    @abstractmethod
    async def rollback(self, xid: Xid) -> None:
        """As `XA.rollback`."""

    @abstractmethod
    async def recover(self) -> list[Xid]:
        """As `XA.recover`."""

    @abstractmethod
    async def forget(self, xid: Xid) -> None:
        """As `XA.forget`."""

    @abstractmethod
    async def set_timeout(self, xid: Xid, seconds: int) -> None:
        """As `XA.set_timeout`."""

    @abstractmethod
    async def get_timeout(self, xid: Xid) -> int:
        """As `XA.get_timeout`."""
