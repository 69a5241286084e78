"""`hawser agent`: run the agent of a domain in the foreground."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from hawser.cli.daemon.node import daemon_options, run_configured
from hawser.cli.options import chosen_url

if TYPE_CHECKING:
    from hawser.agent.recorder_threads import RunnableRecorder

__all__ = ["agent"]


@click.command()
@click.option(
    "--record",
    "recorded",
    metavar="NAME[=TARGET]",
    multiple=True,
    help="Record this topic or queue of the host into TARGET on the cluster; default: the same name. While a "
    "queue is recorded, only the agent gets its messages. Repeatable.",
)
@click.option(
    "--trace",
    "traced",
    metavar="TARGET",
    help="Record the trace of the domain into this topic on the cluster, and each topic traced with payloads "
    "into the topic of its name. See `hawser topic trace`.",
)
@click.option("--to", "cluster", metavar="URL", help="The cluster to record into: hawser://host:port,...")
@click.option(
    "--name", default="agent", show_default=True, help="The recorder's name; use the same at every start."
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=1),
    metavar="SAMPLES",
    help="Samples that publishers of topics may get ahead while no agent records; overwritten samples become "
    "a gap. Default: publishers wait.",
)
@click.option(
    "--look-seconds",
    type=click.FloatRange(min=0.01),
    default=1.0,
    show_default=True,
    help="Seconds between scans of the whole domain, besides scans on kernel events.",
)
@daemon_options
def agent(
    recorded: tuple[str, ...],
    traced: str | None,
    cluster: str | None,
    name: str,
    max_lag: int | None,
    look_seconds: float,
    **options: Any,
) -> None:
    """Run the agent of a domain: it recovers dead processes at once, serves metrics, and records topics,
    queues and traces into a cluster.

    Prints "ready NAME URL" after the first scan of the domain. The agent is optional, may be killed at any
    moment, and several may run at once. If a recorder fails permanently, the agent is not ready (/readyz
    gives the reason), and its other work continues.
    """
    from hawser.agent.daemon import AgentDaemon
    from hawser.memory.names import check_bus_name

    url = chosen_url() or "shm://"
    check_bus_name(name)
    if bool(recorded or traced) != bool(cluster):
        raise click.UsageError(
            "--record and --trace need --to, the cluster to record into, and --to needs one of them"
        )
    recordings = _recordings(url, name, recorded, cluster or "", max_lag)
    payloads: Callable[[str], RunnableRecorder] | None = None
    if traced and cluster:
        from hawser.agent.recording import PayloadRecorder, TraceRecorder

        if traced in {recording.status().target for recording in recordings}:
            raise click.UsageError(f"--trace needs a topic of its own; --record has {traced} as a target.")
        recordings.append(TraceRecorder(url, traced, cluster, name=name))
        payloads = partial(PayloadRecorder, url, to=cluster, name=name)
    run_configured(
        lambda config: AgentDaemon(name, url, recordings, look_seconds=look_seconds, payloads=payloads),
        {},
        **options,
    )


def _recordings(
    url: str, name: str, recorded: tuple[str, ...], cluster: str, max_lag: int | None
) -> "list[RunnableRecorder]":
    if not recorded:
        return []
    from hawser.agent.recording import Recorder

    pairs = [(source, target) for source, _, target in (each.partition("=") for each in recorded)]
    if len(dict(pairs)) < len(pairs):
        raise click.BadParameter(
            "an agent records each name once; give each name once", param_hint="--record"
        )
    return [
        Recorder(url, source, cluster, name=name, target=target or None, max_lag=max_lag)
        for source, target in pairs
    ]
