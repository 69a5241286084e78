"""What the attacks read of processes that were killed in the middle of a write."""

from pathlib import Path

from tests.storm.journal import RECORD, Event, Journal, Kind, read_journal
from tests.support.lines import Lines, read_notes, whole_lines


def cut(file: Path, count: int) -> None:
    """As a kill does it between two pages."""
    file.write_bytes(file.read_bytes()[:-count])


def test_a_line_that_was_cut_off_was_not_written(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    lines = Lines(file)
    lines.write(b'{"deed":"put"}')
    lines.write(b'{"deed":"get"}')
    for count in range(1, len('{"deed":"get"}\n')):
        cut(file, 1)
        assert read_notes([file]) == [{"deed": "put"}], count


def test_whoever_comes_after_a_kill_begins_a_line(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    for number in range(3):
        Lines(file).write(b"whole %d" % number)
        Lines(file).write(b"cut off")
        cut(file, 4)
    assert whole_lines(file) == [
        b"whole 0",
        b"whole 1",
        b"whole 2",
    ]


def test_a_record_that_was_cut_off_was_not_written(tmp_path: Path) -> None:
    file = tmp_path / "journal"
    journal = Journal(file)
    journal.write(Kind.GOT, 1, 2, 3)
    journal.write(Kind.SETTLING, 0, 2, 3)
    for count in range(1, RECORD.size):
        cut(file, 1)
        assert list(read_journal(file)) == [Event(Kind.GOT, 1, 2, 3)], count
