"""Processes of the attacks on the recording of queues, which are killed.

    python -m tests.agent.recording_queue_worker put DOMAIN FILE
    python -m tests.agent.recording_queue_worker record|deaf DOMAIN URL

A producer notes what was acknowledged, a line for each batch; every message names its process and a number,
so none comes twice. A recorder kills itself now and then at the worst moment: its batch is acknowledged, and
nothing of it is accepted here. `deaf` plants one that does not ask what is recorded. They go on until their
standard input ends.
"""

import os
import random
import signal
import sys
import time
from typing import Final
from unittest.mock import patch

import hawser
from hawser.agent.recording import Recorder, recorder
from hawser.agent.recording.blocks import Block
from hawser.agent.recording.queue_source import QueueSource
from hawser.agent.recording.stream import QueueStream
from tests.agent.recording_worker import until_input_ends
from tests.agent.test_recording_queue_stamps import DoesNotAsk
from tests.support.lines import Lines

__all__ = ["NAME", "QUEUE", "main"]

QUEUE: Final = "attacked"
NAME: Final = "recorder"
_MOST_AT_ONCE: Final = 60
_PAUSE_SECONDS: Final = 0.004


class DeadlySource(QueueSource):
    """Kills its process before it has accepted what is recorded, now and then. Its blocks end anywhere."""

    death = 0.04

    def take(self, timeout: float) -> Block | None:
        self.block_messages = random.randint(1, 300)
        return super().take(timeout)

    def commit(self) -> None:
        if random.random() < self.death:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit()


class VeryDeadlySource(DeadlySource):
    """Does so soon, but never before it has accepted something: what it doubles or skips shows only then."""

    death = 0.0

    def commit(self) -> None:
        super().commit()
        self.death = 0.4


def put(domain: str, file: str) -> None:
    ended, number = until_input_ends(), 0
    noted = Lines(file)
    with hawser.connect(domain, name="producer") as bus:
        queue = bus.queue(QUEUE, create=False)
        while not ended.is_set():
            count = random.randint(1, _MOST_AT_ONCE)
            receipt = queue.put_many([b"%d.%d" % (os.getpid(), number + place) for place in range(count)])
            noted.write(b"%d %d %d %d" % (receipt.first_offset, count, os.getpid(), number))
            number += count
            time.sleep(_PAUSE_SECONDS)


def record(domain: str, url: str, source: type[QueueSource], stream: type[QueueStream]) -> None:
    with patch.object(recorder, "QueueSource", source), patch.object(recorder, "QueueStream", stream):
        Recorder(domain, QUEUE, url, name=NAME).run(until_input_ends())


def main() -> None:
    role, domain, place = sys.argv[1:]
    if role == "put":
        put(domain, place)
    else:
        kinds = {"record": (DeadlySource, QueueStream), "deaf": (VeryDeadlySource, DoesNotAsk)}
        record(domain, place, *kinds[role])


if __name__ == "__main__":
    main()
