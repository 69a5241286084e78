"""The auditor of the demo: sees every message and remembers who published what in which order."""

import threading
from array import array
from typing import Any, Final

import hawser
from hawser.cli.demo.payload import Origin, read_payload

__all__ = ["Auditor"]

_BATCH: Final = 16
_WAIT_SECONDS: Final = 0.1


class Auditor:
    """A reliable subscriber in a thread. Message `offset` is at place `offset - 1` of its lists."""

    def __init__(self, topic: "hawser.Topic[Any]") -> None:
        self._subscription = topic.subscribe(reliable=True)
        self._publishers = array("H")
        self._runs = array("H")
        self._numbers = array("Q")
        self.checksums = array("I")
        self.faults = 0
        self.error: BaseException | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="auditor", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> int:
        """How many messages there have been."""
        return len(self.checksums)

    @property
    def missed(self) -> int:
        return self._subscription.missed

    def origin(self, offset: int) -> Origin:
        place = offset - 1
        return Origin(self._publishers[place], self._runs[place], self._numbers[place])

    def stop(self) -> None:
        """Return when everything published so far has been seen."""
        self._stopping = True
        self._thread.join()
        self._subscription.close()

    def _watch(self) -> None:
        try:
            while True:
                stopping = self._stopping
                samples = self._subscription.take_many(_BATCH, 0 if stopping else _WAIT_SECONDS)
                if not samples and stopping:
                    return
                for sample in samples:
                    with sample:
                        self._see(sample)
        except BaseException as error:
            self.error = error

    def _see(self, sample: hawser.Sample) -> None:
        found = read_payload(sample.data)
        self.faults += found is None or sample.offset != self.seen + 1
        origin, checksum = found or (Origin(0, 0, 0), 0)
        self._publishers.append(origin.publisher)
        self._runs.append(origin.run)
        self._numbers.append(origin.number)
        self.checksums.append(checksum)
