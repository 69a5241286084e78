"""The XA interface: every call in every state, against the table that brokers have, with its traps mended."""

from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.state.results import Answered, Expired, Finished, Outcome, Prepared, Reason, Rejected
from hawser.testing.transaction_service import recoverable
from hawser.transaction.identity import MOST_WORKERS, Label, TransactionId, Xid
from hawser.transaction.xa.calls import MOST_ANSWERS
from hawser.transaction.xa.table import TABLE, Call, Code, State
from tests.stateful.transaction_shard import Site

XID = Xid(1, b"global", b"branch")
MINE, OTHER = "mine", "other"
WORK: dict[str, Any] = {"participants": (("p", 1),)}


class Branch(Site):
    """A home with one branch, which is brought into a state as sessions see it."""

    @property
    def id(self) -> TransactionId:
        return TransactionId(XID, self.ledger.register.latest(XID))

    def state(self, session: str = MINE) -> State:
        return self.decisions.calls.state(self.id, session)

    def ask(self, call: Call, session: str = MINE, **fields: Any) -> Answered:
        answer = self.call(XID, call, session, **fields)
        assert isinstance(answer, Answered)
        return answer

    def ok(self, call: Call, session: str = MINE, **fields: Any) -> None:
        assert self.ask(call, session, **fields).code in (Code.OK, Code.PENDING)

    def ended(self) -> None:
        self.ok(Call.START)
        self.ok(Call.END, **WORK)

    def prepared(self) -> None:
        self.ended()
        self.ok(Call.PREPARE)
        assert self.vote(self.id, "p") == Prepared(1)

    def failed(self, session: str) -> None:
        """By another session, while this one is associated."""
        self.ok(Call.START, session)
        self.ok(Call.START_JOIN, OTHER)
        assert self.ask(Call.END_FAIL, OTHER).code == Code.RB_ROLLBACK

    def finish(self, outcome: Outcome) -> None:
        self.prepared()
        self.ok(Call.COMMIT if outcome is Outcome.COMMITTED else Call.ROLLBACK)
        self.tell(self.id, "p")

    def suspend_and_fail(self) -> None:
        self.ok(Call.START)
        self.ok(Call.END_SUSPEND)
        self.ok(Call.START_JOIN, OTHER)
        self.ask(Call.END_FAIL, OTHER)

    def suspend_and_time_out(self) -> None:
        self.ok(Call.START)
        self.ok(Call.END_SUSPEND)
        self.decide(self.id, Outcome.TIMED_OUT)

    def start_and_time_out(self) -> None:
        self.ok(Call.START)
        self.decide(self.id, Outcome.TIMED_OUT)

    def end_and_time_out(self) -> None:
        self.ended()
        self.decide(self.id, Outcome.TIMED_OUT)

    def end_and_fail(self) -> None:
        self.ok(Call.START)
        assert self.ask(Call.END_FAIL, **WORK).code == Code.RB_ROLLBACK

    def suspend(self) -> None:
        self.ok(Call.START)
        self.ok(Call.END_SUSPEND, **WORK)

    def close_for(self, call: Call) -> None:
        self.ended()
        assert self.ask(call).code == Code.PENDING

    def meddle(self, outcome: Outcome) -> None:
        self.prepared()
        self.decide(self.id, outcome, heuristic="because")


REACH: dict[State, Callable[[Branch], None]] = {
    State.UNKNOWN: lambda branch: None,
    State.ASSOCIATED: lambda branch: branch.ok(Call.START),
    State.ELSEWHERE: lambda branch: branch.ok(Call.START, OTHER),
    State.SUSPENDED: Branch.suspend,
    State.ENDED: Branch.ended,
    State.FAILED: Branch.end_and_fail,
    State.FAILED_ASSOCIATED: lambda branch: branch.failed(MINE),
    State.FAILED_SUSPENDED: Branch.suspend_and_fail,
    State.TIMED_OUT: Branch.end_and_time_out,
    State.TIMED_OUT_ASSOCIATED: Branch.start_and_time_out,
    State.TIMED_OUT_SUSPENDED: Branch.suspend_and_time_out,
    State.PREPARING: lambda branch: branch.close_for(Call.PREPARE),
    State.COMMITTING: lambda branch: branch.close_for(Call.COMMIT_ONE_PHASE),
    State.PREPARED: Branch.prepared,
    State.COMMITTED: lambda branch: branch.finish(Outcome.COMMITTED),
    State.ROLLED_BACK: lambda branch: branch.finish(Outcome.ROLLED_BACK),
    State.HEURISTIC_COMMIT: lambda branch: branch.meddle(Outcome.COMMITTED),
    State.HEURISTIC_ROLLBACK: lambda branch: branch.meddle(Outcome.ROLLED_BACK),
}
assert set(REACH) == set(State)

# What a call changes; all others change nothing that the caller sees.
_ROLLED_BACK = {
    State.ENDED: State.ROLLED_BACK,
    State.FAILED: State.ROLLED_BACK,
    State.FAILED_ASSOCIATED: State.ROLLED_BACK,
    State.FAILED_SUSPENDED: State.ROLLED_BACK,
    State.TIMED_OUT: State.ROLLED_BACK,
    State.TIMED_OUT_ASSOCIATED: State.ROLLED_BACK,
    State.TIMED_OUT_SUSPENDED: State.ROLLED_BACK,
    State.PREPARING: State.ROLLED_BACK,
    State.COMMITTING: State.ROLLED_BACK,
    State.PREPARED: State.ROLLED_BACK,
}
_ACKNOWLEDGED = {state: State.ROLLED_BACK for state in _ROLLED_BACK if state.value in "FGHXYZ"}
_LEFT = {State.FAILED_ASSOCIATED: State.FAILED, State.TIMED_OUT_ASSOCIATED: State.TIMED_OUT}
AFTER: dict[Call, dict[State, State]] = {
    Call.START: dict.fromkeys((State.UNKNOWN, State.COMMITTED, State.ROLLED_BACK), State.ASSOCIATED),
    Call.START_JOIN: {
        **dict.fromkeys((State.ELSEWHERE, State.SUSPENDED, State.ENDED), State.ASSOCIATED),
        **_LEFT,
        State.FAILED_SUSPENDED: State.FAILED,
        State.TIMED_OUT_SUSPENDED: State.TIMED_OUT,
    },
    Call.START_RESUME: {
        State.SUSPENDED: State.ASSOCIATED,
        State.FAILED_SUSPENDED: State.FAILED,
        State.TIMED_OUT_SUSPENDED: State.TIMED_OUT,
    },
    Call.END: {State.ASSOCIATED: State.ENDED, **_LEFT},
    Call.END_FAIL: {State.ASSOCIATED: State.FAILED, **_LEFT},
    Call.END_SUSPEND: {State.ASSOCIATED: State.SUSPENDED, **_LEFT},
    Call.PREPARE: {State.ENDED: State.PREPARING},
    Call.COMMIT_ONE_PHASE: {State.ENDED: State.COMMITTING, **_ACKNOWLEDGED},
    Call.COMMIT: {State.PREPARED: State.COMMITTED, **_ACKNOWLEDGED},
    Call.ROLLBACK: _ROLLED_BACK,
    Call.FORGET: {
        State.HEURISTIC_COMMIT: State.COMMITTED,
        State.HEURISTIC_ROLLBACK: State.ROLLED_BACK,
    },
}


@pytest.mark.parametrize("state", list(State), ids=lambda state: state.name)
@pytest.mark.parametrize("call", list(Call), ids=lambda call: call.name)
def test_every_call_in_every_state(call: Call, state: State) -> None:
    branch = Branch()
    REACH[state](branch)
    assert branch.state() is state
    answer = branch.ask(call, request=b"r", seconds=7)
    assert Code(answer.code) is TABLE[call, state]
    after = AFTER.get(call, {}).get(state, state)
    assert branch.state() is after
    branch.restart_equal()
    assert branch.state() is after
    again = branch.ask(call, request=b"r", seconds=7)
    assert again == answer or answer.code == Code.PENDING
    assert branch.state() is after


# The table of the reference: 530 not-allowed, 503 command-invalid, 409 illegal-state, 404 not-found. R, a
# prepared branch that was found after a restart, is P here.
REFERENCE = """
                   U   A   S   E   F   P   X
START              ok  530 530 530 530 530 530
START_JOIN         404 ok  ok  ok  ok  503 rt
START_RESUME       503 503 ok  503 503 503 503
END                409 ok  409 409 409 409 409
END_FAIL           409 rb  409 409 409 409 409
END_SUSPEND        !   ok  !   !   !   !   !
END_FAIL_SUSPEND   409 503 409 409 409 409 409
PREPARE            404 409 409 ..  rb  !   rt
COMMIT_ONE_PHASE   404 409 409 ..  rb  409 rt
COMMIT             404 409 409 409 rb  ok  rt
ROLLBACK           404 409 409 ok  ok  ok  rt
GET_TIMEOUT        404 ok  ok  ok  ok  ok  ok
SET_TIMEOUT        404 ok  ok  ok  ok  ok  ok
"""
CODES = {
    "ok": Code.OK,
    "..": Code.PENDING,
    "rb": Code.RB_ROLLBACK,
    "rt": Code.RB_TIMEOUT,
    "404": Code.NOT_FOUND,
    "409": Code.ILLEGAL_STATE,
    "503": Code.COMMAND_INVALID,
    "530": Code.NOT_ALLOWED,
}
# Where ours differs, and why.
MENDED = {
    "START_JOIN A": (Code.ILLEGAL_STATE, "start while associated is refused; others may join: O"),
    "START_JOIN F": (Code.RB_ROLLBACK, "joining what can only be rolled back is not a success"),
    "PREPARE P": (Code.OK, "the same vote, without preparing again"),
    **{f"END_SUSPEND {state}": (Code.ILLEGAL_STATE, "not a crash") for state in "USEFPX"},
    **{f"END_FAIL_SUSPEND {state}": (Code.NOT_ALLOWED, "flags come first") for state in "UASEFPX"},
}


def test_the_table_is_that_of_the_reference_with_its_traps_mended() -> None:
    heading, *rows = (line.split() for line in REFERENCE.strip().splitlines())
    compared = 0
    for row in rows:
        for letter, cell in zip(heading, row[1:], strict=True):
            mended = MENDED.get(f"{row[0]} {letter}")
            assert mended is not None or cell != "!"
            expected = mended[0] if mended is not None else CODES[cell]
            assert TABLE[Call[row[0]], State(letter)] is expected, (row[0], letter)
            compared += 1
    assert compared == 13 * 7


def test_flags_that_contradict_each_other_change_nothing() -> None:
    branch = Branch()
    branch.ok(Call.START)
    for call in (Call.END_FAIL_SUSPEND, Call.START_JOIN_RESUME):
        assert branch.ask(call).code == Code.NOT_ALLOWED
    assert branch.state() is State.ASSOCIATED


def test_a_session_works_in_one_branch_at_a_time() -> None:
    site = Branch()
    site.ok(Call.START)
    second = Xid(1, b"global", b"second")
    assert site.call(second, Call.START, MINE) == Answered(Code.ILLEGAL_STATE)
    site.restart_equal()
    assert site.call(second, Call.START, MINE) == Answered(Code.ILLEGAL_STATE)
    assert site.call(second, Call.START, OTHER).code == Code.OK  # type: ignore[attr-defined]
    site.ok(Call.END_SUSPEND)
    assert site.call(second, Call.START_JOIN, MINE).code == Code.OK  # type: ignore[attr-defined]
    assert site.ask(Call.START_RESUME).code == Code.ILLEGAL_STATE


def test_sessions_that_join_are_told_apart() -> None:
    branch = Branch()
    first = branch.ask(Call.START, MINE)
    second = branch.ask(Call.START_JOIN, OTHER)
    assert (first.worker, second.worker) == (1, 2)
    branch.ok(Call.END, MINE, participants=(("p", 3), ("q", 1)))
    branch.ok(Call.END_SUSPEND, OTHER, participants=(("p", 1),))
    assert branch.ask(Call.START_RESUME, OTHER).worker == 3
    branch.ok(Call.END, OTHER, participants=(("p", 2), ("r", 0)))
    record = branch.ledger.register.get(branch.id)
    assert record is not None
    assert {shard: record.counts(shard) for shard in record.participants} == {
        "p": ((1, 3), (2, 1), (3, 2)),
        "q": ((1, 1),),
    }


def test_no_more_sessions_join_than_labels_can_tell_apart() -> None:
    branch = Branch()
    branch.ok(Call.START)
    record = branch.ledger.register.get(branch.id)
    assert record is not None
    record.workers = MOST_WORKERS - 1
    last = branch.ask(Call.START_JOIN, OTHER).worker
    assert Label.read(Label(branch.id, 1, last).encode()) == Label(branch.id, 1, last)
    refused = branch.call(XID, Call.START_JOIN, "one more")
    assert refused == Rejected(Reason.TOO_MANY_WORKERS, MOST_WORKERS)
    assert "work in another branch" in refused.text
    # One that resumes its work is another worker, too.
    branch.ok(Call.END_SUSPEND, OTHER, **WORK)
    assert branch.call(XID, Call.START_RESUME, OTHER) == refused


@pytest.mark.parametrize("call", [Call.START_JOIN, Call.START_RESUME])
def test_a_session_that_resumes_its_work_is_a_new_worker(call: Call) -> None:
    """A worker is numbered from 1 once. What the old one has staged is part of the branch all the same."""
    branch = Branch()
    branch.suspend()
    assert branch.ask(call).worker == 2
    assert branch.ask(Call.END, worker=1, **WORK).code == Code.ILLEGAL_STATE
    branch.ok(Call.END, worker=2, **WORK)
    record = branch.ledger.register.get(branch.id)
    assert record is not None and record.participants == {"p": {1: 1, 2: 1}}
    # One that had suspended nothing is a new one in any case.
    assert branch.ask(Call.START_JOIN, OTHER).worker == 3


def test_nothing_to_do_is_readonly_and_the_xid_is_free() -> None:
    branch = Branch()
    branch.ok(Call.START)
    branch.ok(Call.END)
    assert branch.ask(Call.PREPARE, request=b"r").code == Code.READONLY
    assert branch.ask(Call.PREPARE, request=b"r").code == Code.READONLY
    assert branch.ask(Call.COMMIT).code == Code.NOT_FOUND
    branch.ok(Call.START)
    branch.ok(Call.END)
    assert branch.ask(Call.COMMIT_ONE_PHASE).code == Code.OK
    assert branch.state() is State.COMMITTED


def test_time_outs() -> None:
    branch = Branch()
    assert branch.ask(Call.START).code == Code.OK
    record = branch.ledger.register.get(branch.id)
    assert record is not None
    assert branch.ask(Call.GET_TIMEOUT).value == 60
    assert branch.ask(Call.SET_TIMEOUT, seconds=5).value == 5
    armed = record.armed
    assert branch.ask(Call.SET_TIMEOUT, seconds=5).code == Code.OK
    assert record.armed > armed  # the clock runs anew
    assert branch.ask(Call.SET_TIMEOUT, seconds=3601).code == Code.INVALID_ARGUMENT
    assert branch.ask(Call.GET_TIMEOUT).value == 5
    assert branch.ask(Call.SET_TIMEOUT, seconds=0).value == 60
    other = Branch()
    assert other.ask(Call.SET_TIMEOUT, seconds=3601).code == Code.INVALID_ARGUMENT
    other.ok(Call.START, seconds=7)
    assert other.ask(Call.GET_TIMEOUT).value == 7


def test_a_prepared_branch_is_not_timed_out_also_not_after_a_restart() -> None:
    branch = Branch()
    branch.prepared()
    assert branch.decide(branch.id, Outcome.TIMED_OUT) == Prepared(1)
    branch.restart_equal()
    assert branch.decide(branch.id, Outcome.TIMED_OUT) == Prepared(1)
    assert branch.lose(MINE).count == 0  # type: ignore[attr-defined]
    assert recoverable(branch.decisions) == [branch.id]
    assert branch.ask(Call.COMMIT, OTHER).code == Code.OK


def test_a_finished_xid_is_used_again_and_a_late_retry_is_answered_for_its_own_use() -> None:
    branch = Branch()
    branch.prepared()
    first = branch.id
    assert branch.ask(Call.COMMIT, request=b"commit 1") == Answered(Code.OK, first.incarnation)
    branch.tell(first, "p")
    branch.prepared()
    second = branch.id
    assert second.incarnation > first.incarnation
    assert branch.ask(Call.COMMIT, request=b"commit 1") == Answered(Code.OK, first.incarnation)
    assert branch.state() is State.PREPARED
    assert branch.ask(Call.ROLLBACK, request=b"rollback 2").code == Code.OK
    assert branch.ask(Call.COMMIT, request=b"commit 1") == Answered(Code.OK, first.incarnation)


@pytest.mark.parametrize("how", ["used again", "forgotten", "readonly"])
def test_a_late_start_begins_nothing_however_many_calls_came_between(how: str) -> None:
    branch = Branch()
    late: dict[str, Any] = {"request": b"start 1", "incarnation": 0}
    started = branch.ask(Call.START, **late)
    if how == "readonly":
        branch.ok(Call.END)
        assert branch.ask(Call.PREPARE).code == Code.READONLY
    else:
        branch.ok(Call.END, **WORK)
        branch.ok(Call.ROLLBACK)
        branch.tell(branch.id, "p")
    if how == "used again":
        branch.finish(Outcome.COMMITTED)
    elif how == "forgotten":
        assert branch.forget(branch.id) == Expired(1)
    assert branch.ask(Call.START, **late) == started
    branch.decisions.calls.answers.clear()
    branch.restart_equal()
    before = branch.decisions.digest()
    refused = branch.call(XID, Call.START, MINE, **late)
    assert isinstance(refused, Rejected) and refused.reason is Reason.OLD_INCARNATION
    assert refused.current == branch.machine.applied, "up to its own entry"
    assert branch.decisions.digest() == before
    # Whoever means to start it says that it has heard.
    assert branch.ask(Call.START, request=b"start 2", incarnation=refused.current).code == Code.OK


@pytest.mark.parametrize("over", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("state", [State.ENDED, State.PREPARED, State.SUSPENDED, State.TIMED_OUT])
@pytest.mark.parametrize("call", sorted(set(Call) - {Call.START}), ids=lambda call: call.name)
def test_what_names_an_earlier_use_finds_nothing(call: Call, state: State, told: bool, over: Outcome) -> None:
    """However late it comes: nobody has its name any more. So it is with one that names none."""
    branch = Branch()
    branch.prepared()
    first = branch.id
    branch.ok(Call.COMMIT if over is Outcome.COMMITTED else Call.ROLLBACK)
    if told:
        branch.tell(first, "p")
    REACH[state](branch)
    before = branch.decisions.digest()
    for incarnation in (first.incarnation, 0):
        late = branch.ask(call, incarnation=incarnation)
        assert late == Answered(TABLE[call, State.UNKNOWN], incarnation)
    assert branch.state() is state and branch.decisions.digest() == before


def test_a_late_retry_changes_nothing_however_many_calls_came_between() -> None:
    branch = Branch()
    branch.prepared()
    first = branch.id
    late: dict[str, Any] = {"request": b"rollback 1", "incarnation": first.incarnation}
    rolled_back = branch.ask(Call.ROLLBACK, **late)
    branch.tell(first, "p")
    branch.prepared()
    assert branch.ask(Call.ROLLBACK, **late) == rolled_back
    for number in range(MOST_ANSWERS):
        branch.call(Xid(1, b"another", b"%d" % number), Call.GET_TIMEOUT, request=b"%d" % number)
    assert branch.ask(Call.ROLLBACK, **late).code == Code.NOT_FOUND
    assert branch.state() is State.PREPARED


def test_an_end_that_comes_late_ends_no_later_work_of_its_session() -> None:
    branch = Branch()
    worker = branch.ask(Call.START).worker
    late: dict[str, Any] = {"request": b"end 1", "worker": worker, **WORK}
    assert branch.ask(Call.END, **late).code == Code.OK
    again = branch.ask(Call.START_JOIN).worker
    assert again != worker
    for number in range(MOST_ANSWERS):
        branch.call(Xid(1, b"another", b"%d" % number), Call.GET_TIMEOUT, request=b"%d" % number)
    assert branch.ask(Call.END, **late).code == Code.ILLEGAL_STATE
    assert branch.state() is State.ASSOCIATED
    assert branch.ask(Call.END, worker=again, participants=(("p", 1), ("q", 1))).code == Code.OK
    record = branch.ledger.register.get(branch.id)
    assert record is not None and record.participants == {"p": {worker: 1, again: 1}, "q": {again: 1}}


def test_a_retry_of_a_start_that_comes_late_begins_nothing() -> None:
    branch = Branch()
    started = branch.ask(Call.START, request=b"start 1")
    branch.ok(Call.END, **WORK)
    branch.ok(Call.ROLLBACK)
    branch.tell(branch.id, "p")
    assert branch.ask(Call.START, request=b"start 1") == started
    assert branch.state() is State.ROLLED_BACK


def test_a_number_that_was_never_given_out_stops_no_start() -> None:
    site = Branch()
    far = TransactionId(Xid(9, b"made up", b""), 1 << 62)
    assert site.decide(far, Outcome.ROLLED_BACK) == Rejected(Reason.BAD_PAYLOAD)
    assert site.forget(far) == Expired(0)
    site.ok(Call.START, incarnation=0)


def test_branches_without_work_stop_no_start_of_others() -> None:
    """However many begin and end while one that is far away is on its way."""
    site = Branch()
    near = Xid(9, b"near", b"")
    for _ in range(3):
        for call in (Call.START, Call.END, Call.PREPARE):
            answer = site.call(near, call, OTHER)
        assert isinstance(answer, Answered) and answer.code is Code.READONLY
    site.ok(Call.START, incarnation=0)


def test_a_pending_answer_becomes_the_one_that_follows() -> None:
    branch = Branch()
    branch.close_for(Call.PREPARE)
    assert branch.ask(Call.PREPARE, request=b"r").code == Code.PENDING
    branch.restart_equal()
    branch.vote(branch.id, "p")
    branch.restart_equal()
    # Whatever comes of it then.
    assert branch.ask(Call.COMMIT, OTHER).code == Code.OK
    assert branch.ask(Call.PREPARE, request=b"r").code == Code.OK
    branch.tell(branch.id, "p")
    assert branch.ask(Call.PREPARE, request=b"r").code == Code.OK
    other = Branch()
    other.close_for(Call.PREPARE)
    assert other.ask(Call.PREPARE, request=b"r").code == Code.PENDING
    assert other.decide(other.id, Outcome.NO_ROOM) == Finished(Outcome.NO_ROOM)
    assert other.ask(Call.PREPARE, request=b"r").code == Code.RB_ROLLBACK
    assert other.ask(Call.PREPARE).code == Code.RB_ROLLBACK  # never ok after a failed one
    assert other.ask(Call.ROLLBACK).code == Code.OK


def test_a_rollback_before_the_votes_is_the_answer_to_who_waits_for_them() -> None:
    branch = Branch()
    branch.ended()
    assert branch.ask(Call.COMMIT_ONE_PHASE, request=b"r").code == Code.PENDING
    assert branch.ask(Call.ROLLBACK, OTHER).code == Code.OK
    rolled_back = Answered(Code.RB_ROLLBACK, branch.id.incarnation, 0, Outcome.ROLLED_BACK)
    assert branch.ask(Call.COMMIT_ONE_PHASE, request=b"r") == rolled_back


@pytest.mark.parametrize("first", [Call.COMMIT, Call.ROLLBACK])
def test_of_a_commit_and_a_rollback_one_wins_and_both_learn_which(first: Call) -> None:
    branch = Branch()
    branch.prepared()
    second = Call.ROLLBACK if first is Call.COMMIT else Call.COMMIT
    assert branch.ask(first).code == Code.OK
    late = branch.ask(second, OTHER)
    if first is Call.COMMIT:
        assert late == Answered(Code.ILLEGAL_STATE, branch.id.incarnation, 0, Outcome.COMMITTED)
    else:
        assert late.code == Code.RB_ROLLBACK
    assert branch.ask(first, OTHER).code == Code.OK


def test_a_lost_session_fails_what_it_had_and_suspended_but_not_what_it_ended() -> None:
    branch = Branch()
    branch.ok(Call.START)
    branch.ok(Call.START_JOIN, OTHER)
    branch.ok(Call.END_SUSPEND, OTHER, **WORK)
    branch.lose(OTHER)
    assert branch.state() is State.FAILED_ASSOCIATED
    assert branch.ask(Call.END, participants=(("q", 1),)).code == Code.RB_ROLLBACK
    record = branch.ledger.register.get(branch.id)
    assert record is not None and record.waiting == ["p", "q"]  # both are told, also what came late
    other = Branch()
    other.ended()
    other.lose(MINE)
    assert other.state() is State.ENDED


@pytest.mark.parametrize("completion", [Call.ROLLBACK, Call.COMMIT, Call.COMMIT_ONE_PHASE])
def test_the_xid_of_a_lost_session_is_free_once_somebody_has_completed_it(completion: Call) -> None:
    branch = Branch()
    branch.ok(Call.START)
    branch.lose(MINE)
    assert branch.ask(Call.START, OTHER).code == Code.NOT_ALLOWED
    assert branch.ask(completion, OTHER).code == (
        Code.OK if completion is Call.ROLLBACK else Code.RB_ROLLBACK
    )
    branch.ok(Call.START, OTHER)


def test_a_person_decides_once_and_is_remembered_until_forgotten() -> None:
    branch = Branch()
    branch.ended()
    assert branch.decide(branch.id, Outcome.COMMITTED, heuristic="why") == Rejected(Reason.NOT_PREPARED)
    branch.ok(Call.PREPARE)
    branch.vote(branch.id, "p")
    assert branch.decide(branch.id, Outcome.COMMITTED, heuristic="why") == Finished(Outcome.COMMITTED)
    assert branch.decide(branch.id, Outcome.ROLLED_BACK, heuristic="no") == Finished(Outcome.COMMITTED)
    branch.tell(branch.id, "p")
    branch.restart_equal()
    assert recoverable(branch.decisions) == [branch.id]
    assert [branch.ask(call).code for call in (Call.COMMIT, Call.ROLLBACK)] == [Code.HEUR_COM] * 2
    assert branch.ask(Call.FORGET).code == Code.OK
    assert recoverable(branch.decisions) == []
    assert branch.ask(Call.FORGET).code == Code.NOT_FOUND


def test_codes_are_words() -> None:
    assert [Code.RB_TIMEOUT.word, Code.HEUR_COM.word, Code.NOT_FOUND.word] == [
        "rb-timeout",
        "heur-com",
        "not-found",
    ]
