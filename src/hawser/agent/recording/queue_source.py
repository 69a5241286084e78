"""The source of a queue in shared memory. The recorder is its only consumer, and takes blocks of adjacent
messages.

Messages are accepted when their block is recorded, and are delivered first again if the recorder dies
earlier. Other consumers get no messages while the queue has a recorder, dead or alive, and messages that they
had claimed return before the recorder claims any. Offsets therefore only grow, except for messages that an
earlier run had claimed. Deliveries to the recorder are not counted. Messages that expire, and messages that
are too large for a batch, become dead letters on the host.
"""

from contextlib import suppress
from typing import Any

from hawser.agent.recording.blocks import BLOCK_BYTES, Block, fits_in_batch
from hawser.agent.recording.source import Source
from hawser.api.bus import connect
from hawser.api.local.queue import LocalQueue
from hawser.errors import Closed, UsageError
from hawser.memory import Claims, Message

__all__ = ["QueueSource"]


class QueueSource(Source):
    """The messages of a queue. NotFound if the queue does not exist; UsageError while it has other consumers,
    or if it is recorded under another name."""

    mark = 0
    next_offset = 1
    block_messages = 10_000

    def __init__(self, domain: str, queue: str, name: str) -> None:
        self._bus = connect(domain, name=name)
        try:
            opened = self._bus.queue(queue, create=False)
            assert isinstance(opened, LocalQueue)
            self._queue: LocalQueue[Any] = opened
            found = opened.info()
            self.uuid, self.schema = found.uuid, str(found.settings["schema"]) or None
            self._consumer = opened.reserve()
        except BaseException:
            self._bus.close()
            raise
        self._head = found.head
        self._claims: Claims | Message | None = None

    @property
    def head(self) -> int:
        # Other threads read it at any time; for a deleted or closed queue it is the last known value.
        with suppress(Closed):
            self._head = self._queue.info().head
        return self._head

    def take(self, timeout: float) -> Block | None:
        columns = self._consumer.claim_columns(self.block_messages, BLOCK_BYTES, timeout)
        if columns is None:
            return None
        if not columns[1]:
            return self._take_alone()
        self._claims = columns[5]
        return Block.of(columns[:5])

    def take_again(self, first: int, last: int) -> None:
        """What was recorded was accepted, and is gone."""

    def commit(self) -> None:
        claims, self._claims = self._claims, None
        assert claims is not None
        claims.accept()

    def close(self) -> None:
        self._claims = None
        self._consumer.close()
        self._bus.close()

    def _take_alone(self) -> Block | None:
        """Take a message that is too large for a shared block; None if it is too large for any batch."""
        message = self._consumer.claim(0)
        if message is None:
            return None
        if not fits_in_batch(message):
            offset, nbytes = message.offset, len(message)
            message.reject()
            if self._queue.holds_dead_letters:
                raise UsageError(
                    f"message {offset} of queue {self._queue.name!r} has {nbytes} bytes, too large for a "
                    "batch. A dead letter cannot be rejected; get and accept it with "
                    "`hawser queue get --dead`"
                )
            return None
        self._claims = message
        return Block.of_samples([message])
