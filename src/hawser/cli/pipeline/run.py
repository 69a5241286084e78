"""`hawser pipeline run`: run the landing pipeline, or a pipeline of the user."""

import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

import hawser
from hawser.cli.options import chosen_url, shared_options, wants_json
from hawser.cli.output import Column, count, exit_with, notice, print_json, print_table

if TYPE_CHECKING:
    from hawser.spark.pipelines.runner import Plan, Report

__all__ = ["run", "run_and_show", "settings_of"]

_MISMATCH: Final = 7
_FORMATS: Final = ("raw", "json", "msgpack", "arrow")


@click.command()
@click.argument("pipeline", default="landing")
@click.option("--topic", "topics", metavar="T", multiple=True, help="A topic to land; repeatable.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="D",
    help="The directory of the tables and their state; use the same at every run.",
)
@click.option(
    "--every", type=click.FloatRange(min=0), metavar="SECONDS", help="Repeat at this interval, until stopped."
)
@click.option(
    "--value-format",
    type=click.Choice(_FORMATS),
    default="raw",
    show_default=True,
    help="Format of the values.",
)
@click.option(
    "--schema",
    default="",
    metavar="FIELDS",
    help="Schema of the values, like 'id bigint, name string'; default: the schema of the topics.",
)
@click.option(
    "--late-after",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="A record that lands this many seconds after its time is also in the table of late rows.",
)
@click.option(
    "--group",
    default="",
    metavar="NAME",
    help="A group whose position keeps retention from unlanded records.",
)
@click.option(
    "--full-refresh",
    multiple=True,
    metavar="TABLE",
    help="Rebuild a table and the tables that depend on it; repeatable.",
)
@click.option("--force", is_flag=True, help="Refresh even if rows are lost or sent to a sink again.")
@click.option("--master", default="local[*]", show_default=True, help="The master of Spark.")
@click.option("--remote", metavar="sc://HOST:PORT", help="A running Spark Connect server.")
@click.option(
    "--conf",
    multiple=True,
    metavar="spark.NAME=VALUE",
    help="A setting of Spark or of your file; repeatable.",
)
@shared_options
def run(pipeline: str, directory: Path, topics: tuple[str, ...], every: float | None, **options: Any) -> None:
    """Land new records of topics of a cluster in tables. With a FILE.py, run a pipeline of your own.

    Each record lands exactly once, even if processes are killed or the command runs again. The summary is
    D/summary.html. Exits with 7 if records are missing or duplicate.
    """
    from hawser.spark.requirements import check_packages

    check_packages()
    from hawser.spark.pipelines.directory import Place
    from hawser.spark.pipelines.runner import LANDING, Plan

    is_landing = pipeline == "landing"
    file = LANDING if is_landing else _file(pipeline)
    if is_landing:
        _check_landing(topics, options)
    plan = Plan(
        place=Place(directory),
        file=file,
        conf={**_settings_of_file(topics, options), **settings_of(options["conf"])},
        master=options["master"],
        remote=options["remote"],
        full_refresh=_with_both_typed(options["full_refresh"]) if is_landing else options["full_refresh"],
        force=options["force"],
        every_seconds=every,
    )
    if is_landing:
        _land(plan, topics, options["value_format"])
    else:
        rows = run_and_show(plan)
        print_json({"tables": rows}) if wants_json() else _print_tables(rows)


def _file(pipeline: str) -> Path:
    file = Path(pipeline)
    if file.suffix != ".py" or not file.is_file():
        raise hawser.UsageError(
            f"{pipeline!r} is not a pipeline; give `landing`, or the .py file of your own pipeline"
        )
    return file.absolute()


def settings_of(given: Sequence[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    for name, equals, _ in pairs:
        if not re.fullmatch(r"spark\.[\w.-]+", name) or not equals:
            raise hawser.UsageError(f"--conf {name + equals!r} is not spark.NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _check_landing(topics: Sequence[str], options: dict[str, Any]) -> None:
    url = chosen_url()
    if url is None or not url.startswith("hawser://"):
        raise hawser.UsageError(
            "landing reads topics of a cluster: give --url hawser://host:port,... (`hawser agent --record` "
            "copies topics of this host to a cluster)"
        )
    if not topics:
        raise hawser.UsageError("give --topic for each topic to land; see `hawser topic list`")
    if options["value_format"] == "raw":
        if options["schema"]:
            raise hawser.UsageError("--schema needs --value-format json, msgpack or arrow")
    elif not options["schema"]:
        from hawser.spark.pipelines.topics import common_fields

        options["schema"] = common_fields(url, topics)


def _with_both_typed(tables: tuple[str, ...]) -> tuple[str, ...]:
    """The tables to refresh, with both of `typed` and `bad` if one is given. Each record is in one of them,
    and a new schema moves records from one to the other."""
    both = ("typed", "bad")
    return tuple(dict.fromkeys((*tables, *both))) if set(both) & set(tables) else tables


def _settings_of_file(topics: Sequence[str], options: dict[str, Any]) -> dict[str, str]:
    """The options as settings of the pipeline's file. A user's file may be a copy of landing's."""
    return {
        "spark.hawser.url": chosen_url() or "",
        "spark.hawser.topics": ",".join(topics),
        "spark.hawser.value.format": options["value_format"],
        "spark.hawser.value.schema": options["schema"],
        "spark.hawser.late.seconds": f"{options['late_after']:g}",
        "spark.hawser.group": options["group"],
        "spark.hawser.force": "true" if options["force"] else "false",
    }


def run_and_show(plan: "Plan", report: "Report | None" = None) -> dict[str, dict[str, int]]:
    """Run the plan, and return the rows and the new rows of each table."""
    from hawser.cli.pipeline.display import displayed
    from hawser.spark.pipelines.runner import Report
    from hawser.spark.pipelines.runner import run as run_plan

    # A run with --every ends normally when it is stopped.
    ending = nullcontext() if plan.every_seconds is None else suppress(KeyboardInterrupt, SystemExit)
    with displayed(plan.place) as watcher, ending:
        run_plan(plan, watcher, report or Report())
    return watcher.rows


def _land(plan: "Plan", topics: Sequence[str], value_format: str) -> None:
    from hawser.spark.pipelines.report.landing_page import LandingReport
    from hawser.spark.pipelines.topics import look

    ends = look(plan.conf["spark.hawser.url"], topics, value_format)
    report = LandingReport(plan.place.directory, ends, "raw" in plan.full_refresh and not plan.force)
    rows = run_and_show(plan, report)
    summary = report.summary
    if summary is None:
        # The run was stopped before it had a report.
        raise KeyboardInterrupt
    # A run with --every may be stopped with records left for the next run; a single run may not leave any.
    is_mismatch = not summary.is_whole or (plan.every_seconds is None and summary.to_come > 0)
    with exit_with(_MISMATCH if is_mismatch else 0):
        if wants_json():
            print_json(
                {"verdict": summary.verdict, "whole": summary.is_whole, "tables": rows, "summary": summary}
            )
        else:
            _print_tables(rows)
            notice(f"{summary.verdict}; see {report.page}")


def _print_tables(tables: dict[str, dict[str, int]]) -> None:
    columns = [Column("table"), Column("rows", right=True), Column("new", right=True)]
    print_table(columns, [[name, count(each["rows"]), count(each["new"])] for name, each in tables.items()])
