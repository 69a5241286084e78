"""Which nodes a new shard goes to: the ones with the fewest, and its leader where the fewest lead."""

from collections import Counter
from collections.abc import Iterable, Mapping

from hawser.cluster.maps import node_of

__all__ = ["place"]


def place(replication: int, alive: Iterable[str], shards: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """`replication` of the nodes, the one that is to lead first. `shards` has the members of all there are.

    ValueError if there are not so many."""
    nodes = sorted(alive)
    if len(nodes) < replication:
        raise ValueError(
            f"{replication} replicas need {replication} nodes, and {len(nodes)} are alive: start more nodes, "
            "or ask for fewer replicas"
        )
    holds = Counter(node_of(member) for members in shards.values() for member in members)
    leads = Counter(node_of(members[0]) for members in shards.values() if members)
    chosen = sorted(nodes, key=lambda node: (holds[node], node))[:replication]
    return tuple(sorted(chosen, key=lambda node: (leads[node], node)))
