"""A real PostgreSQL server on loopback, for as long as a block lasts."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.etcd import dying_with_parent, free_ports

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "postgres"
START_SECONDS = 60.0
_LOOK_SECONDS = 0.05
# PostgreSQL refuses to run as root, so root runs it as nobody.
_NOBODY = 65534


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a server that takes prepared transactions; skips the test where there is none."""
    programs = _programs()
    # Not below a directory of the test's own, which nobody else may enter.
    directory = Path(tempfile.mkdtemp(prefix="hawser-postgres-"))
    try:
        if os.geteuid() == 0:
            os.chown(directory, _NOBODY, _NOBODY)
        data = directory / "data"
        words = ["--username=hawser", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        _run([programs / "initdb", f"--pgdata={data}", *words])
        (port,) = free_ports(1)
        url = f"postgresql://hawser@127.0.0.1:{port}/postgres"
        settings = [f"port={port}", "listen_addresses=127.0.0.1", "max_prepared_transactions=16"]
        settings += ["unix_socket_directories=", "jit=off"]
        command: list[str | Path] = [programs / "postgres", "-D", data, *(f"--{each}" for each in settings)]
        with open(directory / "log", "ab") as log:
            server = subprocess.Popen([*_prefix(), *command], stdout=log, stderr=log, cwd=directory)
        try:
            _wait_until_serving(server, url, directory / "log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _prefix() -> list[str]:
    words = dying_with_parent()
    if os.geteuid() != 0:
        return words
    if not words:
        pytest.skip("needs setpriv: PostgreSQL does not run as root")
    return [*words, f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]


def _programs() -> Path:
    """The directory of `initdb` and `postgres`; skips the test where they are not, or not for everybody."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += [*sorted(Path("/usr/lib/postgresql").glob("*/bin")), UNPACKED]
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            command: list[str | Path] = [*_prefix(), place / "postgres", "--version"]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip(f"{place} is not open to the user that PostgreSQL would run as")
            return place
    pytest.skip("needs a PostgreSQL server: run scripts/install_postgres.sh, or put initdb on the PATH")


def _run(command: list[str | Path]) -> None:
    done = subprocess.run([*_prefix(), *command], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr


def _wait_until_serving(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                words = log.read_text(errors="replace")[-2000:]
                raise AssertionError(f"PostgreSQL does not serve; its last words:\n{words}") from None
        time.sleep(_LOOK_SECONDS)
