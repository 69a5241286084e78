"""The directory of a node when files of it cannot be deleted."""

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
