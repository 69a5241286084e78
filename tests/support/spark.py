"""What tests of Spark share: whether there is a Java, and a standalone cluster of real processes."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hawser import UsageError
from hawser.spark.archive import archive_options
from hawser.spark.runtime.java import find_java
from hawser.spark.runtime.session import environment, spark_home
from tests.support.etcd import dying_with_parent, free_ports
from tests.support.processes import page, until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "howto" / "spark-clusters.md"
SMALL = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
# Of a driver in a cluster; its own Java has these options from the environment.
SMALL_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}
_EXECUTOR = b"CoarseGrainedExecutorBackend"


def need_java() -> None:
    """Skip the test on a machine without a Java that can run Spark."""
    try:
        find_java()
    except UsageError as error:
        pytest.skip(str(error))


class StandaloneCluster:
    """A master and two workers of one core each, from the pip package alone: as the documents say, on other
    ports."""

    def __init__(self, directory: Path, programs: Path | None = None) -> None:
        """Its hosts look for Python in the directory `programs` first, if there is one."""
        self.directory = directory
        self._path = os.environ["PATH"] if programs is None else f"{programs}:{os.environ['PATH']}"
        port, self._page_port = map(str, free_ports(2))
        self.master = f"spark://127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
            if line.startswith("spark-class "):
                words = line.replace("7077", port).replace("8080", self._page_port).split()
                self._start(words[words.index("--host") + 1], words[1:])
        assert len(self._processes) == 3, f"{DOCUMENT} has a master and two workers"

    def _start(self, host: str, arguments: list[str]) -> None:
        home = spark_home()
        surroundings = {
            **os.environ,
            **environment(None),
            "PATH": self._path,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "384m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join([os.environ["SPARK_SUBMIT_OPTS"], *archive_options(home)]),
        }
        command = [*dying_with_parent(), str(home / "bin" / "spark-class"), *arguments]
        with (self.directory / "daemons.log").open("ab") as log:
            process = subprocess.Popen(command, env=surroundings, cwd=self.directory, stdout=log, stderr=log)
        self._processes.append(process)

    def wait_until_ready(self) -> None:
        """Until both workers have joined."""

        def ready() -> bool:
            assert all(process.poll() is None for process in self._processes), self.last_words
            return page(f"http://127.0.0.1:{self._page_port}/json/")[1].count('"ALIVE"') == 3

        until(ready, "a master and two workers", lambda: self.last_words)

    @property
    def last_words(self) -> str:
        return (self.directory / "daemons.log").read_text(errors="replace")[-3000:]

    @property
    def executors(self) -> list[int]:
        """The processes in which tasks run."""
        workers = {process.pid for process in self._processes[1:]}
        return sorted(pid for pid in _process_ids() if _parent(pid) in workers and _EXECUTOR in _command(pid))

    def executor_of(self, pid: int) -> int:
        """The one in which a process of Python works."""
        while pid not in self.executors:
            pid = _parent(pid)
            assert pid, "no executor has such a process"
        return pid

    def tree(self, pid: int) -> list[int]:
        """A process and all that it has started, directly or not."""
        found = [pid]
        for each in found:
            found += [other for other in _process_ids() if _parent(other) == each]
        return found

    def kill_executor(self) -> int:
        """The process id of the one that was killed, with SIGKILL."""
        until(lambda: bool(self.executors), "an executor")
        victim = self.executors[0]
        os.kill(victim, signal.SIGKILL)
        return victim

    def kill(self) -> None:
        """Workers first: they end their executors when they are told to end, and lose them when killed."""
        executors = self.executors
        for process in self._processes:
            process.kill()
            process.wait()
        for pid in executors:
            if _EXECUTOR in _command(pid):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def standalone_cluster(directory: Path, programs: Path | None = None) -> Iterator[StandaloneCluster]:
    """One that serves; every process of it is gone when the block ends."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = StandaloneCluster(directory, programs)
    try:
        cluster.wait_until_ready()
        yield cluster
    finally:
        cluster.kill()


def _process_ids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
