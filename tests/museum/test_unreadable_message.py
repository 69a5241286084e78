"""A message that the disk of its leader cannot read: whoever asks for it is told so.

Found by review: damage that a checksum finds was told, and an error of the disk was not. It ended the turn
in which the message was to be lent, so a `get` waited for its whole time and returned None, as of an empty
queue.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.cluster.metrics import node_metrics
from hawser.errors import Corrupt
from hawser.log.journal.storage import StorageFailed
from tests.support.cluster import RunningCluster


def test_a_message_that_cannot_be_read_is_not_taken_for_an_empty_queue(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = cluster.connect().queue("unreadable")
    queue.put(b"message")
    for node in cluster._nodes.values():
        for name, shard in node.shards.items():
            if name.startswith("unreadable@"):

                def read(
                    first: int, last: int, most: int, real: Callable[..., Any] = shard.replica.journal.read
                ) -> Any:
                    # One entry, to be lent.
                    if most == 1:
                        raise StorageFailed("Input/output error")
                    return real(first, last, most)

                monkeypatch.setattr(shard.replica.journal, "read", read)
    with pytest.raises(hawser.Corrupt, match="Input/output error"):
        queue.get(timeout=10)
    monkeypatch.undo()
    message = queue.get(timeout=30)
    assert message is not None and bytes(message) == b"message"
    message.accept()


def test_the_figures_of_a_node_are_there_while_its_oldest_message_cannot_be_read(
    cluster: RunningCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/metrics answered nothing at all, of any shard."""
    queue: Any = cluster.connect().queue("unreadable-oldest")
    queue.put(b"message")
    node = cluster._nodes[queue.info().partitions[0].leader]
    deliveries = [each.current_delivery for each in node.shards.values() if each.current_delivery is not None]
    (delivery,) = [each for each in deliveries if each.queue == queue.name]

    def fail(_: int) -> None:
        raise Corrupt("planted")

    # As after a new leader has begun, which has read nothing yet.
    monkeypatch.setattr(delivery, "_oldest", [(0, 0), (0, 0)])
    monkeypatch.setattr(delivery._host.replica, "entry", fail)
    figures = [each for each in node_metrics(node, tmp_path) if ("queue", queue.name) in each.labels]
    shown = {(each.name, dict(each.labels).get("state")): each.value for each in figures}
    assert shown["hawser_queue_messages", "ready"] == 1
    assert "hawser_queue_oldest_age_seconds" not in {name for name, _ in shown}
    assert any(each.name == "hawser_disk_free_bytes" for each in node_metrics(node, tmp_path))
