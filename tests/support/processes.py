"""Real daemons on loopback: `hawser node`, `hawser operator`, `hawser up` as processes, ended by id."""

import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import hawser
from tests.support.etcd import dying_with_parent, free_ports
from tests.support.standing import stand_still

# Nothing here takes so long, however slow and busy the machine is.
LIMIT_SECONDS = 120.0
_LOOK_SECONDS = 0.05


class Daemon:
    """A `hawser` command that runs until it is ended. Its log is in `log`; `start` may be called again after
    an end. `ready` is what it said when it served."""

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.arguments = list(arguments)
        self.log = log
        # The words of a program that becomes it, in another namespace for example.
        self.prefix: list[str] = []
        self.ready = ""
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> str:
        """Start it and return what follows "ready" when it serves."""
        self.begin()
        return self.wait_until_ready()

    def begin(self) -> None:
        """Start it, and do not wait."""
        assert not self.runs, "it runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.prefix, *dying_with_parent(), sys.executable, "-m", "hawser", *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                text=True,
            )

    def wait_until_ready(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not line.startswith("ready "):
            self.kill()
            raise AssertionError(
                f"{self.arguments} is not ready: {line!r}; its log ends with\n{self.last_words}"
            )
        self.ready = line.removeprefix("ready ").strip()
        return self.ready

    def signal(self, number: int) -> None:
        os.kill(self.process_id, number)

    def kill(self) -> None:
        """With SIGKILL, unless it has ended; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def stop(self) -> int:
        """With SIGTERM; returns its exit code once it is gone. Killed if that takes too long."""
        assert self._process is not None
        self._process.terminate()
        return self._ended()

    def wait(self) -> int:
        """Its exit code, when it ends by itself or by a signal sent before."""
        return self._ended()

    def pause(self) -> None:
        """Let it stand still."""
        stand_still(self.process_id)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    @property
    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def log_lines(self) -> list[dict[str, Any]]:
        """What it logged, as JSON."""
        return [msgspec.json.decode(line) for line in self.log.read_bytes().splitlines()]

    def _ended(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        try:
            code = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"{self.arguments} did not end; its log ends with\n{self.last_words}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class NodeProcess(Daemon):
    """`hawser node` at an address that stays the same, with its data in `directory`/ID."""

    def __init__(self, name: str, directory: Path, port: int, http_port: int, *more: str) -> None:
        self.name = name
        self.directory = directory / name
        self.address = f"127.0.0.1:{port}"
        self.http = f"http://127.0.0.1:{http_port}"
        arguments = ["node", "--id", name, "--listen", self.address, "--dir", str(self.directory)]
        arguments += ["--http", f"127.0.0.1:{http_port}", *more]
        super().__init__(arguments, directory / f"{name}.log")


class OperatorProcess(Daemon):
    """`hawser operator` of these nodes."""

    def __init__(
        self, name: str, directory: Path, metadata: str, nodes: dict[str, str], http_port: int, *more: str
    ) -> None:
        self.name = name
        self.http = f"http://127.0.0.1:{http_port}"
        arguments = ["operator", "--name", name, "--metadata", metadata]
        for node, address in nodes.items():
            arguments += ["--node", f"{node}={address}"]
        arguments += ["--http", f"127.0.0.1:{http_port}", *more]
        super().__init__(arguments, directory / f"{name}.log")


class ClusterProcesses:
    """Nodes `n1`, `n2`, ... and operators `o1`, ... with a metadata store, SQLite if none is given.

    Everything is in `directory`. `spare` nodes are known to the operators and not started.
    """

    def __init__(
        self, directory: Path, nodes: int = 3, operators: int = 1, spare: int = 0, metadata: str | None = None
    ) -> None:
        ports = iter(free_ports(2 * (nodes + spare) + operators))
        self.directory = directory
        self.metadata = metadata or f"sqlite:{directory / 'metadata.sqlite'}"
        names = [f"n{number}" for number in range(1, nodes + spare + 1)]
        self.nodes = {name: NodeProcess(name, directory, next(ports), next(ports)) for name in names}
        addresses = {name: node.address for name, node in self.nodes.items()}
        self.operators = {
            name: OperatorProcess(name, directory, self.metadata, addresses, next(ports))
            for name in (f"o{number}" for number in range(1, operators + 1))
        }
        self._first = names[:nodes]

    @property
    def url(self) -> str:
        return "hawser://" + ",".join(self.nodes[name].address for name in self._first)

    @property
    def daemons(self) -> list[Daemon]:
        return [*self.nodes.values(), *self.operators.values()]

    def start(self) -> None:
        """Returns when every node answers every operator."""
        started: list[Daemon] = [*(self.nodes[name] for name in self._first), *self.operators.values()]
        for daemon in started:
            daemon.begin()
        for daemon in started:
            daemon.wait_until_ready()
        self.wait_until_alive(*self._first)

    def kill(self) -> None:
        for daemon in self.daemons:
            daemon.kill()

    def restart_nodes(self) -> None:
        """Kill all of them, then start them all; returns when every one is ready."""
        for node in self.nodes.values():
            node.kill()
        for node in self.nodes.values():
            node.begin()
        for node in self.nodes.values():
            node.wait_until_ready()

    def run(
        self, *arguments: str, code: int | None = 0, given: bytes = b""
    ) -> "subprocess.CompletedProcess[str]":
        """A `hawser` command on this cluster, as `hawser_command` runs it."""
        return hawser_command(*arguments, "--url", self.url, code=code, given=given)

    def connect(self, name: str | None = None, **options: Any) -> hawser.Bus:
        """A bus of this cluster that waits for as long as anything here may take."""
        patient = {"timeout": LIMIT_SECONDS, "connect_timeout": LIMIT_SECONDS}
        return hawser.connect(self.url, name=name, **{**patient, **options})

    def json(self, *arguments: str) -> Any:
        """What a command prints with `-o json`."""
        return msgspec.json.decode(self.run(*arguments, "-o", "json").stdout)

    def status(self) -> Any:
        """What `hawser cluster status` shows: nothing if nobody answers it just now."""
        return self.json("cluster", "status", "--wait", "60")

    def shard(self, name: str, partition: int = 0) -> Any:
        """A shard of a topic or queue as `hawser cluster status` shows it, once it does."""
        found: list[Any] = []

        def is_known() -> bool:
            found[:] = [
                each
                for each in self.status()["shards"]
                if name in (each.get("topic"), each.get("queue")) and each["partition"] == partition
            ]
            return bool(found)

        until(is_known, f"a shard {name}/{partition}")
        return found[0]

    def leader(self, name: str, partition: int = 0) -> str:
        """The node that leads a shard, once one does."""
        found: list[str | None] = [None]

        def is_led() -> bool:
            found[0] = self.shard(name, partition)["leader"]
            return found[0] is not None

        until(is_led, f"a leader of {name}/{partition}")
        return str(found[0])

    def wait_until_alive(self, *names: str) -> None:
        """Until these nodes answer the operators."""
        for name in names:
            until_page(f"{self.nodes[name].http}/readyz", "ready")
        for operator in self.operators.values():
            if operator.runs:
                until_metric(f"{operator.http}/metrics", "hawser_nodes_alive", len(names))


@contextmanager
def cluster_processes(
    directory: Path, nodes: int = 3, operators: int = 1, spare: int = 0, metadata: str | None = None
) -> Iterator[ClusterProcesses]:
    """A cluster that serves; every process of it is killed when the block ends."""
    cluster = ClusterProcesses(directory, nodes, operators, spare, metadata)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def hawser_command(
    *arguments: str, code: int | None = 0, given: bytes = b""
) -> "subprocess.CompletedProcess[str]":
    """Run `hawser` to its end; AssertionError unless it exits with `code`, if one is wanted."""
    done = subprocess.run(
        [sys.executable, "-m", "hawser", *arguments],
        input=given,
        capture_output=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    output = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    assert code in (None, done.returncode), (arguments, done.returncode, *output)
    return subprocess.CompletedProcess(done.args, done.returncode, *output)


def page(url: str) -> tuple[int, str]:
    """Code and text of a page; code 0 if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def until(condition: Callable[[], bool], what: str, more: Callable[[], object] = str) -> None:
    """Look again until it holds; AssertionError after a long time, with what `more` says then."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        late = time.monotonic() >= deadline
        assert not late, f"{what} did not come true within {LIMIT_SECONDS:g} s. {more()}"
        time.sleep(_LOOK_SECONDS)


def ends_of(topic: Any) -> list[int]:
    """Where its partitions end. As long as somebody does not say so it is asked again."""
    found: list[int] = []

    def are_known() -> bool:
        found[:] = [each.end for each in topic.info().partitions]
        return all(found)

    until(are_known, f"the ends of {topic.name}")
    return found


def records(topic: Any) -> list[bytes]:
    """All that a topic of one partition has now."""
    (end,) = ends_of(topic)
    found: list[bytes] = []
    with topic.subscribe(start="earliest") as subscription:
        while len(found) < end - 1:
            more = subscription.take_many(1000, timeout=LIMIT_SECONDS)
            assert more, f"{topic.name} ends at {end}, and nothing came after {len(found)} records"
            found += map(bytes, more)
    return found


def until_page(url: str, text: str, code: int = 200) -> None:
    """Until the page is there and says `text`."""

    def says() -> bool:
        found = page(url)
        return found[0] == code and text in found[1]

    until(says, f"{url} with {code} and {text!r}")


def metric(url: str, name: str) -> float | None:
    """The figure of this name, without labels; None if there is none."""
    for line in page(url)[1].splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    return None


def until_metric(url: str, name: str, least: float) -> None:
    """Until the figure is at least so large."""
    until(lambda: (metric(url, name) or 0) >= least, f"{name} of {least} at {url}")
