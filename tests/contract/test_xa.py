"""The XA interface through the public API, in threads and in event loops: the main paths of the table of
calls and states, between sessions. Each cell by itself is tested where the table is.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from hawser.cluster.client.admin import transactions
from hawser.log.state.results import Outcome
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster

SECONDS = 60.0
_numbers = itertools.count()


class Scene:
    """A session with an xid of its own, and two queues to move messages between."""

    def __init__(self, bus: Any, other: Any) -> None:
        number = next(_numbers)
        self.bus = bus
        self.xa, self.other = bus.xa, other.xa
        self.xid = Xid(77, b"transaction %d" % number, b"branch")
        self.source, self.target = bus.queue(f"source {number}"), bus.queue(f"target {number}")

    def work(self) -> None:
        """Move one message in the branch that this session works in."""
        self.source.put(b"message")
        self.start_and_move()

    def start_and_move(self, **flags: Any) -> None:
        branch = self.xa.start(self.xid, **flags)
        message = branch.get(self.source, SECONDS)
        branch.accept(message)
        branch.publish(self.target, bytes(message))

    @property
    def moved(self) -> tuple[int, int]:
        """How many messages anybody can see in the one queue and in the other."""
        message = self.source.get(0)
        if message is not None:
            message.release()
        return int(message is not None), self.target.info().ready


@pytest.fixture
def scene(connect: Callable[..., Any]) -> Scene:
    return Scene(connect(), connect())


def code_of(call: Callable[..., Any], *arguments: Any, **flags: Any) -> str:
    with pytest.raises(XAError) as raised:
        call(*arguments, **flags)
    error = raised.value
    assert (error.outcome, error.retryable) == ("none", False)
    assert error.code in str(error)
    return error.code


def outcome_of(call: Callable[..., Any], *arguments: Any) -> tuple[str, str]:
    with pytest.raises(XAError) as raised:
        call(*arguments)
    return raised.value.code, raised.value.outcome


def test_two_phases(scene: Scene) -> None:
    scene.work()
    scene.xa.end(scene.xid)
    assert scene.moved == (0, 0)
    assert scene.xa.prepare(scene.xid) == "ok" and scene.xa.prepare(scene.xid) == "ok"
    assert scene.moved == (0, 0) and scene.xid in scene.xa.recover()
    scene.xa.commit(scene.xid)
    assert scene.moved == (0, 1) and scene.xid not in scene.xa.recover()
    scene.xa.commit(scene.xid)
    assert code_of(scene.xa.rollback, scene.xid) == "illegal-state"
    assert code_of(scene.xa.prepare, scene.xid) == "not-found"
    # The same xid, used again: another incarnation.
    scene.work()
    scene.xa.end(scene.xid)
    scene.xa.commit(scene.xid, one_phase=True)
    assert scene.moved == (0, 2)


def test_any_session_completes_what_is_prepared(scene: Scene) -> None:
    scene.work()
    scene.xa.end(scene.xid)
    scene.xa.prepare(scene.xid)
    scene.bus.close()
    assert scene.xid in scene.other.recover()
    scene.other.commit(scene.xid)
    assert scene.xid not in scene.other.recover()
    assert code_of(scene.other.rollback, scene.xid) == "illegal-state"


def test_a_rollback_gives_everything_back(scene: Scene) -> None:
    scene.work()
    scene.xa.end(scene.xid)
    scene.xa.prepare(scene.xid)
    scene.other.rollback(scene.xid)
    scene.other.rollback(scene.xid)
    message = scene.source.get(SECONDS)
    assert message.delivery_count == 2 and scene.moved[1] == 0
    message.accept()
    assert code_of(scene.xa.commit, scene.xid) == "rb-rollback"
    assert code_of(scene.xa.prepare, scene.xid) == "rb-rollback"


def test_nothing_to_commit_is_said_so_and_forgotten(scene: Scene) -> None:
    scene.xa.start(scene.xid)
    scene.xa.end(scene.xid)
    assert scene.xa.prepare(scene.xid) == "readonly"
    assert code_of(scene.xa.commit, scene.xid) == "not-found"


def test_what_was_got_and_not_accepted_is_released_at_the_end(scene: Scene) -> None:
    scene.source.put(b"message")
    branch = scene.xa.start(scene.xid)
    assert branch.get(scene.source, SECONDS).delivery_count == 1
    scene.xa.end(scene.xid)
    assert scene.source.get(SECONDS).delivery_count == 2
    scene.xa.rollback(scene.xid)
    with pytest.raises(hawser.UsageError, match="ended"):
        branch.publish(scene.target, b"late")


def test_suspended_and_resumed(scene: Scene) -> None:
    scene.work()
    scene.xa.end(scene.xid, suspend=True)
    assert code_of(scene.xa.end, scene.xid) == "illegal-state"
    assert code_of(scene.xa.prepare, scene.xid) == "illegal-state"
    assert code_of(scene.other.start, scene.xid, resume=True) == "command-invalid"
    scene.source.put(b"message")
    scene.start_and_move(resume=True)
    scene.xa.end(scene.xid)
    scene.xa.commit(scene.xid, one_phase=True)
    assert scene.moved == (0, 2)


def test_flags_have_places(scene: Scene) -> None:
    """start(xid, join, resume), end(xid, suspend, fail), commit(xid, one_phase)."""
    scene.work()
    scene.xa.end(scene.xid, True)
    scene.xa.start(scene.xid, False, True)
    scene.other.start(scene.xid, True)
    scene.other.end(scene.xid)
    scene.xa.end(scene.xid)
    scene.xa.commit(scene.xid, True)
    assert scene.moved == (0, 1)
    scene.xa.start(scene.xid)
    assert code_of(scene.xa.end, scene.xid, False, True) == "rb-rollback"
    scene.xa.rollback(scene.xid)


def test_a_suspension_gives_back_what_was_not_accepted(scene: Scene) -> None:
    scene.source.put(b"message")
    branch = scene.xa.start(scene.xid)
    branch.get(scene.source, SECONDS)
    scene.xa.end(scene.xid, suspend=True)
    with pytest.raises(hawser.UsageError, match="is suspended; resume it"):
        branch.publish(scene.target, b"meanwhile")
    branch = scene.xa.start(scene.xid, resume=True)
    message = branch.get(scene.source, SECONDS)
    assert message.delivery_count == 2
    branch.accept(message)
    scene.xa.end(scene.xid)
    scene.xa.commit(scene.xid, one_phase=True)
    assert scene.moved == (0, 0)


def test_an_end_that_is_refused_changes_nothing(scene: Scene) -> None:
    scene.source.put(b"message")
    branch = scene.xa.start(scene.xid)
    message = branch.get(scene.source, SECONDS)
    assert code_of(scene.xa.end, scene.xid, suspend=True, fail=True) == "not-allowed"
    branch.accept(message)
    branch.publish(scene.target, bytes(message))
    scene.xa.end(scene.xid)
    with pytest.raises(hawser.UsageError, match="is ended; start another"):
        branch.publish(scene.target, b"late")
    scene.xa.commit(scene.xid, one_phase=True)
    assert scene.moved == (0, 1)


def test_two_sessions_work_in_one_branch(scene: Scene) -> None:
    scene.work()
    branch = scene.other.start(scene.xid, join=True)
    assert "#" in branch.id
    assert code_of(scene.other.start, scene.xid, join=True) == "illegal-state"
    scene.xa.end(scene.xid)
    assert code_of(scene.xa.prepare, scene.xid) == "illegal-state"
    scene.other.end(scene.xid)
    scene.xa.commit(scene.xid, one_phase=True)
    assert scene.moved == (0, 1)


def test_calls_that_make_no_sense(scene: Scene) -> None:
    other = Xid(77, scene.xid.global_id, b"other")
    for call in (scene.xa.prepare, scene.xa.commit, scene.xa.rollback, scene.xa.forget):
        assert code_of(call, scene.xid) == "not-found"
    assert code_of(scene.xa.get_timeout, scene.xid) == "not-found"
    assert code_of(scene.xa.end, scene.xid) == "illegal-state"
    assert code_of(scene.xa.start, scene.xid, join=True) == "not-found"
    assert code_of(scene.xa.start, scene.xid, join=True, resume=True) == "not-allowed"
    scene.xa.start(scene.xid)
    assert code_of(scene.xa.start, other) == "illegal-state"
    assert code_of(scene.other.start, scene.xid) == "not-allowed"
    assert code_of(scene.xa.end, scene.xid, fail=True, suspend=True) == "not-allowed"
    assert code_of(scene.xa.set_timeout, scene.xid, 3601) == "invalid-argument"
    scene.xa.set_timeout(scene.xid, 600)
    assert scene.xa.get_timeout(scene.xid) == 600
    scene.xa.set_timeout(scene.xid, 0)
    assert scene.xa.get_timeout(scene.xid) == 60
    assert code_of(scene.xa.end, scene.xid, fail=True) == "rb-rollback"
    assert code_of(scene.xa.prepare, scene.xid) == "rb-rollback"
    text: Any = "x"
    wrong: list[Any] = [
        b"xid",
        Xid(1, b"", b""),
        Xid(LANE_FORMAT, b"x", b""),
        Xid(-1, b"x", b""),
        Xid(1, text, b""),
    ]
    for xid in wrong:
        with pytest.raises(hawser.UsageError):
            scene.xa.start(xid)
    with pytest.raises(hawser.UsageError, match="whole number"):
        scene.xa.set_timeout(scene.xid, -1)


def test_a_refusal_says_what_is_the_matter_and_what_to_do(scene: Scene) -> None:
    xa, xid = scene.xa, scene.xid

    def refusal(call: Callable[..., Any], xid: Xid = xid, **flags: Any) -> str:
        with pytest.raises(XAError) as raised:
            call(xid, **flags)
        return str(raised.value)

    assert "there is no such branch, or not any more; start() begins one" in refusal(xa.end)
    assert "to join and to resume exclude each other" in refusal(xa.start, join=True, resume=True)
    scene.work()
    assert "this session works in it; end it first" in refusal(xa.prepare)
    assert "the xid is in use" in refusal(xa.start) and "this session works in it" in refusal(xa.start)
    assert "other sessions work in it, or have suspended that" in refusal(scene.other.prepare)
    another = Xid(77, xid.global_id, b"another")
    assert f"this session works in branch {xid}; end or suspend that first" in refusal(xa.start, another)
    xa.end(xid, suspend=True)
    assert "this session has suspended it; resume it" in refusal(xa.end)
    xa.start(xid, resume=True)
    xa.end(xid)
    assert "no session works in it; prepare it" in refusal(xa.commit)
    xa.prepare(xid)
    assert "it is prepared; commit it, or roll it back" in refusal(scene.other.start, join=True)
    xa.commit(xid)
    assert "illegal-state: it cannot be done as things are (it is committed; the xid" in refusal(xa.rollback)


def test_time_ends_what_is_not_prepared(scene: Scene) -> None:
    scene.work()
    scene.xa.set_timeout(scene.xid, 1)
    deadline = time.monotonic() + SECONDS
    while code_or_ok(lambda: scene.other.start(scene.xid, join=True)) != "rb-timeout":
        # The time may be over between the two calls as well.
        assert code_or_ok(lambda: scene.other.end(scene.xid)) in ("ok", "rb-timeout")
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert code_of(scene.xa.end, scene.xid) == "rb-timeout"
    assert code_of(scene.xa.prepare, scene.xid) == "rb-timeout"
    assert scene.source.get(SECONDS).delivery_count == 2
    assert code_of(scene.xa.rollback, scene.xid) == "rb-timeout"


def code_or_ok(call: Callable[[], Any]) -> str:
    try:
        call()
    except XAError as error:
        return error.code
    return "ok"


def test_work_that_was_refused_can_only_be_rolled_back(scene: Scene) -> None:
    scene.source.put(b"message")
    branch = scene.xa.start(scene.xid)
    message = branch.get(scene.source, SECONDS)
    message.accept()
    with pytest.raises((hawser.UsageError, XAError)) as raised:
        branch.accept(message)
        scene.xa.end(scene.xid)
    if isinstance(raised.value, XAError):
        assert raised.value.code == "rb-rollback"
    else:
        scene.xa.end(scene.xid)
    scene.xa.rollback(scene.xid)
    assert scene.moved == (0, 0)


def test_a_vote_against_it_says_why(scene: Scene) -> None:
    small = scene.bus.queue(f"small {scene.target.name}", capacity_bytes=1000)
    small.put(bytes(900))
    branch = scene.xa.start(scene.xid)
    branch.publish(small, bytes(500))
    branch.publish(scene.target, b"no")
    scene.xa.end(scene.xid)
    with pytest.raises(XAError, match="no room") as raised:
        scene.xa.prepare(scene.xid)
    assert raised.value.code == "rb-rollback"
    scene.xa.rollback(scene.xid)
    assert scene.moved == (0, 0)


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.ROLLED_BACK])
def test_what_a_person_decides_the_coordinator_is_told(
    cluster: RunningCluster, scene: Scene, outcome: Outcome
) -> None:
    scene.work()
    scene.xa.end(scene.xid)
    scene.xa.prepare(scene.xid)
    person: Any = cluster.connect("person")
    decide = transactions.decide(
        person._client.router, TransactionId(scene.xid, 0), outcome, "he knows better", SECONDS
    )
    person._thread.call(decide)
    committed = outcome is Outcome.COMMITTED
    code = "heur-com" if committed else "heur-rb"
    assert scene.xid in scene.other.recover()
    assert outcome_of(scene.other.commit, scene.xid) == (code, "applied" if committed else "none")
    assert outcome_of(scene.xa.rollback, scene.xid) == (code, "none" if committed else "applied")
    assert code_of(scene.xa.start, scene.xid) == "not-allowed"
    scene.other.forget(scene.xid)
    assert scene.xid not in scene.other.recover()
    assert code_of(scene.other.forget, scene.xid) == "not-found"
    assert scene.target.info().ready == committed
