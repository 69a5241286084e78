"""What transactions make of any bytes, and how they name themselves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.errors import UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import QueueSettle, TrimTo, encode_command
from hawser.log.state.results import (
    Finished,
    Outcome,
    Prepared,
    Reason,
    Rejected,
    Result,
    Staged,
    decode_result,
    encode_result,
)
from hawser.record.record import Stamp
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import Label, TransactionId, Xid, coordinator_number
from hawser.transaction.participant.branches import Branches
from tests.stateful.log_shard import batch
from tests.stateful.transaction_shard import Site, lane

ONE = lane()
COMMITTED = Finished(Outcome.COMMITTED)
BAD = Rejected(Reason.BAD_PAYLOAD)
OPERATIONS = [Kind.BATCH, Kind.QUEUE_PUT, Kind.QUEUE_SETTLE, Kind.GROUP_COMMIT]


def a_site(messages: int = 0) -> Site:
    site = Site()
    for _ in range(messages):
        site.put(Kind.QUEUE_PUT, batch())
    return site


@pytest.mark.parametrize("label", [b"x", b"", bytes(29), bytes(40), Label(ONE).encode()[:-4], b"\xff" * 60])
@pytest.mark.parametrize("kind", [Kind.BATCH, Kind.BRANCH_PREPARE, Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT])
def test_a_label_that_is_none_is_rejected(label: bytes, kind: Kind) -> None:
    site = a_site()
    if kind is not Kind.BATCH or label:
        assert site.put(kind, batch(), transaction=label) == BAD
    assert len(site.branches.register) == 0


@given(
    st.binary(max_size=80),
    st.binary(max_size=80),
    st.sampled_from([*Branches.kinds, *Decisions.kinds, *Kind]),
)
def test_any_bytes_have_a_result(label: bytes, payload: bytes, kind: int) -> None:
    site = a_site()
    site.stage(ONE)
    result = site.put(kind, payload, transaction=label)
    assert decode_result(encode_result(result)) == result
    site.restart_equal()


@given(st.binary(max_size=60), st.sampled_from(OPERATIONS))
def test_an_operation_that_cannot_be_read_leaves_no_branch(payload: bytes, kind: Kind) -> None:
    site = a_site(1)
    result = site.operation(ONE, kind, payload)
    assert isinstance(result, Rejected) and len(site.branches.register) == 0


def test_a_batch_with_a_stamp_and_a_settlement_with_more_are_no_operations() -> None:
    site = a_site(2)
    stamped = batch(1, Stamp(b"p", 1, 1))
    settlements = [
        QueueSettle(0, ((1, 1, 0),), ((2, 1, 0),)),
        QueueSettle(0, ((1, 1, 0),), (), (), b"", b"c", 1, 1),
        QueueSettle(0),
    ]
    assert site.operation(ONE, Kind.BATCH, stamped, 1) == BAD
    for each in settlements:
        assert site.operation(ONE, Kind.QUEUE_SETTLE, encode_command(each), 1) == BAD
    assert site.operation(ONE, Kind.TRIM, encode_command(TrimTo(1)), 1) == BAD


def test_results_say_what_to_do() -> None:
    results: list[Result] = [Staged(1), Prepared(2), COMMITTED, Rejected(Reason.TRANSACTION_OVER, 2)]
    for result in results:
        assert decode_result(encode_result(result)) == result
    assert "begin another one" in Rejected(Reason.TRANSACTION_OVER, 2).text
    assert all(outcome.text for outcome in Outcome)


@given(
    st.integers(0, (1 << 32) - 1),
    st.binary(min_size=1, max_size=255),
    st.binary(max_size=255),
    st.integers(1, (1 << 63) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 16) - 1),
    st.integers(0, 3600),
    st.booleans(),
)
def test_a_label_is_what_was_encoded(
    form: int,
    global_id: bytes,
    branch_id: bytes,
    incarnation: int,
    number: int,
    worker: int,
    seconds: int,
    carried: bool,
) -> None:
    xid = Xid(form, global_id, branch_id)
    xid.check()
    label = Label(TransactionId(xid, incarnation), number, worker, 5, seconds, carried)
    assert Label.read(label.encode()) == label
    assert coordinator_number(xid, 8) == coordinator_number(Xid(1, global_id, b""), 8) < 8


NO_XIDS: list[tuple[Any, Any, Any]] = [
    (-1, b"a", b""), (1 << 32, b"a", b""), (1, b"", b""), (1, b"a", bytes(256)), (7.5, b"a", b""),
    (True, b"a", b""), ("7", b"a", b""), (7, "a", b""), (7, b"a", ""), (7, 5, b""), (7, b"a", None),
]  # fmt: skip


@pytest.mark.parametrize("fields", NO_XIDS)
def test_what_is_no_xid_is_refused(fields: tuple[Any, Any, Any]) -> None:
    with pytest.raises(UsageError, match=r"^Xid\(.* is not an xid: its format is an int"):
        Xid(*fields).check()
