"""`hawser pipeline run`."""

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
@click.option(
    "--topic", "topics", metavar="T", multiple=True, help="What to land; may be given more than once."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="D",
    help="Where the tables are and all else that is kept; the same at every run.",
)
@click.option(
    "--every", type=click.FloatRange(min=0), metavar="SECONDS", help="Again and again, until ended."
)
@click.option(
    "--value-format", type=click.Choice(_FORMATS), default="raw", show_default=True, help="Of the values."
)
@click.option(
    "--schema",
    default="",
    metavar="FIELDS",
    help="Of the values: 'id bigint, name string'; else that of the topics.",
)
@click.option(
    "--late-after",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="What lands so long after its time is in the table of late rows, too.",
)
@click.option("--group", default="", metavar="NAME", help="Hold retention back for what is not landed yet.")
@click.option(
    "--full-refresh",
    multiple=True,
    metavar="TABLE",
    help="Make a table anew, and all that is made from it; may be given more than once.",
)
@click.option("--force", is_flag=True, help="Even if rows get lost or are sent to a sink again.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server that runs already.")
@click.option("--conf", multiple=True, metavar="spark.NAME=VALUE", help="For Spark, or for your file.")
@shared_options
def run(pipeline: str, directory: Path, topics: tuple[str, ...], every: float | None, **options: Any) -> None:
    """Land what is new in topics of a cluster in tables; with a FILE.py, run a pipeline of your own.

    Every record is landed once, whatever is killed and however often this runs. A summary is written to
    D/summary.html. Exit code 7 if records are missing or double.
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
            f"{pipeline!r} is no pipeline: give `landing`, or the .py file that defines one of your own"
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
            "brings topics of this host there)"
        )
    if not topics:
        raise hawser.UsageError("which topics? Give --topic, as often as there are; see `hawser topic list`")
    if options["value_format"] == "raw":
        if options["schema"]:
            raise hawser.UsageError(
                "--schema says what is in the values; say with --value-format how they are written"
            )
    elif not options["schema"]:
        from hawser.spark.pipelines.topics import common_fields

        options["schema"] = common_fields(url, topics)


def _with_both_typed(tables: tuple[str, ...]) -> tuple[str, ...]:
    """Every record is in one of the tables `typed` and `bad`, so they are made anew together: a schema that
    moves a record out of one of them moves it into the other."""
    both = ("typed", "bad")
    return tuple(dict.fromkeys((*tables, *both))) if set(both) & set(tables) else tables


def _settings_of_file(topics: Sequence[str], options: dict[str, Any]) -> dict[str, str]:
    """The options as the file of a pipeline gets them; a file of one's own may be a copy of landing's."""
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
    """The rows of each table, and how many of them are new, once the run is over."""
    from hawser.cli.pipeline.display import displayed
    from hawser.spark.pipelines.runner import Report
    from hawser.spark.pipelines.runner import run as run_plan

    # One that is to run until it is ended has done its work then.
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
        # Stopped while it waited for the directory or for its own report: there is nothing to report.
        raise KeyboardInterrupt
    # Ended on its way, a run may leave some for the next one; one that says it is done may not.
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
