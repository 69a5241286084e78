"""Calls of the XA interface, as a client makes them: this client is a session of the cluster as a resource.

A call is an entry at the home of its xid, sent under a name of its own until it is answered. The work between
`start` and `end` is staged on the shards that it touches; `end` says at home which those are.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from hawser.cluster import wire
from hawser.cluster.client.carrying import Couriers
from hawser.cluster.client.failures import Backoff
from hawser.cluster.client.homes import Homes
from hawser.cluster.client.routing import Router
from hawser.cluster.client.working import OpenWork
from hawser.errors import Full, HawserError, OutcomeUnknown, UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Answered, Rejected, decode_result
from hawser.transaction.client import Transaction
from hawser.transaction.commands import HomeCall
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    LANE_FORMAT,
    MAX_TIMEOUT_SECONDS,
    TransactionId,
    Xid,
    owner_of,
)
from hawser.transaction.xa import Call, Code, State

__all__ = ["OpenBranch", "Resource"]

_RECOVERABLE: Final = (State.PREPARED, State.HEURISTIC_COMMIT, State.HEURISTIC_ROLLBACK)
_OWN_FORMATS: Final = (LANE_FORMAT, APPLICATION_FORMAT)
# In an illegal state home knows of no work of this session, so there is none.
_ENDED: Final = (Code.OK, Code.RB_ROLLBACK, Code.RB_TIMEOUT, Code.ILLEGAL_STATE)


class OpenBranch(OpenWork):
    """The work of this session in a branch."""

    def __init__(self, router: Router, couriers: Couriers, transaction: Transaction) -> None:
        super().__init__(router, couriers, transaction)
        self.is_suspended = False
        self._is_over = False

    def check_open(self) -> None:
        if self._is_over or self.is_suspended:
            how = "suspended; resume it" if self.is_suspended else "ended; start another"
            raise UsageError(f"the work in branch {self.inner.id.xid} is {how} with xa.start()")

    def lost(self, shard: str, error: HawserError) -> None:
        self._fail(error)

    async def stage(self) -> None:
        """Return when everything is staged, or something has failed."""
        self._take_over()
        self.send_waiting()
        await self._until(lambda: self.inner.is_staged, "to take what was published")

    def end(self) -> None:
        """Nothing more is done in it here. Its messages are the coordinator's business from here on, but for
        those that it never got, as far as is known: they are given back."""
        self._is_over = True
        self._stop()
        locking, self._locking = self._locking, {}
        for message, borrower in locking.items():
            borrower.unlock((message,))
        self._kept.clear()


class Resource:
    """Of one client, in its event loop."""

    def __init__(self, router: Router, homes: Homes, couriers: Couriers) -> None:
        self._router = router
        self._homes = homes
        self._couriers = couriers
        # Those that this session works in, or has suspended.
        self._branches: dict[Xid, OpenBranch] = {}
        # The last call for each, if nobody has answered it.
        self._unanswered: dict[Xid, HomeCall] = {}

    def branch(self, xid: Xid) -> OpenBranch | None:
        """What this session works in under that name."""
        return self._branches.get(xid)

    async def start(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """What the call got, and the work that it has begun or resumed."""
        answer = await self.call(xid, call)
        if answer.code != Code.OK:
            return answer, None
        branch = self._branches.get(xid)
        transaction = TransactionId(xid, answer.incarnation)
        if branch is None or (branch.inner.id, branch.inner.worker) != (transaction, answer.worker):
            owner = owner_of(self._router.run)
            # Home counts its time, which may be told otherwise later; a branch has no other bound.
            inner = Transaction(transaction, owner, MAX_TIMEOUT_SECONDS, answer.worker)
            branch = self._branches[xid] = OpenBranch(self._router, self._couriers, inner)
        branch.is_suspended = False
        return answer, branch

    async def end(self, xid: Xid, call: Call) -> tuple[Answered, OpenBranch | None]:
        """What the call got; if something of the work has failed, it was ended as failed."""
        branch = self._branches.get(xid)
        if branch is None or branch.is_suspended:
            return await self.call(xid, call), None
        await branch.stage()
        if branch.has_failed and call is not Call.END_FAIL_SUSPEND:
            call = Call.END_FAIL
        transaction = branch.inner.id
        answer = await self.call(xid, call, 0, branch.inner.counts, transaction.incarnation)
        if answer.code in _ENDED:
            branch.is_suspended = call is Call.END_SUSPEND and answer.code == Code.OK
            if not branch.is_suspended:
                branch.end()
                del self._branches[xid]
        return answer, branch

    async def call(
        self,
        xid: Xid,
        call: Call,
        seconds: int = 0,
        participants: Sequence[tuple[str, int]] = (),
        incarnation: int = 0,
    ) -> Answered:
        """What a call gets, for the latest use of the xid unless another is named. Made again because nobody
        has answered, it is the same call."""
        new = HomeCall((*xid, incarnation), call, self._router.run, b"", seconds, tuple(participants))
        entry = wire.Labelled(Kind.HOME_CALL, encode_command(self._named(xid, new)))
        deadline = self._router.loop.time() + self._router.settings.timeout
        home = await self._homes.of(xid, deadline)
        what = f"{call.name.lower().replace('_', ' ')} of branch {xid}"
        backoff = Backoff(self._router.settings)
        while True:
            answer = await self._router.ask_leader(
                wire.HOMES, home, wire.Transact(home, (entry,)), what, deadline
            )
            assert isinstance(answer, wire.Transacted), answer
            result = decode_result(answer.results[0])
            if isinstance(result, Rejected):
                raise Full(f"{what}: {result.text}")
            assert isinstance(result, Answered), result
            if result.code != Code.PENDING:
                self._unanswered.pop(xid, None)
                return result
            if self._router.loop.time() >= deadline:
                raise OutcomeUnknown(f"{what}: the shards have not voted yet; call it again")
            await asyncio.sleep(backoff.next())

    def _named(self, xid: Xid, new: HomeCall) -> HomeCall:
        """Under the name that it has, or a new one."""
        named = self._unanswered.get(xid)
        if named is None or replace(named, request=b"") != new:
            named = self._unanswered[xid] = replace(new, request=secrets.token_bytes(16))
        return named

    async def recover(self) -> list[Xid]:
        """Branches that are prepared, or that a person has decided and nobody has forgotten."""
        deadline = self._router.loop.time() + self._router.settings.timeout
        homes = await self._homes.all(deadline)
        found = await asyncio.gather(*(self._look_at(home, deadline) for home in homes))
        return sorted({xid for each in found for xid in each})

    async def _look_at(self, home: str, deadline: float) -> list[Xid]:
        look = wire.TransactionLook(home)
        answer = await self._router.ask_leader(wire.HOMES, home, look, "recovering branches", deadline)
        assert isinstance(answer, wire.TransactionsSeen), answer
        xids = [Xid(*record.xid) for record in answer.records if State(record.state) in _RECOVERABLE]
        return [xid for xid in xids if xid.format not in _OWN_FORMATS]

    async def close(self) -> None:
        """What this session works in can only be rolled back."""
        for xid, branch in list(self._branches.items()):
            if not branch.is_suspended:
                with suppress(HawserError):
                    await self.end(xid, Call.END_FAIL)
            branch.end()
