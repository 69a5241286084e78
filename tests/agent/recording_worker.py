"""Processes of the attacks on recording, which are killed.

    python -m tests.agent.recording_worker publish DOMAIN FILE
    python -m tests.agent.recording_worker record|trust DOMAIN URL

A publisher notes what was acknowledged, a line for each batch; every message names its process and a number,
so none comes twice. A recorder kills itself now and then at the worst moment: its batch is acknowledged, and
the region does not know it yet. `trust` plants a recorder that believes the region. Both go on until their
standard input ends.
"""

import os
import random
import signal
import sys
import threading
import time
from typing import Final
from unittest.mock import patch

import hawser
from hawser.agent.recording import Recorder, recorder, topic_source
from hawser.agent.recording.stream import Stream
from hawser.record.batch import Batch
from tests.support.lines import Lines

__all__ = ["NAME", "TOPIC", "TrustsItsMark", "main", "until_input_ends"]

TOPIC: Final = "attacked"
NAME: Final = "recorder"
_MOST_AT_ONCE: Final = 60
_PAUSE_SECONDS: Final = 0.004
_DEATH: Final = 0.02


class TrustsItsMark(Stream):
    """Goes on where the region says that it was, and neither asks nor listens."""

    def _find_position(self) -> None:
        self.position = self._source.mark + 1
        self._target.producer_state()

    def _publish(self, batch: Batch) -> bool:
        self._target.publish(batch, 0)
        self.position = batch.header.incarnation + batch.count
        return True


class DeadlySource(topic_source.TopicSource):
    """Kills its process before it tells the region what is recorded, now and then."""

    def commit(self) -> None:
        if random.random() < _DEATH:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit()


def until_input_ends() -> threading.Event:
    ended = threading.Event()

    def wait() -> None:
        os.read(0, 1)
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def publish(domain: str, file: str) -> None:
    ended, number = until_input_ends(), 0
    noted = Lines(file)
    with hawser.connect(domain, name="publisher") as bus:
        topic = bus.topic(TOPIC, create=False)
        while not ended.is_set():
            count = random.randint(1, _MOST_AT_ONCE)
            (receipt,) = topic.publish_many(
                [b"%d.%d" % (os.getpid(), number + place) for place in range(count)]
            )
            noted.write(b"%d %d %d %d" % (receipt.first_offset, count, os.getpid(), number))
            number += count
            time.sleep(_PAUSE_SECONDS)


def record(domain: str, url: str, kind: type[Stream]) -> None:
    with patch.object(recorder, "TopicSource", DeadlySource), patch.object(recorder, "Stream", kind):
        Recorder(domain, TOPIC, url, name=NAME).run(until_input_ends())


def main() -> None:
    role, domain, place = sys.argv[1:]
    if role == "publish":
        publish(domain, place)
    else:
        record(domain, place, {"record": Stream, "trust": TrustsItsMark}[role])


if __name__ == "__main__":
    main()
