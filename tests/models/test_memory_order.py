"""The memory orders the algorithms use are enough, and none of those that matter can be weakened."""

import pytest

from .memory_order import (
    ACQUIRE,
    BOTH,
    PLAIN,
    RELAXED,
    RELEASE,
    SEQUENTIAL,
    compare_and_swap,
    possible,
    read,
    update,
    write,
)

ALL_SEQUENTIAL = dict.fromkeys(("set bit", "re-read", "evict", "ring load", "refs load"), SEQUENTIAL)
WEAKER = [
    (operation, weaker)
    for operation in ALL_SEQUENTIAL
    for weaker in ((BOTH, RELEASE, RELAXED) if operation in ("set bit", "evict") else (ACQUIRE, RELAXED))
]


def taken_and_borrowed(orders: dict[str, str]) -> bool:
    """A subscriber keeps the slot while a publisher that did not evict it borrows it."""
    take = [
        update("refs", orders["set bit"], lambda refs: refs | 1, "bit"),
        read("ring", orders["re-read"], "again"),
    ]
    evict = [compare_and_swap("ring", orders["evict"], 5, 6, "evicted")]
    borrow = [read("ring", orders["ring load"], "ring"), read("refs", orders["refs load"], "refs")]
    return possible(
        [take, evict, borrow],
        {"ring": 5, "refs": 0},
        lambda e: e.reads["again"] == 5 and e.reads["ring"] == 6 and e.reads["refs"] == 0,
    )


def test_take_against_borrow() -> None:
    assert not taken_and_borrowed(ALL_SEQUENTIAL)


@pytest.mark.parametrize(("operation", "weaker"), WEAKER)
def test_take_against_borrow_weakened(operation: str, weaker: str) -> None:
    assert taken_and_borrowed({**ALL_SEQUENTIAL, operation: weaker})


@pytest.mark.parametrize(
    ("changes", "loads", "broken"), [(SEQUENTIAL, SEQUENTIAL, False), (BOTH, ACQUIRE, True)]
)
def test_take_against_the_publisher_that_evicts(changes: str, loads: str, broken: bool) -> None:
    take = [update("refs", changes, lambda refs: refs | 1, "bit"), read("ring", loads, "again")]
    evict_and_borrow = [compare_and_swap("ring", changes, 5, 6, "evicted"), read("refs", loads, "refs")]
    found = possible(
        [take, evict_and_borrow],
        {"ring": 5, "refs": 0},
        lambda e: e.reads["again"] == 5 and e.reads["refs"] == 0,
    )
    assert found == broken


@pytest.mark.parametrize(
    ("publish", "reread", "clear", "refs_load", "races"),
    [
        (RELEASE, ACQUIRE, RELEASE, ACQUIRE, False),
        (RELAXED, ACQUIRE, RELEASE, ACQUIRE, True),
        (RELEASE, RELAXED, RELEASE, ACQUIRE, True),
        (RELEASE, ACQUIRE, RELAXED, ACQUIRE, True),
        (RELEASE, ACQUIRE, RELEASE, RELAXED, True),
    ],
)
def test_payload_of_a_sample(publish: str, reread: str, clear: str, refs_load: str, races: bool) -> None:
    publisher = [write("payload", PLAIN, 1), compare_and_swap("ring", publish, 0, 5, "published")]
    subscriber = [
        read("ring", reread, "again"),
        read("payload", PLAIN, "data"),
        compare_and_swap("refs", clear, 1, 0, "cleared"),
    ]
    borrower = [read("refs", refs_load, "refs"), write("payload", PLAIN, 2)]
    found = possible(
        [publisher, subscriber, borrower],
        {"payload": 0, "ring": 0, "refs": 1},
        lambda e: e.reads["again"] == 5 and e.reads["refs"] == 0 and e.race,
    )
    assert found == races


@pytest.mark.parametrize(
    ("set_idle", "borrow", "races"),
    [(RELEASE, ACQUIRE, False), (RELAXED, ACQUIRE, True), (RELEASE, RELAXED, True)],
)
def test_slot_kept_for_local_views(set_idle: str, borrow: str, races: bool) -> None:
    viewer = [read("payload", PLAIN, "data"), write("lent", set_idle, 0)]
    borrower = [compare_and_swap("lent", borrow, 0, 2, "borrowed"), write("payload", PLAIN, 2)]
    assert possible([viewer, borrower], {"payload": 1, "lent": 1}, lambda e: e.race) == races


@pytest.mark.parametrize(
    ("changes", "loads", "broken"), [(SEQUENTIAL, SEQUENTIAL, False), (BOTH, ACQUIRE, True)]
)
def test_news_and_waiter_flag(changes: str, loads: str, broken: bool) -> None:
    """The waker misses the flag and the waiter misses the news."""
    waker = [compare_and_swap("ring", changes, 0, 1, "published"), read("flags", loads, "flags")]
    waiter = [update("flags", changes, lambda flags: flags | 1, "flag"), read("ring", loads, "ring")]
    found = possible(
        [waker, waiter],
        {"ring": 0, "flags": 0},
        lambda e: e.reads["flags"] == 0 and e.reads["ring"] == 0,
    )
    assert found == broken


@pytest.mark.parametrize(
    ("store", "load", "move", "broken"),
    [
        (SEQUENTIAL, SEQUENTIAL, SEQUENTIAL, False),
        (SEQUENTIAL, SEQUENTIAL, BOTH, True),
        (RELEASE, ACQUIRE, BOTH, True),
    ],
)
def test_reliable_join(store: str, load: str, move: str, broken: bool) -> None:
    joiner = [write("entry", store, 1), read("head", load, "head of joiner")]
    mover = [compare_and_swap("head", move, 7, 8, "moved")]
    publisher = [read("head", load, "head of publisher"), read("entry", load, "entry")]
    found = possible(
        [joiner, mover, publisher],
        {"entry": 0, "head": 7},
        lambda e: (
            e.reads["head of joiner"] == 7 and e.reads["head of publisher"] == 8 and e.reads["entry"] == 0
        ),
    )
    assert found == broken
