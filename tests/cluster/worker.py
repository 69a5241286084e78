"""A client process that writes or reads and notes everything.

    python -m tests.cluster.worker write|read URL NAME FILE

It goes on until its standard input ends. Every value names its writer and a number, so none comes twice.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Final

import hawser
from tests.history.events import Recorder

__all__ = ["TOPIC", "main"]

TOPIC: Final = "attacked"
_PATIENCE_SECONDS: Final = 30.0


class Until:
    """True until standard input ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        os.read(0, 1)
        self._ended.set()

    def __bool__(self) -> bool:
        return not self._ended.is_set()


def write(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Publish one message after the other; a client that does not know an outcome is another one after it."""
    life = number = 0
    with hawser.connect(url, name=name, timeout=_PATIENCE_SECONDS) as bus:
        publisher = bus.topic(TOPIC).publisher()
        while goes_on:
            process = f"{name}.{life}"
            value = f"{process}.{number}"
            number += 1
            invoked = recorder.invoke("publish", TOPIC, process, values=[value])
            try:
                receipt = publisher.publish(value.encode())
            except hawser.HawserError as error:
                unknown = error.outcome == "unknown"
                recorder.end(invoked, "info" if unknown else "fail", error=str(error)[:300])
                if unknown:
                    life += 1
                    publisher = bus.topic(TOPIC).publisher()
            else:
                recorder.end(invoked, "ok", offset=receipt.first_offset)


def read(url: str, name: str, recorder: Recorder, goes_on: Until) -> None:
    """Follow the topic from its beginning, and now and then ask where it ends."""
    with hawser.connect(url, name=name, timeout=_PATIENCE_SECONDS) as bus:
        topic = bus.topic(TOPIC)
        subscription = topic.subscribe(start="earliest")
        while goes_on:
            invoked = recorder.invoke("poll", TOPIC)
            try:
                samples = subscription.take_many(1000, timeout=0.2)
            except hawser.HawserError as error:
                recorder.end(invoked, "fail", error=str(error)[:300])
                continue
            records = [(sample.offset, bytes(sample).decode()) for sample in samples]
            recorder.end(invoked, "ok", records=records)
            invoked = recorder.invoke("state", TOPIC)
            ends = [each.end for each in topic.info().partitions or ()]
            if ends and ends[0]:
                recorder.end(invoked, "ok", end=ends[0])
            else:
                recorder.end(invoked, "fail", error="no leader answered")


def main() -> None:
    role, url, name, file = sys.argv[1:]
    recorder = Recorder(Path(file), name)
    {"write": write, "read": read}[role](url, name, recorder, Until())


if __name__ == "__main__":
    main()
