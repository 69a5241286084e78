"""A message that the disk of its leader cannot read: whoever asks for it is told so.

Found by review: damage that a checksum finds was told, and an error of the disk was not. It ended the turn
in which the message was to be lent, so a `get` waited for its whole time and returned None, as of an empty
queue.
"""

from collections.abc import Callable
from typing import Any

import pytest

import hawser
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
