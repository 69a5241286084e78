"""The command `hawser doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from hawser.cli.options import chosen_url, connect, shared_options, wants_json
from hawser.cli.output import exit_with, notice, print_json

if TYPE_CHECKING:
    from hawser.cli.doctor import Finding

__all__ = ["doctor"]

_UNHEALTHY = 4
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@shared_options
def doctor() -> None:
    """Check this host and its domain: memory, permissions, kernel, leftovers of dead processes, Spark. With
    the URL of a cluster, check its operators, nodes, clocks and shards.

    Changes nothing. Exits with 4 when a check fails; a warning is not a failure.
    """
    findings = _of_cluster() if (chosen_url() or "").startswith("hawser:") else _of_host()
    failed = sum(each.verdict == "fail" for each in findings)
    with exit_with(_UNHEALTHY if failed else 0):
        if wants_json():
            print_json({"healthy": not failed, "checks": msgspec.to_builtins(findings)})
        else:
            _print(findings, failed)


def _of_cluster() -> "list[Finding]":
    from hawser.cli.doctor.cluster import cluster_checks

    return [*cluster_checks()]


def _of_host() -> "list[Finding]":
    import hawser
    from hawser.cli.doctor.domain import domain_checks, refused_domain
    from hawser.cli.doctor.host import host_checks
    from hawser.cli.doctor.spark import spark_checks

    try:
        bus = connect()
    except hawser.PermissionDenied as error:
        return [refused_domain(error)]
    with bus:
        directory = Path(bus.url.removeprefix("shm://"))
        return [*host_checks(directory), *domain_checks(bus, directory), *spark_checks()]


def _print(findings: "list[Finding]", failed: int) -> None:
    width = max(len(each.check) for each in findings)
    for each in findings:
        verdict = click.style(each.verdict.ljust(4), fg=_COLORS[each.verdict])
        click.echo(f"{verdict}  {each.check.ljust(width)}  {each.finding}")
        if each.advice:
            click.echo(f"{' ' * (width + 8)}{click.style('do: ', bold=True)}{each.advice}")
    warned = sum(each.verdict == "warn" for each in findings)
    notice(f"{len(findings)} checks: {failed} failed, {warned} with a warning")
