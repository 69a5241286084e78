"""Topics of a cluster in `hawser topic list` and `hawser topic info`: partitions, leaders, group members."""

from collections.abc import Iterator

import hawser
from hawser.cli.output import Cell, Column, age, byte_size, count, print_table

__all__ = ["cluster_facts", "lag_of", "print_cluster_topics", "print_members", "print_partitions"]


def print_cluster_topics(found: list[hawser.TopicInfo]) -> None:
    """Print one line per topic."""
    columns = [
        Column("topic"),
        Column("partitions", right=True),
        Column("replicas", right=True),
        Column("messages", right=True),
        Column("kept", right=True),
        Column("remarks"),
    ]
    rows: list[list[str | Cell]] = []
    for topic in found:
        leaderless = sum(each.leader is None for each in topic.partitions)
        rows.append(
            [
                topic.name,
                count(len(topic.partitions)),
                str(topic.settings.get("replication", "")),
                count(sum(max(0, each.end - 1) for each in topic.partitions)),
                count(sum(each.end - each.start for each in topic.partitions)),
                Cell(f"{leaderless} without a leader" if leaderless else "", "red"),
            ]
        )
    print_table(columns, rows)


def cluster_facts(topic: hawser.TopicInfo) -> Iterator[tuple[str, str]]:
    """The facts of a topic, each with a title."""
    settings = {name: value for name, value in topic.settings.items() if value not in ("", None, False)}
    yield "topic", topic.name
    yield "id", topic.uuid
    yield "settings", ", ".join(f"{name} {_setting(name, value)}" for name, value in settings.items())
    if topic.unused:
        yield "unused", ", ".join(f"{name} {value}" for name, value in topic.unused.items())
    yield "messages", count(sum(each.end - each.start for each in topic.partitions)) + " kept"


def _setting(name: str, value: object) -> str:
    if name == "retention_bytes" and isinstance(value, int):
        return byte_size(value)
    if name == "retention_seconds" and isinstance(value, (int, float)):
        return age(value)
    return str(value)


def print_partitions(partitions: list[hawser.PartitionInfo]) -> None:
    """Print one line per partition; `next` is the offset of the next message."""
    columns = [
        Column("partition", right=True),
        Column("leader"),
        Column("members"),
        Column("state"),
        Column("epoch", right=True),
        Column("first", right=True),
        Column("next", right=True),
    ]
    rows: list[list[str | Cell]] = [
        [
            str(each.partition),
            each.leader or Cell("none", "red"),
            " ".join(each.members),
            Cell(each.status, "green" if each.status == "steady" else "yellow"),
            str(each.epoch),
            count(each.start),
            count(each.end),
        ]
        for each in partitions
    ]
    print_table(columns, rows)


def print_members(topics: list[hawser.TopicInfo]) -> None:
    """Print the reading member of each partition and group, and groups without a member."""
    columns = [
        Column("topic"),
        Column("partition", right=True),
        Column("group"),
        Column("member"),
        Column("done up to", right=True),
        Column("lag", right=True),
    ]
    rows: list[list[str | Cell]] = []
    for topic in topics:
        for record in topic.records:
            group, _, partition = record.name.removeprefix("group:").rpartition("/")
            members = [
                each.name
                for each in topic.participants
                if each.index == int(partition) and each.state == f"group {group}"
            ]
            lag = count(lag_of(topic, int(partition), record.mark))
            for member in members or [""]:
                rows.append([topic.name, partition, group, member, count(record.mark), lag])
    print_table(columns, rows)


def lag_of(topic: hawser.TopicInfo, partition: int, done: int) -> int:
    """The number of messages of a partition after offset `done`."""
    end = next((each.end for each in topic.partitions if each.partition == partition), 0)
    return max(0, end - 1 - done)
