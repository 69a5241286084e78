"""One shard that cannot be opened keeps no other from being served.

Found by review: a sector that could not be read, at the scan of one shard's log, ended the start of its node.
At run time the same ends that member only.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hawser.cluster.node.directory import NodeDirectory
from hawser.cluster.node.service import Node, NodeSettings
from hawser.errors import UsageError
from hawser.log.replica import Replica
from hawser.log.state.part import BadState, Unsupported


def two_shards(directory: Path) -> None:
    node = NodeDirectory(directory, "n1")
    for shard in ("bad@1/0", "good@1/0"):
        disk = node.disk(shard)
        Replica.create(disk, shard, node.new_member(), 1, NodeSettings().replica)
        disk.close()
    node.close()


def started(directory: Path) -> list[str]:
    """The shards of a node that starts on this directory."""

    async def run() -> list[str]:
        node = Node("n1", directory)
        await node.start("127.0.0.1:0")
        shards = list(node.shards)
        await node.stop(drain=False)
        return shards

    return asyncio.run(run())


def an_unreadable_sector(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread

    def failing(descriptor: int, size: int, start: int) -> bytes:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/shards/bad" in path and "/log-" in path and start + size > 12288:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", failing)


def unreadable_names(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def failing(path: int | str | os.PathLike[str] = ".") -> object:
        if isinstance(path, int) and "/shards/bad" in os.readlink(f"/proc/self/fd/{path}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)


def a_state_that_cannot_be_loaded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = Replica.open

    def open_one(storage: object, *rest: object) -> Replica:
        if "bad" in str(getattr(storage, "directory", "")):
            raise BadState("the saved producers cannot be read: planted")
        return opening(storage, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Replica, "open", open_one)


@pytest.mark.parametrize("break_it", [an_unreadable_sector, unreadable_names, a_state_that_cannot_be_loaded])
def test_a_node_starts_without_the_shard_that_it_cannot_open(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    two_shards(tmp_path)
    with monkeypatch.context() as broken:
        break_it(tmp_path, broken)
        assert started(tmp_path) == ["good@1/0"]
    (aside,) = (tmp_path / "damaged").iterdir()
    assert f"put aside to {aside}" in caplog.text
    assert started(tmp_path) == ["good@1/0"]


def test_a_state_of_another_version_keeps_the_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal is whole, so it is not put aside."""
    two_shards(tmp_path)

    def opened(*_: object) -> Replica:
        raise Unsupported("the saved state has version 1")

    monkeypatch.setattr(Replica, "open", opened)
    with pytest.raises(UsageError, match="bad@1/0 cannot be opened: the saved state has version 1"):
        started(tmp_path)
    assert len(list((tmp_path / "shards").iterdir())) == 2
