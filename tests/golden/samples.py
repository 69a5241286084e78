"""The samples: `python -m tests.golden.samples` makes all of them anew, with the formats of this version.

They are made again only when a format changes on purpose. Then CHANGELOG says so.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from hawser.cli.topic.recording_file import Message, RecordingWriter
from hawser.cluster.node.server import NodeSettings
from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol.node import Limits
from hawser.log.replica import Settings
from hawser.record.record import Record
from hawser.transaction.participant.branches import transactional_parts
from hawser.xa import Xid
from tests.golden.messages import frames
from tests.support.cluster import RunningCluster
from tests.support.processes import until

SAMPLES = Path(__file__).with_name("samples")
MESSAGES = SAMPLES / "messages.txt"
CLUSTER = SAMPLES / "cluster.tar.xz"
DOMAIN = SAMPLES / "domain.tar.xz"
RECORDING = SAMPLES / "events.recording"

# A checkpoint after few entries, so that a saved state is in the sample.
SETTINGS = NodeSettings(
    replica=Settings(
        journal=JournalSettings(segment_bytes=64 << 10),
        limits=Limits(idle_ticks=2),
        parts=transactional_parts,
        checkpoint_entries=8,
    )
)
PREPARED = Xid(7, b"prepared", b"branch")
RECORDS = [
    Record(f"value {number}".encode(), key=b"key", headers={"unit": b"m"}, timestamp_ns=number)
    for number in range(1, 6)
]
# The process ends without leaving, so that the files have dead participants and a message they hold.
DOMAIN_PROGRAM = """
import os, sys
import hawser

bus = hawser.connect("shm://" + sys.argv[1], name="writer")
topic = bus.topic("frames", history=8, slot_size=256, max_publishers=2, max_subscribers=2, trace="metadata")
tail = topic.subscribe(resume=True, reliable="durable")
for number in range(5):
    topic.publish(f"frame {number}".encode(), key=b"left", headers={"unit": b"mm"})
for _ in range(2):
    tail.take(timeout=0).release()
jobs = bus.queue("jobs", capacity=8, slot_size=256, max_producers=2, max_consumers=2, max_held=4)
for number in range(4):
    jobs.put(f"job {number}".encode())
jobs.get().accept()
held = jobs.get()
os._exit(0)
"""


def make_cluster(directory: Path) -> None:
    """A node with a topic of two partitions, a queue with a dead letter, a group, and a transaction that is
    prepared; and the operator's metadata."""
    with RunningCluster(directory, nodes=1, settings=SETTINGS) as running:
        bus = running.connect("sample")
        events = bus.topic("events", partitions=2, replication=1)
        for number in range(30):
            events.publish(
                f"event {number}".encode(), key=str(number).encode(), headers={"n": b"%d" % number}
            )
        with events.subscribe(group="readers", start="earliest") as readers:
            for _ in range(10):
                sample = readers.take(timeout=30)
                assert sample is not None
                sample.release()
            readers.commit()
        jobs = bus.queue("jobs", replication=1, max_deliveries=3)
        for number in range(6):
            jobs.put(f"job {number}".encode())
        for settle in ("accept", "reject"):
            message = jobs.get(timeout=30)
            assert message is not None
            getattr(message, settle)()
        with bus.transaction() as transaction:
            transaction.publish(events, b"committed", key=b"0")
            transaction.publish(jobs, b"committed")
        branch = bus.xa.start(PREPARED)
        branch.publish(events, b"prepared", key=b"0")
        branch.publish(jobs, b"prepared")
        bus.xa.end(PREPARED)
        assert bus.xa.prepare(PREPARED) == "ok"
        until(
            lambda: len(list(directory.glob("n1/shards/*/checkpoint-*"))) == 3, "a checkpoint of each shard"
        )


def make_domain(directory: Path) -> None:
    """A topic, a queue and a trace, and the name of the boot that they are of."""
    program = [sys.executable, "-c", DOMAIN_PROGRAM, str(directory)]
    subprocess.run(program, check=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    (directory / "boot_id").write_bytes(boot)


def make_recording(path: Path) -> None:
    writer = RecordingWriter(path, "events", "hawser://127.0.0.1:7400", {"partitions": 2})
    for offset, record in enumerate(RECORDS):
        writer.add(Message(1, offset, 3 if offset == 0 else 0, record))
    writer.close()


def packed(directory: Path) -> bytes:
    """The regular files below a directory, as one archive."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:xz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            if path.is_file() or path.is_dir():
                member = archive.gettarinfo(path, str(path.relative_to(directory)))
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                with path.open("rb") if path.is_file() else io.BytesIO() as content:
                    archive.addfile(member, content)
    return stream.getvalue()


def unpack(sample: Path, directory: Path) -> None:
    with tarfile.open(sample) as archive:
        archive.extractall(directory, filter="data")


def main() -> None:
    SAMPLES.mkdir(exist_ok=True)
    MESSAGES.write_text(frames(), encoding="utf-8")
    for sample, make in ((CLUSTER, make_cluster), (DOMAIN, make_domain)):
        with tempfile.TemporaryDirectory(dir="/dev/shm" if sample == DOMAIN else None) as directory:
            make(Path(directory))
            sample.write_bytes(packed(Path(directory)))
    RECORDING.unlink(missing_ok=True)
    make_recording(RECORDING)
    for path in sorted(SAMPLES.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")


if __name__ == "__main__":
    main()
