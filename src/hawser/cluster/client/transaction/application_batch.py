"""Batches of an application (Spark's micro-batches): many branches, and one decision for all of them.

    branch state  meaning                              next
    staging       a task stages its part               prepared; dropped when its process ends
    prepared      only a decision commits or drops it  committed; dropped, also after `orphan_seconds`
    committed     the decision names it                none
    dropped       no decision names it                 none

Promise: the first decision of a batch stands, and a repeated one changes nothing.

Each attempt of a task has a branch of its own. The decision names the branches that count; it drops all other
branches of the application, whether or not their writers are alive. `query_batches` tells a writer beforehand
that its batch is decided.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple

from hawser.cluster import wire
from hawser.cluster.client.router import Router
from hawser.cluster.client.transaction.coordinators import CoordinatorShards, boot_seconds
from hawser.cluster.client.transaction.shard_pipeline import ShardPipeline
from hawser.errors import Fenced, HawserError, OutcomeUnknown, TransactionAborted, Unavailable
from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import AnyResult, Finished, Outcome, Reason, Rejected, Result, decode_result
from hawser.transaction.client import Progress, Request, Transaction
from hawser.transaction.commands import BranchAbort, CoordinatorBatch, CoordinatorDecide, to_fields
from hawser.transaction.expiry import KEEP_SECONDS
from hawser.transaction.identity import (
    APPLICATION_FORMAT,
    MAX_TIMEOUT_SECONDS,
    ONCE,
    Label,
    TransactionId,
    Xid,
    owner_of,
)

__all__ = [
    "ApplicationBatch",
    "BatchBranch",
    "BatchDecision",
    "Operation",
    "decide_batch",
    "drop_branches",
    "query_batches",
]

# `stage` returns when at most so many bytes of a branch are unacknowledged. More make a task no faster, and
# readers of the topic slower.
_MOST_UNDER_WAY_BYTES: Final = 4 << 20


class ApplicationBatch(NamedTuple):
    """A batch by its number. Only one query at a time writes as an application. `title` is the application's
    name for people, if it has another one."""

    application: bytes
    query: bytes
    number: int
    title: str = ""

    @property
    def text(self) -> str:
        """The batch in error texts."""
        return f"batch {self.number} of {self.title or repr(self.application.decode(errors='replace'))}"

    def branch(self, name: bytes) -> TransactionId:
        """The transaction of one of its branches."""
        return TransactionId(Xid(APPLICATION_FORMAT, self.application, name), 1)


class Operation(NamedTuple):
    """An entry for a shard of the topic or queue `name`."""

    name: str
    shard: str
    kind: Kind
    payload: bytes


class BatchBranch:
    """The part of a batch that one task writes. Lives in the event loop. If it cannot be staged or prepared
    it is withdrawn before the error is raised."""

    def __init__(
        self, router: Router, coordinators: CoordinatorShards, batch: ApplicationBatch, name: bytes
    ) -> None:
        self.name = name
        self.doubts = 0
        self._router = router
        self._coordinators = coordinators
        self._batch = batch
        self._owner = owner_of(router.run)
        self._inner = Transaction(batch.branch(name), self._owner, MAX_TIMEOUT_SECONDS)
        self._pipelines: dict[str, ShardPipeline] = {}
        # The sizes of unacknowledged operations, by shard and number.
        self._under_way: dict[tuple[str, int], int] = {}
        self._withdrawals: dict[str, Request] | None = None
        self._failure: HawserError | None = None
        self._refusal: Rejected | None = None
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was staged."""
        return not self._inner.shards

    async def stage(self, operations: Iterable[Operation]) -> None:
        """Stage operations, in order on each shard; return when there is room for more."""
        for name, shard, kind, payload in operations:
            if shard not in self._pipelines:
                self._pipelines[shard] = ShardPipeline(self._router, name, shard)
            request = self._inner.operation(shard, kind, payload)
            self._under_way[shard, request.number] = len(payload)
            self._pipelines[shard].carry(self, [request])
        async with self._withdrawn_if_it_fails():
            await self._until(lambda: sum(self._under_way.values()) <= _MOST_UNDER_WAY_BYTES)

    async def prepare(self, orphan_seconds: int) -> bool:
        """Prepare the branch, which then waits for a decision for up to `orphan_seconds`. False if its batch
        was decided before; the branch is withdrawn then."""
        assert not self.is_empty
        async with self._withdrawn_if_it_fails():
            return await self._prepare(orphan_seconds)

    async def _prepare(self, orphan_seconds: int) -> bool:
        await self._until(lambda: self._inner.is_staged)
        inner, batch = self._inner, self._batch
        deadline = self._router.loop.time() + self._router.settings.timeout
        coordinator = await self._coordinators.of(inner.id.xid, deadline)
        self._pipelines[coordinator] = ShardPipeline(self._router, wire.HOMES, coordinator)
        self._carry(inner.prepare(coordinator, batch.query, batch.number, orphan_seconds))
        await self._until(lambda: inner.progress in (Progress.PREPARED, Progress.OVER))
        if inner.progress is Progress.PREPARED:
            self._stop()
            return True
        if inner.outcome is Outcome.DROPPED:
            await self.withdraw()
            return False
        if self._refusal is not None:
            raise _refused(batch, self._refusal)
        why = inner.why_refused or (inner.outcome.text if inner.outcome is not None else "no reason is known")
        raise TransactionAborted(f"a part of {batch.text} was not prepared: {why}. It may be written again")

    @asynccontextmanager
    async def _withdrawn_if_it_fails(self) -> AsyncIterator[None]:
        """An error may be the reason to give up the connection, or to end the process."""
        try:
            yield
        except HawserError:
            await self.withdraw()
            raise

    async def withdraw(self) -> None:
        """Abort the branch, once; return when the shards have done so, or after a few seconds."""
        if self._withdrawals is not None:
            return
        label = Label(self._inner.id, 0, 0, self._owner, MAX_TIMEOUT_SECONDS).encode()
        abort = encode_command(BranchAbort(Outcome.ROLLED_BACK))
        self._withdrawals = {
            shard: Request(shard, Kind.BRANCH_ABORT, abort, label) for shard in self._inner.shards
        }
        self._carry(list(self._withdrawals.values()))
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * self._router.settings.attempt_seconds):
                while self._withdrawals:
                    self._changed.clear()
                    await self._changed.wait()
        self._stop()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition is true. Raises the first failure, or Unavailable if no answer comes
        within a call's timeout."""
        seconds = self._router.settings.timeout
        while not condition():
            if self._failure is not None:
                raise self._failure
            if self._inner.refused is not None:
                raise TransactionAborted(f"{self._batch.text} cannot be written: {self._inner.why_refused}")
            self._changed.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                trouble = "; ".join({each.trouble for each in self._pipelines.values()})
                raise Unavailable(
                    f"{self._batch.text} cannot be written: no shard acknowledged anything for {seconds:g} s "
                    f"({trouble})"
                ) from None

    def _carry(self, requests: Sequence[Request]) -> None:
        for shard in dict.fromkeys(request.shard for request in requests):
            self._pipelines[shard].carry(self, [request for request in requests if request.shard == shard])

    def _stop(self) -> None:
        for pipeline in self._pipelines.values():
            pipeline.leave(self)

    # See `Sender`.

    def send_waiting(self) -> None:
        """A branch buffers nothing."""

    def unanswered(self, shard: str) -> list[Request]:
        if self._withdrawals is None:
            return self._inner.again(shard)
        return [self._withdrawals[shard]] if shard in self._withdrawals else []

    def heard(self, request: Request, result: Result) -> None:
        self._changed.set()
        if self._withdrawals is not None:
            if request.kind == Kind.BRANCH_ABORT:
                self._withdrawals.pop(request.shard, None)
            return
        if request.number:
            self._under_way.pop((request.shard, request.number), None)
        elif isinstance(result, Rejected):
            self._refusal = result
        self._carry(self._inner.hear(request, result))

    def lost(self, shard: str, error: HawserError) -> None:
        self._changed.set()
        if self._withdrawals is not None:
            self._withdrawals.pop(shard, None)
        else:
            self._failure = self._failure or error


class BatchDecision(NamedTuple):
    """The batches of an application before `undecided` are decided: writing them again changes nothing.
    `source` is that of the last decision."""

    undecided: int
    source: bytes


async def query_batches(
    router: Router, coordinators: CoordinatorShards, batch: ApplicationBatch
) -> BatchDecision:
    """Which batches of this batch's application are decided."""
    xid = batch.branch(b"").xid
    deadline = router.loop.time() + router.settings.timeout
    coordinator = await coordinators.of(xid, deadline)
    look = wire.TransactionLook(coordinator, xid)
    answer = await router.ask_leader(wire.HOMES, coordinator, look, f"looking for {batch.text}", deadline)
    assert isinstance(answer, wire.TransactionsSeen), answer
    return BatchDecision(answer.incarnation, answer.source)


async def decide_batch(
    router: Router,
    coordinators: CoordinatorShards,
    batch: ApplicationBatch,
    branches: Sequence[bytes],
    source: bytes = b"",
) -> bool:
    """Commit these branches, and drop all others of this batch and of those before it. False if the batch was
    decided before without them: that decision stands. Fenced if another query writes as this application.
    TransactionAborted if a branch is not prepared; nothing is committed then. OutcomeUnknown if that may be
    because the coordinator shard has forgotten the batch since the first request. `source`, a digest of the
    batch's input, is kept with the last batch."""
    began = boot_seconds()
    command = CoordinatorBatch(batch.application, batch.query, batch.number, tuple(branches), source)
    (result,) = await _ask_coordinator(router, coordinators, batch, [(Kind.HOME_BATCH, command)])
    if isinstance(result, Rejected):
        is_too_late = batch.query == ONCE and boot_seconds() - began >= KEEP_SECONDS
        if is_too_late and result.reason is Reason.NO_BRANCH:
            raise OutcomeUnknown(
                f"{batch.text} was perhaps written: the answer took so long that the outcome is forgotten. "
                "Check whether its rows are there before you write them again"
            )
        raise _refused(batch, result)
    assert isinstance(result, Finished), result
    return result.outcome is Outcome.COMMITTED


async def drop_branches(
    router: Router, coordinators: CoordinatorShards, batch: ApplicationBatch, branches: Sequence[bytes]
) -> None:
    """Drop these branches, unless they are committed."""
    named = [batch.branch(name) for name in branches]
    drops = [CoordinatorDecide(to_fields(each), Outcome.DROPPED, prepared=True) for each in named]
    if drops:
        await _ask_coordinator(router, coordinators, batch, [(Kind.HOME_DECIDE, each) for each in drops])


async def _ask_coordinator(
    router: Router,
    coordinators: CoordinatorShards,
    batch: ApplicationBatch,
    commands: Sequence[tuple[Kind, Payload]],
) -> list[AnyResult]:
    deadline = router.loop.time() + router.settings.timeout
    coordinator = await coordinators.of(batch.branch(b"").xid, deadline)
    entries = tuple(wire.Labelled(kind, encode_command(command)) for kind, command in commands)
    request = wire.Transact(coordinator, entries)
    answer = await router.ask_leader(wire.HOMES, coordinator, request, f"deciding {batch.text}", deadline)
    assert isinstance(answer, wire.Transacted), answer
    return [decode_result(result) for result in answer.results]


def _refused(batch: ApplicationBatch, refusal: Rejected) -> HawserError:
    kind = Fenced if refusal.reason is Reason.OTHER_QUERY else TransactionAborted
    return kind(f"{batch.text} was not written: {refusal.text}")
