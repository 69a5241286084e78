"""Threads of recorders, one each. A recorder that fails permanently does not affect the others."""

import logging
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from hawser.cluster.health import Metric
from hawser.errors import HawserError

if TYPE_CHECKING:
    from hawser.agent.recording import RecorderStatus

__all__ = ["RecorderThreads", "RunnableRecorder"]

_log = logging.getLogger("hawser.agent")


class RunnableRecorder(Protocol):
    """The interface of a recorder that a thread runs."""

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. HawserError for an error that no retry can resolve."""

    def status(self) -> "RecorderStatus": ...


class RecorderThreads:
    """All recorders of an agent."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._recordings: list[RunnableRecorder] = []
        self._failures: dict[int, str] = {}
        self._threads: list[threading.Thread] = []

    def start(self, recording: RunnableRecorder) -> None:
        name = f"recorder of {recording.status().topic}"
        number = len(self._recordings)
        thread = threading.Thread(target=self._run, args=(number, recording), name=name, daemon=True)
        self._recordings.append(recording)
        self._threads.append(thread)
        thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop all recorders, and return whether they stopped within `seconds`."""
        self._stop.set()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def why_not_ready(self) -> str | None:
        """The reason of each recorder that does not record; None if all do."""
        reasons = []
        for number, recording in enumerate(self._recordings):
            status = recording.status()
            failure = self._failures.get(number)
            if failure is not None:
                reasons.append(f"recorder of {status.topic}: failed: {failure}")
            elif status.state in ("waiting for cluster", "failed"):
                reasons.append(f"recorder of {status.topic}: {status.state}: {status.error or 'starting'}")
        return "\n".join(reasons) or None

    def metrics(self) -> Iterator[Metric]:
        for number, recording in enumerate(self._recordings):
            status = recording.status()
            labels = (("topic", status.topic), ("target", status.target))
            works = number not in self._failures and status.state == "recording"
            text = "1 while the recorder records, 0 while it waits or after it failed."
            yield Metric("hawser_recorder_recording", text, int(works), labels)
            text = "Samples that this agent recorded."
            yield Metric("hawser_recorder_recorded_total", text, status.recorded, labels)
            text = "Samples that were overwritten before they were recorded."
            yield Metric("hawser_recorder_lost_total", text, status.lost, labels)
            text = "Gap records that this agent wrote."
            yield Metric("hawser_recorder_gaps_total", text, status.gaps, labels)
            text = "Published samples that are not recorded yet."
            yield Metric("hawser_recorder_lag", text, status.lag, labels)
            text = "Offset on this host of the last recorded sample."
            yield Metric("hawser_recorder_position", text, status.position, labels)

    def _run(self, number: int, recording: RunnableRecorder) -> None:
        try:
            recording.run(self._stop)
        except HawserError as error:
            self._failures[number] = str(error)
            _log.error("%s failed permanently: %s", threading.current_thread().name, error)
        except Exception as error:
            self._failures[number] = repr(error)
            _log.exception("%s failed permanently", threading.current_thread().name)
