"""`hawser cluster`: the commands for a cluster."""

import click

from hawser.cli.lazy import LazyGroup
from hawser.cli.options import shared_options

__all__ = ["cluster"]

_COMMANDS = {
    "status": ("hawser.cli.cluster.status:status", "Show shards, leaders, replicas and nodes."),
    "elect": ("hawser.cli.cluster.reconfiguration:elect", "Start a new leader election in a shard."),
    "transfer": ("hawser.cli.cluster.reconfiguration:transfer", "Make another node the leader of a shard."),
    "swap": ("hawser.cli.cluster.reconfiguration:swap", "Move a replica from one node to another."),
    "expand": ("hawser.cli.cluster.reconfiguration:expand", "Add a replica to a shard."),
    "contract": ("hawser.cli.cluster.reconfiguration:contract", "Remove a replica from a shard."),
}


@click.group("cluster", cls=LazyGroup, lazy_commands=_COMMANDS)
@shared_options
def cluster() -> None:
    """Inspect a cluster, move leaders and replicas.

    The default of --url is hawser://127.0.0.1:7400.
    """
