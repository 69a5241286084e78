"""Transactions as people see them: what every shard knows, put together, and what a person decides about one.

A transaction has branches on the shards that it touches and, if they are several, may have a record at home.
Each answer is a linearizable read of one shard; they are not of one moment, so a transaction that goes on may
be seen half-way. Nothing is decided by what is seen: home does that, in one entry.
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
    """How far a transaction is; the first ones want attention first."""

    PREPARED = "prepared"
    HEURISTIC_COMMIT = "committed by a person"
    HEURISTIC_ROLLBACK = "rolled back by a person"
    PREPARING = "preparing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    OPEN = "open"


_RANKS: Final = {stage: rank for rank, stage in enumerate(Stage)}


class BranchStatus(msgspec.Struct, frozen=True):
    """What a transaction has on one shard. `prepared` is None if the shard has no branch of it, or none any
    more, or did not answer; `told` is whether it has heard the outcome."""

    shard: str
    operations: int
    size_bytes: int | None = None
    prepared: bool | None = None
    told: bool = False


class TransactionStatus(msgspec.Struct, frozen=True):
    """One transaction. `outcome` is how it ended, in words, and `reason` why a person decided so; `home` is
    the shard that decides, where one is known to. It is `age_seconds` old for whoever leads, which begins to
    count anew when another does, unless it was written down when it was prepared."""

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
        """Prepared ones first, and of those the oldest."""
        return _RANKS[self.stage], -self.age_seconds, self.id


class Survey(NamedTuple):
    """All that are not over, and why shards did not answer that were asked."""

    transactions: list[TransactionStatus]
    unanswered: dict[str, HawserError]


class _Found:
    """What was heard of one transaction, and where."""

    def __init__(self) -> None:
        self.record: wire.RecordSeen | None = None
        self.home = ""
        self.branches: dict[str, wire.BranchSeen] = {}


# Looking.


async def survey_transactions(router: Router, timeout_seconds: float) -> Survey:
    """Every transaction of the cluster that is not over."""
    deadline = router.loop.time() + timeout_seconds
    await _know(router, deadline)
    answers, unanswered = await _ask_all(router, router.map.shards, None, deadline)
    return Survey(assemble(answers), unanswered)


async def recover(router: Router, timeout_seconds: float) -> list[TransactionStatus]:
    """Those that are prepared, and those that a person has decided and nobody has forgotten; Unavailable
    unless every home answers."""
    deadline = router.loop.time() + timeout_seconds
    await _know(router, deadline)
    answers, unanswered = await _ask_all(router, _coordinators(router), None, deadline)
    for error in unanswered.values():
        raise Unavailable(f"not every home of transactions answers, so some may be missing: {error}")
    wanted = (Stage.PREPARED, Stage.HEURISTIC_COMMIT, Stage.HEURISTIC_ROLLBACK)
    return [each for each in assemble(answers) if each.stage in wanted]


async def query(router: Router, wanted: TransactionId, timeout_seconds: float) -> TransactionStatus:
    """One transaction, also if it is over; incarnation 0 is the latest. NotFound if nobody knows of it."""
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
    # Who only presumes that it was rolled back knows less than who remembers.
    outcome = Outcome(Outcome.COMMITTED if Outcome.COMMITTED in outcomes else max(outcomes))
    is_done = outcome in (Outcome.COMMITTED, Outcome.READ_ONLY)
    stage = Stage.COMMITTED if is_done else Stage.ROLLED_BACK
    name = str(TransactionId(wanted.xid, latest))
    return TransactionStatus(name, stage, outcome.text, "", "", None, 0.0, [])


def _as_decided(seen: TransactionStatus, said: wire.TransactionsSeen | None) -> TransactionStatus:
    """What is prepared may be over for its home, and not have heard so."""
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
        f"nobody knows transaction {name} (any more): it was never begun, or has been over for long; "
        "`hawser tx list` shows those that are not over"
    )


async def _know(router: Router, deadline: float) -> None:
    if not await router.refresh(None, deadline):
        raise Unavailable(f"no node of the cluster answers: {router.trouble()}")


def _coordinators(router: Router) -> list[str]:
    """The shards of the homes; none before the first transaction that needed one."""
    entry = router.map.topics.get(wire.HOMES)
    return [] if entry is None else wire.shards_of(wire.HOMES, entry)


def _coordinator_of(router: Router, xid: Xid) -> str:
    coordinators = _coordinators(router)
    if not coordinators:
        raise NotFound(f"nobody knows transaction {xid}: this cluster never had one of a coordinator")
    return coordinators[coordinator_number(xid, len(coordinators))]


async def _ask_all(
    router: Router, shards: Iterable[str], wanted: TransactionId | None, deadline: float
) -> tuple[dict[str, wire.TransactionsSeen], dict[str, HawserError]]:
    """What each shard says, and why some say nothing."""
    asked = sorted(shards)
    said = await gather_bounded([_query(router, shard, wanted, deadline) for shard in asked])
    answers: dict[str, wire.TransactionsSeen] = {}
    unanswered: dict[str, HawserError] = {}
    for shard, each in zip(asked, said, strict=True):
        if isinstance(each, wire.TransactionsSeen):
            answers[shard] = each
        elif isinstance(each, HawserError):
            # What was deleted meanwhile had no transactions, or it would be there.
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


# Putting together.


def assemble(answers: Mapping[str, wire.TransactionsSeen]) -> list[TransactionStatus]:
    """What the shards say of each transaction, as one; prepared ones first."""
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
    # On a lane the shard that decides takes part, and counts neither time nor operations for the others.
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
        # As long as there is a branch its shard has not heard; also one that home does not know of.
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


# Deciding.


async def decide(
    router: Router, wanted: TransactionId, outcome: Outcome, reason: str, timeout_seconds: float
) -> tuple[TransactionId, str]:
    """A person commits a prepared transaction or rolls it back, and says why; which one it was, and the
    reason that is kept: if a person has decided so before, the first one. Rejected if it is not prepared, or
    has ended otherwise."""
    assert outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK) and reason
    deadline = router.loop.time() + timeout_seconds
    transaction = await _at_home(router, wanted, deadline)
    command = CoordinatorDecide(to_fields(transaction), outcome, heuristic=reason)
    result = await _tell_coordinator(router, transaction, Kind.HOME_DECIDE, command, deadline)
    if isinstance(result, Finished):
        kept = await _reason(router, transaction, deadline)
        if result.outcome is not outcome or not kept:
            raise Rejected(f"transaction {transaction} has ended already: {result.outcome.text}")
        return transaction, kept
    assert isinstance(result, RejectedResult), result
    raise Rejected(
        f"transaction {transaction} is not prepared, so there is nothing for a person to decide: its client "
        "commits it, or it is rolled back, when its time is over at the latest; see `hawser tx show`"
    )


async def _reason(router: Router, transaction: TransactionId, deadline: float) -> str:
    """Why a person has decided about it, which has an outcome; nothing if that was somebody else."""
    home = _coordinator_of(router, transaction.xid)
    try:
        answer = await _query(router, home, transaction, deadline)
    except HawserError as error:
        raise InDoubt(
            f"transaction {transaction} has ended, but home does not say who has decided that ({error}); see "
            f"`hawser tx show {transaction}`"
        ) from error
    return next((record.heuristic for record in answer.records), "")


async def forget(router: Router, wanted: TransactionId, timeout_seconds: float) -> TransactionId:
    """Its coordinator knows what a person decided: forget it. Rejected if no person has decided it, or that
    is forgotten."""
    deadline = router.loop.time() + timeout_seconds
    transaction = await _at_home(router, wanted, deadline)
    command = CoordinatorCall(to_fields(transaction), Call.FORGET, request=secrets.token_bytes(16))
    result = await _tell_coordinator(router, transaction, Kind.HOME_CALL, command, deadline)
    assert isinstance(result, Answered), result
    if result.code != Code.OK:
        raise Rejected(
            f"there is nothing to forget: no decision of a person about transaction {transaction} is kept; "
            f"`hawser tx show {transaction}` says what is known of it"
        )
    return transaction


async def _at_home(router: Router, wanted: TransactionId, deadline: float) -> TransactionId:
    """The incarnation that home knows: the one that is wanted, or else the latest."""
    if wanted.xid.format == LANE_FORMAT:
        raise Rejected(
            f"transaction {wanted.xid} is a client's own: one of its shards decides about it, by itself and "
            "soon. A person decides about what is prepared for a coordinator; see `hawser tx show`"
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
    what = f"telling home about transaction {transaction}"
    answer = await router.ask_leader(wire.HOMES, home, request, what, deadline)
    if not isinstance(answer, wire.Transacted):
        raise InDoubt(f"{what}: home gave no clear answer ({answer}); see `hawser tx show`")
    return decode_result(answer.results[0])
