"""The tables of a pipeline without Spark: what is committed, which offsets, what a page says of it."""

import os
from pathlib import Path
from typing import cast

import msgspec
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hawser
from hawser.cli.pipeline import run
from hawser.spark.pipelines import runner, tables, topics
from hawser.spark.pipelines.coverage import Range, coverage
from hawser.spark.pipelines.directory import Place
from hawser.spark.pipelines.registration import Definitions
from hawser.spark.pipelines.report.landing_page import LandingReport, page_of
from hawser.spark.pipelines.report.landing_summary import summarize
from hawser.spark.pipelines.report.plots import Bar, Spread, columns, spreads
from hawser.spark.pipelines.topics import PartitionEnds, check_kept
from hawser.spark.pipelines.update import Order

RECORD = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("topic_uuid", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", tz="UTC")),
    ]
)


class Sink:
    """Writes files and lists of them as Spark's streaming sink does."""

    def __init__(self, directory: Path, table: str) -> None:
        self.place = directory / "tables" / table
        self.lists = self.place / "_spark_metadata"
        self.lists.mkdir(parents=True)
        self.batches = 0
        self.files = 0

    def write(self, *places: tuple[str, int, int]) -> Path:
        """A file with records at these topics, partitions and offsets, which nobody has listed yet."""
        self.files += 1
        path = self.place / f"part-{self.files:05}.snappy.parquet"
        rows = [
            {"topic": t, "topic_uuid": f"uuid-{t}", "partition": p, "offset": o, "timestamp": 1_000_000 * o}
            for t, p, o in places
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, RECORD), path)
        return path

    def commit(self, *paths: Path, name: str = "{}") -> None:
        lines = [
            msgspec.json.encode(
                {"path": path.as_uri(), "size": 1, "modificationTime": 2_000_000_000_000, "action": "add"}
            )
            for path in paths
        ]
        (self.lists / name.format(self.batches)).write_bytes(b"\n".join([b"v1", *lines]))
        self.batches += 1


def ends_of(topic: str, start: int, end: int, partition: int = 0) -> PartitionEnds:
    """The partition of the topic whose records a sink writes."""
    return PartitionEnds(topic=topic, topic_uuid=f"uuid-{topic}", partition=partition, start=start, end=end)


def test_only_what_is_committed_exists(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    first, abandoned, second = (sink.write(("t", 0, place)) for place in (1, 2, 2))
    sink.commit(first)
    assert tables.count(tmp_path, "raw") == 1
    sink.commit(second)
    assert [each.path for each in tables.files(tmp_path, "raw")] == [first, second]
    assert tables.read(tmp_path, "raw", ["offset"]).column("offset").to_pylist() == [1, 2]
    assert abandoned.exists()


class Defined:
    """A pipeline whose table `late` is made from `raw`."""

    def target_of(self, flow: str) -> str:
        return flow.partition("_")[0]

    def tables_before(self, flow: str) -> set[str]:
        return {"raw"} if self.target_of(flow) == "late" else set()


def test_who_is_filled_too_early_is_told_by_what_came_after(tmp_path: Path) -> None:
    """Whenever Spark says that raw is completed."""

    def order() -> Order:
        found = Order(cast(Definitions, Defined()), tmp_path)
        found.starts("raw")
        return found

    nothing_yet = order()
    nothing_yet.starts("late")
    nothing_yet.check()
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(("t", 0, 1)))
    with pytest.raises(hawser.UsageError, match="late was filled before raw"):
        nothing_yet.check()
    in_order = order()
    sink.commit(sink.write(("t", 0, 2)))
    in_order.starts("late")
    in_order.check()
    nothing_new = order()
    nothing_new.starts("late")
    nothing_new.check()
    too_early = order()
    too_early.starts("late")
    sink.commit(sink.write(("t", 0, 3)))
    # Another flow into the same table makes it no better.
    too_early.starts("late_more")
    with pytest.raises(hawser.UsageError, match="late was filled before raw"):
        too_early.check()


def test_a_compacted_list_stands_for_those_before_it(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    paths = [sink.write(("t", 0, place)) for place in range(1, 5)]
    sink.commit(paths[0])
    sink.commit(*paths[:2], name="{}.compact")
    sink.commit(paths[2])
    # What Spark writes before a rename is not a list yet.
    (sink.lists / ".3.tmp").write_bytes(b"v1\n")
    assert [each.path for each in tables.files(tmp_path, "raw")] == paths[:3]


def test_names_with_escapes_are_found(tmp_path: Path) -> None:
    directory = tmp_path / "with space"
    sink = Sink(directory, "raw")
    sink.commit(sink.write(("t", 0, 1)))
    assert tables.count(directory, "raw") == 1


def test_a_table_computed_as_a_whole_is_there_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "tables" / "minutes"
    place.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table({"records": [3]}), place / "part-0.parquet")
    assert tables.read(tmp_path, "minutes").num_rows == 0
    (place / "_SUCCESS").touch()
    assert tables.read(tmp_path, "minutes").to_pylist() == [{"records": 3}]


def test_a_table_in_directories(tmp_path: Path) -> None:
    place = tmp_path / "tables" / "lengths"
    for name in ("size=1", "size=2", "_temporary/0"):
        (place / name).mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.table({"word": [name]}), place / name / "part-0.parquet")
    (place / "_SUCCESS").touch()
    assert tables.count(tmp_path, "lengths") == 2
    assert tables.read(tmp_path, "lengths", ["word"]).column("word").to_pylist() == ["size=1", "size=2"]


def test_a_table_that_is_made_anew_while_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tables" / "minutes"
    place.mkdir(parents=True)
    (place / "_SUCCESS").touch()
    gone = tables.DataFile(place / "part-0.parquet", 0)
    monkeypatch.setattr(tables, "files", lambda *_: [gone])
    assert tables.count(tmp_path, "minutes") == 0


def test_no_table(tmp_path: Path) -> None:
    assert tables.count(tmp_path, "raw") == 0
    with pytest.raises(hawser.NotFound, match="no table 'raw'"):
        tables.read(tmp_path, "raw")


def test_a_list_of_another_version_is_not_guessed_at(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    (sink.lists / "0").write_bytes(b"v2\n")
    with pytest.raises(hawser.Corrupt, match="v2"):
        tables.files(tmp_path, "raw")


def test_columns_that_came_later_are_null_before(tmp_path: Path) -> None:
    place = tmp_path / "tables" / "typed"
    place.mkdir(parents=True)
    for number, value in enumerate([{"id": 1}, {"id": 2, "price": 2.5}]):
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist([{"value": value}]), place / f"{number}.parquet"
        )
    (place / "_SUCCESS").touch()
    values = tables.read(tmp_path, "typed").column("value").to_pylist()
    assert values == [{"id": 1, "price": None}, {"id": 2, "price": 2.5}]


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(1, 12)), max_size=6),
        max_size=6,
    )
)
def test_coverage_is_what_counting_says(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[str, int, int]]]
) -> None:
    directory = tmp_path_factory.mktemp("coverage")
    sink = Sink(directory, "raw")
    for places in files:
        # A task writes no offset twice.
        sink.commit(sink.write(*sorted(set(places))))
    counted: dict[tuple[str, int], list[int]] = {}
    for places in files:
        for topic, partition, offset in sorted(set(places)):
            counted.setdefault((topic, partition), []).append(offset)
    found = {(each.topic, each.partition): each for each in coverage(directory, "raw")}
    assert found.keys() == counted.keys()
    for key, offsets in counted.items():
        each = found[key]
        assert (each.records, each.first, each.last) == (len(offsets), min(offsets), max(offsets))
        assert _members(each.missing) == set(range(each.first, each.last)) - set(offsets)
        assert _members(each.doubled) == {one for one in offsets if offsets.count(one) > 1}


def _members(ranges: list[Range]) -> set[int]:
    return {offset for each in ranges for offset in range(each.first, each.last + 1)}


def test_what_is_missing_or_double_is_told_exactly(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(*(("orders", 0, offset) for offset in range(1, 6))))
    sink.commit(sink.write(*(("orders", 0, offset) for offset in range(9, 13))))
    sink.commit(sink.write(("orders", 0, 12)))
    summary = summarize(tmp_path, [ends_of("orders", 1, 20)], 0.0)
    assert not summary.is_whole
    assert summary.verdict == "3 records missing, 1 double"
    page = page_of(summary)
    assert "6 to 8" in page and "✗" in page and "<td>12</td>" in page


def test_what_is_to_come_is_no_failure(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(("orders", 0, 7), ("orders", 0, 8)))
    ends = [
        ends_of("orders", 7, 11),
        ends_of("orders", 1, 4, partition=1),
    ]
    summary = summarize(tmp_path, ends, 0.0)
    assert summary.is_whole and summary.verdict == "whole so far, 5 records to come"
    assert summary.to_come == 5
    assert summary.latency is not None and summary.latency.records == 2


def test_what_the_topic_has_from_before_the_first_is_missing(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(("orders", 0, 7), ("orders", 0, 8)))
    summary = summarize(tmp_path, [ends_of("orders", 3, 9)], 0.0)
    assert not summary.is_whole and summary.verdict == "4 records missing, 0 double"
    assert summary.partitions[0].landed.missing == [Range(3, 6)]
    forgotten = summarize(tmp_path, [ends_of("orders", 8, 9)], 0.0)
    assert forgotten.is_whole and forgotten.to_come == 0


def test_the_summary_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    report = LandingReport(tmp_path, [], must_be_kept=True)
    report.begin()
    report.end()
    assert report.summary is not None and report.summary.is_whole
    assert "Nothing has landed yet" in (tmp_path / "summary.html").read_text()
    assert msgspec.json.decode((tmp_path / "summary.json").read_bytes())["records"] == 0


def test_a_table_of_an_earlier_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Reading it ended in a traceback of pyarrow."""
    sink = Sink(tmp_path, "raw")
    path = sink.write(("orders", 0, 1))
    older = pyarrow.parquet.read_table(path).drop_columns(["topic_uuid"])
    pyarrow.parquet.write_table(older, path)
    sink.commit(path)
    with pytest.raises(hawser.UsageError, match="has no column topic_uuid: an earlier version"):
        coverage(tmp_path, "raw")


def test_a_run_that_is_ended_before_it_begins_ends_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the directory first; it ended in an AttributeError, for want of a summary."""

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", ended)
    monkeypatch.setattr(topics, "look", lambda *_: [])
    plan = runner.Plan(place=Place(tmp_path), conf={"spark.hawser.url": ""}, every_seconds=1.0)
    with pytest.raises(KeyboardInterrupt):
        run._land(plan, [], "raw")


def test_a_run_that_is_ended_in_an_update_reports_the_rows_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reported those that were there when the update began."""
    sink = Sink(tmp_path, "raw")

    def ended(_: object, watcher: runner.Watcher, __: object) -> None:
        watcher.begin(["raw"])
        sink.commit(sink.write(("orders", 0, 1), ("orders", 0, 2)))
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run", ended)
    plan = runner.Plan(place=Place(tmp_path), every_seconds=1.0)
    assert run.run_and_show(plan) == {"raw": {"rows": 2, "new": 2}}


def test_names_are_text_on_the_page(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(("<script>", 0, 1)))
    page = page_of(summarize(tmp_path, [], 0.0))
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "http" not in page.replace("http-equiv", ""), "a page that needs nothing from elsewhere"


def test_plots_of_nothing_and_of_much() -> None:
    assert columns([], "nothing").startswith("<svg")
    assert spreads([Spread("none", {"50": 0.0, "100": -1.0})], "zero").count("<rect") == 1
    many = columns([Bar(f"{place}", place % 7, "") for place in range(10_000)], "many")
    assert 0 < many.count("<rect") <= 240


def test_a_table_is_not_made_anew_from_a_topic_that_has_forgotten(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(*(("orders", 0, offset) for offset in range(1, 6))))
    landed = coverage(tmp_path, "raw")
    check_kept([ends_of("orders", 1, 6)], landed)
    with pytest.raises(hawser.UsageError, match=r"records 1 to 3 of topic 'orders'.*--force"):
        check_kept([ends_of("orders", 4, 6)], landed)
    with pytest.raises(hawser.UsageError, match="records 4 to 5"):
        check_kept([ends_of("orders", 1, 4)], landed)
    anew = PartitionEnds(topic="orders", topic_uuid="another", partition=0, start=1, end=9)
    with pytest.raises(hawser.UsageError, match="records 1 to 5"):
        check_kept([anew], landed)
    with pytest.raises(hawser.UsageError, match="5 records of topic 'orders', which this run does not read"):
        check_kept([ends_of("bills", 1, 9)], landed)
    with pytest.raises(hawser.Unavailable, match="partition 0 has no leader"):
        check_kept([ends_of("orders", 0, 0)], landed)


def test_a_topic_that_was_created_anew_is_told_apart(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    sink.commit(sink.write(("orders", 0, 1), ("orders", 0, 2)))
    anew = PartitionEnds(topic="orders", topic_uuid="another", partition=0, start=1, end=4)
    summary = summarize(tmp_path, [anew], 0.0)
    assert summary.is_whole and summary.to_come == 3 and summary.unread == [anew]
    (old,) = summary.partitions
    assert old.is_deleted and old.behind is None
    left_out = summarize(tmp_path, [ends_of("bills", 1, 1)], 0.0)
    assert left_out.verdict == "whole: every record once" and not left_out.partitions[0].is_deleted


def test_a_listed_file_elsewhere_is_refused(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    path = sink.write(("orders", 0, 1))
    sink.commit(path.rename(tmp_path / path.name))
    with pytest.raises(hawser.Corrupt):
        tables.files(tmp_path, "raw")


def test_files_are_looked_at_once(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "raw")
    path = sink.write(("t", 0, 1))
    sink.commit(path)
    assert tables.count(tmp_path, "raw") == 1
    os.truncate(path, 0)
    assert tables.count(tmp_path, "raw") == 1


def test_samples_in_two_gaps_are_lost_once(tmp_path: Path) -> None:
    gaps = {
        "producer": ["a", "a", "a", "b", "a"],
        "first_missing": [1, 2, 4, 2, 20],
        "last_missing": [1, 9, 7, 3, 20],
    }
    place = tmp_path / "tables" / "gaps"
    place.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(gaps), place / "one.parquet")
    (place / "_SUCCESS").touch()
    assert summarize(tmp_path, [], 0.0).gap_samples == 9 + 2 + 1
