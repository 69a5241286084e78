"""A thread publishes or accepts in a branch while another thread ends it: that is committed with the branch,
or refused.

Found by reading: an end stopped the work that the bus had registered for the xid. Work that a start in
another thread was about to register escaped that. What was handed over in it after the end was dropped, and
neither that call nor the commit said so.
"""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import hawser
from hawser.api.transaction import Work
from hawser.xa import Xid
from tests.support.cluster import RunningCluster
from tests.support.processes import LIMIT_SECONDS, records


class Pausing:
    """A thread that stops when it is about to call each of these functions, until it is told to go on."""

    def __init__(self, work: Callable[[], None], *functions: str) -> None:
        self.error: Exception | None = None
        self._work = work
        self._pauses = [(name, threading.Event(), threading.Event()) for name in functions]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        left = list(self._pauses)

        def trace(frame: FrameType, event: str, argument: Any) -> None:
            if left and event == "call" and frame.f_code.co_qualname == left[0][0]:
                _, reached, go = left.pop(0)
                reached.set()
                assert go.wait(LIMIT_SECONDS)

        sys.settrace(trace)
        try:
            self._work()
        except Exception as error:
            self.error = error

    def wait(self, name: str) -> None:
        """Return when it is about to call this function."""
        (reached,) = [reached for each, reached, _ in self._pauses if each == name]
        assert reached.wait(LIMIT_SECONDS), name

    def go(self, name: str) -> None:
        """Let it call this function."""
        (go,) = [go for each, _, go in self._pauses if each == name]
        go.set()

    def join(self) -> None:
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive()


def end_beside(bus: hawser.Bus, xid: Xid, work: Callable[[Work], None]) -> Exception | None:
    """Start a branch in one thread, which hands over what it does in `work` when the end in another thread is
    done; commit it. Returns the error of `work`."""
    working = Pausing(lambda: work(bus.xa.start(xid)), "ClusterWork.__init__", "Workspace.hand_over")
    working.wait("ClusterWork.__init__")
    ending = Pausing(lambda: bus.xa.end(xid), "LoopThread.call")
    ending.wait("LoopThread.call")
    working.go("ClusterWork.__init__")
    working.wait("Workspace.hand_over")
    ending.go("LoopThread.call")
    ending.join()
    assert ending.error is None
    working.go("Workspace.hand_over")
    working.join()
    bus.xa.commit(xid, one_phase=True)
    return working.error


def test_a_publish_beside_an_end_is_refused(cluster: RunningCluster) -> None:
    bus = cluster.connect()
    topic = bus.topic("beside")
    error = end_beside(bus, Xid(7, b"publish", b""), lambda work: work.publish(topic, b"x"))
    assert isinstance(error, hawser.UsageError), error
    assert records(topic) == []


def test_an_accept_beside_an_end_is_refused(cluster: RunningCluster) -> None:
    bus = cluster.connect()
    queue = bus.queue("beside too")
    queue.put(b"x")

    def accept(work: Work) -> None:
        message = work.get(queue, LIMIT_SECONDS)
        assert message is not None
        work.accept(message)

    error = end_beside(bus, Xid(7, b"accept", b""), accept)
    assert isinstance(error, hawser.UsageError), error
    assert queue.get_values(1, LIMIT_SECONDS) == [b"x"]
