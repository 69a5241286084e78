"""`hawser demo` proves its books, and a forged ledger or a planted bug makes it say so."""

import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

import hawser
from hawser.cli.demo.ledger import Assignment, Note, Notebook, Numbers, read_note, read_numbers
from hawser.cli.demo.stage import Plan, Stage
from hawser.cli.demo.verdict import Books, prove
from hawser.testing import LocalBus
from tests.support.builds import Build
from tests.support.command import Command

SHORT = ["--seconds", "3", "--publishers", "2", "--subscribers", "6", "--kills", "6", "--rate", "3000"]


def test_the_demo_is_proven(record_property: Callable[[str, object], None]) -> None:
    with LocalBus() as local:
        report = Command(local.url).json("demo", *SHORT)
        assert os.listdir(local.directory) == []
    assert report["proven"], report["contradictions"]
    assert report["published"] > 1000
    assert report["topic"]["kills"] == 6
    assert report["topic"]["leaked"] == 0
    for row in report["subscribers"]:
        assert row["received"] + row["missed"] == row["published"], row
        assert row["runs"] == row["killed"] + 1
    assert sum(row["published"] for row in report["publishers"]) == report["published"]
    record_property("messages", report["published"])
    record_property("kills", report["topic"]["kills"])


def test_the_demo_in_a_given_domain_leaves_it_as_it_was() -> None:
    with LocalBus() as local:
        local.connect().topic("mine")
        command = Command(local.url)
        done = command.run(
            *("demo", "--url", local.url, "--seconds", "1", "--kills", "1", "--messages", "500"),
            *("--publishers", "1", "--subscribers", "2", "--rate", "2000"),
        )
        assert "proven" in done.stdout
        assert local.connect().topics() == ["mine"]


@pytest.fixture(scope="module")
def performed() -> Iterator[tuple[Stage, hawser.TopicInfo]]:
    """A demo that has been performed, with its ledgers still there."""
    with LocalBus() as local, tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hawser-test-") as directory:
        plan = Plan(seconds=2, publishers=2, subscribers=6, kills=3, messages=None, rate=2000, seed=1)
        stage = Stage(plan, local.connect("stage"), Path(directory))
        try:
            yield stage, stage.perform(lambda _: None)
        finally:
            stage.close()


def test_untouched_books_balance(performed: tuple[Stage, hawser.TopicInfo]) -> None:
    assert prove(*performed).contradictions == []


def _forge_note(**changes: int) -> Callable[[Stage], str]:
    def forge(stage: Stage) -> str:
        run = stage.subscribers[0].runs[-1]
        note = read_note(run.file("note"))
        assert note is not None
        added = {name: getattr(note, name) + change for name, change in changes.items()}
        Notebook(run.file("note")).write(note._replace(**added))
        return f"{run.name}, run {run.run}"

    return forge


def _busiest(stage: Stage) -> Assignment:
    """The run of a publisher with the most receipts; on a busy machine some have none."""
    runs = [run for publisher in stage.publishers for run in publisher.runs]
    begun = [run for run in runs if run.file("receipts").exists()]
    return max(begun, key=lambda run: run.file("receipts").stat().st_size)


def _forge_receipt(stage: Stage) -> str:
    run = _busiest(stage)
    file = run.file("receipts")
    first, *others = read_numbers(file)
    file.write_bytes(struct.pack(f"={1 + len(others)}Q", first + 1, *others))
    return f"{run.name}, run {run.run}: receipts differ"


def _lose_receipt(stage: Stage) -> str:
    run = _busiest(stage)
    file = run.file("receipts")
    file.write_bytes(file.read_bytes()[:-8])
    return f"{run.name}, run {run.run}: 1 messages without a receipt"


def _forge_gap(stage: Stage) -> str:
    run = stage.subscribers[0].runs[-1]
    Numbers(run.file("gaps")).append(1, 1)
    return f"{run.name}, run {run.run}: gaps of"


@pytest.mark.parametrize(
    "forge",
    [
        _forge_note(received=1),
        _forge_note(received=-1, missed=1),
        _forge_note(digest=1),
        _forge_note(faults=1),
        _forge_receipt,
        _lose_receipt,
        _forge_gap,
    ],
)
def test_a_forged_ledger_is_found(
    performed: tuple[Stage, hawser.TopicInfo], forge: Callable[[Stage], str]
) -> None:
    stage, end = performed
    files = {path: path.read_bytes() for path in stage.directory.iterdir() if path.is_file()}
    try:
        expected = forge(stage)
        contradictions = prove(stage, end).contradictions
        assert any(text.startswith(expected) for text in contradictions), contradictions
    finally:
        for path, data in files.items():
            path.write_bytes(data)


@pytest.mark.parametrize("what", ["slots_leaked", "slots_lent", "slots_referenced"])
def test_a_leak_is_found(performed: tuple[Stage, hawser.TopicInfo], what: str) -> None:
    stage, end = performed
    leaking = msgspec.structs.replace(end, **{what: 1})
    assert len(prove(stage, leaking).contradictions) == 1


def test_a_note_is_whole_or_the_one_before(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path / "note")
    assert read_note(tmp_path / "note") is None
    first, second = Note(*range(8)), Note(*range(10, 18))
    notebook.write(first)
    assert read_note(tmp_path / "note") == first
    notebook.write(second)
    assert read_note(tmp_path / "note") == second
    assert Books().proven


@pytest.mark.slow
@pytest.mark.parametrize("canary", ["misses_are_not_counted", "recovery_keeps_loans"])
def test_a_planted_bug_is_found(canary: str, record_property: Callable[[str, object], None]) -> None:
    # Long and fast enough that the slow subscriber is lapped on any machine.
    done = Build(canary).run("-m", "hawser", "demo", *SHORT, "--seconds", "6", "--rate", "20000")
    record_property("exit_code", done.returncode)
    assert done.returncode in (1, 7), (done.stdout, done.stderr)
    assert "contradiction" in done.stdout or "ended by itself" in done.stderr
