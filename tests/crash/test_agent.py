"""Whoever is stopped, at whatever state of the shared memory and after whatever system call, the agent does
its duties: it looks at every topic, recovers the dead and writes its metrics. Nothing of it may wait for the
process that stands still. Only removing a name may, and is done beside.
"""

import socket
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hawser.agent.daemon import topic_metrics
from hawser.agent.reaper import Reaper
from hawser.cluster.health import exposition
from hawser.memory import Domain

from .stepper import Sweep, domain_of, operations, sweep_in

Record = Callable[[str, object], None]


class Opener(Reaper):
    """A planted bug: an agent that opens what it looks at, and so takes part in the life of the file."""

    def scan(self) -> None:
        self._domain.gather(lambda region: region.recover())


class Agent:
    """Does its duties once for every byte it is sent, and answers with one."""

    def __init__(self, directory: Path, kind: type[Reaper]) -> None:
        self.reaper = kind(Domain(directory))
        self.counts: Counter[str] = Counter()
        self._ours, self.theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self.theirs.close()
        self._thread.join()
        self._ours.close()

    def _serve(self) -> None:
        while self._ours.recv(1):
            self.reaper.scan()
            stats = list(self.reaper.stats())
            exposition(metric for each in stats for metric in topic_metrics(each))
            self.counts["passes"] += 1
            self.counts["topics seen"] += len(stats)
            self.counts["recovered"] = self.reaper.recovered
            try:
                self._ours.send(b"\0")
            except BrokenPipeError:
                return


def sweep_beside_agent(operation: str, kind: type[Reaper] = Reaper, **options: int) -> tuple[Sweep, Agent]:
    with domain_of(operation) as directory:
        agent = Agent(directory, kind)
        try:
            return sweep_in(directory, operation, "stop", agent=agent.theirs.fileno(), **options), agent
        finally:
            agent.close()


@pytest.mark.parametrize("operation", operations())
def test_the_agent_waits_for_nobody(operation: str, record_property: Record) -> None:
    done, agent = sweep_beside_agent(operation)
    assert not done.broken, done.broken
    assert agent.counts["passes"] == done.counts["stops"] > 0
    for name, value in agent.counts.items():
        record_property(name, value)


def test_canary_is_caught() -> None:
    done, _ = sweep_beside_agent("remove_forced", Opener, watchdog=2)
    assert "somebody waits for ever" in done.broken
