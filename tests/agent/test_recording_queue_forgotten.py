"""A recorder of a queue is known for as long as the queue exists: also when it is idle for long and nothing
is left of what it put."""

from types import SimpleNamespace

import pytest

from hawser.cluster.node.maintenance import Maintenance
from hawser.log.entry import Kind
from hawser.log.state.commands import QueueSettle, encode_command
from hawser.log.state.queue import MESSAGES, Queue
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from hawser.record.recording import recorder_id
from tests.agent.test_recording_forgotten import DAY_SECONDS, known_after, leading_replica, propose


def test_an_idle_recorder_of_a_queue_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("hawser.cluster.node.maintenance.time", SimpleNamespace(monotonic=lambda: now))
    replica, keeper, recorder = leading_replica(), Maintenance(), recorder_id("r", "region")
    for producer in (recorder, b"ordinary"):
        batch = Batch.of([Record(b"x"), Record(b"y")], Stamp(producer, 1, 1))
        propose(replica, Kind.QUEUE_PUT, bytes(batch.data))
    accepted = QueueSettle(MESSAGES, ((1, 4, 0),), (), (), b"", b"", 0, 0)
    propose(replica, Kind.QUEUE_SETTLE, encode_command(accepted))
    assert replica.machine.part(Queue).messages.count == 0
    assert known_after(replica, keeper) == {recorder, b"ordinary"}
    for _ in range(3):
        now += 8 * DAY_SECONDS
        assert known_after(replica, keeper) == {recorder}
