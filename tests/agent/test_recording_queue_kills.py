"""Producer, recorder and leader killed -9 at random, many times: what was put into the queue of the host is
in the queue of the cluster once, in its order."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hawser
from tests.agent.recorded import recording, until_recorded
from tests.agent.recording_queue_worker import NAME, QUEUE
from tests.agent.test_recording_kills import Storm, Worker, attack
from tests.support.processes import LIMIT_SECONDS

Note = Callable[[str, object], None]


class QueueStorm(Storm):
    """A producer and a recorder of one queue at work, and kills."""

    def make(self, owner: hawser.Bus) -> None:
        self.queue: hawser.Queue[Any] = owner.queue(
            QUEUE, slot_size=64, capacity=4000, max_producers=32, max_deliveries=2
        )

    def workers(self, role: str) -> tuple[Worker, Worker]:
        module = "recording_queue_worker"
        return (
            Worker(module, "put", self.domain, str(self.noted)),
            Worker(module, role, self.domain, self.cluster.url),
        )

    def judge(self) -> dict[str, object]:
        head = self.queue.info().head
        with recording(self.domain, QUEUE, self.cluster.url, name=NAME) as last:
            until_recorded(last, head)
        found = self.queue.info()
        assert (found.ready, found.claimed, found.dead, found.slots_leaked) == (0, 0, 0, 0)
        return self.figures(self._take_all(head))

    def _take_all(self, head: int) -> list[bytes]:
        """What is in the cluster's queue, as many as there were in that of the host, in order. What is taken
        away because somebody else leads by then comes again."""
        values: dict[int, bytes] = {}
        with self.cluster.connect("judge") as bus:
            queue = bus.queue(QUEUE, create=False)
            assert queue.info().head == head
            while len(values) < head:
                together = queue.get_many(1000, LIMIT_SECONDS)
                assert together, "nothing comes any more"
                for each in together:
                    assert values.setdefault(each.offset, bytes(each)) == bytes(each)
                with suppress(hawser.Fenced):
                    together.accept()
        assert set(values) == set(range(1, head + 1))
        return [values[offset] for offset in range(1, head + 1)]


@pytest.mark.slow
def test_everybody_killed_at_random(tmp_path: Path, record_property: Note) -> None:
    for name, value in attack(tmp_path, seconds=8, kind=QueueStorm).items():
        record_property(name, value)


class OnlyItself(QueueStorm):
    """Nobody is killed but the recorder, by itself."""

    def _kill_somebody(self, choice: float) -> None: ...


@pytest.mark.slow
def test_a_recorder_that_does_not_ask_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="=="):
        attack(tmp_path, seconds=0, role="deaf", kind=OnlyItself, least_deaths=3)


@pytest.mark.soak
def test_soak(tmp_path: Path, soak_seconds: float, record_property: Note) -> None:
    for name, value in attack(tmp_path, seconds=soak_seconds, kind=QueueStorm).items():
        record_property(name, value)
