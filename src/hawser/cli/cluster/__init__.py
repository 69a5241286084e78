"""`hawser cluster`: the commands about a cluster."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["cluster"]

_COMMANDS = {
    "status": ("hawser.cli.cluster.status:status", "Shards, leaders, replicas, nodes."),
    "elect": ("hawser.cli.cluster.reconfiguration:elect", "Have a shard elect its leader anew."),
    "transfer": ("hawser.cli.cluster.reconfiguration:transfer", "Make another node the leader of a shard."),
    "swap": ("hawser.cli.cluster.reconfiguration:swap", "Move a replica from a node to another."),
    "expand": ("hawser.cli.cluster.reconfiguration:expand", "Give a shard one replica more."),
    "contract": ("hawser.cli.cluster.reconfiguration:contract", "Take a replica from a shard."),
}


@click.group("cluster", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def cluster() -> None:
    """Look at a cluster, move leaders and replicas.

    Without --url it is the one at hawser://127.0.0.1:7400.
    """
