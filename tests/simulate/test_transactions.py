"""Transactions over the shards of a simulation: what outlives their leaders, and whom they delay."""

from collections.abc import Callable

import pytest

from hawser.log.state.results import Outcome
from hawser.testing import Violation
from hawser.testing.simulate import Simulation
from hawser.testing.swarm import Swarm
from hawser.testing.transaction_clients import Mover, Outsider, Person
from hawser.testing.transaction_truth import Book
from hawser.transaction.home import Home
from hawser.transaction.identity import LANE_FORMAT, TransactionId, Xid
from hawser.transaction.record import Phase

Record = Callable[[str, object], None]

CALM = Swarm(sides=2, movers=2, outsiders=1, applications=1, moving_pace=1_000, consumers=2)


def prepared_at_home(simulation: Simulation, transaction_format: int) -> list[TransactionId]:
    """What waits for its coordinator, as the committed logs of the homes have it."""
    return [
        transaction
        for cluster in simulation.ring.clusters.values()
        for transaction, record in cluster.truth.machine.part(Home).ledger.register
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
    assert simulation.cluster.marks.counts["client died in a transaction"] > 5
    close(simulation)


LANE = TransactionId(Xid(LANE_FORMAT, b"lane", b""), 1)
BOTH = frozenset(("a", "b"))


def test_the_book_knows_a_lie_when_it_is_told_one() -> None:
    book = Book()
    book.promise(LANE, "a")
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
        book.promise(LANE, shard)
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
        book.promise(LANE, shard)
    with pytest.raises(Violation, match="somebody was told"):
        book.decide(LANE, Outcome.COMMITTED, BOTH)
