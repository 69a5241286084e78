"""`hawser cluster elect|transfer|swap|expand|contract`: change the leader or the replicas of one shard, or of
all.

An operator executes each order, and completes it even if the command ends.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

import hawser
from hawser.cli.cluster.connection import (
    ClusterView,
    addresses,
    administer,
    connect_nodes,
    find_shard,
    refresh,
    run,
)
from hawser.cli.cluster.status import shard_label, shard_state, shard_states
from hawser.cli.options import shared_options, wants_json
from hawser.cli.output import byte_size, notice, print_json
from hawser.cluster import wire
from hawser.cluster.wire import AdminKind

__all__ = ["contract", "elect", "expand", "swap", "transfer"]

_ALL = "all"


def _options(function: Any) -> Any:
    no_wait = click.option("--no-wait", is_flag=True, help="Return once the change has begun.")
    return click.argument("shard")(no_wait(shared_options(function)))


@click.command()
@_options
def elect(shard: str, no_wait: bool) -> None:
    """Start a new leader election in SHARD, written TOPIC/PARTITION; "all" means every shard."""
    _request_change(AdminKind.ELECT, shard, (), no_wait)


@click.command()
@_options
@click.argument("node")
def transfer(shard: str, node: str, no_wait: bool) -> None:
    """Make NODE the leader of SHARD, of which it has a replica; "all" means every shard with a replica
    there."""
    _request_change(AdminKind.TRANSFER, shard, (node,), no_wait)


@click.command()
@_options
@click.argument("old")
@click.argument("new")
def swap(shard: str, old: str, new: str, no_wait: bool) -> None:
    """Move a replica of SHARD from node OLD to node NEW; "all" means every shard on OLD that is not on
    NEW."""
    _request_change(AdminKind.SWAP, shard, (old, new), no_wait)


@click.command()
@_options
@click.argument("node")
def expand(shard: str, node: str, no_wait: bool) -> None:
    """Add a replica of SHARD on NODE; "all" means every shard without a replica there."""
    _request_change(AdminKind.EXPAND, shard, (node,), no_wait)


@click.command()
@_options
@click.argument("node")
def contract(shard: str, node: str, no_wait: bool) -> None:
    """Remove the replica of SHARD on NODE; "all" means every replica there."""
    _request_change(AdminKind.CONTRACT, shard, (node,), no_wait)


def _request_change(kind: AdminKind, shard: str, nodes: tuple[str, ...], no_wait: bool) -> None:
    try:
        run(_change_shards(addresses(), kind, shard, nodes, no_wait))
    except KeyboardInterrupt:
        notice("the operator completes an order that was given; `hawser cluster status` shows its progress")
        raise


async def _change_shards(
    given: list[str], kind: AdminKind, shard: str, nodes: tuple[str, ...], no_wait: bool
) -> None:
    async with connect_nodes(given) as cluster:
        if shard != _ALL:
            await _change_shard(cluster, kind, shard, nodes, no_wait)
            return
        chosen = [
            shard_label(each)
            for each in shard_states(cluster)
            if _applies_to(kind, nodes, each["leader"], each["members"])
        ]
        # One after the other: a shard is one replica short while it is moved.
        for each in chosen:
            await _change_shard(cluster, kind, each, nodes, no_wait)
        if not chosen:
            notice("no shard needs the change")


def _applies_to(kind: AdminKind, nodes: tuple[str, ...], leader: str | None, members: list[str]) -> bool:
    """Whether an order for all shards includes this one."""
    if kind is AdminKind.ELECT:
        return True
    if kind is AdminKind.TRANSFER:
        return nodes[0] in members and nodes[0] != leader
    if kind is AdminKind.EXPAND:
        return nodes[0] not in members
    if kind is AdminKind.SWAP and nodes[1] in members:
        return False
    return nodes[0] in members


async def _change_shard(
    cluster: ClusterView, kind: AdminKind, shard: str, nodes: tuple[str, ...], no_wait: bool
) -> None:
    name = find_shard(cluster, shard)
    before = cluster.map.shards.get(name)
    with _progress(f"{kind} {shard} {' '.join(nodes)}".strip()) as show:

        async def meanwhile() -> bool:
            await refresh(cluster)
            show(_describe(cluster, name))
            # Once the order is in the metadata store, the operator completes it without the command.
            return no_wait and cluster.map.shards.get(name) != before

        done = await administer(cluster, wire.Admin(kind, name, nodes), meanwhile)
    if done is not None and not done.done:
        raise hawser.Rejected(f"{shard}: {done.text}")
    text = "begun; `hawser cluster status` shows its progress" if done is None else done.text
    if wants_json():
        print_json({"shard": shard, "order": kind, "nodes": nodes, "done": done is not None, "text": text})
    else:
        notice(f"{shard}: {text}")


def _describe(cluster: ClusterView, shard: str) -> str:
    shown = shard_state(cluster, shard)
    change = shown["reconfiguration"]
    if change is None:
        return f"epoch {shown['epoch']}, {shown['state']}"
    text = f"epoch {shown['epoch']}, {change['kind']}, {change['phase']}"
    newcomer = shown["replicas"].get(change["new"])
    if newcomer is not None:
        text += f", {change['new']} has {byte_size(newcomer['pulled_bytes'])}, entry {newcomer['head']}"
    return text


@contextmanager
def _progress(title: str) -> Iterator[Callable[[str], None]]:
    """Show the progress on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(title)) as status:
        yield lambda text: status.update(Text(f"{title}: {text}"))
