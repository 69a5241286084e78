"""`hawser queue list|info|retry|forget|delete`."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import msgspec

import hawser
from hawser.cli.options import connect, queue_argument, shared_options, wants_json
from hawser.cli.output import Cell, Column, age, byte_size, count, notice, print_json, print_table
from hawser.cli.topic.catalog import participant_rows
from hawser.cli.topic.partitions import print_partitions

__all__ = ["delete", "every_queue", "forget", "info", "list_queues", "print_consumers", "retry"]

_BYTE_SETTINGS = frozenset({"slot_size", "capacity_bytes"})
_SETTINGS_A_LINE = 4


@click.command("list")
@shared_options
def list_queues() -> None:
    """List the queues of the domain or the cluster, with their counts."""
    with connect() as bus:
        found = list(every_queue(bus))
    if wants_json():
        print_json([msgspec.to_builtins(each) for each in found])
        return
    if not found:
        notice(f"no queues in {bus.url}")
        return
    scope = ("replicas", "bytes") if found[0].partitions else ("producers", "consumers", "memory")
    figures = ("ready", "claimed", "dead", "oldest", *scope, "of")
    columns = [Column("queue"), *(Column(title, right=True) for title in figures), Column("remarks")]
    print_table(columns, [_list_row(each) for each in found])


def every_queue(bus: hawser.Bus) -> Iterator[hawser.QueueInfo]:
    """The state of each queue. A queue that cannot be opened is named on standard error."""
    for name in bus.queues():
        try:
            with bus.queue(name, create=False) as queue:
                yield queue.info()
        except (hawser.NotFound, hawser.Closed):
            continue
        except hawser.HawserError as error:
            notice(f"queue {name!r} is left out: {error}")


def _list_row(queue: hawser.QueueInfo) -> list[str | Cell]:
    row: list[str | Cell] = [
        queue.name,
        count(queue.ready),
        count(queue.claimed),
        Cell(count(queue.dead), "yellow" if queue.dead else ""),
        "" if queue.oldest_age_seconds is None else age(queue.oldest_age_seconds),
    ]
    if queue.partitions:
        leaderless = any(each.leader is None for each in queue.partitions)
        return [
            *row,
            str(queue.settings.get("replication", "")),
            byte_size(queue.used_bytes),
            _capacity(queue),
            Cell("without a leader" if leaderless else "", "red"),
        ]
    alive = [each.kind for each in queue.participants if each.alive]
    dead = sum(not each.alive for each in queue.participants)
    remarks = [f"{dead} dead"] if dead else []
    remarks += [f"recorded by {each.name}" for each in queue.records]
    remarks += ["ephemeral"] if queue.settings["ephemeral"] else []
    remarks += ["group"] if queue.settings["mode"] == "group" else []
    return [
        *row,
        str(alive.count("producer")),
        str(alive.count("consumer")),
        byte_size(queue.resident_bytes),
        byte_size(queue.configured_bytes),
        Cell(", ".join(remarks), "yellow" if dead else ""),
    ]


@click.command()
@queue_argument
@shared_options
def info(name: str) -> None:
    """Show the settings, counts, message owners, memory and participants of a queue."""
    with connect() as bus, bus.queue(name, create=False) as queue:
        found = queue.info()
    if wants_json():
        print_json(found)
        return
    for title, text in _facts(found):
        click.echo(f"{click.style(title.ljust(12), bold=True)}{text}")
    if found.owners:
        click.echo()
        _print_owners(found)
    if found.partitions:
        click.echo()
        print_partitions(found.partitions)
    elif found.participants:
        click.echo()
        columns, rows = participant_rows([found], with_topic=False)
        print_table(columns, rows)


def _facts(queue: hawser.QueueInfo) -> Iterator[tuple[str, str]]:
    """Everything that `info` prints above its tables, as lines of (title, text)."""
    settings = {name: value for name, value in queue.settings.items() if value not in ("", False, None)}
    shown = [f"{name} {_setting(name, value)}" for name, value in settings.items()]
    yield "queue", queue.name
    yield from _place(queue)
    yield "settings", ", ".join(shown[:_SETTINGS_A_LINE])
    for start in range(_SETTINGS_A_LINE, len(shown), _SETTINGS_A_LINE):
        yield "", ", ".join(shown[start : start + _SETTINGS_A_LINE])
    if queue.unused:
        yield "unused", ", ".join(f"{name} {value}" for name, value in queue.unused.items())
    yield (
        "messages",
        f"{count(queue.ready)} ready, {count(queue.claimed)} claimed, of {count(queue.head)} put",
    )
    if queue.oldest_age_seconds is not None:
        yield "oldest", f"{age(queue.oldest_age_seconds)} ago"
    yield "dead", f"{count(queue.dead)} dead letters"
    for record in queue.records:
        held = "" if record.held else ", which is not running"
        yield "recorded", f"by {record.name}{held}"
    yield from _room(queue)


def _place(queue: hawser.QueueInfo) -> Iterator[tuple[str, str]]:
    if queue.partitions:
        yield "id", queue.uuid
        return
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(queue.created_ns / 1e9))
    yield "file", queue.path
    yield "created", f"{created}, {age(time.time() - queue.created_ns / 1e9)} ago"


def _room(queue: hawser.QueueInfo) -> Iterator[tuple[str, str]]:
    """The space of the queue as lines of (title, text): on a cluster its bytes and their limit, on one host
    its slots and its memory."""
    if queue.partitions:
        yield "bytes", f"{byte_size(queue.used_bytes)} of {_capacity(queue)}"
        return
    yield (
        "slots",
        f"{count(queue.slots)}: {count(queue.slots_lent)} lent, {count(queue.slots_referenced)} being read, "
        f"{count(queue.slots_free)} free",
    )
    if queue.slots_leaked:
        yield "leaked", click.style(f"{count(queue.slots_leaked)} slots", fg="red")
    yield "memory", f"{byte_size(queue.resident_bytes)} resident of {byte_size(queue.configured_bytes)}"


def _capacity(queue: hawser.QueueInfo) -> str:
    capacity_bytes = queue.settings["capacity_bytes"]
    return "" if capacity_bytes is None else byte_size(capacity_bytes)


def _setting(name: str, value: object) -> str:
    return byte_size(value) if name in _BYTE_SETTINGS and isinstance(value, int) else str(value)


def _print_owners(queue: hawser.QueueInfo) -> None:
    columns = [
        Column("owner"),
        Column("session" if queue.partitions else "pid", right=not queue.partitions),
        Column("claimed", right=True),
    ]
    rows = [[each.name, each.session or str(each.pid), count(each.claimed)] for each in queue.owners]
    print_table(columns, rows)


def print_consumers(queues: list[hawser.QueueInfo]) -> None:
    """Print the consumers of queues of a cluster."""
    columns = [Column("queue"), Column("consumer"), Column("claimed", right=True)]
    rows = [[queue.name, each.name, count(each.held)] for queue in queues for each in queue.participants]
    print_table(columns, rows)


@click.command()
@queue_argument
@click.option("--count", "most", type=click.IntRange(min=1), help="Move at most this many; default: all.")
@shared_options
def retry(name: str, most: int | None) -> None:
    """Move dead letters back to the end of the queue, oldest first, and reset their delivery counts."""
    with connect() as bus, bus.queue(name, create=False) as queue:
        try:
            moved = queue.retry_dead_letters(most)
        except hawser.HawserError as error:
            if error.published:
                notice(f"moved at least {count(error.published)} dead letters back to {name!r}")
            raise
    if wants_json():
        print_json({"queue": name, "moved": moved})
    elif moved:
        notice(f"moved {count(moved)} dead letters back to {name!r}")
    else:
        notice(f"queue {name!r} has no dead letters")


@click.command()
@queue_argument
@click.argument("recorder")
@shared_options
def forget(name: str, recorder: str) -> None:
    """Release the queue from the agent RECORDER, so that other consumers get its messages again.

    `hawser queue info` names the recorder.
    """
    with connect() as bus, bus.queue(name, create=False) as queue:
        if not queue.forget(recorder):
            raise hawser.NotFound(
                f"queue {name!r} is not recorded by {recorder!r}; `hawser queue info` names its recorder"
            )
    if wants_json():
        print_json({"queue": name, "forgotten": recorder})
    else:
        notice(f"queue {name!r} is no longer recorded by {recorder!r}")


@click.command()
@queue_argument
@click.option(
    "--force", is_flag=True, help="Delete it even while it is in use; its participants get an error."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@shared_options
def delete(name: str, force: bool, yes: bool) -> None:
    """Delete a queue and its messages."""
    with connect() as bus:
        queue = bus.queue(name, create=False)
        if not yes and sys.stdin.isatty():
            click.confirm(f"Delete queue {name!r} with {_contents(queue)}?", abort=True, err=True)
        queue.delete(force=force)
    if wants_json():
        print_json({"queue": name, "deleted": True})
    else:
        notice(f"deleted queue {name!r}")


def _contents(queue: "hawser.Queue[Any]") -> str:
    found = queue.info()
    dead_letters = f" and {count(found.dead)} dead letters" if found.dead and found.partitions else ""
    return f"{count(found.ready + found.claimed)} messages{dead_letters}"
