"""The small parts of a client's transactions: what waits for a shard, one timer for many, runs again."""

import asyncio
from typing import Any

import pytest

import hawser
from hawser.api.cluster.transaction import Replay, check_transaction_timeout
from hawser.cluster.client.loop_primitives import SharedTimer
from hawser.cluster.client.transaction.operations import Move, OperationBuffer, Put
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupCommit
from hawser.record.batch import Batch, Compression
from hawser.record.record import Record


def put(*values: bytes, kind: Kind = Kind.BATCH) -> Put:
    return Put(kind, Compression.NONE, [Record(each) for each in values])


def values(operation: Any) -> list[bytes]:
    return [record.value for record in Batch.read(operation.payload()).records()]


def test_records_one_behind_the_other_are_one_batch() -> None:
    draft = OperationBuffer(most_bytes=1000, most_records=4)
    for each in (put(b"1"), put(b"2", b"3"), put(b"4"), put(b"5")):
        draft.add(each)
    draft.add(put(b"q", kind=Kind.QUEUE_PUT))
    draft.add(Move(GroupCommit("g", "m", 1, 1, 2)))
    draft.add(put(b"6"))
    draft.add(put(bytes(990)))
    assert draft.nbytes > 990
    operations = list(draft.clear())
    kinds = [Kind.BATCH, Kind.BATCH, Kind.QUEUE_PUT, Kind.GROUP_COMMIT, Kind.BATCH, Kind.BATCH]
    assert [each.kind for each in operations] == kinds
    assert [values(each) for each in operations if each.kind == Kind.BATCH] == [
        [b"1", b"2", b"3", b"4"],
        [b"5"],
        [b"6"],
        [bytes(990)],
    ]
    assert draft.nbytes == 0 and list(draft.clear()) == []


def test_one_timer_calls_many_in_their_order() -> None:
    async def story() -> list[str]:
        rung: list[str] = []
        done = asyncio.Event()

        def ring(who: str) -> None:
            rung.append(who)
            if who == "first":
                # Whoever comes back waits for his time again, and one that is forgotten is not called.
                alarm.set("again")
                alarm.forget("second")
            if who == "again":
                done.set()

        alarm: SharedTimer[str] = SharedTimer(asyncio.get_running_loop(), 0.01, ring)
        for who in ("first", "second", "third"):
            alarm.set(who)
        alarm.forget("nobody")
        await done.wait()
        return rung

    assert asyncio.run(story()) == ["first", "third", "again"]


def test_only_what_is_safe_is_run_again_and_not_for_ever() -> None:
    replay = Replay(3)
    pauses = [replay.pause_seconds(hawser.TransactionAborted("once more"), "rolled back") for _ in range(3)]
    assert all(0 < pause < 1 for pause in pauses) and pauses[0] < pauses[2]
    with pytest.raises(hawser.TransactionAborted):
        replay.pause_seconds(hawser.TransactionAborted("too often"), "rolled back")
    for state in ("committing", "committed", "unknown"):
        with pytest.raises(hawser.Unavailable):
            Replay(3).pause_seconds(hawser.Unavailable("behind a commit"), state)
    applied = hawser.Unavailable("a part of it")
    applied.outcome = "applied"
    for error in (applied, hawser.UsageError("wrong"), hawser.OutcomeUnknown("perhaps"), hawser.InDoubt("?")):
        with pytest.raises(type(error)):
            Replay(3).pause_seconds(error, "rolled back")


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, 60), (0, 60), (0.2, 1), (1, 1), (1.5, 2), (3600, 3600), (3599.5, 3600)]
)
def test_whole_seconds_that_a_transaction_may_last(given: Any, seconds: int) -> None:
    assert check_transaction_timeout(given) == seconds
