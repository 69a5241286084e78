"""Print the functions that run on five paths, in order: `python scripts/walk.py [PATH ...] [--summary]`.

    local        publish on one host, and take
    cluster      publish on a cluster, and take
    queue        put, get and accept on a cluster
    transaction  a transaction over two shards
    spark        one micro-batch that Spark writes to a topic

Every process of a path runs with a profiler that records the first call of each function of the project. A
function that is also called while the cluster is idle is marked with ~. The files are then compared with
those that ARCHITECTURE.md names in its description of the path. Native code is not recorded.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "hawser"
SETTING_UP, WALKING, RESTING = range(3)
REST_SECONDS = 3

# Python imports it in every process with its directory in PYTHONPATH.
PROFILER = """
import json, mmap, os, sys, threading, time

DIRECTORY, PACKAGE = os.environ["HAWSER_WALK"], os.environ["HAWSER_WALK_PACKAGE"]
with open(os.path.join(DIRECTORY, "phase"), "r+b") as _file:
    PHASE = mmap.mmap(_file.fileno(), 1)
OPTIMIZED = 1
seen, output = set(), None

def forget():
    global output
    seen.clear()
    output = None

def profile(frame, event, argument):
    global output
    phase = PHASE[0]
    if event != "call" or not phase:
        return
    code = frame.f_code
    key = phase, code
    # Bodies of modules and classes are not optimized.
    if key in seen or not code.co_flags & OPTIMIZED or not code.co_filename.startswith(PACKAGE):
        return
    seen.add(key)
    if output is None:
        output = open(os.path.join(DIRECTORY, f"{os.getpid()}.walk"), "a", buffering=1)
        command = open("/proc/self/cmdline").read().split("\\0")
        output.write(json.dumps(command) + "\\n")
    function = f"{code.co_filename[len(PACKAGE) + 1:]}\\t{code.co_qualname}"
    output.write(f"{time.time_ns()}\\t{phase}\\t{function}\\n")

os.register_at_fork(after_in_child=forget)
threading.setprofile(profile)
sys.setprofile(profile)
"""

BEGINNING = """
import os, sys, time
import hawser

def phase(number):
    with open(os.path.join(os.environ["HAWSER_WALK"], "phase"), "r+b") as file:
        file.write(bytes([number]))

url = sys.argv[1]
"""
REST = f"""
phase({RESTING})
time.sleep({REST_SECONDS})
phase({SETTING_UP})
"""
LOCAL = """
phase(1)
bus = hawser.connect(url)
topic = bus.topic("walk")
subscription = topic.subscribe()
topic.publish(b"hello", key=b"k")
subscription.take(timeout=60).release()
phase(0)
"""
CLUSTER = (
    """
bus = hawser.connect(url)
topic = bus.topic("walk")
topic.publish(b"first")
time.sleep(2)
phase(1)
subscription = topic.subscribe()
topic.publish(b"hello", key=b"k")
subscription.take(timeout=60).release()
subscription.close()
"""
    + REST
)
QUEUE = (
    """
bus = hawser.connect(url)
queue = bus.queue("walk/jobs")
time.sleep(2)
phase(1)
queue.put(b"job")
queue.get(timeout=60).accept()
"""
    + REST
)
TRANSACTION = (
    """
bus = hawser.connect(url)
orders, jobs = bus.topic("walk/orders"), bus.queue("walk/jobs")
orders.publish(b"first")
jobs.put(b"job")
time.sleep(2)
phase(1)
with bus.transaction() as transaction:
    job = transaction.get(jobs, timeout=60)
    transaction.publish(orders, b"done", key=b"k")
    transaction.accept(job)
"""
    + REST
)
SPARK = """
from hawser.spark import session

hawser.connect(url).topic("walk/rows").publish(b"first")
spark = session(master="local[2]")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
rows = rows.selectExpr("cast(value as string) as value")
writer = rows.writeStream.format("hawser").option("endpoints", url).option("topic", "walk/rows")
phase(1)
query = writer.option("checkpointLocation", sys.argv[2]).start()
while not query.lastProgress:
    time.sleep(0.1)
phase(0)
query.stop()
spark.stop()
"""


class Walk(NamedTuple):
    """The program of a path, whether it needs a cluster, and its heading in ARCHITECTURE.md."""

    program: str
    needs_cluster: bool
    heading: str


PATHS = {
    "local": Walk(LOCAL, False, "The life of one message on one host"),
    "cluster": Walk(CLUSTER, True, "The life of one message across hosts"),
    "queue": Walk(QUEUE, True, "The life of one message of a queue"),
    "transaction": Walk(TRANSACTION, True, "The life of one transaction"),
    "spark": Walk(SPARK, True, "From one host to tables"),
}


class Call(NamedTuple):
    """The first call of a function in a process."""

    time_ns: int
    file: str
    function: str
    also_at_rest: bool


class Process(NamedTuple):
    name: str
    calls: list[Call]


def walk(path: Walk, directory: Path) -> list[Process]:
    """Run the path's program, and read what the profilers wrote."""
    from tests.support.processes import cluster_processes

    walked = directory / "walk"
    walked.mkdir()
    (walked / "phase").write_bytes(bytes([SETTING_UP]))
    (walked / "sitecustomize.py").write_text(PROFILER, encoding="utf-8")
    os.environ |= {"HAWSER_WALK": str(walked), "HAWSER_WALK_PACKAGE": str(PACKAGE), "PYTHONPATH": str(walked)}
    local = f"shm://{directory / 'domain'}"
    (directory / "domain").mkdir(mode=0o700)
    with cluster_processes(directory) if path.needs_cluster else nullcontext() as cluster:
        url = cluster.url if cluster is not None else local
        program = [sys.executable, "-c", BEGINNING + path.program, url, str(directory / "checkpoint")]
        subprocess.run(program, check=True, cwd=ROOT)
    found = [read(file) for file in sorted(walked.glob("*.walk"))]
    return sorted((each for each in found if each.calls), key=lambda each: each.calls[0].time_ns)


def read(file: Path) -> Process:
    command, *lines = file.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    at_rest = {(name, function) for _, phase, name, function in rows if int(phase) == RESTING}
    calls = [
        Call(int(time_ns), name, function, (name, function) in at_rest)
        for time_ns, phase, name, function in rows
        if int(phase) == WALKING
    ]
    return Process(name_of(json.loads(command)), sorted(calls))


def name_of(command: list[str]) -> str:
    """The role of a process, from its command line."""

    for word, following in pairwise(command):
        if word in ("--id", "--name"):
            return f"{'node' if word == '--id' else 'operator'} {following}"
    return "Spark's worker" if any("pyspark" in word for word in command) else "program"


def named_files(heading: str) -> set[str]:
    """The Python files of the package that a section of ARCHITECTURE.md names."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"ARCHITECTURE.md has no section {heading!r}"
    return {name for name in re.findall(r"`([\w/]+\.py)`", section) if (PACKAGE / name).exists()}


def lines_of(name: str, path: Walk, processes: list[Process], summary: bool) -> Iterator[str]:
    ran = {call.file for process in processes for call in process.calls}
    of_path = {call.file for process in processes for call in process.calls if not call.also_at_rest}
    named = named_files(path.heading)
    functions = sum(len(process.calls) for process in processes)
    yield f"{name}: {functions} functions in {len(ran)} files, processes: {len(processes)}"
    for process in processes:
        files = len({call.file for call in process.calls})
        yield f"  {process.name}: {len(process.calls)} functions in {files} files"
        if not summary:
            for call in process.calls:
                yield f"    {'~' if call.also_at_rest else ' '} {call.file} {call.function}"
    yield f'  named in "{path.heading}" and not run: {" ".join(sorted(named - ran)) or "none"}'
    yield f"  run and not named: {' '.join(sorted(of_path - named)) or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", choices=[*PATHS, []], metavar="PATH", help="all if none is given")
    parser.add_argument("--summary", action="store_true", help="leave the functions out")
    given: Any = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    for name in given.paths or PATHS:
        with tempfile.TemporaryDirectory() as directory:
            processes = walk(PATHS[name], Path(directory))
        print(*lines_of(name, PATHS[name], processes, given.summary), sep="\n", flush=True)


if __name__ == "__main__":
    main()
