"""The directory of a pipeline: who may use it, and tables that are made anew although someone is killed."""

import errno
import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

import hawser
from hawser.spark.pipelines.directory import Place
from hawser.spark.pipelines.update import failure_of
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.processes import hawser_command


def test_one_run_at_a_time(tmp_path: Path) -> None:
    place = Place(tmp_path / "landing")
    with place.lock(), pytest.raises(hawser.Unavailable, match="in use by another run"), place.lock():
        pass
    with place.lock():
        pass


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    place = Place(tmp_path / "landing")

    def hold(channel: Channel) -> None:
        with place.lock():
            channel.tell("held")
            sleep_for_ever()

    with victim(hold) as child:
        child.hear()
        with pytest.raises(hawser.Unavailable, match=str(child.pid)), place.lock():
            pass
        child.kill()
        with place.lock():
            pass


def test_a_directory_keeps_its_name(tmp_path: Path) -> None:
    first = Place(tmp_path / "landing")
    assert Place(tmp_path / "landing").database == first.database
    (tmp_path / "landing").rename(tmp_path / "moved")
    with pytest.raises(hawser.UsageError, match="put it back"):
        Place(tmp_path / "moved")


def test_a_damaged_directory(tmp_path: Path) -> None:
    Place(tmp_path)
    (tmp_path / "pipeline.json").write_bytes(b"{")
    with pytest.raises(hawser.Corrupt, match="take another directory"):
        Place(tmp_path)


def test_a_damaged_list_of_tables_to_make_anew(tmp_path: Path) -> None:
    place = Place(tmp_path)
    kept = _made(place, "raw")
    (tmp_path / "refresh.json").touch()
    with pytest.raises(hawser.Corrupt, match="--full-refresh"):
        place.finish_forgetting()
    assert all(path.exists() for path in kept)


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(hawser.UsageError, match="cannot keep a pipeline"):
        Place(tmp_path / "file")


def _made(place: Place, table: str) -> tuple[Path, Path]:
    checkpoint = place.checkpoints / "_checkpoints" / "spark_catalog" / place.database / table
    checkpoint.mkdir(parents=True)
    place.table(table).mkdir()
    return checkpoint, place.table(table)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("survived", range(5))
def test_killed_while_tables_are_forgotten(
    tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is left, the next run finishes it: never a table without its checkpoint, or the other way."""
    place = Place(tmp_path)
    kept = _made(place, "raw")
    gone = [path for table in ("bad", "typed") for path in _made(place, table)]
    renames = 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal renames
        if renames == survived:
            raise Killed
        renames += 1
        return real_rename(path, target)

    real_rename = Path.rename
    monkeypatch.setattr(Path, "rename", rename)
    try:
        place.forget(["typed", "bad"])
        assert survived >= len(gone)
    except Killed:
        assert any(path.exists() for path in gone)
    monkeypatch.undo()
    Place(tmp_path).finish_forgetting()
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)
    assert not (tmp_path / "removed").exists()


def test_a_table_that_cannot_be_removed_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is remembered: the next run removes it with its checkpoint, or neither."""
    place = Place(tmp_path)
    checkpoint, table = _made(place, "raw")
    (table / "part-0.parquet").write_bytes(b"rows")

    def refuse(path: Path, target: Path) -> Path:
        if path == table:
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return real_rename(path, target)

    real_rename = Path.rename
    monkeypatch.setattr(Path, "rename", refuse)
    for _ in range(2):
        with pytest.raises(hawser.PermissionDenied, match=r"tables/raw cannot be removed .*it is as it was"):
            place.forget(["raw"])
    assert (table / "part-0.parquet").read_bytes() == b"rows"
    monkeypatch.undo()
    Place(tmp_path).finish_forgetting()
    assert not checkpoint.exists() and not table.exists()


def test_what_is_out_of_the_way_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    gone = _made(place, "raw")

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    place.forget(["raw"])
    assert not any(path.exists() for path in gone)
    monkeypatch.undo()
    Place(tmp_path).finish_forgetting()
    assert not (tmp_path / "removed").exists()


def test_what_spark_says_is_cut_to_what_matters() -> None:
    told = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception\n\nJVM stacktrace:\n"
        "org.apache.spark.sql.streaming.StreamingQueryException\nCaused by: org.apache.spark.SparkException: "
        "Error from Python worker:\n  Traceback (most recent call last):\n"
        "    raise NotFound\nhawser.errors.NotFound: there is no topic 'x'\n\tat a.B.c(B.scala:1)\n"
    )
    failure = failure_of(PySparkException(told), [])
    assert isinstance(failure, hawser.NotFound) and str(failure) == "there is no topic 'x'"
    disk = "it broke\nCaused by: java.io.IOException: No space left on device\n\tat a.b(C.java:1)"
    failure = failure_of(PySparkException(disk), [])
    assert type(failure) is hawser.HawserError and str(failure) == "Spark: No space left on device"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--topic", "orders"], 2, "give --url hawser://"),
        (["--url", "shm://", "--topic", "orders"], 2, "hawser agent --record"),
        (["--url", "hawser://127.0.0.1:1"], 2, "give --topic"),
        (["--url", "hawser://127.0.0.1:1", "--topic", "t", "--schema", "id bigint"], 2, "--value-format"),
        (["--url", "hawser://127.0.0.1:1", "--topic", "t", "--value-format", "json"], 4, "127.0.0.1:1"),
        (["--url", "hawser://127.0.0.1:1", "--topic", "t", "--conf", "nothing"], 2, "NAME=VALUE"),
        (["missing.py"], 2, "is not a pipeline"),
        (["--url", "hawser://127.0.0.1:1", "--topic", "t"], 4, "127.0.0.1:1"),
    ],
)
def test_what_is_wrong_is_told_before_spark_starts(
    tmp_path: Path, arguments: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HAWSER_URL", raising=False)
    done = hawser_command("pipeline", "run", "--dir", str(tmp_path), *arguments, code=code)
    assert says in done.stderr and not done.stdout
