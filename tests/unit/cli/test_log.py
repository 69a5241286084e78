"""`hawser log scan|verify`: tells what is on the disk, finds every damage, changes nothing."""

import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from hawser.cli.log import commands
from hawser.cli.main import root
from hawser.cluster.disk import Disk
from hawser.errors import HawserError
from hawser.log.entry import Entry, Kind
from hawser.log.journal.journal import Journal, Settings
from hawser.log.journal.segment import FRAMES_START
from hawser.log.state.machine import Machine
from hawser.record.batch import Batch
from hawser.record.record import Record, Stamp
from tests.support.processes import NodeProcess, cluster_processes, hawser_command

BATCHES = 12
STAMP = (b"shop", 1)


def _entries() -> list[Entry]:
    """Batches of three records, one of them twice, and an entry of another kind."""
    entries = [Entry.make(1, 1)]
    for number in range(1, BATCHES + 1):
        batch = Batch.of([Record(b"%d" % number * 20)] * 3, Stamp(*STAMP, max(1, number - 1)))
        entries.append(Entry.make(1 + number // 5, len(entries) + 1, Kind.BATCH, bytes(batch.data)))
    return entries


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node's directory with one shard, as the node leaves it when it stops."""
    shard = tmp_path / "shards" / "orders%40abc%2F0"
    disk = Disk(shard)
    journal = Journal.format(disk, "orders@abc/0", "n1.1", Settings(segment_bytes=900))
    for entry in _entries():
        journal.append([entry])
        journal.sync()
    journal.settle()
    disk.close()
    (tmp_path / "lock").touch()
    return tmp_path


def _shard(node: Path) -> Path:
    return node / "shards" / "orders%40abc%2F0"


def _run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(root, ["log", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, (SystemExit, HawserError)):
        raise result.exception
    return result


def _lines(*arguments: str | Path) -> list[Any]:
    return [msgspec.json.decode(line) for line in _run(*arguments, "-o", "json").stdout.splitlines()]


def _fingerprint(directory: Path) -> dict[str, tuple[int, str]]:
    """Every file with its time of change and what is in it."""
    return {
        str(file.relative_to(directory)): (
            file.stat().st_mtime_ns,
            hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }


def test_scan_tells_each_entry(node: Path) -> None:
    lines = _lines("scan", "--dir", node)
    assert [line["index"] for line in lines] == list(range(1, BATCHES + 2))
    assert lines[0] == {
        "shard": "orders@abc/0", "epoch": 1, "index": 1, "kind": "nothing", "offset": None, "records": None,
        "bytes": 32,
    }  # fmt: skip
    # The second batch repeats the first one's stamp, and has no offset of its own.
    assert [line["offset"] for line in lines[1:]] == [1, None, *range(4, 3 * (BATCHES - 1), 3)]
    assert {line["records"] for line in lines[1:]} == {3}
    text = _run("scan", "--dir", _shard(node)).stdout
    assert len(text.splitlines()) == BATCHES + 2 and text.splitlines()[0].split()[0] == "shard"


def test_scan_knows_offsets_behind_a_checkpoint(node: Path) -> None:
    before = _lines("scan", "--dir", node)
    disk = Disk(_shard(node))
    journal = Journal.open(disk)
    machine = Machine(_NoBlocks())
    for entry in journal.read(1, 8, 1 << 20):
        machine.apply(entry)
    saved = machine.save()
    journal.save_checkpoint(8, saved.state, saved.blocks)
    journal.retain(8)
    assert journal.first > 1
    first = journal.first
    disk.close()
    assert _lines("scan", "--dir", node) == before[first - 1 :]
    assert _lines("verify", "--dir", node)[0]["entries"] == len(before) - first + 1


class _NoBlocks:
    def write(self, name: str, data: bytes) -> None:
        raise AssertionError("so few batches need no block")

    def read(self, name: str) -> bytes:
        raise AssertionError("nothing was written")


def test_nothing_is_changed_not_even_what_a_node_would_mend(node: Path) -> None:
    # A torn write behind what was synced, a promise that was interrupted, a file of another generation.
    last = max(_shard(node).glob("log-*"))
    data = bytearray(last.read_bytes())
    data[-20:-10] = b"torn write"
    last.write_bytes(data)
    promise = bytearray((_shard(node) / "vow").read_bytes())
    promise[4096:4106] = b"torn write"
    (_shard(node) / "vow").write_bytes(promise)
    (_shard(node) / "block-00000009-left").write_bytes(b"left over")
    before = _fingerprint(node)
    assert _run("verify", "--dir", node).exit_code == 0
    assert len(_lines("scan", "--dir", node)) == BATCHES + 1
    assert _fingerprint(node) == before


def test_every_flipped_bit_of_an_entry_is_found(
    node: Path, record_property: Callable[[str, object], None]
) -> None:
    files = 1 + len(list(_shard(node).glob("log-*")))
    assert _lines("verify", "--dir", node) == [
        {"whole": True, "shards": 1, "files": files, "entries": BATCHES + 1}
    ]
    found, missed = _flip_bits(node)
    record_property("flipped bits found", found)
    assert found > 200 and not missed


def test_a_verify_that_trusts_headers_would_be_noticed(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_verified", lambda shard: (1, len(list(shard.path.iterdir()))))
    found, missed = _flip_bits(node)
    assert missed and not found


def _flip_bits(node: Path) -> tuple[int, list[tuple[str, int]]]:
    """Flip a bit of every seventh byte of the entries, one at a time: how many were told, and which not."""
    found, missed = 0, []
    for segment in sorted(_shard(node).glob("log-*")):
        whole = segment.read_bytes()
        for byte in range(FRAMES_START, len(whole.rstrip(b"\0")), 7):
            data = bytearray(whole)
            data[byte] ^= 1 << byte % 8
            segment.write_bytes(data)
            result = _run("verify", "--dir", node, "-o", "json")
            told = msgspec.json.decode(result.stdout)
            is_told = (result.exit_code, told["whole"], told.get("file")) == (4, False, segment.name)
            if is_told and told["byte"] <= byte and told["index"] > 0:
                found += 1
            else:
                missed.append((segment.name, byte))
        segment.write_bytes(whole)
    return found, missed


def test_a_missing_segment_and_a_damaged_checkpoint_are_found(node: Path) -> None:
    disk = Disk(_shard(node))
    journal = Journal.open(disk)
    journal.save_checkpoint(1, b"state", ())
    disk.close()
    (checkpoint,) = _shard(node).glob("checkpoint-*")
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-1] + b"!")
    result = _run("verify", "--dir", node)
    assert result.exit_code == 4 and checkpoint.name in result.stderr
    checkpoint.write_bytes(whole)
    middle = sorted(_shard(node).glob("log-*"))[1]
    middle.unlink()
    result = _run("verify", "--dir", node)
    assert result.exit_code == 4 and "damaged" in result.stderr


def test_a_node_that_runs_is_left_alone(node: Path) -> None:
    with (node / "lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for directory in (node, _shard(node)):
            done = hawser_command("log", "verify", "--dir", str(directory), code=2)
            assert f"the node of {node} is running" in done.stderr
        hawser_command("log", "scan", "--dir", str(node), code=2)


def test_directories_that_are_none_are_named(tmp_path: Path) -> None:
    assert "no directory" in hawser_command("log", "scan", "--dir", str(tmp_path / "no"), code=3).stderr
    assert "is not the directory" in hawser_command("log", "scan", "--dir", str(tmp_path), code=3).stderr
    os.makedirs(tmp_path / "shards")
    assert "0 shards" in hawser_command("log", "verify", "--dir", str(tmp_path)).stderr


def test_the_log_of_a_real_node(tmp_path: Path) -> None:
    with cluster_processes(tmp_path) as cluster:
        lines = "\n".join(f"message {number}" for number in range(50))
        cluster.run("topic", "pub", "orders", "--stdin-lines", given=lines.encode())
        node: NodeProcess = cluster.nodes[cluster.shard("orders")["leader"]]
        node.kill()
    before = _fingerprint(node.directory)
    scanned = [
        msgspec.json.decode(line)
        for line in hawser_command(
            "log", "scan", "--dir", str(node.directory), "-o", "json"
        ).stdout.splitlines()
    ]
    batches = [line for line in scanned if line["kind"] == "batch"]
    assert sum(line["records"] for line in batches) == 50
    expected = 1
    for line in batches:
        assert line["offset"] == expected
        expected += line["records"]
    hawser_command("log", "verify", "--dir", str(node.directory))
    assert _fingerprint(node.directory) == before
