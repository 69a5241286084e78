"""Files that make Spark start sooner: whatever becomes of them, Spark starts."""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hawser.spark import archive
from hawser.spark.archive import archive_options, make_archive
from hawser.spark.runtime.cache import cache_directory, kept
from hawser.spark.runtime.session import spark_home
from tests.support.processes import until
from tests.support.spark import need_java

LOADED_FROM_ARCHIVE = "source: shared objects file (top)"
SESSION = "from hawser.spark.runtime import warmup; warmup.rehearse = lambda *_: None; warmup.main()"
REHEARSALS = {
    "a session": ("-c", SESSION),
    # As `make setup` makes it.
    "whole": ("-m", "hawser.spark.runtime.warmup"),
}
MAKER = """
import sys
from hawser.spark import archive
archive._REHEARSAL = sys.argv[1:]
sys.exit(archive.main())
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for this process and those it starts."""
    need_java()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = cache_directory()
    assert directory is not None
    return directory


def maker(rehearsal: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", MAKER, *REHEARSALS[rehearsal]]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def pretended(size: int = 100) -> Path:
    """An archive of the right name and this size."""
    prefix = archive._prefix(spark_home())
    assert prefix is not None
    path = prefix.with_name(f"{prefix.name}100.jsa")
    path.write_bytes(bytes(size))
    return path


def test_what_two_make_at_once_is_there_once(tmp_path: Path) -> None:
    together = threading.Barrier(8)

    def make(home: Path) -> None:
        home.mkdir()
        (home / "file").write_text("whole")
        together.wait()

    threads = [threading.Thread(target=kept, args=(tmp_path / "home", make)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert (tmp_path / "home" / "file").read_text() == "whole"


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    def make(home: Path) -> None:
        home.mkdir()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        kept(tmp_path / "home", make)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_others_can_write_to_is_not_used(cache: Path) -> None:
    cache.chmod(0o777)
    assert cache_directory() is None
    assert archive_options(spark_home()) == []
    assert "cache" not in str(spark_home()), "without a place for links, the installed home"


def test_no_place_for_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_directory() is None


def test_a_truncated_archive_is_removed(cache: Path) -> None:
    path = pretended()
    assert archive_options(spark_home())[0] == f"-XX:SharedArchiveFile={path}"
    os.truncate(path, 99)
    assert archive_options(spark_home()) == []
    assert not path.exists()


def test_archives_can_be_declined(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended()
    monkeypatch.setenv("HAWSER_SPARK_ARCHIVE", "no")
    assert archive_options(spark_home()) == []
    assert not make_archive(spark_home())


def test_one_makes_it_and_the_other_does_not_wait(cache: Path) -> None:
    with archive._lock(cache) as ours:
        assert ours
        assert not make_archive(spark_home())
    assert list(cache.glob("*.jsa")) == []


def test_a_java_that_cannot_make_one_is_not_asked_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it matter to anybody but the log."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    begun: list[object] = []
    monkeypatch.setattr(atexit, "register", begun.append)
    monkeypatch.setattr(archive, "_asked_for", False)
    archive.make_archive_at_exit(spark_home())
    archive.make_archive_at_exit(spark_home())
    assert len(begun) == 1, "once for each process"
    assert not make_archive(spark_home())
    monkeypatch.setattr(archive, "_asked_for", False)
    archive.make_archive_at_exit(spark_home())
    assert len(begun) == 1, "it failed, and would fail again"
    assert not list(cache.glob(".archive-*"))
    (reason,) = cache.glob("*-failure.txt")
    assert "/bin/false" in reason.read_text()


def flip_a_page(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(size // 2)
        page = file.read(4096)
        file.seek(size // 2)
        file.write(bytes(byte ^ 0xFF for byte in page))


def write_zeros(path: Path, size: int) -> None:
    path.write_bytes(bytes(size))


DAMAGES: dict[str, Callable[[Path, int], None]] = {
    "a page of it is wrong": flip_a_page,
    "only the beginning is there": lambda path, size: os.truncate(path, size // 2),
    "nothing is there": lambda path, size: os.truncate(path, 0),
    "it is something else": write_zeros,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rehearsal", ["a session", pytest.param("whole", marks=pytest.mark.soak)])
def test_an_archive_is_made_once_and_used(
    cache: Path, tmp_path: Path, rehearsal: str, record_property: Callable[[str, object], None]
) -> None:
    """Makers killed and in each other's way; then Java starts with the archive, and with any ruin of it."""
    killed = maker(rehearsal)
    until(lambda: any(cache.glob(".archive-*")), "the maker has begun")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert list(cache.glob("*.jsa")) == []
    makers = [maker(rehearsal), maker(rehearsal)]
    codes = sorted(each.wait() for each in makers)
    assert codes == [0, 1], "one makes it, the other leaves"
    (made,) = cache.glob("*.jsa")
    assert not list(cache.glob(".archive-*")), "what the killed one left is gone"
    home = spark_home()
    assert make_archive(home), "there is one"
    classes = classes_from_archive(home, tmp_path)
    assert classes > 0
    whole = made.read_bytes()
    for what, damage in DAMAGES.items():
        made.unlink(missing_ok=True)
        made.write_bytes(whole)
        damage(made, len(whole))
        assert classes_from_archive(home, tmp_path) == 0, what
    record_property("archive bytes", len(whole))
    record_property("classes that a start of spark-submit takes from it", classes)
    record_property("damages borne", len(DAMAGES))


def classes_from_archive(home: Path, directory: Path) -> int:
    """Classes of the archive in a JVM that Spark's own script starts; it has to end well."""
    log = directory / "classes.log"
    options = " ".join([*archive_options(home), f"-Xlog:class+load:file={log}"])
    surroundings = {**os.environ, "SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options}
    command = [str(home / "bin" / "spark-submit"), "--version"]
    done = subprocess.run(command, env=surroundings, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return log.read_text().count(LOADED_FROM_ARCHIVE)
