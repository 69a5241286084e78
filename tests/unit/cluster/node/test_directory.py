"""The directory of a node when files of it cannot be deleted."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster.node.directory import NodeDirectory


def test_a_journal_that_cannot_be_deleted_is_never_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a journal has entries without the promises of its member."""
    directory = NodeDirectory(tmp_path, "n1")
    directory.disk("topic:a").close()
    for name in ("keep", "entries"):
        (tmp_path / "shards" / "topic%3Aa" / name).touch()
    with monkeypatch.context() as broken:

        def fails(path: Any, *_: Any, **__: Any) -> None:
            (Path(path) / "keep").unlink()
            raise OSError(5, "Input/output error")

        broken.setattr(shutil, "rmtree", fails)
        directory.remove("topic:a")
    assert list(directory.shards()) == []
    directory.close()

    directory = NodeDirectory(tmp_path, "n1")
    assert list(directory.shards()) == [] and list((tmp_path / "removed").iterdir()) == []
    directory.disk("topic:a").close()
    assert list((tmp_path / "shards" / "topic%3Aa").iterdir()) == []
    directory.close()


def test_a_journal_that_cannot_be_moved_is_deleted_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk there is no room for another folder, and `shards` may be a mount of its own."""
    directory = NodeDirectory(tmp_path, "n1")
    directory.disk("a").close()
    (tmp_path / "shards" / "a" / "vow").touch()

    def fails(path: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", fails)
        directory.remove("a")
    assert list(directory.shards()) == []
    directory.close()


def test_a_journal_that_can_be_neither_moved_nor_deleted_is_never_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = NodeDirectory(tmp_path, "n1")
    directory.disk("a").close()
    for name in ("vow", "entries"):
        (tmp_path / "shards" / "a" / name).touch()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", fails)
        broken.setattr(shutil, "rmtree", fails)
        directory.remove("a")
    # A node removes a journal without vow when it starts.
    assert [path.name for path in (tmp_path / "shards" / "a").iterdir()] == ["entries"]
    directory.close()
