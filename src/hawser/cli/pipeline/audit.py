"""`hawser pipeline audit`: collect evidence of every message with Spark, judge it, and print the report."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

import hawser
from hawser.cli.options import chosen_url, shared_options, wants_json
from hawser.cli.output import Cell, Column, count, exit_with, notice, print_json, print_table

if TYPE_CHECKING:
    from hawser.spark.pipelines.auditing.collection import Asked
    from hawser.spark.pipelines.auditing.document import Document

__all__ = ["audit"]

_MISMATCH: Final = 7
_UNDECIDED: Final = 8
_MOST_PROBLEMS: Final = 20


@click.command()
@click.option(
    "--topic", "topics", metavar="T", multiple=True, help="A topic of the cluster to audit; repeatable."
)
@click.option(
    "--trace", default="", metavar="TOPIC", help="The topic that `hawser agent --trace` records into."
)
@click.option(
    "--landing",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="D",
    help="The --dir of the `hawser pipeline run` that lands the topics.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="A",
    help="The directory of the audit's tables and report; use the same at every run.",
)
@click.option(
    "--late-after",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="A message that is taken or lands this many seconds after its time is late.",
)
@click.option(
    "--complete", is_flag=True, help="Count messages that have not arrived in every tier as a mismatch."
)
@click.option(
    "--full-refresh",
    multiple=True,
    metavar="TABLE",
    help="Rebuild a table of evidence; repeatable.",
)
@click.option("--master", default="local[*]", show_default=True, help="The master of Spark.")
@click.option("--remote", metavar="sc://HOST:PORT", help="A running Spark Connect server.")
@click.option("--conf", multiple=True, metavar="spark.NAME=VALUE", help="A setting of Spark; repeatable.")
@shared_options
def audit(directory: Path, landing: Path | None, **options: Any) -> None:
    """Compare every message of topics in all tiers: published, delivered, recorded, replicated, in Spark,
    landed.

    Each run reads new evidence and judges all messages. The reports are A/audit.html and A/audit.json. Exits
    with 7 if messages are missing, duplicate, reordered or damaged, and with 8 if none is, but some messages
    could not be compared or their loss could not have been detected.
    """
    from hawser.spark.requirements import check_packages

    check_packages()
    from hawser.spark.pipelines.auditing.collection import Asked, collect
    from hawser.spark.pipelines.auditing.report.page import write
    from hawser.spark.pipelines.auditing.scope import Scope, check_ends, widened
    from hawser.spark.pipelines.stream_progress import progress_of, reached_by
    from hawser.spark.pipelines.topics import look_if_there

    topics, trace = options["topics"], options["trace"]
    url, uuids = _checked(topics, trace)
    place = "" if landing is None else str(landing.absolute())
    asked = Asked(url, topics, trace, place, options["late_after"], options["complete"], time.time())
    # Read the progress first: rows committed by now are in the table and in the log when those are read.
    progress = None if landing is None else progress_of(landing)
    landed = {} if landing is None else _landed_uuids(landing)
    uuids |= {each.topic: each.topic_uuid for each in look_if_there(url, landed.keys() - uuids.keys())}
    scope = Scope(list(topics), trace, place, uuids)
    scope = widened(directory.absolute(), scope, options["full_refresh"])
    # Read the positions before the ends, so that no end is older than its position.
    reached = {table: reached_by(directory, table) for table in ("log_runs", "trace_runs")}
    ends = look_if_there(url, dict.fromkeys([*scope.topics, *([trace] if trace else [])]))
    check_ends(directory, reached, ends, options["full_refresh"])
    there = {each.topic for each in ends}
    deleted = sorted(uuid for name, found in landed.items() for uuid in found - {uuids.get(name)})
    conf = {
        "spark.hawser.topics": ",".join(each for each in scope.topics if each in there),
        "spark.hawser.audit.deleted": ",".join(deleted),
        "spark.hawser.audit.committed": (
            "" if progress is None else msgspec.json.encode(progress.committed_of(uuids)).decode()
        ),
    }
    _run(directory, asked, conf, options)
    document = collect(directory.absolute(), asked, [] if progress is None else progress.batches)
    page = write(directory.absolute(), document)
    with exit_with(0 if document.is_proven else _UNDECIDED if document.is_whole else _MISMATCH):
        print_json(document) if wants_json() else _print(document)
        notice(f"{document.verdict}; see {page}")


def _checked(topics: tuple[str, ...], trace: str) -> tuple[str, dict[str, str]]:
    """The URL of the cluster and the uuids of the topics. UsageError without a cluster or topics, NotFound if
    a topic does not exist."""
    from hawser.spark.pipelines.topics import look

    url = chosen_url()
    if url is None or not url.startswith("hawser://"):
        raise hawser.UsageError("an audit reads topics of a cluster: give --url hawser://host:port,...")
    if not topics:
        raise hawser.UsageError("give --topic for each topic to audit; see `hawser topic list`")
    ends = look(url, [*topics, *([trace] if trace else [])], "raw")
    return url, {each.topic: each.topic_uuid for each in ends}


def _landed_uuids(landing: Path) -> dict[str, set[str]]:
    """The uuids of the topics with rows in the landing, by name."""
    from hawser.spark.pipelines.coverage import coverage

    found: dict[str, set[str]] = {}
    for each in coverage(landing, "raw"):
        found.setdefault(each.topic, set()).add(each.topic_uuid)
    return found


def _run(directory: Path, asked: "Asked", conf: dict[str, str], options: dict[str, Any]) -> None:
    from hawser.cli.pipeline.run import run_and_show, settings_of
    from hawser.spark.pipelines.directory import Place
    from hawser.spark.pipelines.runner import AUDIT, Plan

    conf = {
        **conf,
        "spark.hawser.url": asked.url,
        "spark.hawser.audit.topics": ",".join(asked.topics),
        "spark.hawser.late.seconds": f"{asked.late_seconds:g}",
        "spark.hawser.audit.trace": asked.trace,
        "spark.hawser.audit.landing": asked.landing,
        # Larger batches give fewer offset ranges.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
    }
    plan = Plan(
        place=Place(directory),
        file=AUDIT,
        conf={**conf, **settings_of(options["conf"])},
        master=options["master"],
        remote=options["remote"],
        full_refresh=options["full_refresh"],
    )
    run_and_show(plan)


def _print(document: "Document") -> None:
    from hawser.spark.pipelines.auditing.document import UNKNOWN

    columns = [Column("tier"), Column("expected", right=True), Column("found", right=True), Column("verdict")]
    rows = []
    for total in document.tiers:
        words = ", ".join(f"{number:,} {word}" for word, number in total.words.items())
        rows.append(
            [total.tier, count(total.expected), count(total.found), words or Cell("complete", "green")]
        )
    print_table(columns, rows)
    told = [each for each in document.problems if each.is_mismatch or each.word in UNKNOWN]
    for problem in told[:_MOST_PROBLEMS]:
        place = "" if problem.partition is None else f" partition {problem.partition}"
        who = f" ({problem.who})" if problem.who else ""
        span = f"{problem.first:,}" + ("" if problem.last == problem.first else f" to {problem.last:,}")
        notice(f"{problem.word}: {problem.topic}{place}, {problem.tier}{who}: {span}")
