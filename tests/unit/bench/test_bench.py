"""The measuring code: its verdicts, its processes, its output. Nothing here judges a time."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hawser.bench.contest import Stream
from hawser.bench.host.streams import HAWSER, HAWSER_BATCHES, HAWSER_IN_PLACE, HAWSER_LOANS, PIPE, QUEUE, rate
from hawser.bench.plan import Plan
from hawser.bench.processes import Gate, run_sides
from hawser.bench.report import Row, at_least, at_most, in_words, lines, ratio
from hawser.bench.suite import run
from hawser.cli.bench import bench


def test_a_target_is_met_or_missed_or_not_measured() -> None:
    assert at_least("5 x", 5.0, 5).met is True
    assert at_least("5 x", 4.9, 5).met is False
    assert at_most("1.2 x", 1.2, 1.2).met is True
    assert at_most("1.2 x", 1.3, 1.2).met is False
    assert at_least("5 x", ratio(3.0, None), 5).met is None


def test_a_row_misses_when_one_measured_target_does() -> None:
    met, missed, unknown = at_least("a", 2, 1), at_least("b", 0, 1), at_least("c", None, 1)
    assert not Row("figure", 1, "ns", {}, (met, unknown)).missed
    assert Row("figure", 1, "ns", {}, (met, missed)).missed


def test_a_row_shows_the_ratio_to_each_peer() -> None:
    shown = list(lines(Row("rate", 3e6, "msg/s", {"peer": 1.5e6}, (at_least("3 x", 2, 3),))))
    assert shown == [
        ("rate", "hawser", "3 Mmsg/s", "", "3 x", "2", "no"),
        ("", "peer", "1.5 Mmsg/s", "2", "", "", ""),
    ]


@pytest.mark.parametrize(
    ("value", "unit", "words"), [(640.0, "ns", "640 ns"), (83_100.0, "ns", "83.1 us"), (256.0, "", "256")]
)
def test_figures_are_readable(value: float, unit: str, words: str) -> None:
    assert in_words(value, unit) == words


def test_a_stream_that_ends_with_another_message_is_refused() -> None:
    stream = Stream(size=4, count=10)
    stream.check(stream.last_message())
    with pytest.raises(RuntimeError, match="message 10 is not the last"):
        stream.check(stream.message())


def fail(shared: Any, case: Any, gate: Gate) -> None:
    raise ValueError("planted")


def test_a_side_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="planted"):
        run_sides([(fail, 0)], None, None)


@pytest.mark.parametrize(
    "contestant",
    [HAWSER, HAWSER_BATCHES, HAWSER_IN_PLACE, HAWSER_LOANS, PIPE, QUEUE],
    ids=lambda one: one.name,
)
def test_a_contestant_moves_every_message(contestant: Any, tmp_path: Path) -> None:
    assert rate(Plan(tmp_path), contestant, Stream(64, 1024, batch=16)) > 0
    assert list(tmp_path.iterdir()) == []


def test_resident_memory_follows_use(tmp_path: Path) -> None:
    (row,) = run(Plan(tmp_path), ["memory"])
    assert not row.missed


def test_every_figure_is_a_line_of_json(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(
        bench, ["--quick", "--part", "memory", "-o", "json", "--url", f"shm://{tmp_path}"]
    )
    assert outcome.exit_code == 0, outcome.output
    line = json.loads(outcome.stdout)
    assert {"name", "value", "unit", "compared", "targets", "machine", "repeats"} <= set(line)
    assert list(tmp_path.iterdir()) == []
