"""Recorders of a queue over the real rules for producers: killed with batches under way that land at any
later moment, and with messages accepted here or not. Whatever happens, each message is in the cluster once,
in order."""

import random
import threading
from array import array
from collections.abc import Callable
from struct import pack
from typing import cast

import pytest

from hawser.agent.recording.blocks import Block
from hawser.agent.recording.source import Source
from hawser.agent.recording.stream import Counts, QueueStream
from hawser.agent.recording.target import Target
from hawser.record.batch import Batch
from tests.agent.test_recording_stamps import DeadlyTarget, Killed, Partition, Sent

Note = Callable[[str, object], None]

KILLS = 12


class Messages:
    """A queue with messages from 1 on. Others have accepted some of them before there was a recorder, and had
    claimed some when they died."""

    uuid = "region"

    def __init__(self, chance: random.Random) -> None:
        self.head = chance.randrange(30)
        offsets = range(1, self.head + 1)
        self.of_others = {offset for offset in offsets if chance.random() < 0.3}
        self.done = set(self.of_others)
        # Claimed by the dead and not returned yet: with the real region this is over before there is a
        # recorder.
        self.unreturned: set[int] = set()

    def ready(self) -> list[int]:
        return [
            offset
            for offset in range(1, self.head + 1)
            if offset not in self.done and offset not in self.unreturned
        ]


class FakeQueueSource:
    """As `QueueSource`: adjacent messages, the oldest first; blocks end anywhere."""

    uuid = Messages.uuid
    mark = 0
    next_offset = 1

    def __init__(self, messages: Messages, chance: random.Random, stop: threading.Event) -> None:
        self._messages = messages
        self._random = chance
        self._stop = stop
        self._taken: list[int] = []

    def take(self, timeout: float) -> Block | None:
        ready = self._messages.ready()
        if not ready:
            self._stop.set()
            return None
        taken = ready[: 1 + self._random.randrange(6)]
        while self._is_cut(taken):
            taken.pop()
        self._taken = taken
        offsets = pack(f"<{len(taken) + 1}i", *(8 * place for place in range(len(taken) + 1)))
        return Block(taken[0], array("q", taken), offsets, b"".join(b"%08d" % each for each in taken), None)

    def _is_cut(self, taken: list[int]) -> bool:
        return taken[-1] - taken[0] >= len(taken)

    def take_again(self, first: int, last: int) -> None:
        """They are gone."""

    def commit(self) -> None:
        """One by one, so a killed one has accepted a prefix."""
        for offset in self._taken:
            if self._random.random() < 0.02:
                raise Killed
            self._messages.done.add(offset)


def judge(log: list[Batch], messages: Messages) -> int:
    """How many messages are in a log that is right; AssertionError for any other."""
    values = [int(record.value) for batch in log for record in batch.records()]
    assert values == sorted(set(values)), "a message is there twice, or out of order"
    expected = set(range(1, messages.head + 1)) - messages.of_others
    assert set(values) <= expected, "a message that others accepted is there"
    assert set(values) == expected, "a message is missing"
    return len(values)


def storm(
    seed: int,
    stream: type[QueueStream] = QueueStream,
    source: type[FakeQueueSource] = FakeQueueSource,
    prepare: Callable[[Messages, random.Random], None] = lambda messages, chance: None,
) -> int:
    """How many messages a queue has that is recorded through kills until its end."""
    chance = random.Random(seed)
    messages, partition, under_way = Messages(chance), Partition(), list[Sent]()
    prepare(messages, chance)
    runs = 0
    while True:
        runs += 1
        if runs <= KILLS:
            messages.head += chance.randrange(12)
        if chance.random() < 0.3:
            messages.unreturned.clear()
        stop = threading.Event()
        taken = cast(Source, source(messages, chance, stop))
        target = cast(Target, DeadlyTarget(partition, chance, under_way))
        try:
            stream(taken, target, "name", Counts()).record(stop)
        except Killed:
            continue
        if runs > KILLS and not messages.unreturned:
            return judge(partition.log, messages)


def test_killed_recorders_leave_each_message_once(record_property: Note) -> None:
    record_property("messages", sum(storm(seed) for seed in range(1500)))


class DoesNotAsk(QueueStream):
    """Believes that what it is given is not there yet, and does not listen."""

    def _find_position(self) -> None:
        self._target.producer_state()
        self.position = 1

    def _publish(self, batch: Batch) -> bool:
        self._target.publish(batch, 0)
        self.position = batch.header.incarnation + batch.count
        return True


class GoesOnAfterAllItSent(QueueStream):
    """Believes that all it sent is there, when something is."""

    def _publish(self, batch: Batch) -> bool:
        is_new = super()._publish(batch)
        self.position = max(self.position, batch.header.incarnation + batch.count)
        return is_new


class OverHoles(FakeQueueSource):
    """Puts messages together that are not adjacent."""

    def _is_cut(self, taken: list[int]) -> bool:
        return False


def some_are_returned_late(messages: Messages, chance: random.Random) -> None:
    """What a dead consumer had claimed comes back when the recorder is at work."""
    messages.unreturned = {offset for offset in messages.ready() if chance.random() < 0.2}


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"stream": DoesNotAsk}, "twice"),
        ({"stream": GoesOnAfterAllItSent}, "missing"),
        ({"source": OverHoles}, "twice"),
        ({"prepare": some_are_returned_late}, "missing"),
    ],
)
def test_planted_bugs_are_found(planted: dict[str, object], found: str, record_property: Note) -> None:
    for seed in range(1500):
        try:
            storm(seed, **planted)  # type: ignore[arg-type]
        except AssertionError as error:
            assert found in str(error)
            record_property("found", f"by seed {seed}")
            return
    pytest.fail("the planted bug was not found")
