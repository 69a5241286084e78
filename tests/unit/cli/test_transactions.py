"""`hawser tx` on a cluster: what people see of transactions, and what they decide."""

import os
import pty
import secrets
import subprocess
import sys
from typing import Any

import msgspec
import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.client.admin.transactions import BranchStatus, Stage, assemble
from hawser.log.state.results import Outcome
from hawser.transaction.xa.table import State
from hawser.xa import XAError, Xid
from tests.support.cluster import RunningCluster
from tests.support.processes import hawser_command, until
from tests.support.transactions import Peer, lane

FORMAT = 4711


@pytest.fixture
def bus(cluster: RunningCluster) -> hawser.Bus:
    return cluster.connect("cli")


def _json(cluster: RunningCluster, *arguments: str) -> Any:
    return msgspec.json.decode(hawser_command("tx", *arguments, "-o", "json", "--url", cluster.url).stdout)


def _said(cluster: RunningCluster, *arguments: str, code: int = 0) -> str:
    done = hawser_command("tx", *arguments, "--url", cluster.url, code=code)
    return done.stdout + done.stderr


def _started(bus: hawser.Bus, topic: str = "tx/one") -> Xid:
    """A branch over a topic and a queue that was ended and not prepared."""
    xid = Xid(FORMAT, secrets.token_bytes(6), b"cli")
    branch = bus.xa.start(xid)
    branch.publish(bus.topic(topic), b"first")
    branch.publish(bus.queue("tx/queue"), b"second")
    bus.xa.end(xid)
    return xid


def _prepared(bus: hawser.Bus) -> Xid:
    xid = _started(bus)
    assert bus.xa.prepare(xid) == "ok"
    return xid


def _read(bus: hawser.Bus) -> int:
    info = bus.topic("tx/one").info()
    return sum(each.end - each.start for each in info.partitions)


def test_those_that_wait_are_listed_first(cluster: RunningCluster, bus: hawser.Bus) -> None:
    opened = _started(bus)
    prepared = _prepared(bus)
    listed = _json(cluster, "list")
    assert listed[0]["xid"] == str(prepared)
    found = {each["xid"]: each for each in listed}
    assert (found[str(prepared)]["stage"], found[str(opened)]["stage"]) == ("prepared", "open")
    branches = found[str(prepared)]["branches"]
    assert [(each["operations"], each["prepared"]) for each in branches] == [(1, True), (1, True)]
    assert [each["shard"].partition("@")[0] for each in branches] == ["tx/one", "tx/queue"]
    lines = _said(cluster, "list").splitlines()
    assert lines[0].split() == ["transaction", "state", "age", "operations", "bytes", "shards", "remarks"]
    assert lines[1].startswith(f"{prepared}#") and "tx/one/0 tx/queue/0" in lines[1]
    assert [each["xid"] for each in _json(cluster, "recover")] == [str(prepared)]
    for xid in (opened, prepared):
        bus.xa.rollback(xid)
    assert "no transactions wait" in _said(cluster, "recover")


def test_one_is_shown_with_its_branches_and_its_end(cluster: RunningCluster, bus: hawser.Bus) -> None:
    xid = _prepared(bus)
    shown = _said(cluster, "show", str(xid))
    assert "prepared" in shown and "tx/queue/0" in shown and "__tx/" in shown
    bus.xa.commit(xid)
    found = _json(cluster, "show", str(xid))
    assert (found["stage"], found["outcome"]) == ("committed", "it was committed")
    assert "it was committed" in _said(cluster, "show", found["id"])
    assert "no shard knows" in _said(cluster, "show", f"{FORMAT}:ffff:", code=3)
    assert "is not a transaction" in _said(cluster, "show", "nonsense", code=2)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_transaction_without_a_coordinator_is_shown_too(
    cluster: RunningCluster, bus: hawser.Bus, shards: int
) -> None:
    tx = bus.transaction()
    for target in (bus.topic("tx/one"), bus.queue("tx/queue"))[:shards]:
        tx.publish(target, b"alone")
    tx.commit()
    shown = _said(cluster, "show", str(tx.id))
    assert "it was committed" in shown


def test_what_a_shard_decides_for_others_is_shown(cluster: RunningCluster) -> None:
    peer, tx = Peer(cluster, "client"), lane("shown")
    for name in ("tx/one", "tx/two"):
        peer.create(name)
    home, shard = peer.shard("tx/one"), peer.shard("tx/two")
    name = str(tx)
    peer.transact(shard, peer.publish(tx, 1, b"x"), peer.prepare(tx, 1, home))
    found = _json(cluster, "show", name)
    assert (found["stage"], found["home"]) == ("prepared", home)
    assert [(each["shard"], each["prepared"]) for each in found["branches"]] == [(shard, True)]
    # Nobody but its client decides about it.
    assert _json(cluster, "recover") == []
    for word in ("commit", "rollback"):
        assert "a client's own" in _said(cluster, word, name, "--reason", "tired", code=1)
    assert peer.look(shard, tx).branches
    peer.transact(home, peer.publish(tx, 1, b"y"), peer.commit(tx, 1, shard))
    assert _json(cluster, "show", name)["outcome"] == "it was committed"
    until(lambda: name not in [each["id"] for each in _json(cluster, "list")], "an end of it")
    assert _json(cluster, "show", name)["outcome"] == "it was committed"
    peer.leave()


def test_a_person_commits_what_nobody_decides(cluster: RunningCluster, bus: hawser.Bus) -> None:
    xid = _prepared(bus)
    before = _read(bus)
    assert "--reason" in _said(cluster, "commit", str(xid), code=2)
    assert "give a reason" in _said(cluster, "commit", str(xid), "--reason", " ", code=2)
    assert "committed" in _said(cluster, "commit", str(xid), "--reason", "the manager burnt down")
    until(lambda: _read(bus) == before + 1, "the commit by hand")
    found = _json(cluster, "show", str(xid))
    assert (found["stage"], found["reason"]) == ("committed by a person", "the manager burnt down")
    # Said again it is the same, and so is the reason; the opposite comes too late.
    again = _json(cluster, "commit", str(xid), "--reason", "again")
    assert (again["outcome"], again["reason"]) == ("committed", "the manager burnt down")
    assert "by hand, because: the manager" in _said(cluster, "commit", str(xid), "--reason", "x")
    assert "has already ended" in _said(cluster, "rollback", str(xid), "--reason", "no", code=1)
    with pytest.raises(XAError) as told:
        bus.xa.rollback(xid)
    assert told.value.code == "heur-com"
    assert [each["xid"] for each in _json(cluster, "recover")] == [str(xid)]
    assert _json(cluster, "forget", str(xid))["forgotten"]
    assert _json(cluster, "recover") == []
    assert "nothing to forget" in _said(cluster, "forget", str(xid), code=1)
    assert "no shard knows" in _said(cluster, "forget", f"{FORMAT}:ffff:", code=3)


def test_a_person_rolls_back_what_is_prepared_and_nothing_else(
    cluster: RunningCluster, bus: hawser.Bus
) -> None:
    opened, xid = _started(bus), _prepared(bus)
    before = _read(bus)
    assert "not prepared" in _said(cluster, "commit", str(opened), "--reason", "tired", code=1)
    assert "nothing to forget" in _said(cluster, "forget", str(xid), code=1)
    assert _json(cluster, "rollback", str(xid), "--reason", "never mind")["outcome"] == "rolled back"
    with pytest.raises(XAError) as told:
        bus.xa.commit(xid)
    assert told.value.code == "heur-rb"
    bus.xa.forget(xid)
    assert "no shard knows" in _said(cluster, "commit", f"{FORMAT}:ffff:", "--reason", "x", code=3)
    bus.xa.rollback(opened)
    assert _read(bus) == before


def test_a_person_decides_nothing_that_is_over(cluster: RunningCluster, bus: hawser.Bus) -> None:
    committed, late = _prepared(bus), Xid(FORMAT, secrets.token_bytes(6), b"late")
    bus.xa.commit(committed)
    bus.xa.start(late).publish(bus.topic("tx/one"), b"never")
    bus.xa.set_timeout(late, 1)
    until(lambda: _json(cluster, "show", str(late))["stage"] == "rolled back", "the time-out")
    said = _said(cluster, "commit", str(committed), "--reason", "too late", code=1)
    assert "has already ended: it was committed" in said
    said = _said(cluster, "rollback", str(late), "--reason", "it hangs", code=1)
    assert "has already ended: it was not prepared in time" in said
    for xid in (committed, late):
        assert "nothing to forget" in _said(cluster, "forget", str(xid), code=1)
    assert _json(cluster, "recover") == []
    with pytest.raises(XAError, match="rb-timeout"):
        bus.xa.rollback(late)


def test_a_person_at_a_terminal_is_asked(cluster: RunningCluster, bus: hawser.Bus) -> None:
    xid = _prepared(bus)
    terminal, given = pty.openpty()
    os.write(terminal, b"n\n")
    command = ["tx", "rollback", str(xid), "--reason", "a slip", "--url", cluster.url]
    done = subprocess.run(
        [sys.executable, "-m", "hawser", *command], stdin=given, capture_output=True, text=True, check=False
    )
    for each in (terminal, given):
        os.close(each)
    assert done.returncode == 130
    assert "2 operations on tx/one/0 tx/queue/0, without its coordinator?" in done.stderr
    assert bus.xa.recover() == [xid]
    bus.xa.rollback(xid)


def test_transactions_are_completed(cluster: RunningCluster, bus: hawser.Bus) -> None:
    xid = _prepared(bus)
    environment = {
        **os.environ,
        "HAWSER_URL": cluster.url,
        "_HAWSER_COMPLETE": "bash_complete",
        "COMP_WORDS": f"hawser tx show {FORMAT}",
        "COMP_CWORD": "3",
    }
    done = subprocess.run(
        [sys.executable, "-m", "hawser"], env=environment, capture_output=True, text=True, check=False
    )
    assert f"plain,{xid}#" in done.stdout
    bus.xa.rollback(xid)


def test_a_shard_that_does_not_answer_is_named(cluster: RunningCluster, bus: hawser.Bus) -> None:
    bus.xa.rollback(_started(bus))
    until(lambda: _json(cluster, "list") == [], "everybody to know what became of the others")
    _, second, third = cluster.nodes
    cluster.stop(second)
    cluster.stop(third)
    try:
        said = _said(cluster, "list", code=4)
        assert "tx/one/0 is left out" in said
        assert "may be missing" in _said(cluster, "recover", code=4)
    finally:
        cluster.start(second)
        cluster.start(third)


# Putting together.


XID = (FORMAT, b"g", b"b")


def _record(state: State, outcome: Outcome | None = None, heuristic: str = "", told: bool = True) -> Any:
    waiting = () if told else ("b@1/0",)
    participants = {"a@1/0": 2, "b@1/0": 1}
    return wire.RecordSeen(XID, 7, state.value, outcome, heuristic, participants, waiting, 60, 5.0)


def _branch(prepared: bool) -> Any:
    return wire.BranchSeen(XID, 7, prepared, "__tx@1/2" if prepared else "", 2, 100, 9.0)


@pytest.mark.parametrize(
    ("record", "stage"),
    [
        (_record(State.ENDED), Stage.OPEN),
        (_record(State.PREPARING), Stage.PREPARING),
        (_record(State.COMMITTING), Stage.PREPARING),
        (_record(State.PREPARED), Stage.PREPARED),
        (_record(State.COMMITTED, Outcome.COMMITTED), Stage.COMMITTED),
        (_record(State.TIMED_OUT, Outcome.TIMED_OUT), Stage.ROLLED_BACK),
        (_record(State.HEURISTIC_COMMIT, Outcome.COMMITTED, "why"), Stage.HEURISTIC_COMMIT),
        (_record(State.HEURISTIC_ROLLBACK, Outcome.ROLLED_BACK, "why"), Stage.HEURISTIC_ROLLBACK),
        (None, Stage.PREPARED),
    ],
)
def test_what_shards_say_is_put_together(record: Any, stage: Stage) -> None:
    answers = {"a@1/0": wire.TransactionsSeen((_branch(True),), ())}
    if record is not None:
        answers["__tx@1/2"] = wire.TransactionsSeen((), (record,))
    (seen,) = assemble(answers)
    assert (seen.id, seen.stage, seen.home, seen.age_seconds) == (f"{FORMAT}:67:62#7", stage, "__tx@1/2", 9.0)
    assert len(seen.branches) == (1 if record is None else 2)


def test_a_shard_that_was_not_told_is_seen() -> None:
    record = _record(State.COMMITTED, Outcome.COMMITTED, told=False)
    (seen,) = assemble({"__tx@1/2": wire.TransactionsSeen((), (record,))})
    assert seen.branches == [BranchStatus("a@1/0", 2, told=True), BranchStatus("b@1/0", 1, told=False)]


def test_a_shard_that_has_a_branch_has_not_heard() -> None:
    record = _record(State.TIMED_OUT, Outcome.TIMED_OUT)
    unknown = wire.TransactionsSeen((_branch(False),), ())
    (seen,) = assemble({"__tx@1/2": wire.TransactionsSeen((), (record,)), "c@1/0": unknown})
    assert [(each.shard, each.told) for each in seen.branches] == [
        ("a@1/0", True), ("b@1/0", True), ("c@1/0", False)
    ]  # fmt: skip


def test_the_next_use_of_an_xid_is_another_transaction() -> None:
    later = msgspec.structs.replace(_branch(False), incarnation=8)
    both = assemble({"a@1/0": wire.TransactionsSeen((_branch(True), later), ())})
    assert [(each.id[-2:], each.stage) for each in both] == [("#7", Stage.PREPARED), ("#8", Stage.OPEN)]
