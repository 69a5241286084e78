"""A real etcd server on loopback, for as long as a block lasts."""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice, pairwise
from pathlib import Path

import pytest

from tests.support.standing import stand_still

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "etcd" / "usr" / "bin" / "etcd"
START_SECONDS = 60
_POLL_SECONDS = 0.05
# A thousand for each worker of pytest, below those that the kernel chooses from; begun anywhere, since other
# runs may be under way.
_FIRST_PORT = 10_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")) % 10)
_ports = islice(cycle(range(_FIRST_PORT, _FIRST_PORT + 1_000)), os.getpid() % 1_000, None)


class EtcdServer:
    """One member, alone, with its data in `directory`; started again it is the same member."""

    def __init__(self, program: str, directory: Path) -> None:
        self.directory = directory
        self._program = program
        self._client_port, self._peer_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `open_store` takes."""
        return f"etcd://127.0.0.1:{self._client_port}"

    @property
    def address(self) -> tuple[str, int]:
        """Where it serves clients."""
        return "127.0.0.1", self._client_port

    @property
    def process_id(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it serves."""
        assert self._process is None
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._client_port, self._peer_port))
        command = [
            *dying_with_parent(),
            self._program,
            "--name=alone",
            f"--data-dir={self.directory / 'data'}",
        ]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += [f"--initial-cluster=alone={peer}"]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait_until_serving(f"{client}/health")

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, unless it has ended, and wait until it is gone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Let it stand still; its port still takes connections."""
        stand_still(self.process_id)

    def resume(self) -> None:
        os.kill(self.process_id, signal.SIGCONT)

    def _wait_until_serving(self, health: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not _serves(health):
            try:
                self._process.wait(_POLL_SECONDS)
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
            log = (self.directory / "log").read_text(errors="replace")
            self.end()
            raise AssertionError(f"etcd does not serve; its last words:\n{log[-2000:]}")


@contextmanager
def etcd_server(directory: Path) -> Iterator[EtcdServer]:
    """A server that serves; skips the test where there is no etcd."""
    server = EtcdServer(find_etcd(), directory)
    try:
        server.start()
        yield server
    finally:
        server.end()


def find_etcd() -> str:
    """The program; skips the test where there is none."""
    found = shutil.which("etcd") or (str(UNPACKED) if UNPACKED.exists() else None)
    if found is None:
        pytest.skip("needs an etcd server: run scripts/install_etcd.sh, or put etcd on the PATH")
    return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback in a row that nobody has just now. They are this process's own: the kernel gives them
    to nobody who wants any, and none comes again before all others had their turn."""
    while True:
        ports = list(islice(_ports, count))
        with suppress(OSError), ExitStack() as opened:
            for port in ports:
                opened.enter_context(socket.create_server(("127.0.0.1", port)))
            if all(after == port + 1 for port, after in pairwise(ports)):
                return ports


def _serves(health: str) -> bool:
    try:
        with urllib.request.urlopen(health, timeout=START_SECONDS) as answer:
            return b"true" in answer.read()
    except (urllib.error.URLError, ConnectionError):
        return False


def dying_with_parent() -> list[str]:
    """Words before a command with which it is killed when its parent ends."""
    # A server that outlives a killed test run would keep its port and its memory for good.
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
