"""The document of an audit, from tables as Spark leaves them."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from hawser.errors import Corrupt, UsageError
from hawser.spark.pipelines.auditing.collection import Asked, collect
from hawser.spark.pipelines.auditing.document import Document
from hawser.spark.pipelines.auditing.report.page import write
from hawser.spark.pipelines.auditing.scope import Scope, check_ends, widened
from hawser.spark.pipelines.stream_progress import Batch
from hawser.spark.pipelines.topics import PartitionEnds
from hawser.spark.source.offsets import Place

MINUTE = 1_800_000_000 // 60 * 60
ASKED = Asked("hawser://host:1", ("orders", "silent"), "trace", "/landing", 600.0, False, 0.0)
QUIET = ASKED._replace(trace="")


def table(directory: Path, name: str, rows: list[dict[str, Any]]) -> None:
    place = directory / "tables" / name
    place.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / "part.parquet")
    (place / "_SUCCESS").touch()


def verdict(tier: str, found: int, *findings: tuple[str, int, int], **more: Any) -> dict[str, Any]:
    return {
        "topic": "orders", "partition": 0, "region": "", "tier": tier, "who": "", "is_queue": False,
        "minute": MINUTE, "expected": 10, "found": found, "compared": found, "bytes": 100, "hash": -1,
        "first": 1, "last": 10,
        "findings": [
            {"word": word, "first": first, "last": last, "reason": ""} for word, first, last in findings
        ],
        **more,
    }  # fmt: skip


def test_complete_and_not(tmp_path: Path) -> None:
    rows = [verdict("replicated", 10), verdict("landed", 8, ("pending", 9, 10))]
    table(tmp_path, "verdicts", rows)
    document = collect(tmp_path, QUIET, [Batch(0, 5.0, False)])
    assert document.is_whole and document.messages == 10
    assert document.verdict == "complete: 10 messages, each once in every tier that was looked at, 2 pending"
    assert [(total.tier, total.expected, total.found) for total in document.tiers] == [
        ("replicated", 10, 10), ("landed", 10, 8),
    ]  # fmt: skip
    assert [(line.topic, line.tier, line.hash, line.words) for line in document.lines] == [
        ("orders", "replicated", "f" * 16, {}),
        ("orders", "landed", "f" * 16, {"pending": 2}),
        ("silent", "replicated", "0" * 16, {}),
    ]
    assert [event.text for event in document.events] == ["batch 0, not committed"]
    wanted = collect(tmp_path, QUIET._replace(is_complete_wanted=True), [])
    assert not wanted.is_whole and wanted.problems[0].is_mismatch
    assert wanted.verdict == "not complete: 2 pending in landed of orders"

    table(tmp_path, "verdicts", [*rows, verdict("landed", 9, ("missing", 4, 4), partition=1)])
    document = collect(tmp_path, QUIET, [])
    assert not document.is_whole and document.verdict == "not complete: 1 missing in landed of orders"
    page = write(tmp_path, document)
    assert document.verdict in page.read_text().lower()
    assert msgspec.json.decode((tmp_path / "audit.json").read_bytes(), type=Document) == document


def test_what_could_not_be_compared_is_not_complete(tmp_path: Path) -> None:
    table(tmp_path, "verdicts", [verdict("replicated", 10), verdict("landed", 10, ("uncompared", 1, 3))])
    document = collect(tmp_path, QUIET, [])
    assert (document.is_whole, document.is_proven, document.uncompared) == (True, False, 3)
    told = "undecided: nothing wrong was found among 10 messages, but 3 uncompared in landed of orders"
    assert document.verdict == told
    page = write(tmp_path, document).read_text()
    assert told in page.lower() and "3 not compared" in page

    findings = ("uncompared", 1, 3), ("missing", 4, 4)
    table(tmp_path, "verdicts", [verdict("landed", 9, *findings)])
    document = collect(tmp_path, QUIET, [])
    assert not document.is_whole and not document.is_proven
    assert document.verdict == (
        "not complete: 1 missing in landed of orders; beside that 3 uncompared in landed of orders"
    )


def test_an_audit_without_all_of_the_trace_is_not_complete(tmp_path: Path) -> None:
    """What was lost may have told of messages that nothing else tells of."""
    rows = [verdict(tier, 10) for tier in ("delivered", "replicated", "landed")]
    rows.append(verdict("published", 0, expected=0))
    table(tmp_path, "verdicts", rows)
    event = dict.fromkeys(("owner", "first_us", "process"), 0)
    text = {"topic": "trace", "region": "", "who": "", "carrier": "recorder:agent/ring"}
    spans = {"first": 1, "last": 2, "at_first": 3, "at_last": 8}
    table(tmp_path, "events", [{"what": "traced", **text, **event, **spans}])
    document = collect(tmp_path, ASKED, [])
    assert document.is_whole and not document.is_proven and document.lost == 2
    assert document.verdict == (
        "undecided: nothing wrong was found among 10 messages; 2 records of the trace were lost"
    )


def test_what_is_too_much_is_counted(tmp_path: Path) -> None:
    findings = [("late", number, number) for number in range(1, 3001, 2)]
    table(tmp_path, "verdicts", [verdict("landed", 10, *findings, ("missing", 2, 2))])
    document = collect(tmp_path, ASKED, [])
    assert len(document.problems) == 1000 and document.problems_left_out == 501
    assert document.problems[0].word == "missing", "mismatches come first"


def test_how_long_it_took(tmp_path: Path) -> None:
    """Of 1000 messages 990 took a microsecond and 10 a second."""
    table(tmp_path, "verdicts", [verdict("landed", 10)])
    given = {"topic": "orders", "what": "landed", "region": "", "who": ""}
    table(
        tmp_path,
        "latencies",
        [
            {**given, "bucket": int(9.965784 * 16), "messages": 990, "slowest_ns": 1000},
            {**given, "bucket": int(29.897353 * 16), "messages": 10, "slowest_ns": 1_000_000_000},
        ],
    )
    (latency,) = collect(tmp_path, ASKED, []).latencies
    assert latency.messages == 1000 and latency.percentiles["100"] == 1.0
    assert latency.percentiles["50"] == pytest.approx(1e-6, rel=0.05)
    assert latency.percentiles["99"] == pytest.approx(1e-6, rel=0.05)
    assert latency.percentiles["99.9"] == pytest.approx(1, rel=0.05)


def test_what_happened_and_what_the_trace_lost(tmp_path: Path) -> None:
    table(tmp_path, "verdicts", [verdict("landed", 10)])

    def row(what: str, first: int, last: int, **more: Any) -> dict[str, Any]:
        return {
            "what": what, "topic": "camera", "region": "r", "who": "view", "owner": 65538, "first": first,
            "carrier": "recorder:agent/ring", "last": last, "at_first": first, "at_last": last,
            "first_us": 5_000_000, "process": 7, **more,
        }  # fmt: skip

    rows = [row("traced", 3, 10), row("traced", 15, 20), row("lost", 25, 25), row("recovered", 0, 0)]
    table(tmp_path, "events", [*rows, row("missed", 5, 9), row("joined", 4, 4, who="")])
    document = collect(tmp_path, ASKED, [])
    assert [(loss.ring, loss.first, loss.last) for loss in document.losses] == [
        ("ring", 1, 2), ("ring", 11, 14), ("ring", 21, 25),
    ]  # fmt: skip
    assert document.lost == 11 and document.traced == 14
    told = {event.kind: (event.who, event.text) for event in document.events}
    assert told == {
        "recovered": ("view", "it had died; process 7 recovered it"),
        "missed": ("view", "5 messages, 5 to 9"),
        "joined": ("participant 2", ""),
    }


def test_a_directory_is_of_one_trace_and_one_landing(tmp_path: Path) -> None:
    place = tmp_path / "audit"
    assert widened(place, Scope(["a"], "", "/landing")) == Scope(["a"], "", "/landing")
    assert widened(place, Scope(["b"], "trace", "")) == Scope(["a", "b"], "trace", "/landing")
    assert widened(place, Scope(["a"], "trace", "")).topics == ["a", "b"], "what was read once is read on"
    with pytest.raises(UsageError, match="another --dir"):
        widened(place, Scope(["a"], "other", ""))
    with pytest.raises(UsageError, match="the landing /landing, not of /elsewhere"):
        widened(place, Scope(["a"], "", "/elsewhere"))
    (place / "scope.json").write_text("{")
    with pytest.raises(Corrupt, match=r"scope\.json"):
        widened(place, Scope(["a"], "", ""))


def test_a_topic_that_was_created_anew_needs_new_evidence(tmp_path: Path) -> None:
    """Evidence knows topics by their names: offsets of the deleted one would count twice."""
    place = tmp_path / "audit"

    def scope(*topics: str, **uuids: str) -> Scope:
        return Scope(list(topics), "", "/landing", {"landed": "1", **uuids})

    assert widened(place, scope("a", a="1")).uuids == {"landed": "1", "a": "1"}
    widened(place, scope("b", b="1", landed="2"))
    for asked in scope("a", a="2"), scope("landed", landed="2"):
        with pytest.raises(UsageError, match="--full-refresh log_runs --full-refresh landed_runs, or"):
            widened(place, asked)
        with pytest.raises(UsageError, match="another --dir"):
            widened(place, asked, ["log_runs"])
    again = widened(place, scope("a", a="2"), ["log_runs", "landed_runs"])
    assert again == Scope(["a", "b"], "", "/landing", {"landed": "1", "a": "2", "b": "1"})
    assert widened(place, scope("a", a="2")) == again


def test_a_log_that_ends_before_its_evidence_needs_new_evidence(tmp_path: Path) -> None:
    """As after a restored backup. What is left of the log was read again: an audit said that all of it was
    there twice, and that what was gone was replicated."""
    reached = {"log_runs": {"a": Place("1", {0: 31, 1: 5})}, "trace_runs": {"t": Place("2", {0: 9})}}

    def end(topic: str, uuid: str, end: int, partition: int = 0) -> PartitionEnds:
        return PartitionEnds(topic=topic, topic_uuid=uuid, partition=partition, start=1, end=end)

    well = [
        end("a", "1", 31), end("a", "1", 6, 1), end("a", "1", 0), end("a", "3", 1), end("b", "1", 1),
        end("t", "2", 9),
    ]  # fmt: skip
    check_ends(tmp_path, reached, well)
    text = (
        "topic 'a', partition 0, ends at record 10, and .* has evidence of it up to record 30, .*"
        "with --full-refresh log_runs, or give another --dir"
    )
    with pytest.raises(UsageError, match=text):
        check_ends(tmp_path, reached, [end("a", "1", 11)])
    both = [end("a", "1", 31), end("a", "1", 4, 1), end("t", "2", 1)]
    with pytest.raises(UsageError, match="--full-refresh log_runs --full-refresh trace_runs, or"):
        check_ends(tmp_path, reached, both)
    with pytest.raises(UsageError, match="with --full-refresh trace_runs, or"):
        check_ends(tmp_path, reached, both, ["log_runs"])
    check_ends(tmp_path, reached, both, ["log_runs", "trace_runs"])


def test_it_says_of_what_it_knows_nothing(tmp_path: Path) -> None:
    table(tmp_path, "verdicts", [verdict("replicated", 10)])
    silent = collect(tmp_path, ASKED, [])
    assert silent.verdict.endswith("; nothing is known of published, delivered, landed")
