"""Requests to a leader whose disk fails: each is answered.

The replica halted and said of every request under way that its outcome is unknown, behind the news that it
had halted. The shard was given up at that news and told nobody, so the requests waited for ever: those of
clients until they gave up, and those of the node itself, as of the forwarder of dead letters, always.
"""

import asyncio
from typing import Any

from hawser.cluster.node.shard import Shard
from hawser.cluster.wire import Code, Failed
from hawser.log.entry import Kind
from hawser.log.state.commands import GroupJoin, encode_command
from tests.support.cluster import RunningCluster


async def _execute_while_the_disk_fails(shard: Shard) -> list[Any]:
    def fail(names: object) -> None:
        raise OSError("the disk is gone")

    shard._disk.begin_sync = fail  # type: ignore[assignment]
    join = encode_command(GroupJoin("group", "member"))
    asked = (shard.execute(Kind.GROUP_JOIN, join) for _ in range(3))
    return await asyncio.wait_for(asyncio.gather(*asked), 30.0)


def test_what_was_asked_of_a_leader_whose_disk_fails_is_answered(cluster: RunningCluster) -> None:
    topic: Any = cluster.connect().topic("t", partitions=1)
    topic.publish(b"before")
    (partition,) = topic.info().partitions
    node = cluster._nodes[partition.leader]
    answers = cluster.run(_execute_while_the_disk_fails(node.shards[partition.shard]))
    assert len(answers) == 3
    for answer in answers:
        assert isinstance(answer, Failed) and answer.code is Code.UNKNOWN and answer.outcome == "unknown"
    # The others go on.
    topic.publish(b"after")
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"before", b"after"]
