"""How long the event loops of a cluster stood still, as its daemons say: in /metrics, and in the logs of
those that were killed."""

import re

from tests.conftest import soak_seconds_told
from tests.support.processes import ClusterProcesses, NodeProcess, OperatorProcess, metric

__all__ = ["stalls"]

# Time on a processor, so that a busy machine, a slow disk or a process that was stopped does not count.
MOST_BUSY_MS = 250

_LOGGED = re.compile(r"stood still for (\d+) ms, (\d+) ms of them on a processor")


def stalls(cluster: ClusterProcesses) -> dict[str, int]:
    """The longest ones in milliseconds. While soaking, AssertionError if one was too long."""
    found = [(0, 0)]
    daemons: list[NodeProcess | OperatorProcess] = [*cluster.nodes.values(), *cluster.operators.values()]
    for daemon in daemons:
        if daemon.runs:
            url = f"{daemon.http}/metrics"
            longest = metric(url, "hawser_loop_stall_seconds") or 0
            busy = metric(url, "hawser_loop_stall_busy_seconds") or 0
            found.append((round(1000 * longest), round(1000 * busy)))
        if daemon.log.exists():
            text = daemon.log.read_text(errors="replace")
            found += [(int(each[0]), int(each[1])) for each in _LOGGED.findall(text)]
    longest_ms, busy_ms = max(each[0] for each in found), max(each[1] for each in found)
    if soak_seconds_told():
        assert busy_ms <= MOST_BUSY_MS, f"an event loop worked for {busy_ms} ms in one turn; see the logs"
    return {"longest stall in ms": longest_ms, "longest busy stall in ms": busy_ms}
