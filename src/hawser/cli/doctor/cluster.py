"""Checks of a cluster: operators, nodes, clocks, shards."""

from collections.abc import Iterator

from hawser.cli.cluster.connection import addresses, run
from hawser.cli.cluster.status import clock_problems, cluster_state, shard_problems
from hawser.cli.doctor import Finding
from hawser.limits import CLOCK_BOUND_SECONDS

__all__ = ["cluster_checks"]


def cluster_checks() -> Iterator[Finding]:
    """Check the cluster of the command line; Unavailable if no node answers."""
    shown = run(cluster_state(addresses()))
    nodes = shown["nodes"]
    if any(node["seen_by_operator"] for node in nodes):
        yield Finding("operators", "ok", "an operator runs")
    else:
        yield Finding("operators", "fail", "no operator runs", "start one with `hawser operator`")
    silent = [node["id"] for node in nodes if not node["alive"]]
    if silent:
        yield Finding(
            "nodes", "fail", f"{', '.join(silent)} do not answer", "start them, or check their logs"
        )
    else:
        yield Finding("nodes", "ok", f"{len(nodes)} nodes answer")
    wrong = list(clock_problems(shown))
    if wrong:
        yield Finding(
            "clocks",
            "fail",
            "; ".join(wrong),
            "set the clock, for example with NTP; until then the node applies no time-based retention",
        )
    else:
        yield Finding("clocks", "ok", f"within {CLOCK_BOUND_SECONDS} seconds of each other")
    problems = list(shard_problems(shown))
    if problems:
        yield Finding(
            "shards", "fail", "; ".join(problems), "see `hawser cluster status` and the logs of the nodes"
        )
    else:
        yield Finding("shards", "ok", f"{len(shown['shards'])} shards with all replicas")
