"""The seed's scenario and its four notes on locking, where there is nothing to lock: a backup is a prefix of
the log, and a transaction is one entry of it.

"A `ready` backup should never contain a proper subset of messages in a transaction." The seed wanted a
tracker for each transaction, queue and backup, and was not happy with it.
"""

from hawser.log.entry import Entry, Kind
from hawser.log.state.machine import Machine
from hawser.log.state.queue import Queue
from hawser.log.state.results import Finished, Outcome, Prepared
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.transaction.identity import TransactionId
from hawser.transaction.participant.branches import Branches
from tests.stateful.log_shard import MemoryBlocks
from tests.stateful.transaction_shard import Site, lane, parts

ONE, TWO, THREE = lane(name=b"one"), lane(name=b"two"), lane(name=b"three")
COMMITTED = Finished(Outcome.COMMITTED)


def put(site: Site, transaction: TransactionId, value: str) -> None:
    site.operation(transaction, Kind.QUEUE_PUT, bytes(Batch.of([Record(value.encode())]).data))


def messages(machine: Machine, log: list[Entry]) -> str:
    """The values on the queue, in order."""
    subqueue = machine.part(Queue).messages
    values = ""
    for offset in range(subqueue.start, subqueue.end):
        if subqueue.deliveries(offset) is not None:
            place = subqueue.locate(offset)
            (record,) = Batch.read(log[place.index - 1].payload).records()  # type: ignore[union-attr]
            values += bytes(record.value).decode()
    return values


def backups(site: Site) -> list[Machine]:
    """One that has each prefix of the log; every second one joined by a snapshot, at any point before it."""
    found = []
    for length in range(len(site.log) + 1):
        machine = Machine(MemoryBlocks(), parts())
        for entry in site.log[:length]:
            machine.apply(entry)
        found.append(machine)
        for joined in range(1, length):
            blocks = MemoryBlocks()
            source = Machine(blocks, parts())
            for entry in site.log[:joined]:
                source.apply(entry)
            saved = source.save()
            late = Machine(blocks, parts())
            late.load(saved.state)
            for entry in site.log[joined:length]:
                late.apply(entry)
            assert (late.hash, late.digest()) == (machine.hash, machine.digest())
            found.append(late)
    return found


def test_a_backup_joins_while_a_b_c_are_being_committed() -> None:
    """Prepared; an expected backup connects and is ready; the commit begins; the primary crashes in it."""
    site = Site()
    for value in "ABC":
        put(site, ONE, value)
    assert site.prepare(ONE, 3) == Prepared(3)
    assert site.commit(ONE) == COMMITTED
    seen = {messages(machine, site.log) for machine in backups(site)}
    assert seen == {"", "ABC"}


def test_a_backup_that_is_promoted_while_it_is_prepared_commits_all_of_it() -> None:
    site = Site()
    for value in "ABC":
        put(site, ONE, value)
    site.prepare(ONE, 3)
    for machine in backups(site):
        if not machine.part(Branches).prepared_count:
            continue
        promoted = Site()
        promoted.log, promoted.machine = list(site.log), machine
        assert messages(machine, promoted.log) == ""
        assert promoted.commit(ONE) == COMMITTED
        assert messages(machine, promoted.log) == "ABC"


def test_multiple_queues_in_one_transaction() -> None:
    first, second = Site(), Site()
    put(first, ONE, "A")
    put(first, ONE, "B")
    put(second, ONE, "C")
    assert first.prepare(ONE, 2) == Prepared(2)
    assert second.prepare(ONE, 1) == Prepared(1)
    assert second.commit(ONE) == COMMITTED
    # The other queue is told later; it has all of its part or none, on every backup.
    assert {messages(machine, first.log) for machine in backups(first)} == {""}
    assert first.commit(ONE) == COMMITTED
    assert {messages(machine, first.log) for machine in backups(first)} == {"", "AB"}
    assert {messages(machine, second.log) for machine in backups(second)} == {"", "C"}


def test_multiple_transactions_on_one_queue() -> None:
    site = Site()
    put(site, ONE, "A")
    put(site, TWO, "X")
    put(site, ONE, "B")
    put(site, TWO, "Y")
    site.prepare(ONE, 2)
    assert site.commit(TWO, 2) == COMMITTED
    assert messages(site.machine, site.log) == "XY"  # nobody waits for the one that is undecided
    site.commit(ONE)
    assert {messages(machine, site.log) for machine in backups(site)} == {"", "XY", "XYAB"}


def test_multiple_transactions_on_one_queue_with_many_backups() -> None:
    """Where a tracker for each of them would be needed, each backup is at an index of one log."""
    site = Site()
    for value, transaction in zip("AXKBYL", (ONE, TWO, THREE) * 2, strict=True):
        put(site, transaction, value)
    site.prepare(ONE, 2)
    site.prepare(THREE, 2)
    site.abort(THREE, decided=True)
    site.commit(TWO, 2)
    site.commit(ONE)
    by_index: dict[int, set[tuple[int, str]]] = {}
    for machine in backups(site):
        by_index.setdefault(machine.applied, set()).add((machine.hash, messages(machine, site.log)))
    assert all(len(states) == 1 for states in by_index.values())
    assert {values for states in by_index.values() for _, values in states} == {"", "XY", "XYAB"}


def test_backups_come_and_go_at_any_point_of_a_transaction() -> None:
    """In or out of the transaction is no question: whoever has the entry has the transaction."""
    site = Site()
    site.put(Kind.QUEUE_PUT, bytes(Batch.of([Record(b"Q")]).data))
    site.stage_accept(ONE, (1, 1, 0))
    put(site, ONE, "R")
    site.prepare(ONE, 2)
    for machine in backups(site):
        for outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK):
            copy = Site()
            for entry in site.log[: machine.applied]:
                copy.machine.apply(entry)
            copy.log = list(site.log[: machine.applied])
            if copy.branches.prepared_count:
                committed = outcome is Outcome.COMMITTED
                result = copy.commit(ONE) if committed else copy.abort(ONE, decided=True)
                assert result == Finished(outcome)
                assert messages(copy.machine, copy.log) == ("R" if committed else "Q")
            else:
                assert copy.abort(ONE) == Finished(Outcome.ROLLED_BACK)
                assert messages(copy.machine, copy.log) in ("", "Q")
