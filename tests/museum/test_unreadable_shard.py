"""One shard that cannot be opened keeps no other from being served.

Found by review: a sector that could not be read, at the scan of one shard's log, ended the start of its node.
At run time the same ends that member only. A state that this build cannot load was moved aside as well, and
a journal that could not be moved aside, or a full disk, ended the start with a traceback.
"""

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster import wire
from hawser.cluster.node.directory import NodeDirectory
from hawser.cluster.node.server import Node, NodeSettings
from hawser.errors import UsageError
from hawser.log.journal.storage import StorageFull
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


def a_directory_that_cannot_be_opened(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = os.open

    def failing(path: str | os.PathLike[str], *rest: int, **options: int) -> int:
        if "/shards/bad" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opening(path, *rest, **options)

    monkeypatch.setattr(os, "open", failing)


def no_other_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards have a file system of their own."""

    def failing(path: Path, _: Path) -> Path:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))

    monkeypatch.setattr(Path, "rename", failing)


@pytest.mark.parametrize(
    "break_it", [an_unreadable_sector, unreadable_names, a_directory_that_cannot_be_opened]
)
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
    assert f"moved to {aside}" in caplog.text and "cannot be opened: " in caplog.text
    assert started(tmp_path) == ["good@1/0"]


@pytest.mark.parametrize(
    "reason",
    [
        Unsupported("the saved state has version 1"),
        BadState("the saved producers cannot be read: planted"),
        StorageFull("no room for log-1. Free some, or use another disk"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_journal_that_is_whole_keeps_the_node_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Exception
) -> None:
    """A node with another build, or with a full disk, moves no data aside."""
    two_shards(tmp_path)

    def opened(*_: object) -> Replica:
        raise reason

    monkeypatch.setattr(Replica, "open", opened)
    with pytest.raises(UsageError, match=f"bad@1/0 cannot be opened: {reason}"):
        started(tmp_path)
    assert len(list((tmp_path / "shards").iterdir())) == 2


def test_a_shard_that_cannot_be_put_aside_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start of its node, and when its disk fails later."""
    two_shards(tmp_path)

    async def run() -> None:
        node = Node("n1", tmp_path)
        with monkeypatch.context() as broken:
            no_other_directory(tmp_path, broken)
            with monkeypatch.context() as unreadable:
                an_unreadable_sector(tmp_path, unreadable)
                await node.start("127.0.0.1:0")
            assert list(node.shards) == ["good@1/0"]
            node._gone(node.shards["good@1/0"], disk_lost=True)
            await node._leaving.wait()
            for shard in ("bad@1/0", "good@1/0"):
                assert f"shard {shard} is not served: its files could not be removed" in caplog.text
                body: Any = await node._host(shard)
                answer = wire.decode_answer(body)
                assert isinstance(answer, wire.Failed) and answer.retryable
        await node.stop(drain=False)

    asyncio.run(run())
    assert len(list((tmp_path / "shards").iterdir())) == 2
    assert started(tmp_path) == ["bad@1/0", "good@1/0"]


def test_a_journal_that_somebody_locks_is_not_moved(tmp_path: Path) -> None:
    """A backup that locks what it copies was taken for a lost disk."""
    two_shards(tmp_path)
    (locked,) = (tmp_path / "shards").glob("bad*")
    descriptor = os.open(locked, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageError, match=r"bad@1/0 cannot be opened: .* is in use by another process"):
            started(tmp_path)
    finally:
        os.close(descriptor)
    assert len(list((tmp_path / "shards").iterdir())) == 2


def test_a_shard_whose_files_were_moved_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk fails when the directories are synced, after the rename."""
    two_shards(tmp_path)

    def failing(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def run() -> None:
        node = Node("n1", tmp_path)
        with monkeypatch.context() as broken:
            an_unreadable_sector(tmp_path, broken)
            broken.setattr(NodeDirectory, "_sync", staticmethod(failing))
            await node.start("127.0.0.1:0")
        assert (
            "files of shard bad@1/0 were moved" in caplog.text
            and "its files could not be removed" not in caplog.text
        )
        body: Any = await node._host("bad@1/0")
        assert not isinstance(wire.decode_answer(body), wire.Failed)
        await node.stop(drain=False)

    asyncio.run(run())
    assert len(list((tmp_path / "damaged").iterdir())) == 1
