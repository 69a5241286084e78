"""Clusters to measure: three servers as processes on loopback, with their data on a disk.

A sync is free on a file system in memory, so the data is on another one. Servers are killed and their data is
removed when a block ends.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import hawser

START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
# Below the ports of outgoing connections, which could take a port before its server does.
_SERVER_PORTS = range(20_000, 32_000)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
# The prefix of variables with the user's settings, which must not affect the measurement.
_OWN_VARIABLES = "HAWSER_"


def free_ports(count: int) -> list[int]:
    """Free ports of loopback, outside the range of outgoing connections."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(_SERVER_PORTS, len(_SERVER_PORTS)):
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError(
        f"fewer than {count} ports between {_SERVER_PORTS[0]} and {_SERVER_PORTS[-1]} are free"
    )


@contextmanager
def place_on_disk() -> Iterator[Path]:
    """A new directory on a disk, removed afterwards; RuntimeError if there is no disk."""
    for parent in (tempfile.gettempdir(), "/var/tmp", Path.cwd()):
        if os.access(parent, os.W_OK) and file_system(Path(parent)) not in _IN_MEMORY:
            with tempfile.TemporaryDirectory(
                prefix="hawser-bench-", dir=parent, ignore_cleanup_errors=True
            ) as directory:
                yield Path(directory)
            return
    raise RuntimeError("no directory on a disk to measure syncs in; set TMPDIR to one that is not in memory")


def file_system(path: Path) -> str:
    """The type of the file system of `path`, as named by the kernel."""
    place = path.resolve()
    found, depth = "", -1
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind, *_ = line.split()
        root = Path(mount.encode().decode("unicode_escape"))
        # Of two file systems mounted at one place the later one is visible.
        if place.is_relative_to(root) and len(root.parts) >= depth:
            found, depth = kind, len(root.parts)
    return found


class Process:
    """A server process. Its output is kept for the error message if it does not serve."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self._name = " ".join(command[:4])
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_OWN_VARIABLES)}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_dying_with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )

    @property
    def process_id(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Kill it with SIGKILL, and wait for its end."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def check(self) -> None:
        """RuntimeError if it has ended."""
        if self._process.poll() is not None:
            words = self._log.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise RuntimeError(
                f"{self._name} ended with {self._process.returncode}; its last output:\n{words}"
            )

    def cpu_seconds(self) -> float:
        """The CPU time since its start."""
        numbers = Path(f"/proc/{self.process_id}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process_id}/statm").read_text(encoding="utf-8").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def wait_until(serves: Callable[[], bool], processes: Sequence[Process], what: str) -> None:
    """Wait until the processes serve; RuntimeError if one of them ends, or after a timeout."""
    deadline = time.monotonic() + START_SECONDS
    while not serves():
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} does not serve after {START_SECONDS:.0f} s")
        time.sleep(_LOOK_SECONDS)


def first_words(program: str | None) -> str:
    """The first line of a server's version output."""
    assert program is not None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return done.stdout.partition("\n")[0].strip()


class HawserServers:
    """Nodes n1, n2 and n3 and an operator with SQLite, with default settings. The data of a node is in the
    subdirectory of its name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3), 1)}
        self.url = "hawser://" + ",".join(addresses.values())
        command = [sys.executable, "-m", "hawser"]
        self.nodes = {
            name: Process(
                [*command, "node", "--id", name, "--listen", address, "--dir", str(directory / name)],
                directory / f"{name}.log",
            )
            for name, address in addresses.items()
        }
        known = [word for name, address in addresses.items() for word in ("--node", f"{name}={address}")]
        store = f"sqlite:{directory / 'metadata.sqlite'}"
        self.operator = Process(
            [*command, "operator", "--metadata", store, *known], directory / "operator.log"
        )

    @property
    def processes(self) -> list[Process]:
        return [*self.nodes.values(), self.operator]


@contextmanager
def hawser_servers() -> Iterator[HawserServers]:
    """A running cluster that accepts writes on all three nodes."""
    with place_on_disk() as directory:
        servers = HawserServers(directory)
        try:
            wait_until(lambda: _takes_writes(servers.url), servers.processes, "hawser")
            yield servers
        finally:
            for process in servers.processes:
                process.kill()


def _takes_writes(url: str) -> bool:
    try:
        with hawser.connect(url, connect_timeout=1.0) as bus, bus.topic("first", replication=3) as topic:
            topic.publish(b"first")
            topic.delete()
    except hawser.HawserError:
        return False
    return True


def _dying_with_parent() -> list[str]:
    # A server that survives a killed run would keep its port, memory and directory.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
