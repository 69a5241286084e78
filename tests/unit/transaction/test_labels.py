"""The label of an operation that is the last: what is written is read again, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.transaction.identity import LANE_FORMAT, MOST_NAMED, Label, TransactionId, Xid, as_last

LANE = TransactionId(Xid(LANE_FORMAT, b"lane", b""), 3)
OTHER = TransactionId(Xid(7, b"global", b"branch"), 3)

names = st.text(min_size=1, max_size=200).filter(lambda name: "\0" not in name and name.isprintable())


@given(names, st.lists(names, min_size=1, max_size=MOST_NAMED).map(tuple))
def test_a_last_operation_is_read_as_it_was_written(coordinator: str, others: tuple[str, ...]) -> None:
    delivered = Label(LANE, 1, last=True, coordinator=coordinator, delivery=1 << 62, before=7)
    assert Label.read(delivered.encode()) == delivered
    for label in (
        Label(LANE, 2, last=True),
        Label(LANE, 2, last=True, coordinator=coordinator),
        Label(LANE, 2, last=True, others=others),
    ):
        assert Label.read(label.encode()) == label
        plain = label._replace(last=False, coordinator="", others=()).encode()
        assert as_last(plain, label.coordinator, label.others) == label.encode()


@pytest.mark.parametrize(
    "behind",
    [b"", b"\0", b"one\0", b"\0one", b"\xff", b"x" * 201, b"\0".join([b"x"] * (MOST_NAMED + 1))],
)
def test_names_that_nobody_writes_are_none(behind: bytes) -> None:
    for last in ({"coordinator": "home"}, {"others": ("one", "two")}):
        label = Label(LANE, 1, last=True, **last).encode()
        start = label.index(b"lane") + 4
        assert Label.read(label[:start] + behind) is None


@pytest.mark.parametrize("numbers", [(0, 0), (3, 3), (3, 4), (1 << 63, 0), (1 << 64, 0)])
def test_numbers_of_deliveries_that_nobody_writes_are_none(numbers: tuple[int, int]) -> None:
    label = Label(LANE, 1, last=True, coordinator="home", delivery=3, before=2).encode()
    start = label.index(b"lane") + 4
    behind = b"".join((each & ((1 << 64) - 1)).to_bytes(8, "little") for each in numbers)
    assert Label.read(label[:start] + behind + b"home") is None
    assert Label.read(label[: start + 16]) is None and Label.read(label + b"\0two") is None


def test_one_shard_is_home_and_only_lanes_name_shards() -> None:
    prepares = Label(LANE, 1, last=True, coordinator="one").encode()
    assert Label.read(prepares + b"\0two") is None
    assert Label.read(OTHER.xid.format.to_bytes(4, "little") + prepares[4:]) is None
