"""The keys of what commands print with `-o json`, from commands that are run on a domain and on a cluster."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import hawser
from hawser.cli.main import root
from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

# Run in this order: later commands show what earlier ones made.
COMMANDS = """
topic pub events hello --key k --header a=b
topic list
topic info events
topic echo events --history 1 --count 1
topic record events --history 1 --count 1 --to {directory}/events.hawser
topic replay {directory}/events.hawser --as replayed
queue put jobs hello --count 3
queue list
queue info jobs
queue peek jobs --count 1
queue get jobs --count 1
queue get jobs --count 1 --reject
queue peek jobs --dead
queue retry jobs
topic delete replayed
"""
LOCAL = """
topic trace events --on
topic pub events traced
topic trace events --count 1 --seconds 5
topic trace events --off
topic hz events --seconds 0.1
topic bw events --seconds 0.1
doctor
ps
reap
queue delete jobs
"""
CLUSTER = """
cluster status
cluster elect events/0
tx list
tx recover
tx show {transaction}
tx rollback {transaction} --reason stale --yes
tx forget {transaction}
queue delete jobs
"""
OFFLINE = """
log scan --dir {node}
log verify --dir {node}
"""
NODE = re.compile(r"n\d")


def json_keys(directory: Path) -> Iterator[str]:
    """Each command, and a line for each key that it printed."""
    (directory / "local").mkdir()
    (directory / "cluster").mkdir()
    with LocalBus() as local:
        yield from keys_of(COMMANDS + LOCAL, local.url, "shm", directory=directory / "local")
    with RunningCluster(directory / "nodes") as running:
        with running.connect() as cluster:
            transaction = prepared_transaction(cluster)
        names = {"directory": directory / "cluster", "transaction": transaction}
        yield from keys_of(COMMANDS + CLUSTER, running.url, "hawser", **names)
    yield from keys_of(OFFLINE, "shm://", "offline", node=directory / "nodes" / "n1")


def prepared_transaction(bus: hawser.Bus) -> str:
    """A transaction that waits for its coordinator."""
    xid = hawser.xa.Xid(1, b"global", b"branch")
    branch = bus.xa.start(xid)
    branch.publish(bus.topic("events"), b"prepared")
    branch.publish(bus.queue("jobs"), b"prepared")
    bus.xa.end(xid)
    bus.xa.prepare(xid)
    return str(xid)


def keys_of(commands: str, url: str, scope: str, **names: Any) -> Iterator[str]:
    for line in filter(None, commands.splitlines()):
        arguments = line.format(**names).split()
        result = CliRunner().invoke(root, ["--url", url, "-o", "json", *arguments], catch_exceptions=False)
        # What `doctor` finds depends on the machine.
        assert result.exit_code == 0 or line == "doctor", (line, result.output)
        found = {key for printed in result.stdout.splitlines() for key in paths(json.loads(printed), "")}
        yield f"{scope}: {line}"
        yield from (f"  {key}" for key in sorted(found))


def paths(value: Any, path: str) -> Iterator[str]:
    """The path of each value; `*` stands for names of nodes."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, f"{path}.{NODE.sub('*', key)}")
    elif isinstance(value, list):
        for each in value:
            yield from paths(each, f"{path}[]")
    else:
        yield path or "."
