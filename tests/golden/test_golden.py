"""This version reads what it wrote when the samples were made, and writes the same bytes again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import hawser
from hawser.cli.log.files import FrozenFiles
from hawser.cli.topic.recording_file import RecordingReader
from hawser.cluster.operator.catalog import list_topics
from hawser.cluster.stores import list_shards, open_store
from hawser.log.entry import Entry
from hawser.log.journal.journal import Journal
from hawser.log.state.machine import Machine
from hawser.transaction.participant.branches import transactional_parts
from tests.golden import messages, samples
from tests.golden.samples import CLUSTER, DOMAIN, MESSAGES, PREPARED, RECORDING, RECORDS
from tests.support.cluster import RunningCluster

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def test_every_message_is_read_and_written_again() -> None:
    lines = MESSAGES.read_text(encoding="utf-8").splitlines()
    found = {messages.read(line)[:2] for line in lines}
    for line in lines:
        family, tag, message, written = messages.read(line)
        assert written.hex() == line.split("\t")[2], (family, tag)
        assert message == messages.example_of(type(message)), (family, tag)
    known = {
        (family, kind.__struct_config__.tag)
        for family, (kinds, _, _) in messages.FAMILIES.items()
        for kind in kinds
    }
    assert found == known, "python -m tests.golden.samples"


class CheckpointBlocks:
    """The blocks of a journal's checkpoint, for a state machine."""

    def __init__(self, journal: Journal) -> None:
        self.write = journal.write_block
        self.read = journal.read_block


@pytest.fixture(scope="module")
def cluster_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cluster")
    samples.unpack(CLUSTER, directory)
    return directory


def test_journals_and_states_are_read_and_written_again(cluster_files: Path) -> None:
    states = 0
    for path in sorted((cluster_files / "n1" / "shards").iterdir()):
        files = FrozenFiles(path)
        journal = Journal.open(files)
        assert list(journal.verify()), path.name
        entries = journal.read(journal.first, journal.head.index, 1 << 20)
        for entry in entries:
            again = Entry.make(
                entry.epoch, entry.index, entry.kind, bytes(entry.payload), version=entry.version,
                transaction=entry.transaction,
            )  # fmt: skip
            assert again.frame == entry.frame
        if journal.checkpoint is not None:
            machine = Machine(CheckpointBlocks(journal), transactional_parts())
            machine.load(journal.checkpoint.state)
            assert machine.save().state == journal.checkpoint.state, path.name
            states += 1
    assert states == 3


def test_metadata_are_read_and_written_again(cluster_files: Path, tmp_path: Path) -> None:
    shutil.copy(cluster_files / "metadata.sqlite", tmp_path / "copy.sqlite")
    store = open_store(f"sqlite:{tmp_path / 'copy.sqlite'}")
    values = store.list("")
    assert {key.partition("/")[0] for key in values} == {"cluster", "nodes", "shards", "topics"}
    assert set(list_topics(store)) == {"events", "jobs", "__tx"}
    for shard, stored in list_shards(store).items():
        assert not isinstance(stored, hawser.Corrupt)
        assert msgspec.json.encode(stored.metadata) == values[f"shards/{shard}"].data


def test_a_cluster_goes_on_with_the_files(cluster_files: Path) -> None:
    with RunningCluster(cluster_files, nodes=1, settings=samples.SETTINGS) as running:
        bus = running.connect("reader")
        events, jobs = bus.topic("events", create=False), bus.queue("jobs", create=False)
        read = {
            bytes(each)
            for partition in (0, 1)
            for each in events.read_oldest(100, partition=partition).samples
        }
        assert read == {b"committed", *(b"event %d" % number for number in range(30))}
        with events.subscribe(group="readers") as readers:
            rest = [readers.take(timeout=60) for _ in range(21)]
        assert all(sample is not None for sample in rest)
        got = jobs.get_many(100, timeout=60)
        assert [bytes(each) for each in got] == [
            *(b"job %d" % number for number in range(2, 6)),
            b"committed",
        ]
        got.accept()
        assert [bytes(each) for each in jobs.dead_letters().peek(10)] == [b"job 1"]
        assert bus.xa.recover() == [PREPARED]
        bus.xa.commit(PREPARED)
        last = jobs.get(timeout=60)
        assert last is not None and bytes(last) == b"prepared"
        last.accept()


def test_a_domain_is_read_in_its_boot(tmp_path: Path) -> None:
    directory = Path(f"/dev/shm/{tmp_path.parent.name}-{tmp_path.name}")
    directory.mkdir(mode=0o700)
    try:
        samples.unpack(DOMAIN, directory)
        boot = directory / "boot_id"
        program = [sys.executable, "-m", "tests.golden.read_domain", str(directory)]
        script = f'mount --bind "$0" {BOOT_ID} || exit 77; "$@" || exit 2'
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script, str(boot), *program],
            check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode in (1, 77):
            pytest.skip("needs the right to make a mount namespace")
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(directory)
    assert json.loads(done.stdout) == {
        "history": [[f"frame {number}", "left", "mm"] for number in range(5)],
        "offsets": [1, 2, 3, 4, 5],
        "resumed": ["frame 2", "frame 3", "frame 4"],
        "jobs": [["job 1", 2], ["job 2", 1], ["job 3", 1]],
        "trace": "metadata",
        "next": 6,
    }


def test_a_recording_is_read_and_written_again(tmp_path: Path) -> None:
    with RecordingReader(RECORDING) as reader:
        read = list(reader.messages())
        assert [each.record for each in read] == RECORDS
        assert [(each.partition, each.offset, each.lost_before) for each in read] == [
            (1, offset, 3 if offset == 0 else 0) for offset in range(5)
        ]
    samples.make_recording(tmp_path / "again")
    assert frames_of(tmp_path / "again") == frames_of(RECORDING)


def frames_of(recording: Path) -> bytes:
    """What stands behind the opening, which names the time at which the recording began."""
    _, _, frames = recording.read_bytes().partition(b"started_ns")
    _, _, frames = frames.partition(b"}")
    assert len(frames) > 100
    return frames
