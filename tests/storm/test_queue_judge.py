"""The judge of a storm over queues, given histories that are known to be bad."""

from dataclasses import replace

import pytest

from .journal import Event, Kind
from .judge import Life
from .queue_judge import judge_queue
from .queue_workers import POISON_EVERY, Outcome

RUN = 3
GOOD, OTHER = (RUN << 32 | number for number in (1, 2))
POISON = RUN << 32 | POISON_EVERY


def put(count: int, killed: bool = False) -> Life:
    events = [Event(Kind.PUBLISHING, count, 1, 0), Event(Kind.PUBLISHED, count, 1, 1)]
    return Life("put", "producer-0", RUN, {}, killed, events)


def got(message: int, delivery: int, *, role: str = "consume", end: Outcome | None = Outcome.ACCEPT) -> Life:
    """A consumer that gets a message and settles it; with no end it is killed in the middle of an accept."""
    offset = message & 0xFFFFFFFF
    outcome = Outcome.ACCEPT if end is None else end
    events = [Event(Kind.GOT, delivery, offset, message), Event(Kind.SETTLING, outcome, offset, message)]
    if end is not None:
        events.append(Event(Kind.SETTLED, outcome, offset, message))
    return Life(role, "consumer", 9, {}, end is None, events)


def violations(*lives: Life, **left: int) -> list[str]:
    return judge_queue("q", list(lives), {"q": left}, 3, has_lease=False).violations


def test_a_good_history_is_good() -> None:
    assert not violations(put(2), got(GOOD, 1, end=Outcome.RELEASE), got(GOOD, 2), got(OTHER, 1))
    assert not violations(put(1), got(GOOD, 1, end=None)), "it may have been accepted"
    assert not violations(put(1), got(GOOD, 1, end=None), got(GOOD, 2)), "or not"
    assert not violations(put(1), got(GOOD, 1, end=Outcome.REJECT), got(GOOD, 1, role="undertake"))


@pytest.mark.parametrize(
    ("lives", "told"),
    [
        ([put(1), got(GOOD, 1), got(GOOD, 2)], "accepted 2 times"),
        ([put(1), got(GOOD, 1), got(GOOD, 1, role="undertake")], "accepted 2 times"),
        ([put(1), got(GOOD, 1, end=Outcome.RELEASE)], "is lost"),
        ([put(2), got(GOOD, 1)], "1 messages are there, 2 to"),
        ([put(1), got(GOOD, 1), got(OTHER, 1)], "2 messages are there, 1 to"),
        ([got(GOOD, 1)], "never put any"),
        ([put(1), got(GOOD, 1, end=Outcome.RELEASE), got(GOOD, 1)], "two deliveries with the number"),
        ([put(1), got(GOOD, 4)], "was delivered 4 times"),
        ([put(1), got(GOOD, 1, end=Outcome.REJECT), got(GOOD, 2)], "not among the dead letters"),
        ([put(1), got(POISON, 1)], "is poison"),
        ([put(1), replace(got(GOOD, 1, end=None), killed=False)], "ended while it settled"),
    ],
)
def test_a_bad_history_is_seen(lives: list[Life], told: str) -> None:
    assert any(told in text for text in violations(*lives)), violations(*lives)


def test_what_is_left_is_seen() -> None:
    left = violations(put(1), got(GOOD, 1), ready=1, slots_lent=0, slots_leaked=2)
    assert left == ["q: at the end ready of q is 1", "q: at the end slots_leaked of q is 2"]
