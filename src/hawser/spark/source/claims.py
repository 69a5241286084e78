"""Claims of a query on messages of a queue: no other consumer gets them, and the query's progress accepts
them.

A claim is a prepared transaction that accepts some messages. The claims of one name are numbered. Claim n is
committed once Spark has committed the micro-batch that read it, by the same kind of decision as a batch of
the sink: the decision is final, belongs to one query, and returns all other claims of this number. Until then
the messages are locked, and tasks may read them any number of times.

A query may take over an open claim, because the query that made it may have been killed before Spark noted
it. The owner of the first claim is therefore decided before any of it is read, by a decision about number 0,
which has no messages. From then on no other query claims under this name.

The name of a claim lists its messages, so that the query that finds an open claim knows them: a number, a
random part that no other attempt has, then runs of offsets. A claim ends where its name would be too long.
"""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hawser.cluster import wire
from hawser.cluster.client.queue.acknowledger import HeldMessage, State
from hawser.cluster.client.queue.session import QueueSession
from hawser.cluster.client.router import Router
from hawser.cluster.client.transaction.application_batch import (
    ApplicationBatch,
    BatchBranch,
    Operation,
    decide_batch,
)
from hawser.cluster.client.transaction.coordinators import CoordinatorShards
from hawser.errors import Fenced, HawserError, TransactionAborted
from hawser.log.entry import Kind
from hawser.log.state.queue import MESSAGES
from hawser.transaction.identity import APPLICATION_FORMAT, CLAIMS, Xid
from hawser.transaction.xa.table import State as Stage

__all__ = ["Claim", "Claims"]

_NAME_BYTES: Final = 255
_ATTEMPTS: Final = 5

# The offset of the first message, and how many there are.
_Run = tuple[int, int]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


class Claim(NamedTuple):
    """Its number, the random part of the attempt, and its messages; number 0 is before the first."""

    number: int
    attempt: int = 0
    runs: tuple[_Run, ...] = ()

    @property
    def name(self) -> bytes:
        """The name of its branch. Each offset counts from the end of the run before, so that many fit."""
        numbers, end = [self.number, self.attempt], 0
        for first, count in self.runs:
            numbers += (first - end, count)
            end = first + count
        return _encode(numbers)

    @classmethod
    def of_name(cls, name: bytes) -> "Claim":
        """The claim of a branch."""
        number, attempt, *rest = _decode(name)
        runs: list[_Run] = []
        end = 0
        for gap, count in zip(rest[::2], rest[1::2], strict=True):
            runs.append((end + gap, count))
            end += gap + count
        return cls(number, attempt, tuple(runs))

    def with_message(self, offset: int) -> "Claim | None":
        """The claim with one more message, behind the others; None if its name has no room."""
        if self.runs and sum(self.runs[-1]) == offset:
            first, count = self.runs[-1]
            return self._replace(runs=(*self.runs[:-1], (first, count + 1)))
        larger = self._replace(runs=(*self.runs, (offset, 1)))
        # The count may still grow by four bytes.
        return larger if len(larger.name) + 4 <= _NAME_BYTES else None


class Claims:
    """The claims of one name on one queue, for the query `owner`. All methods run in the event loop."""

    def __init__(
        self,
        router: Router,
        coordinators: CoordinatorShards,
        queue: str,
        entry: wire.TopicEntry,
        name: str,
        owner: str,
    ) -> None:
        self._router = router
        self._coordinators = coordinators
        self._queue = queue
        self._name = name
        self._owner = owner.encode()
        self._application = CLAIMS + f"{entry.uuid[:8]}:{name}".encode()
        (self.shard,) = wire.shards_of(queue, entry)
        self._queue_session = QueueSession(router, queue, self.shard, MESSAGES, f"claim:{name}", _message)

    def _batch(self, number: int) -> ApplicationBatch:
        return ApplicationBatch(self._application, self._owner, number)

    async def commit(self, claim: Claim) -> None:
        """Accept its messages. Repeated calls change nothing."""
        try:
            await decide_batch(self._router, self._coordinators, self._batch(claim.number), [claim.name])
        except Fenced as error:
            raise self._fenced(claim) from error
        except TransactionAborted as error:
            raise self._given_back(claim) from error

    def _fenced(self, claim: Claim) -> Fenced:
        return Fenced(
            f"claim {claim.number} of {self._name!r} on queue {self._queue!r} is over: another query has "
            "claimed under this claimName, or this one from a later checkpoint. Go on from that, or give it "
            "a claimName of its own"
        )

    def _given_back(self, claim: Claim) -> Fenced:
        return Fenced(
            f"claim {claim.number} of {self._name!r} on queue {self._queue!r} was returned meanwhile, "
            "because it was not committed in time (orphanSeconds) or an operator decided so, or it was "
            "committed from a later checkpoint: other consumers may have its messages, even if this query "
            "has processed them. Begin again, with a new checkpoint and another claimName"
        )

    async def hold(self, claim: Claim) -> None:
        """Make it this query's own, before any of it is read. Fenced if another query was first, or
        if it is not open any more: then others may have read what it had."""
        if claim.number == 1:
            try:
                await decide_batch(self._router, self._coordinators, self._batch(0), [])
            except Fenced as error:
                raise self._fenced(claim) from error
        if claim not in await self._open_claims():
            raise self._given_back(claim)

    async def open_claim(self, number: int) -> Claim | None:
        """The open claim of this number, if there is one."""
        return min((claim for claim in await self._open_claims() if claim.number == number), default=None)

    async def _open_claims(self) -> list[Claim]:
        deadline = self._router.loop.time() + self._router.settings.timeout
        home = await self._coordinators.of(self._batch(0).branch(b"").xid, deadline)
        look = wire.TransactionLook(home)
        what = f"looking for claims of {self._name!r}"
        answer = await self._router.ask_leader(wire.HOMES, home, look, what, deadline)
        assert isinstance(answer, wire.TransactionsSeen), answer
        return [
            Claim.of_name(xid.branch_id)
            for record in answer.records
            if (xid := Xid(*record.xid)).format == APPLICATION_FORMAT
            and xid.global_id == self._application
            and Stage(record.state) is Stage.PREPARED
        ]

    async def make(self, number: int, most: int, before: int | None, orphan_seconds: int) -> Claim | None:
        """Claim up to so many messages, all of them before an offset if one is given; None if there are none.
        They are given back after so long without a decision. Fenced if another query has this name."""
        for _ in range(_ATTEMPTS):
            messages: list[HeldMessage] = await self._queue_session.get(most, 0)
            messages.sort(key=lambda each: each.offset)
            claim, taken = Claim(number, secrets.randbits(31)), []
            for message in messages:
                larger = claim.with_message(message.offset)
                if larger is None or (before is not None and message.offset >= before):
                    break
                claim = larger
                taken.append(message)
            self._queue_session.give_back(messages[len(taken) :])
            if not taken:
                return None
            if await self._is_locked(claim, taken, orphan_seconds):
                return claim
            await asyncio.sleep(self._router.settings.backoff_least_seconds)
        return None

    async def _is_locked(self, claim: Claim, messages: Sequence[HeldMessage], orphan_seconds: int) -> bool:
        """Whether the messages are those of the claim from here on; not if they were lost meanwhile."""
        queue_session = self._queue_session
        payload = wire.encode(queue_session.lock_of(messages))
        branch = BatchBranch(self._router, self._coordinators, self._batch(claim.number), claim.name)
        queue_session.lock(messages)
        try:
            await branch.stage([Operation(self._queue, self.shard, Kind.QUEUE_SETTLE, payload)])
            if not await branch.prepare(orphan_seconds):
                raise self._fenced(claim)
        except HawserError as error:
            queue_session.unlock(messages)
            if isinstance(error, TransactionAborted):
                return False
            if isinstance(error, Fenced):
                raise self._fenced(claim) from error
            raise
        queue_session.locked(messages)
        for message in messages:
            message.state = State.SETTLED
        return True

    async def close(self) -> None:
        """Stop getting messages. Claims stay as they are."""
        await self._queue_session.close()


def _message(message: HeldMessage, *_: Any) -> HeldMessage:
    return message
