"""`hawser ps` and `hawser reap`: participants, and the recovery of dead ones."""

import click
import msgspec

import hawser
from hawser.cli.options import connect, shared_options, wants_json
from hawser.cli.output import Column, count, notice, print_json, print_table
from hawser.cli.queue.catalog import every_queue, print_consumers
from hawser.cli.topic.catalog import every_topic, participant_rows
from hawser.cli.topic.partitions import lag_of, print_members

__all__ = ["ps", "reap"]

_REMOVABLE = frozenset({"leftover", "earlier boot"})
_DOUBTFUL = frozenset({"other version", "foreign", "unreadable"})


@click.command()
@shared_options
def ps() -> None:
    """List the participants of topics and queues, including dead ones that are not recovered yet; of a
    cluster, the members of groups and the consumers of queues."""
    with connect() as bus:
        topics, queues = list(every_topic(bus)), list(every_queue(bus))
    everything: list[hawser.TopicInfo | hawser.QueueInfo] = [*topics, *queues]
    if wants_json():
        print_json(
            [
                {**msgspec.to_builtins(each), "lag": _lag(found, each)}
                for found in everything
                for each in found.participants
            ]
        )
        return
    grouped = [topic for topic in topics if topic.partitions and topic.records]
    consumed = [queue for queue in queues if queue.partitions and queue.participants]
    local = [found for found in everything if not found.partitions]
    columns, rows = participant_rows(local, with_topic=True)
    if grouped:
        print_members(grouped)
    if grouped and consumed:
        click.echo()
    if consumed:
        print_consumers(consumed)
    if rows:
        print_table(columns, rows)
    if not (grouped or consumed or rows):
        notice(f"no participants in {bus.url}")


def _lag(topic: hawser.TopicInfo | hawser.QueueInfo, participant: hawser.Participant) -> int | None:
    if isinstance(topic, hawser.QueueInfo) or participant.kind != "subscriber":
        return None
    if topic.partitions:
        return lag_of(topic, participant.index, participant.cursor)
    return max(0, topic.head - participant.cursor)


@click.command()
@shared_options
def reap() -> None:
    """Recover every dead participant, and remove unused ephemeral topics and queues and files of an earlier
    boot."""
    with connect() as bus:
        before = bus.files()
        recovered = bus.recover()
        left = {each.file for each in bus.files()}
    removed = [each for each in before if each.state in _REMOVABLE and each.file not in left]
    doubtful = [each for each in before if each.state in _DOUBTFUL]
    for each in doubtful:
        notice(f"{each.file} is not removed ({each.state}); see `hawser doctor`")
    if wants_json():
        print_json(
            {
                "recovered": msgspec.to_builtins(recovered),
                "removed": [{"file": each.file, "topic": each.topic, "was": each.state} for each in removed],
            }
        )
        return
    if recovered:
        columns = [
            Column("topic"),
            Column("recovered"),
            Column("kind"),
            Column("pid", right=True),
            Column("slots returned", right=True),
            Column("reads ended", right=True),
            Column("messages returned", right=True),
            Column("remarks"),
        ]
        rows = [
            [
                each.topic,
                each.name,
                each.kind,
                str(each.pid),
                count(each.slots),
                count(each.references),
                count(each.claims),
                "" if each.complete else "another process recovers it",
            ]
            for each in recovered
        ]
        print_table(columns, rows)
    for file in removed:
        notice(f"removed {file.file} ({file.state})")
    if not recovered and not removed:
        notice("nothing to do")
