"""`hawser cluster status`: the state of shards and nodes, and problems of them."""

import time
from collections.abc import Iterator
from typing import Any

import click

import hawser
from hawser.cli.cluster.connection import ClusterView, addresses, connect_nodes, run
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import Cell, Column, age, byte_size, count, exit_with, notice, print_json, print_table
from hawser.cluster import wire
from hawser.cluster.shard_map import node_of, owned_shards
from hawser.limits import CLOCK_BOUND_SECONDS
from hawser.log.protocol import messages as m

__all__ = [
    "clock_problems",
    "cluster_state",
    "node_states",
    "shard_label",
    "shard_problems",
    "shard_state",
    "shard_states",
    "status",
]

_UNHEALTHY = 4
_LOOK_SECONDS = 0.2
# Under load a healthy replica may lag by this many entries.
_CLOSE_ENTRIES = 1000
_COLORS = {"steady": "green", "election": "yellow", "reconfiguration": "yellow"}


@click.command()
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 4 unless every shard has a leader and all replicas, and clocks agree.",
)
@click.option("--wait", "wait_seconds", type=float, help="With --check: wait up to this many seconds.")
@shared_options
def status(check: bool, wait_seconds: float | None) -> None:
    """Show every shard with its epoch, leader, replicas and positions, and every node.

    Scripts use --check during a rolling restart, to wait before they restart the next machine.
    """
    given = addresses()
    deadline = time.monotonic() + (wait_seconds or 0.0)
    while True:
        shown = _status(given, patient=time.monotonic() < deadline)
        problems = list(_problems(shown)) if check else []
        if not problems or time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_SECONDS)
    with exit_with(_UNHEALTHY if problems else 0):
        if wants_json():
            print_json(shown)
        else:
            _print(shown)
        for problem in problems:
            notice(problem)


def _status(given: list[str], *, patient: bool) -> dict[str, Any]:
    """The state of the cluster. While no node answers it is empty if `patient`, otherwise Unavailable."""
    try:
        return run(cluster_state(given))
    except hawser.Unavailable:
        if not patient:
            raise
        return {"shards": [], "nodes": []}


async def cluster_state(given: list[str]) -> dict[str, Any]:
    """The state of the shards and nodes, read through the nodes at these addresses."""
    async with connect_nodes(given) as cluster:
        return {"shards": shard_states(cluster), "nodes": node_states(cluster)}


def shard_states(cluster: ClusterView) -> list[dict[str, Any]]:
    """The shards of every topic and queue that is not deleted, and the coordinator shards."""
    return [
        shard_state(cluster, shard)
        for name, entry in sorted(cluster.map.topics.items())
        if not entry.deleted
        for shard in owned_shards(name, entry)
    ]


def shard_state(cluster: ClusterView, shard: str) -> dict[str, Any]:
    """The state of a shard, from the operators' entry and its leader's report, or without a leader from the
    replica with the newest entry. The shard has a topic, a queue, or both if they are colocated."""
    entry = cluster.map.shards.get(shard, wire.ShardEntry(0, 0, "being created", None, ()))
    replicas = _replicas(cluster, shard)
    leader = None if entry.leader is None else node_of(entry.leader)
    leading = replicas.get(leader or "")
    seen = leading or max(replicas.values(), key=lambda each: each.head, default=None)
    lag = {node_of(member): entries for member, entries in leading.lag.items()} if leading else {}
    return {
        "id": shard,
        **{kind: resident.name for kind, resident in cluster.map.on(shard).items()},
        "partition": int(shard.rpartition("/")[2]),
        "epoch": entry.epoch,
        "leader": leader,
        "members": [node_of(member) for member in entry.members],
        "copies": entry.copies,
        "state": entry.status,
        "head": seen.head.index if seen else None,
        "commit": seen.commit if seen else None,
        "apply": seen.applied if seen else None,
        "lag": lag,
        "reconfiguration": _change(entry.change),
        "replicas": {
            node: {
                "role": each.role,
                "head": each.head.index,
                "commit": each.commit,
                "apply": each.applied,
                "pulled_bytes": each.pulled,
            }
            for node, each in replicas.items()
        },
        "halted": _halted(cluster, shard),
    }


def shard_label(shard: dict[str, Any]) -> str:
    """The name of a shard, as TOPIC/PARTITION."""
    name = shard.get("topic") or shard.get("queue") or shard.get("homes")
    return f"{name}/{shard['partition']}"


def _replicas(cluster: ClusterView, shard: str) -> dict[str, m.StatusResponse]:
    """The report of each node with a replica of the shard, including nodes that are being added."""
    found = {}
    for node, rolled in cluster.reports.items():
        report = rolled.shards.get(shard)
        if report is None:
            continue
        said = m.decode(report.status)
        if isinstance(said, m.StatusResponse):
            found[node] = said
    return found


def _halted(cluster: ClusterView, shard: str) -> dict[str, str]:
    reports = {node: rolled.shards.get(shard) for node, rolled in cluster.reports.items()}
    return {node: each.halted for node, each in reports.items() if each is not None and each.halted}


def _change(text: str | None) -> dict[str, str | None] | None:
    """The reconfiguration in progress, with its nodes."""
    if text is None:
        return None
    kind, old, new, phase = text.split(" ")
    return {"kind": kind, "old": node_of(old) or None, "new": node_of(new) or None, "phase": phase}


def node_states(cluster: ClusterView) -> list[dict[str, Any]]:
    """The state of each node that the operators know or that answers."""
    shown = []
    for node in sorted(cluster.map.nodes.keys() | cluster.links.keys()):
        entry, rolled = cluster.map.nodes.get(node), cluster.reports.get(node)
        leads = [each for each in cluster.map.shards.values() if each.leader and node_of(each.leader) == node]
        shown.append(
            {
                "id": node,
                "address": entry.address if entry is not None else cluster.links[node].address,
                "alive": rolled is not None,
                "seen_by_operator": entry is not None and entry.alive,
                "cluster": None if rolled is None else rolled.cluster or None,
                "shards": None if rolled is None else len(rolled.shards),
                "leads": len(leads),
                "free_bytes": None if rolled is None else rolled.free_bytes,
                "clock_ahead_seconds": None if rolled is None else rolled.clock_ahead_seconds,
                "clock_is_wrong": rolled is not None and rolled.clock_is_wrong,
            }
        )
    return shown


def _problems(shown: dict[str, Any]) -> Iterator[str]:
    """The reasons not to stop one more node."""
    if not any(node["seen_by_operator"] for node in shown["nodes"]):
        yield "no operator runs; start one with `hawser operator`"
    for problem in clock_problems(shown):
        yield f"{problem}; correct it"
    yield from shard_problems(shown)


def clock_problems(shown: dict[str, Any]) -> Iterator[str]:
    """Nodes whose clocks are not confirmed by a majority."""
    for node in shown["nodes"]:
        if node["clock_is_wrong"]:
            yield f"node {node['id']}: {_clock(node)}, compared with the other nodes"


def shard_problems(shown: dict[str, Any]) -> Iterator[str]:
    """Shards without a leader, and replicas that are missing or behind."""
    for shard in shown["shards"]:
        name, replicas = shard_label(shard), shard["replicas"]
        if shard["state"] != "steady":
            yield f"{name}: {shard['state']}"
        if len(shard["members"]) < shard["copies"]:
            yield f"{name}: has {len(shard['members'])} of {shard['copies']} replicas"
        for node in shard["members"]:
            if node not in replicas:
                yield f"{name}: the replica on {node} does not answer"
            elif node in shard["halted"]:
                yield f"{name}: the replica on {node} halted: {shard['halted'][node]}"
            elif replicas[node]["role"] != ("leader" if node == shard["leader"] else "follower"):
                yield f"{name}: the replica on {node} is not a leader or follower yet"
            elif shard["lag"].get(node, 0) > _CLOSE_ENTRIES:
                yield f"{name}: the replica on {node} is {count(shard['lag'][node])} entries behind"


def _clock(node: dict[str, Any]) -> str:
    """Describe the fault of a node's clock."""
    seconds = node["clock_ahead_seconds"] or 0.0
    if abs(seconds) <= CLOCK_BOUND_SECONDS:
        # The clock differs from one other clock, or from several that differ from each other.
        return "clock not confirmed"
    return f"clock {age(abs(seconds))} {'ahead' if seconds > 0 else 'behind'}"


def _print(shown: dict[str, Any]) -> None:
    titles = ("head", "commit", "apply")
    columns = [
        Column("shard"),
        Column("epoch", right=True),
        Column("leader"),
        Column("members"),
        Column("state"),
        *(Column(title, right=True) for title in titles),
        Column("lag"),
    ]
    if shown["shards"]:
        print_table(columns, [_shard_row(shard, titles) for shard in shown["shards"]])
        click.echo()
    else:
        notice("no topics and no queues")
    columns = [
        Column("node"),
        Column("address"),
        Column("state"),
        Column("shards", right=True),
        Column("leads", right=True),
        Column("free", right=True),
    ]
    print_table(columns, [_node_row(node) for node in shown["nodes"]])


def _shard_row(shard: dict[str, Any], titles: tuple[str, ...]) -> list[str | Cell]:
    change, state = shard["reconfiguration"], shard["state"]
    if change is not None:
        state = " ".join(filter(None, (change["kind"], change["old"], change["new"], change["phase"])))
    if shard["halted"]:
        state = f"halted on {', '.join(shard['halted'])}"
    lag = ", ".join(f"{node} {count(entries)}" for node, entries in shard["lag"].items() if entries)
    label = shard_label(shard)
    if "topic" in shard and "queue" in shard:
        label += f", with queue {shard['queue']}"
    elif "homes" in shard:
        label += ", a coordinator shard"
    return [
        label,
        str(shard["epoch"]),
        shard["leader"] or Cell("none", "red"),
        " ".join(shard["members"]),
        Cell(state, "red" if shard["halted"] else _COLORS.get(shard["state"], "yellow")),
        *("" if shard[title] is None else count(shard[title]) for title in titles),
        lag,
    ]


def _node_row(node: dict[str, Any]) -> list[str | Cell]:
    if not node["alive"]:
        state = Cell("does not answer", "red")
    elif node["clock_is_wrong"]:
        state = Cell(_clock(node), "red")
    elif not node["seen_by_operator"]:
        state = Cell("without an operator", "yellow")
    else:
        state = Cell("alive", "green")
    return [
        node["id"],
        node["address"],
        state,
        "" if node["shards"] is None else str(node["shards"]),
        str(node["leads"]),
        "" if node["free_bytes"] is None else byte_size(node["free_bytes"]),
    ]
