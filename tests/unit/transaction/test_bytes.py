"""What transactions are in a log, byte by byte: what one version has written the next one reads."""

import pytest

from hawser.log.state.commands import Payload, encode_command
from hawser.log.state.results import Outcome
from hawser.transaction import commands as t
from hawser.transaction.identity import LANE_FORMAT, Label, TransactionId, Xid, coordinator_number, owner_of
from hawser.transaction.xa.table import Call

LANE = TransactionId(Xid(LANE_FORMAT, b"lane", b""), 3)
OUTSIDE = TransactionId(Xid(7, b"global", b"branch"), 1 << 40)
FIELDS = t.to_fields(OUTSIDE)
XID = "9407c406676c6f62616cc4066272616e6368cf0000010000000000"
# The fields of a label, as far as they are the same in all of these.
LANE_BYTES = "6e4c7748 0300000000000000 0000000000000000 01000000 0000 3c00"
OUTSIDE_BYTES = "07000000 0000000000010000 4e74c67862b5c3af 05000000 0200 5a00"


@pytest.mark.parametrize(("global_id", "numbers"), [(b"a", (7, 103908)), (b"transfer-4711", (3, 416524))])
def test_which_home_decides(global_id: bytes, numbers: tuple[int, int]) -> None:
    """What is prepared is looked for there, by every version."""
    xid = Xid(1, global_id, b"branch")
    assert (coordinator_number(xid, 8), coordinator_number(xid, 1_000_003)) == numbers


@pytest.mark.parametrize(
    ("label", "data"),
    [
        (Label(OUTSIDE, 5, 2, owner_of("run"), 90), f"{OUTSIDE_BYTES} 00 06 676c6f62616c 6272616e6368"),
        (Label(OUTSIDE, 5, 2, owner_of("run"), 90, True), f"{OUTSIDE_BYTES} 01 06 676c6f62616c 6272616e6368"),
        (Label(LANE, 1, last=True), f"{LANE_BYTES} 02 04 6c616e65"),
        (Label(LANE, 1, last=True, others=("one", "two")), f"{LANE_BYTES} 03 04 6c616e65 6f6e65 00 74776f"),
        (Label(LANE, 1, last=True, coordinator="one"), f"{LANE_BYTES} 04 04 6c616e65 6f6e65"),
        (
            Label(LANE, 1, last=True, coordinator="one", delivery=9, before=4),
            f"{LANE_BYTES} 05 04 6c616e65 0900000000000000 0400000000000000 6f6e65",
        ),
    ],
)
def test_labels(label: Label, data: str) -> None:
    assert label.encode() == bytes.fromhex(data)
    assert Label.read(bytes.fromhex(data)) == label


@pytest.mark.parametrize(
    ("command", "data"),
    [
        (t.BranchPrepare(((0, 2),), "one", 5), "9391920002a36f6e6505"),
        (t.BranchCommit(), "93c09080"),
        (
            t.BranchCommit(((1, 2), (2, 1)), ("one",), {"two": b"batch"}),
            "939292010292020191a36f6e6581a374776fc4056261746368",
        ),
        (t.BranchAbort(Outcome.TIMED_OUT, True, ("one",)), "9303c391a36f6e65"),
        (t.BranchForget((FIELDS,), ("one",), ("two",)), f"9391 {XID} 91a36f6e6591a374776f"),
        (t.BranchLimit(1, 2, 3, 4), "9401020304"),
        (t.BranchLimitChange(1, 2, 3, 4, False), "9501020304c2"),
        (
            t.CoordinatorClose(FIELDS, (("one", ((0, 2),)),), b"query", 5, 60),
            f"95 {XID} 9192a36f6e6591920002c4057175657279053c",
        ),
        (t.CoordinatorVotes(FIELDS, ("one",)), f"92 {XID} 91a36f6e65"),
        (t.CoordinatorDecide(FIELDS, Outcome.COMMITTED, True, "why"), f"94 {XID} 01c3a3776879"),
        (t.CoordinatorTold(((FIELDS, ("one",)),)), f"919192 {XID} 91a36f6e65"),
        (t.CoordinatorSessionLost("run"), "91a372756e"),
        (
            t.CoordinatorBatch(b"app", b"query", 5, (b"branch",), b"from"),
            "95c403617070c40571756572790591c4066272616e6368c40466726f6d",
        ),
        (t.CoordinatorForget((FIELDS,)), f"9191 {XID}"),
        (
            t.CoordinatorCall(FIELDS, Call.END, "run", b"request", 60, (("one", 2),), 3),
            f"97 {XID} 05a372756ec407726571756573743c9192a36f6e650203",
        ),
    ],
)
def test_commands(command: Payload, data: str) -> None:
    assert encode_command(command) == bytes.fromhex(data)
