"""Staged batches keep the log, and are carried forward so that they do not keep it long."""

from random import Random

import pytest

from hawser.cluster.node.transaction.participant import kept_log_bytes
from hawser.log.entry import Kind
from hawser.log.state.commands import TrimTo, encode_command
from hawser.log.state.results import Finished, Outcome, Place, Prepared, Reason, Rejected, Staged
from hawser.transaction.identity import Label, TransactionId
from hawser.transaction.participant.staged import StagedBatch
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import HOME, Site, lane

ONE, TWO = lane(name=b"one"), lane(name=b"two")
BAD = Rejected(Reason.BAD_PAYLOAD)
COMMITTED = Finished(Outcome.COMMITTED)


def test_staged_data_is_kept_until_it_is_carried_forward() -> None:
    site = Site()
    site.publish()
    site.stage(ONE, 2)
    site.stage_accept(TWO)
    for _ in range(5):
        site.publish()
    site.put(Kind.TRIM, encode_command(TrimTo(7)))
    assert site.machine.needed == 2
    label = Label(ONE, 1, carried=True).encode()
    assert site.put(Kind.BATCH, batch(2), transaction=label) == Staged(1)
    assert site.machine.needed == site.machine.applied
    site.prepare(ONE, 1)
    assert site.put(Kind.BATCH, batch(2), transaction=label) == Staged(1)
    site.commit(ONE)
    assert site.topic.locate(7) == Place(site.machine.applied - 1, 7, 2)


@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.QUEUE_PUT])
def test_a_branch_that_its_last_operation_prepared_is_carried_forward(kind: Kind) -> None:
    """Found by review: the label of that operation names home, so its entry was larger than the one that
    carries it, which was refused again and again."""
    site = Site()
    site.operation(ONE, kind, batch(2))
    assert site.operation(ONE, kind, batch(2), last=True, coordinator=HOME) == Prepared(2)
    reserved = site.queue.reserved_bytes
    for number in (1, 2):
        label = Label(ONE, number, carried=True).encode()
        assert site.put(kind, batch(2), transaction=label) == Staged(number)
    assert site.machine.needed == site.machine.applied - 1
    assert site.queue.reserved_bytes == reserved
    site.restart_equal()
    assert site.commit(ONE) == COMMITTED
    assert site.queue.reserved_bytes == 0
    offsets = site.topic if kind == Kind.BATCH else site.queue.messages
    places = [offsets.locate(offset) for offset in (1, 3)]
    assert places == [Place(site.machine.applied - 2, 1, 2), Place(site.machine.applied - 1, 3, 2)]


def test_what_is_carried_is_the_same_or_nothing_changes() -> None:
    site = Site()
    site.put(Kind.QUEUE_PUT, batch())
    site.stage(ONE, 2)
    site.stage_accept(ONE, (1, 1, 0))
    label = Label(ONE, 1, carried=True).encode()
    assert site.put(Kind.BATCH, batch(3), transaction=label) == BAD
    assert site.put(Kind.QUEUE_PUT, batch(2), transaction=label) == BAD
    accept = Label(ONE, 2, carried=True).encode()
    assert site.put(Kind.BATCH, batch(2), transaction=accept) == BAD
    assert site.commit(ONE, 2) == COMMITTED
    assert site.topic.locate(1) == Place(2, 1, 2)


def test_the_oldest_staged_batch_is_known_whatever_is_staged_carried_and_ended() -> None:
    """It is looked for only when it may be another one."""
    chance, site = Random(7), Site()
    counts: dict[TransactionId, int] = {}
    for number in range(800):
        action = chance.choice(["begin", "stage", "stage", "carry", "commit", "abort"])
        if action == "begin":
            counts[lane(name=b"%d" % number)] = 0
        elif counts:
            transaction = chance.choice(list(counts))
            if action == "stage":
                site.stage(transaction)
                counts[transaction] += 1
            elif action == "carry" and counts[transaction]:
                label = Label(transaction, chance.randint(1, counts[transaction]), carried=True)
                site.put(Kind.BATCH, batch(), transaction=label.encode())
            elif action == "commit":
                site.commit(transaction, counts.pop(transaction))
            elif action == "abort":
                site.abort(transaction)
                del counts[transaction]
        staged = [each for _, branch in site.branches.register for each in branch.operations]
        batches = [each.index for each in staged if isinstance(each, StagedBatch)]
        assert site.branches.needed == min(batches, default=None)


@pytest.mark.parametrize(
    ("staged_mib", "kept_mib"), [(1, 16), (10, 80), (256, 2048), (512, 2048), (1024, 2048), (10_240, 20_480)]
)
def test_how_much_of_the_log_is_kept_for_staged_batches(staged_mib: int, kept_mib: int) -> None:
    """Eight times as much; where that is much, twice as much."""
    assert kept_log_bytes(staged_mib << 20) == kept_mib << 20
