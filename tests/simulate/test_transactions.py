"""Transactions over the shards of a simulation: what outlives their leaders, and whom they delay."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hawser.log.state.results import Outcome
from hawser.testing import Violation
from hawser.testing.simulate import Simulation
from hawser.testing.swarm import Swarm
from hawser.testing.transaction_clients import Mover, Outsider, Person
from hawser.testing.transaction_service import TransactionService
from hawser.testing.transaction_truth import Book
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.coordinator.record import Phase
from hawser.transaction.identity import LANE_FORMAT, TransactionId, Xid
from hawser.transaction.participant.branches import Branches
from hawser.transaction.participant.maintenance import Ask, BranchMaintenance

from .transaction_defects import home_looks_only_at_its_branch

Record = Callable[[str, object], None]

CALM = Swarm(sides=2, movers=2, outsiders=1, applications=1, moving_pace=1_000, consumers=2)


def prepared_at_home(simulation: Simulation, transaction_format: int) -> list[TransactionId]:
    """What waits for its coordinator, as the committed logs of the homes have it."""
    return [
        transaction
        for cluster in simulation.ring.clusters.values()
        for transaction, record in cluster.truth.machine.part(Decisions).ledger.register
        if record.phase is Phase.PREPARED and transaction.xid.format == transaction_format
    ]


def leave_it_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its coordinator nor anybody else does anything about it."""
    for kind in (Outsider, Person):
        monkeypatch.setattr(kind, "step", lambda self: None)


def close(simulation: Simulation) -> None:
    simulation.heal()
    simulation.settle()
    simulation.cluster.compare()
    simulation.ring.compare()


def test_all_leaders_die_at_once_again_and_again(record_property: Record) -> None:
    simulation = Simulation(1, CALM)
    ring, cluster = simulation.ring, simulation.cluster
    for _ in range(6):
        cluster.run_for(60_000)
        for each in ring.clusters.values():
            if each.leader is not None:
                leader = each.leader
                each.crash(leader)
                each.clock.after(10_000, each.restart, leader)
    close(simulation)
    record_property("transactions committed", ring.book.committed)
    record_property("told", ring.book.told)
    assert ring.book.committed > 10
    assert max(len(shards) for shards in ring.book.participants.values()) > 1


def test_what_is_prepared_outlives_a_restart_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(2, CALM)
    cluster = simulation.cluster
    monkeypatch.setattr(Outsider, "crashing_share", 0.0)
    cluster.run_until(lambda: bool(prepared_at_home(simulation, 7)), what="a prepared branch")
    leave_it_undecided(monkeypatch)
    before = set(prepared_at_home(simulation, 7))
    for each in simulation.ring.clusters.values():
        for name in each.nodes:
            each.crash(name)
            each.restart(name)
    cluster.run_for(300_000)
    assert set(prepared_at_home(simulation, 7)) == before, "nobody has decided, and it is not there any more"
    monkeypatch.undo()
    close(simulation)
    assert before <= simulation.ring.book.decisions.keys()


def test_what_is_undecided_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(3, CALM)
    cluster, book = simulation.cluster, simulation.ring.book
    cluster.run_until(lambda: bool(prepared_at_home(simulation, 7)), what="a prepared branch")
    leave_it_undecided(monkeypatch)
    waiting = set(prepared_at_home(simulation, 7))
    told = book.told
    cluster.publish(b"plain")
    assert b"plain" in cluster.read().values
    cluster.run_until(lambda: book.told > told + 5, what="the end of transactions that began later")
    assert waiting <= set(prepared_at_home(simulation, 7))
    monkeypatch.undo()
    close(simulation)


def test_whoever_never_hears_again_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients die with everything open; time and lost sessions end it."""
    simulation = Simulation(4, CALM)
    monkeypatch.setattr(Mover, "dying_share", 0.2)
    simulation.cluster.run_for(200_000)
    assert simulation.cluster.probes.counts["client died in a transaction"] > 5
    close(simulation)


def untold(simulation: Simulation) -> list[TransactionId]:
    """Lanes' transactions that are committed, and of which a shard that takes part has not heard."""
    return [
        transaction
        for cluster in simulation.ring.clusters.values()
        for transaction, record in cluster.truth.machine.part(Decisions).ledger.register
        if transaction.xid.format == LANE_FORMAT and record.outcome is Outcome.COMMITTED
    ]


def test_a_decision_that_nobody_is_told_is_found_by_asking() -> None:
    """Also after a restart of everything, and after the lane has gone on."""
    simulation = Simulation(5, msgspec.structs.replace(CALM, unheard_share=1.0))
    ring, probes = simulation.ring, simulation.cluster.probes
    late = "decision asked for after the lane went on"
    simulation.cluster.run_until(lambda: probes.counts[late] > 0, what="a late question")
    decided = set(untold(simulation))
    assert decided
    for each in ring.clusters.values():
        for name in each.nodes:
            each.crash(name)
            each.restart(name)
    simulation.cluster.run_until(
        lambda: all(ring.book.happened[each] == ring.book.participants[each] for each in decided),
        what="the commit of those who asked",
    )
    assert ring.unheard_share == 1.0 and decided <= set(untold(simulation))
    close(simulation)
    assert not untold(simulation)


def disown_too_late(monkeypatch: pytest.MonkeyPatch, simulation: Simulation) -> list[TransactionId]:
    """Each prepared branch of a lane asks once. If that was too early, home is told to roll it back when it
    has committed it and the lane has gone on; those of which it was."""
    asked_once: set[tuple[BranchMaintenance, TransactionId]] = set()
    late: list[TransactionId] = []
    ask, disown = BranchMaintenance._ask, TransactionService._disown

    def ask_once(self: Any, transaction: TransactionId, branch: Any, *arguments: Any) -> list[Any]:
        if transaction.xid.format != LANE_FORMAT or not branch.is_prepared:
            return ask(self, transaction, branch, *arguments)
        is_first = (self, transaction) not in asked_once
        asked_once.add((self, transaction))
        return [Ask(branch.coordinator, transaction, Outcome.TIMED_OUT)] if is_first else []

    def hold_back(self: Any, incarnation: int, epoch: int, asked: Ask, command: Any) -> None:
        machine = simulation.ring.shards[asked.coordinator].truth.machine
        latest = machine.part(Branches).register.latest(asked.transaction.xid)
        if asked.transaction in untold(simulation) and latest > asked.transaction.incarnation:
            late.append(asked.transaction)
            disown(self, incarnation, epoch, asked, command)
        else:
            self._cluster.clock.after(500, self._disown, incarnation, epoch, asked, command)

    monkeypatch.setattr(BranchMaintenance, "_ask", ask_once)
    monkeypatch.setattr(TransactionService, "_disown", hold_back)
    return late


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_is_disowned_after_the_lane_went_on_stays_committed(
    is_planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seeds hardly ever come to it; with the defect planted it is seen."""
    simulation = Simulation(6, msgspec.structs.replace(CALM, unheard_share=1.0))
    book = simulation.ring.book
    late = disown_too_late(monkeypatch, simulation)
    if is_planted:
        home_looks_only_at_its_branch(monkeypatch)
        with pytest.raises(Violation, match=r"is COMMITTED, and on .* it was ROLLED_BACK"):
            simulation.cluster.run_until(lambda: len(late) > 3, what="late rollbacks")
        assert late
        return
    simulation.cluster.run_until(lambda: len(late) > 3, what="late rollbacks")
    monkeypatch.undo()
    close(simulation)
    assert all(book.happened[each] == book.participants[each] for each in late)


LANE = TransactionId(Xid(LANE_FORMAT, b"lane", b""), 1)
BOTH = frozenset(("a", "b"))
HOME = "__tx/0"


def test_the_book_knows_a_lie_when_it_is_told_one() -> None:
    book = Book()
    book.promise(LANE, "a", HOME)
    with pytest.raises(Violation, match="never promised"):
        book.decide(LANE, Outcome.COMMITTED, BOTH)
    book = Book()
    with pytest.raises(Violation, match="before it was decided"):
        book.end(LANE, "a", Outcome.ROLLED_BACK, was_prepared=True)
    with pytest.raises(Violation, match="nobody has decided"):
        book.end(LANE, "a", Outcome.COMMITTED, was_prepared=False)
    with pytest.raises(Violation, match="was told that"):
        book.tell(LANE, committed=True, who="somebody")


def test_a_decision_is_the_only_one() -> None:
    book = Book()
    for shard in BOTH:
        book.promise(LANE, shard, HOME)
    book.decide(LANE, Outcome.COMMITTED, BOTH)
    with pytest.raises(Violation, match="and then as"):
        book.decide(LANE, Outcome.ROLLED_BACK, BOTH)
    with pytest.raises(Violation, match="it was TIMED_OUT"):
        book.end(LANE, "a", Outcome.TIMED_OUT, was_prepared=True)
    with pytest.raises(Violation, match="was told that"):
        book.tell(LANE, committed=False, who="somebody")
    book.end(LANE, "a", Outcome.COMMITTED, was_prepared=True)
    with pytest.raises(Violation, match="committed twice"):
        book.end(LANE, "a", Outcome.COMMITTED, was_prepared=True)
    with pytest.raises(Violation, match="happened on"):
        book.audit()


def test_what_was_told_binds() -> None:
    book = Book()
    book.tell(LANE, committed=False, who="somebody")
    for shard in BOTH:
        book.promise(LANE, shard, HOME)
    with pytest.raises(Violation, match="somebody was told"):
        book.decide(LANE, Outcome.COMMITTED, BOTH)


def test_one_shard_decides_and_need_not_promise_it() -> None:
    book = Book()
    with pytest.raises(Violation, match="never promised"):
        book.decide(LANE, Outcome.COMMITTED, BOTH, "b")
    book = Book()
    book.promise(LANE, "a", "b")
    with pytest.raises(Violation, match="is to be decided by b and by a"):
        book.promise(LANE, "b", "a")
    book.decide(LANE, Outcome.COMMITTED, BOTH, "b")
    book.end(LANE, "b", Outcome.COMMITTED, was_prepared=False)
    with pytest.raises(Violation, match="it was ROLLED_BACK"):
        book.end(LANE, "a", Outcome.ROLLED_BACK, was_prepared=True)
    book.end(LANE, "a", Outcome.COMMITTED, was_prepared=True)
    book.audit()


def test_a_home_that_has_rolled_back_has_decided() -> None:
    book = Book()
    book.promise(LANE, "a", "b")
    book.end(LANE, "b", Outcome.TIMED_OUT, was_prepared=False)
    book.end(LANE, "a", Outcome.ROLLED_BACK, was_prepared=True)
    with pytest.raises(Violation, match="and then as COMMITTED"):
        book.decide(LANE, Outcome.COMMITTED, BOTH, "b")


def test_a_home_that_has_gone_on_will_not_commit_what_was_before() -> None:
    book = Book()
    book.promise(LANE, "a", "b")
    book.see(TransactionId(LANE.xid, 2), "a")
    with pytest.raises(Violation, match="before it was decided"):
        book.end(LANE, "a", Outcome.ROLLED_BACK, was_prepared=True)
    book = Book()
    book.promise(LANE, "a", "b")
    book.see(TransactionId(LANE.xid, 2), "b")
    book.end(LANE, "a", Outcome.ROLLED_BACK, was_prepared=True)
    with pytest.raises(Violation, match="and then as COMMITTED"):
        book.decide(LANE, Outcome.COMMITTED, BOTH, "b")
