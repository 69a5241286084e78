"""`hawser doctor`: is this host fit for Hawser and for Spark, and is the domain sound?"""

from pathlib import Path

import click
import msgspec

from hawser.cli.options import chosen_url, connect, shared_options, wants_json
from hawser.cli.output import notice, print_json

__all__ = ["doctor"]

_UNHEALTHY = 4
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@shared_options
def doctor() -> None:
    """Check this host and the domain: memory, permissions, the kernel, what the dead left, Spark.

    Nothing is changed. Exits with 4 when a check fails; a warning alone does not.
    """
    import hawser
    from hawser.cli.checks_of_domain import domain_checks, refused_domain
    from hawser.cli.checks_of_host import host_checks
    from hawser.cli.checks_of_spark import spark_checks

    if (chosen_url() or "").startswith("hawser:"):
        raise hawser.UsageError(
            "doctor looks at this host and a domain on it; `hawser cluster status --check` looks at a cluster"
        )
    try:
        bus = connect()
    except hawser.PermissionDenied as error:
        findings = [refused_domain(error)]
    else:
        with bus:
            directory = Path(bus.url.removeprefix("shm://"))
            findings = [*host_checks(directory), *domain_checks(bus, directory), *spark_checks()]
    if wants_json():
        healthy = all(each.verdict != "fail" for each in findings)
        print_json({"healthy": healthy, "checks": msgspec.to_builtins(findings)})
    else:
        width = max(len(each.check) for each in findings)
        for each in findings:
            verdict = click.style(each.verdict.ljust(4), fg=_COLORS[each.verdict])
            click.echo(f"{verdict}  {each.check.ljust(width)}  {each.finding}")
            if each.advice:
                click.echo(f"{' ' * (width + 8)}{click.style('do: ', bold=True)}{each.advice}")
    failed = sum(each.verdict == "fail" for each in findings)
    warned = sum(each.verdict == "warn" for each in findings)
    if not wants_json():
        notice(f"{len(findings)} checks: {failed} failed, {warned} with a warning")
    if failed:
        click.get_current_context().exit(_UNHEALTHY)
