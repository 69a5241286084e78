"""`hawser cluster`: the commands about a cluster."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["cluster"]

_COMMANDS = {
    "status": ("hawser.cli.cluster_status:status", "Shards, leaders, replicas, nodes."),
    "elect": ("hawser.cli.cluster_orders:elect", "Have a shard elect its leader anew."),
    "transfer": ("hawser.cli.cluster_orders:transfer", "Make another node the leader of a shard."),
    "swap": ("hawser.cli.cluster_orders:swap", "Move a replica from a node to another."),
    "expand": ("hawser.cli.cluster_orders:expand", "Give a shard one replica more."),
    "contract": ("hawser.cli.cluster_orders:contract", "Take a replica from a shard."),
}


@click.group("cluster", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def cluster() -> None:
    """Look at a cluster, move leaders and replicas.

    Without --url it is the one at hawser://127.0.0.1:7400.
    """
