"""The Spark of a run: a Connect server of its own, on loopback, that ends with the run.

The server is a JVM started at a master. It asks for a token that only this process knows, because every
client can run code in this user's name. The kernel kills the server with the thread that started it, and its
Python workers end with it: a killed run leaves no process behind that still writes.
"""

import os
import re
import secrets
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql.connect.client.retries import DefaultPolicy

from hawser.errors import HawserError, Unavailable
from hawser.spark.archive import make_archive_at_exit
from hawser.spark.requirements import check_packages
from hawser.spark.runtime.session import environment, settings, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Server", "connected", "server"]

_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTING_SECONDS: Final = 120.0
_STOPPING_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05
_ATTEMPTS: Final = 3
# The state of a listening socket in /proc/net/tcp.
_LISTENING: Final = "0A"
# Asks to be killed with its parent, unless that is dead already, and then becomes the command.
_BOUND: Final = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGKILL); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
_SETTINGS: Final = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "4",
    # With a time zone and with bounds, which the usual form of Spark has not.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The tables declare themselves at every start: no metastore to start, to lock or to lose.
    "spark.sql.catalogImplementation": "in-memory",
    # Cheaper, and its weaker exclusion is enough: the directory has a lock.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_LOOPBACK: Final = re.compile(r"^(local|spark://(127\.|localhost))")


class Server:
    """A running Connect server; `url` is for clients in this process."""

    def __init__(self, process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self._log = log

    @property
    def process_id(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Return when it is gone; killed if it takes too long to end by itself."""
        self._process.terminate()
        try:
            self._process.wait(_STOPPING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def server(
    master: str, directory: Path, log: Path, conf: Mapping[str, str], inherited: Sequence[int] = ()
) -> Iterator[Server]:
    """A server at `master` for as long as the block lasts; it inherits the descriptors `inherited`. Call it
    in a thread that outlives the block. Unavailable if it does not come up."""
    check_packages()
    make_archive_at_exit(spark_home())
    if log.exists():
        log.replace(log.with_suffix(".1.log"))
    started = _started(master, directory, log, conf, inherited)
    try:
        yield started
    finally:
        started.stop()


def _started(
    master: str, directory: Path, log: Path, conf: Mapping[str, str], inherited: Sequence[int]
) -> Server:
    for attempt in range(_ATTEMPTS):
        port, token = _free_port(), secrets.token_hex(16)
        with log.open("ab") as output:
            process = subprocess.Popen(
                _command(master, directory, port, conf),
                env=_environment(master, token, conf),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                # Ctrl-C is for this process, which then ends the server in order.
                start_new_session=True,
            )
        if _listens(process, port):
            return Server(process, f"sc://localhost:{port}/;token={token}", log)
        process.kill()
        process.wait()
        is_taken = bool(_listening_at(port)) or "Address already in use" in _last_words(log)
        if attempt + 1 == _ATTEMPTS or not is_taken:
            break
    raise _failure(master, log)


def _command(master: str, directory: Path, port: int, conf: Mapping[str, str]) -> list[str]:
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    wanted = {
        **_SETTINGS,
        **(loopback if _LOOPBACK.match(master) else {}),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
        **conf,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    submit = [str(spark_home() / "bin" / "spark-submit"), "--class", _CLASS, "--master", master]
    submit += ["--name", "hawser pipeline"]
    for name, value in settings(master, wanted).items():
        submit += ["--conf", f"{name}={value}"]
    return [sys.executable, "-I", "-S", "-c", _BOUND, str(os.getpid()), *submit, "spark-internal"]


def _environment(master: str, token: str, conf: Mapping[str, str]) -> dict[str, str]:
    found = {**os.environ, **environment(master, conf), "SPARK_CONNECT_AUTHENTICATE_TOKEN": token}
    for name in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        found.pop(name, None)
    found["SPARK_CONNECT_MODE"] = "0"
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(process: "subprocess.Popen[bytes]", port: int) -> bool:
    """Whether the server, and no other process, listens at the port; waits until that is known. A connection
    would not show it: another process may have taken the port meanwhile, and would receive the token."""
    until = time.monotonic() + _STARTING_SECONDS
    while process.poll() is None and time.monotonic() < until:
        if sockets := _listening_at(port):
            return sockets <= _sockets_of(process.pid)
        time.sleep(_LOOK_SECONDS)
    return False


def _listening_at(port: int) -> set[str]:
    """The sockets that listen at this port of this host, named as links in /proc name them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{inode}]")
    return found


def _sockets_of(process: int) -> set[str]:
    found = set()
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(os.readlink(link))
    return found


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


def _failure(master: str, log: Path) -> HawserError:
    said = [line for line in _last_words(log).splitlines() if line.strip() and not line.startswith("\tat ")]
    last = said[-1].strip() if said else "it says nothing"
    return Unavailable(f"Spark does not start at {master}: {last} (all it said is in {log})")


# By default a client tries for ten minutes to reach a server that is gone. The pipeline's own server is on
# this machine, or dead; a run against another server can be started again.
_TRIES: Final = 6
_LONGEST_PAUSE_MS: Final = 1000


@contextmanager
def connected(url: str) -> Iterator["SparkSession"]:
    """A session at `url` for as long as a block lasts. Unavailable if no server answers; the error leaves out
    the secret part of the URL."""
    check_packages()
    from pyspark.sql import SparkSession

    try:
        spark = SparkSession.builder.remote(url).create()
        client = cast(Any, spark).client
        client.set_retry_policies([DefaultPolicy(max_retries=_TRIES, max_backoff=_LONGEST_PAUSE_MS)])
        assert spark.version
    except PySparkException as error:
        address = url.partition(";")[0].rstrip("/")
        raise Unavailable(f"no Spark Connect server answers at {address}: {error}") from error
    try:
        yield spark
    finally:
        with suppress(PySparkException), warnings.catch_warnings(action="ignore", category=UserWarning):
            spark.stop()
