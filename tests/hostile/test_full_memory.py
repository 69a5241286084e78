"""No memory left on the tmpfs: a clear Full, nothing lost, and on it goes when there is space again."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.builds import Build
from tests.support.disks import small_disk


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 16 MiB."""
    with small_disk(tmp_path / "small", "16m") as place:
        yield place


def test_full_is_an_error_and_nothing_is_lost(
    small_tmpfs: Path, record_property: Callable[[str, object], None]
) -> None:
    done = Build().run("-m", "tests.hostile.full_tmpfs", str(small_tmpfs / "domain"))
    assert done.returncode == 0, done.stderr
    published, more = map(int, done.stdout.split())
    assert published >= 8
    assert more >= 4
    record_property("published", published + more)


@pytest.mark.slow
def test_a_planted_bug_is_seen(small_tmpfs: Path) -> None:
    done = Build("lent_without_backing").run("-m", "tests.hostile.full_tmpfs", str(small_tmpfs / "domain"))
    assert done.returncode == -signal.SIGBUS, (done.returncode, done.stderr)
