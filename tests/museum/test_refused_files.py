"""A process that may open no more files gives up no journal for that.

Found by review: "too many open files" was taken for a failed disk. A node that was started with a lower limit
put aside the journals of all shards that it could not open, and one that came to its limit at run time those
in which a segment was begun: on all nodes at once, since they hold the same shards.
"""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hawser.cluster.disk import Disk
from hawser.cluster.node.directory import NodeDirectory
from hawser.cluster.node.server import Node, NodeSettings
from hawser.errors import UsageError
from hawser.log.entry import Kind
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Command, Halt, Propose, Receive
from hawser.log.replica import Replica, Settings

SETTINGS = Settings(journal=JournalSettings(segment_bytes=4096))


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_node_does_not_start_without_shards_that_it_may_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = NodeDirectory(tmp_path, "n1")
    for shard in ("a@1/0", "b@1/0"):
        disk = directory.disk(shard)
        Replica.create(disk, shard, directory.new_member(), 1, NodeSettings().replica)
        disk.close()
    directory.close()
    opening = Replica.open

    def open_one(*arguments: object) -> Replica:
        with no_more_files():
            return opening(*arguments)  # type: ignore[arg-type]

    async def start() -> list[str]:
        node = Node("n1", tmp_path)
        try:
            await node.start("127.0.0.1:0")
            return list(node.shards)
        finally:
            await node.stop(drain=False)

    with monkeypatch.context() as refused:
        refused.setattr(Replica, "open", open_one)
        with pytest.raises(UsageError, match="Too many open files"):
            asyncio.run(start())
    assert not (tmp_path / "damaged").exists()
    assert asyncio.run(start()) == ["a@1/0", "b@1/0"]


def test_a_member_that_may_begin_no_segment_keeps_its_disk(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "journal")
    replica = Replica.create(disk, "a@1/0", "n1.a", 1, SETTINGS)
    replica.step(Receive("operator", m.FenceRequest(1)))
    replica.step(Receive("operator", m.BecomeLeaderRequest(1, ("n1.a",), {})))
    commands = [Propose((Command(Kind.BATCH, bytes(3000), number),)) for number in range(3)]
    outputs = replica.step(commands[0])
    with no_more_files():
        for command in commands[1:]:
            outputs += replica.step(command)
    (halt,) = (each for each in outputs if isinstance(each, Halt))
    assert "Too many open files" in halt.reason and not halt.disk_lost
    disk.close()
    again = Disk(tmp_path / "journal")
    assert Replica.open(again, 2, SETTINGS).halted is None
    again.close()
