"""`hawser topic list|info|forget|delete`."""

import sys
import time
from collections.abc import Iterator, Sequence

import click
import msgspec

import hawser
from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import Cell, Column, age, byte_size, count, notice, print_json, print_table
from hawser.cli.topic.partitions import cluster_facts, print_cluster_topics, print_members, print_partitions

__all__ = ["delete", "every_topic", "forget", "info", "list_topics", "participant_rows"]

_BYTE_SETTINGS = frozenset({"slot_size"})


@click.command("list")
@shared_options
def list_topics() -> None:
    """List the topics of the domain or the cluster, with their counts."""
    with connect() as bus:
        found = list(every_topic(bus))
    if wants_json():
        print_json([msgspec.to_builtins(each) for each in found])
        return
    if not found:
        notice(f"no topics in {bus.url}")
        return
    if found[0].partitions:
        print_cluster_topics(found)
        return
    columns = [
        Column("topic"),
        Column("messages", right=True),
        Column("kept", right=True),
        Column("publishers", right=True),
        Column("subscribers", right=True),
        Column("memory", right=True),
        Column("of", right=True),
        Column("remarks"),
    ]
    print_table(columns, [_list_row(each) for each in found])


def every_topic(bus: hawser.Bus) -> Iterator[hawser.TopicInfo]:
    """The state of each topic. A topic that cannot be opened is named on standard error."""
    for name in bus.topics():
        try:
            with bus.topic(name, create=False) as topic:
                yield topic.info()
        except (hawser.NotFound, hawser.Closed):
            continue
        except hawser.HawserError as error:
            notice(f"topic {name!r} is left out: {error}")


def _list_row(topic: hawser.TopicInfo) -> list[str | Cell]:
    alive = [each.kind for each in topic.participants if each.alive]
    dead = sum(not each.alive for each in topic.participants)
    remarks = [f"{dead} dead"] if dead else []
    remarks += ["ephemeral"] if topic.settings["ephemeral"] else []
    remarks += ["group"] if topic.settings["mode"] == "group" else []
    return [
        topic.name,
        count(topic.head),
        count(max(0, topic.head - topic.oldest + 1)),
        str(alive.count("publisher")),
        str(alive.count("subscriber")),
        byte_size(topic.resident_bytes),
        byte_size(topic.configured_bytes),
        Cell(", ".join(remarks), "yellow" if dead else ""),
    ]


@click.command()
@topic_argument
@shared_options
def info(name: str) -> None:
    """Show the settings, messages, memory, participants and saved positions of a topic."""
    with connect() as bus, bus.topic(name, create=False) as topic:
        found = topic.info()
    if wants_json():
        print_json(found)
        return
    for title, text in cluster_facts(found) if found.partitions else _facts(found):
        click.echo(f"{click.style(title.ljust(12), bold=True)}{text}")
    if found.partitions:
        click.echo()
        print_partitions(found.partitions)
        if found.records:
            click.echo()
            print_members([found])
        return
    if found.participants:
        click.echo()
        columns, rows = participant_rows([found], with_topic=False)
        print_table(columns, rows)
    if found.records:
        click.echo()
        _print_records(found)


def _facts(topic: hawser.TopicInfo) -> Iterator[tuple[str, str]]:
    settings = {name: value for name, value in topic.settings.items() if value not in ("", False, None)}
    shown = [f"{name} {_setting(name, value)}" for name, value in settings.items()]
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(topic.created_ns / 1e9))
    kept = f", kept from offset {count(topic.oldest)} on" if topic.head else ""
    yield "topic", topic.name
    yield "file", topic.path
    yield "created", f"{created}, {age(time.time() - topic.created_ns / 1e9)} ago"
    yield "settings", ", ".join(shown[:4])
    for start in range(4, len(shown), 4):
        yield "", ", ".join(shown[start : start + 4])
    if topic.unused:
        yield "unused", ", ".join(f"{name} {value}" for name, value in topic.unused.items())
    yield "messages", f"{count(topic.head)}{kept}"
    yield (
        "slots",
        f"{count(topic.slots)}: {count(topic.slots_carried)} with messages, {count(topic.slots_lent)} lent, "
        f"{count(topic.slots_referenced)} being read, {count(topic.slots_free)} free",
    )
    if topic.slots_leaked:
        yield "leaked", click.style(f"{count(topic.slots_leaked)} slots", fg="red")
    yield "memory", f"{byte_size(topic.resident_bytes)} resident of {byte_size(topic.configured_bytes)}"


def _setting(name: str, value: object) -> str:
    return byte_size(value) if name in _BYTE_SETTINGS and isinstance(value, int) else str(value)


def participant_rows(
    topics: Sequence[hawser.TopicInfo | hawser.QueueInfo], *, with_topic: bool
) -> tuple[list[Column], list[list[str | Cell]]]:
    """The columns and rows of a table of participants."""
    columns = [
        Column("participant"),
        Column("kind"),
        Column("pid", right=True),
        Column("state"),
        Column("messages", right=True),
        Column("lag", right=True),
        Column("missed", right=True),
        Column("held", right=True),
        Column("reliable"),
        Column("joined", right=True),
    ]
    rows: list[list[str | Cell]] = []
    for topic in topics:
        for each in topic.participants:
            subscribes = each.kind == "subscriber"
            row: list[str | Cell] = [
                each.name,
                each.kind,
                str(each.pid),
                Cell("alive", "green") if each.alive else Cell("dead", "red"),
                count(each.count),
                count(max(0, topic.head - each.cursor)) if subscribes else "",
                count(each.missed) if subscribes else "",
                count(each.held),
                each.reliable,
                f"{age(time.time() - each.joined_ns / 1e9)} ago",
            ]
            rows.append([topic.name, *row] if with_topic else row)
    return ([Column("topic"), *columns] if with_topic else columns), rows


def _print_records(topic: hawser.TopicInfo) -> None:
    columns = [
        Column("saved position"),
        Column("done up to", right=True),
        Column("lag", right=True),
        Column("held"),
        Column("durable"),
    ]
    rows = [
        [
            record.name,
            count(record.mark),
            count(topic.head - record.mark),
            "yes" if record.held else "no",
            "yes" if record.durable else "no",
        ]
        for record in topic.records
    ]
    print_table(columns, rows)


@click.command()
@topic_argument
@click.argument("position")
@shared_options
def forget(name: str, position: str) -> None:
    """Delete the saved position POSITION ("group:g" for the group g); `hawser topic info` lists them."""
    with connect() as bus, bus.topic(name, create=False) as topic:
        if not topic.forget(position):
            raise hawser.NotFound(
                f"topic {name!r} has no saved position {position!r}; `hawser topic info` lists them"
            )
    if wants_json():
        print_json({"topic": name, "forgotten": position})
    else:
        notice(f"deleted position {position!r} of topic {name!r}")


@click.command()
@topic_argument
@click.option(
    "--force", is_flag=True, help="Delete it even while it is in use; its participants get an error."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@shared_options
def delete(name: str, force: bool, yes: bool) -> None:
    """Delete a topic and its history."""
    with connect() as bus:
        topic = bus.topic(name, create=False)
        if not yes and sys.stdin.isatty():
            click.confirm(
                f"Delete topic {name!r} with {count(topic.info().head)} messages?", abort=True, err=True
            )
        topic.delete(force=force)
    if wants_json():
        print_json({"topic": name, "deleted": True})
    else:
        notice(f"deleted topic {name!r}")
