"""Transactions for administrators (`hawser tx`): their state on all shards, and heuristic decisions about
them.

A transaction has a branch on each shard that it touches, and may have a record at its coordinator shard. Each
answer is a linearizable read of one shard, but the answers are not of one moment: a running transaction may
be seen half-way. Decisions do not depend on what is seen: the coordinator makes them, in one log entry.
"""

import secrets
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from hawser.cluster import wire
from hawser.cluster.client.router import Router
from hawser.cluster.client.rpc import gather_bounded
from hawser.cluster.shard_map import topic_of
from hawser.errors import Closed, HawserError, InDoubt, NotFound, Rejected, Unavailable
from hawser.log.entry import Kind
from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Answered, AnyResult, Finished, Outcome, decode_result
from hawser.log.state.results import Rejected as RejectedResult
from hawser.transaction.commands import CoordinatorCall, CoordinatorDecide, to_fields
from hawser.transaction.identity import LANE_FORMAT, TransactionId, Xid, coordinator_number
from hawser.transaction.xa.table import Call, Code, State

__all__ = [
    "BranchStatus",
    "Stage",
    "Survey",
    "TransactionStatus",
    "decide",
    "forget",
    "query",
    "survey_transactions",
    "assemble",
    "recover",
]

_VOTING: Final = (State.PREPARING, State.COMMITTING)


class Stage(StrEnum):
    """The stage of a transaction; those that need attention come first."""

    PREPARED = "prepared"
    HEURISTIC_COMMIT = "committed by a person"
    HEURISTIC_ROLLBACK = "rolled back by a person"
    PREPARING = "preparing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    OPEN = "open"


_RANKS: Final = {stage: rank for rank, stage in enumerate(Stage)}


class BranchStatus(msgspec.Struct, frozen=True):
    """The state of a transaction on one shard. `prepared` is None if the shard has no branch of it (any more)
    or did not answer; `told` is whether the shard knows the outcome."""

    shard: str
    operations: int
    size_bytes: int | None = None
    prepared: bool | None = None
    told: bool = False


class TransactionStatus(msgspec.Struct, frozen=True):
    """One transaction. `outcome` is its outcome in words, `reason` why an administrator decided it, and
    `home` its coordinator shard, if known. `age_seconds` is its age at the leader; a new leader counts from
    0, unless the age was recorded when the transaction was prepared."""

    id: str
    stage: Stage
    outcome: str | None
    reason: str
    home: str
    timeout_seconds: int | None
    age_seconds: float
    branches: list[BranchStatus]

    @property
    def sort_key(self) -> tuple[int, float, str]:
        """Prepared transactions first, the oldest first."""
        return _RANKS[self.stage], -self.age_seconds, self.id


class Survey(NamedTuple):
    """All unfinished transactions, and the errors of the shards that did not answer."""

    transactions: list[TransactionStatus]
    unanswered: dict[str, HawserError]


class _Found:
    """The records and branches of one transaction in the answers."""

    def __init__(self) -> None:
        self.record: wire.RecordSeen | None = None
        self.home = ""
        self.branches: dict[str, wire.BranchSeen] = {}


# Queries.


async def survey_transactions(router: Router, timeout_seconds: float) -> Survey:
    """Every unfinished transaction of the cluster."""
    deadline = router.loop.time() + timeout_seconds
    await _know(router, deadline)
    answers, unanswered = await _ask_all(router, router.map.shards, None, deadline)
    return Survey(assemble(answers), unanswered)


async def recover(router: Router, timeout_seconds: float) -> list[TransactionStatus]:
    """The prepared transactions, and the heuristically decided ones that are not forgotten. Unavailable
    unless every coordinator shard answers."""
    deadline = router.loop.time() + timeout_seconds
    await _know(router, deadline)
    answers, unanswered = await _ask_all(router, _coordinators(router), None, deadline)
    for error in unanswered.values():
        raise Unavailable(f"not every coordinator shard answers, so transactions may be missing: {error}")
    wanted = (Stage.PREPARED, Stage.HEURISTIC_COMMIT, Stage.HEURISTIC_ROLLBACK)
    return [each for each in assemble(answers) if each.stage in wanted]


async def query(router: Router, wanted: TransactionId, timeout_seconds: float) -> TransactionStatus:
    """One transaction, finished or not; incarnation 0 means the latest. NotFound if no shard knows it."""
    deadline = router.loop.time() + timeout_seconds
    await _know(router, deadline)
    answers, unanswered = await _ask_all(router, router.map.shards, wanted, deadline)
    latest = max((_latest(each) for each in answers.values()), default=0)
    for seen in assemble(answers):
        if seen.id == str(TransactionId(wanted.xid, latest)):
            return _as_decided(seen, answers.get(seen.home))
    outcomes = [each.outcome for each in answers.values() if each.outcome and each.incarnation == latest]
    if not latest or not outcomes:
        raise _unknown(wanted, unanswered)
    # A shard that remembers the outcome overrides one that presumes a rollback.
    outcome = Outcome(Outcome.COMMITTED if Outcome.COMMITTED in outcomes else max(outcomes))
    is_done = outcome in (Outcome.COMMITTED, Outcome.READ_ONLY)
    stage = Stage.COMMITTED if is_done else Stage.ROLLED_BACK
    name = str(TransactionId(wanted.xid, latest))
    return TransactionStatus(name, stage, outcome.text, "", "", None, 0.0, [])


def _as_decided(seen: TransactionStatus, said: wire.TransactionsSeen | None) -> TransactionStatus:
    """A branch that is still prepared may be decided already at its coordinator."""
    if seen.stage is not Stage.PREPARED or said is None or not said.outcome:
        return seen
    outcome = Outcome(said.outcome)
    stage = Stage.COMMITTED if outcome is Outcome.COMMITTED else Stage.ROLLED_BACK
    return msgspec.structs.replace(seen, stage=stage, outcome=outcome.text)


def _latest(answer: wire.TransactionsSeen) -> int:
    branches = [each.incarnation for each in answer.branches]
    return max([answer.incarnation, *branches, *(each.incarnation for each in answer.records)])


def _unknown(wanted: TransactionId, unanswered: Mapping[str, HawserError]) -> HawserError:
    name = str(wanted) if wanted.incarnation else str(wanted.xid)
    for error in unanswered.values():
        return Unavailable(f"no shard that answers knows transaction {name}, but not all do: {error}")
    return NotFound(
        f"no shard knows transaction {name}: it never began, or ended long ago; `hawser tx list` shows the "
        "unfinished ones"
    )


async def _know(router: Router, deadline: float) -> None:
    if not await router.refresh(None, deadline):
        raise Unavailable(f"no node of the cluster answers: {router.trouble()}")


def _coordinators(router: Router) -> list[str]:
    """The coordinator shards; none before the first transaction that needed one."""
    entry = router.map.topics.get(wire.HOMES)
    return [] if entry is None else wire.shards_of(wire.HOMES, entry)


def _coordinator_of(router: Router, xid: Xid) -> str:
    coordinators = _coordinators(router)
    if not coordinators:
        raise NotFound(f"no shard knows transaction {xid}: this cluster never had one with a coordinator")
    return coordinators[coordinator_number(xid, len(coordinators))]


async def _ask_all(
    router: Router, shards: Iterable[str], wanted: TransactionId | None, deadline: float
) -> tuple[dict[str, wire.TransactionsSeen], dict[str, HawserError]]:
    """The answers of shards, and the errors of those that did not answer."""
    asked = sorted(shards)
    said = await gather_bounded([_query(router, shard, wanted, deadline) for shard in asked])
    answers: dict[str, wire.TransactionsSeen] = {}
    unanswered: dict[str, HawserError] = {}
    for shard, each in zip(asked, said, strict=True):
        if isinstance(each, wire.TransactionsSeen):
            answers[shard] = each
        elif isinstance(each, HawserError):
            # A topic with transactions cannot be deleted, so a deleted shard had none.
            if not isinstance(each, Closed):
                unanswered[shard] = each
        else:
            raise each
    return answers, unanswered


async def _query(
    router: Router, shard: str, wanted: TransactionId | None, deadline: float
) -> wire.TransactionsSeen:
    request = wire.TransactionLook(shard)
    if wanted is not None:
        request = wire.TransactionLook(shard, (*wanted.xid,), wanted.incarnation)
    what = f"looking at the transactions of shard {shard}"
    answer = await router.ask_leader(topic_of(shard), shard, request, what, deadline)
    assert isinstance(answer, wire.TransactionsSeen), answer
    return answer


# Assembly of the answers.


def assemble(answers: Mapping[str, wire.TransactionsSeen]) -> list[TransactionStatus]:
    """One status for each transaction in the answers; prepared ones first."""
    found: dict[TransactionId, _Found] = {}
    for shard, answer in answers.items():
        for branch in answer.branches:
            found.setdefault(_id(branch), _Found()).branches[shard] = branch
        for record in answer.records:
            kept = found.setdefault(_id(record), _Found())
            kept.record, kept.home = record, shard
    return sorted((_seen(*each) for each in found.items()), key=lambda each: each.sort_key)


def _id(seen: wire.BranchSeen | wire.RecordSeen) -> TransactionId:
    return TransactionId(Xid(*seen.xid), seen.incarnation)


def _seen(transaction: TransactionId, found: _Found) -> TransactionStatus:
    record, branches = found.record, found.branches
    ages = [each.age_seconds for each in branches.values()]
    named = next((each.coordinator for each in branches.values() if each.coordinator), "")
    participants = {} if record is None else record.participants
    # On a lane the coordinator shard is a participant, and records neither time nor operations of the others.
    is_lane = transaction.xid.format == LANE_FORMAT
    shards = participants.keys() | branches.keys() | ({found.home} if is_lane and found.home else set())
    return TransactionStatus(
        id=str(transaction),
        stage=_stage(found),
        outcome=Outcome(record.outcome).text if record is not None and record.outcome else None,
        reason="" if record is None else record.heuristic,
        home=found.home or named,
        timeout_seconds=None if record is None or is_lane else record.timeout_seconds,
        age_seconds=max(ages if record is None else [record.age_seconds, *ages]),
        branches=[_branch(shard, record, branches.get(shard)) for shard in sorted(shards)],
    )


def _branch(shard: str, record: wire.RecordSeen | None, branch: wire.BranchSeen | None) -> BranchStatus:
    if branch is not None:
        # A shard with a branch has not heard the outcome, even if the coordinator does not know the branch.
        return BranchStatus(shard, branch.operations, branch.size_bytes, branch.prepared)
    assert record is not None
    told = record.outcome is not None and shard not in record.waiting
    return BranchStatus(shard, record.participants.get(shard, 0), told=told)


def _stage(found: _Found) -> Stage:
    record = found.record
    if record is None:
        return Stage.PREPARED if any(each.prepared for each in found.branches.values()) else Stage.OPEN
    if record.outcome is not None:
        committed = record.outcome == Outcome.COMMITTED
        if record.heuristic:
            return Stage.HEURISTIC_COMMIT if committed else Stage.HEURISTIC_ROLLBACK
        return Stage.COMMITTED if committed else Stage.ROLLED_BACK
    state = State(record.state)
    if state is State.PREPARED:
        return Stage.PREPARED
    return Stage.PREPARING if state in _VOTING else Stage.OPEN


# Heuristic decisions.


async def decide(
    router: Router, wanted: TransactionId, outcome: Outcome, reason: str, timeout_seconds: float
) -> tuple[TransactionId, str]:
    """Commit or roll back a prepared transaction by an administrator's decision. Returns the transaction and
    the recorded reason, which is that of the first such decision. Rejected if it is not prepared, or ended
    otherwise."""
    assert outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK) and reason
    deadline = router.loop.time() + timeout_seconds
    transaction = await _known_transaction(router, wanted, deadline)
    command = CoordinatorDecide(to_fields(transaction), outcome, heuristic=reason)
    result = await _tell_coordinator(router, transaction, Kind.HOME_DECIDE, command, deadline)
    if isinstance(result, Finished):
        kept = await _reason(router, transaction, deadline)
        if result.outcome is not outcome or not kept:
            raise Rejected(f"transaction {transaction} has already ended: {result.outcome.text}")
        return transaction, kept
    assert isinstance(result, RejectedResult), result
    raise Rejected(
        f"transaction {transaction} is not prepared, so there is nothing to decide: its client commits it, "
        "or it is rolled back at its timeout; see `hawser tx show`"
    )


async def _reason(router: Router, transaction: TransactionId, deadline: float) -> str:
    """The reason of an administrator's decision; empty if the transaction was decided otherwise."""
    home = _coordinator_of(router, transaction.xid)
    try:
        answer = await _query(router, home, transaction, deadline)
    except HawserError as error:
        raise InDoubt(
            f"transaction {transaction} has ended, but its coordinator shard does not answer how it was "
            f"decided ({error}); see `hawser tx show {transaction}`"
        ) from error
    return next((record.heuristic for record in answer.records), "")


async def forget(router: Router, wanted: TransactionId, timeout_seconds: float) -> TransactionId:
    """Forget an administrator's decision once the outside coordinator knows it. Rejected if there is none, or
    it is forgotten."""
    deadline = router.loop.time() + timeout_seconds
    transaction = await _known_transaction(router, wanted, deadline)
    command = CoordinatorCall(to_fields(transaction), Call.FORGET, request=secrets.token_bytes(16))
    result = await _tell_coordinator(router, transaction, Kind.HOME_CALL, command, deadline)
    assert isinstance(result, Answered), result
    if result.code != Code.OK:
        raise Rejected(
            f"there is nothing to forget: transaction {transaction} has no recorded decision by an "
            f"administrator; see `hawser tx show {transaction}`"
        )
    return transaction


async def _known_transaction(router: Router, wanted: TransactionId, deadline: float) -> TransactionId:
    """The transaction with the incarnation that its coordinator knows: the wanted one, or else the latest."""
    if wanted.xid.format == LANE_FORMAT:
        raise Rejected(
            f"transaction {wanted.xid} is a client's own: one of its shards decides it, soon and by itself. "
            "Only transactions of an outside coordinator can be decided by hand; see `hawser tx show`"
        )
    await _know(router, deadline)
    home = _coordinator_of(router, wanted.xid)
    answer = await _query(router, home, wanted, deadline)
    if not _latest(answer):
        raise _unknown(wanted, {})
    return TransactionId(wanted.xid, _latest(answer))


async def _tell_coordinator(
    router: Router, transaction: TransactionId, kind: int, command: Payload, deadline: float
) -> AnyResult:
    home = _coordinator_of(router, transaction.xid)
    request = wire.Transact(home, (wire.Labelled(kind, encode_command(command)),))
    what = f"deciding transaction {transaction}"
    answer = await router.ask_leader(wire.HOMES, home, request, what, deadline)
    if not isinstance(answer, wire.Transacted):
        raise InDoubt(f"{what}: the coordinator shard gave no clear answer ({answer}); see `hawser tx show`")
    return decode_result(answer.results[0])
