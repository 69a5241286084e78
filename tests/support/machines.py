"""Machines for how-tos: what a reader types on each of them, typed by a test.

A fenced `console` block has lines such as `a$ hawser cluster status`: a command on machine a, and below it
lines that it prints. Each machine has an address of its own, directories of its own for /etc/hawser and
/var/lib/hawser, and runs the units of `deploy/`. Numbers in what is printed may be others. Comments tell what
happens without anybody typing it: `<!-- gone: c -->`, `<!-- fill: a orders -->`.
"""

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import hawser
from tests.support.processes import LIMIT_SECONDS, Daemon

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(
    r"^```console\n(?P<lines>.*?)^```$|^<!-- (?P<event>[a-z ]+): (?P<words>.*?) -->$",
    re.DOTALL | re.MULTILINE,
)
_PROMPT = re.compile(r"^([a-z])\$ (.*)$")
_HERE = re.compile(r"<<'(\w+)'")
_ADDRESS = re.compile(r"\b10\.0\.0\.(\d+)\b")
_PLACES = ("/etc/hawser", "/var/lib/hawser")


class Step(NamedTuple):
    """A command on a machine and what it prints; or an event, with a machine and the rest of the words."""

    machine: str
    command: str
    printed: list[str]
    event: str = ""


def steps_of(document: Path) -> Iterator[Step]:
    """What is done in a document, in its order."""
    for found in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        if found["event"]:
            machine, _, rest = found["words"].partition(" ")
            yield Step(machine, rest, [], found["event"])
        else:
            yield from _steps_of_block(found["lines"].splitlines())


def _steps_of_block(lines: list[str]) -> Iterator[Step]:
    step: Step | None = None
    rest = iter(lines)
    for line in rest:
        prompt = _PROMPT.match(line)
        if prompt is None:
            assert step is not None, f"{line!r} is printed before anything is typed"
            step.printed.append(line)
            continue
        if step is not None:
            yield step
        command = prompt[2]
        while command.endswith("\\"):
            command += "\n" + next(rest)
        if here := _HERE.search(command):
            while not command.endswith(f"\n{here[1]}"):
                command += "\n" + next(rest)
        step = Step(prompt[1], command, [])
    if step is not None:
        yield step


class Machines:
    """As many machines as are named; a context manager that ends what runs on them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._network = _free_network()
        self._daemons: dict[tuple[str, str], Daemon] = {}
        self._environments: dict[str, dict[str, str]] = {}
        self._disks: dict[str, str] = {}
        programs = directory / "bin"
        programs.mkdir()
        (programs / "hawser").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hawser "$@"\n')
        (programs / "hawser").chmod(0o755)
        self._path = f"{programs}:{os.environ['PATH']}"

    def follow(self, document: Path) -> int:
        """Do everything in the document; how many commands that were."""
        commands = 0
        for step in steps_of(document):
            if step.event:
                self._happen(step)
            elif step.command.startswith("systemctl "):
                self._systemctl(step.machine, step.command.split()[1:])
            elif step.command.startswith("export "):
                name, _, value = step.command.removeprefix("export ").partition("=")
                self._environment(step.machine)[name] = self._here(step.machine, value)
            else:
                _check_printed(step, self.enter(step.machine, step.command))
            commands += not step.event
        return commands

    def enter(self, machine: str, command: str) -> str:
        """Run a command on a machine: what it prints; AssertionError if it fails."""
        done = subprocess.run(
            ["bash", "-ec", self._here(machine, command)],
            env={**os.environ, **self._environment(machine), "PATH": self._path},
            cwd=self._home(machine),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=2 * LIMIT_SECONDS,
        )
        assert done.returncode == 0, f"{machine}$ {command}\n{done.stdout}\n{self._last_words()}"
        return done.stdout

    def _environment(self, machine: str) -> dict[str, str]:
        return self._environments.setdefault(machine, {})

    def _home(self, machine: str) -> Path:
        home = self._directory / machine
        for place in _PLACES:
            (home / place[1:]).mkdir(parents=True, exist_ok=True)
        return home

    def _here(self, machine: str, text: str) -> str:
        """The text with this machine's directories, and addresses that stand for those in the document."""
        for place in _PLACES:
            text = text.replace(place, str(self._home(machine) / place[1:]))
        text = text.replace("/backup", str(self._directory / "backup"))
        return _ADDRESS.sub(rf"{self._network}.\1", text)

    def small_disk(self, machine: str, size: str) -> None:
        """Daemons started there have a disk of this size for /var/lib/hawser, a new one at each start."""
        self._disks[machine] = size

    # Units.

    def _systemctl(self, machine: str, words: list[str]) -> None:
        verb, unit = words[0], words[-1]
        if verb in ("restart", "stop", "disable") and (machine, unit) in self._daemons:
            assert self._daemons.pop((machine, unit)).stop() == 0
        if verb in ("restart", "start", "enable"):
            assert (machine, unit) not in self._daemons, f"{unit} runs on {machine} already"
            daemon = self._daemons[machine, unit] = self._daemon(machine, unit)
            daemon.start()

    def _daemon(self, machine: str, unit: str) -> Daemon:
        text = (ROOT / "deploy" / f"{unit}.service").read_text(encoding="utf-8")
        (start,) = re.findall(r"^ExecStart=/usr/bin/hawser (.*)$", text, re.MULTILINE)
        arguments = shlex.split(self._here(machine, start))
        daemon = Daemon(arguments, self._home(machine) / f"{unit}.log")
        if machine in self._disks:
            place = self._home(machine) / "var/lib/hawser"
            mount = f"mount -t tmpfs -o size={self._disks[machine]} tmpfs {shlex.quote(str(place))}"
            daemon.prefix = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
        return daemon

    # What nobody types.

    def _happen(self, step: Step) -> None:
        if step.event == "gone":
            for key in [key for key in self._daemons if key[0] == step.machine]:
                self._daemons.pop(key).kill()
        else:
            assert step.event == "fill", step
            self._fill(step.machine, step.command)

    def _fill(self, machine: str, name: str) -> None:
        """Publish until there is no room."""
        with hawser.connect(self._environment(machine)["HAWSER_URL"]) as bus:
            topic = bus.topic(name)
            try:
                for _ in range(1000):
                    topic.publish(bytes(1 << 20))
            except (hawser.Full, hawser.OutcomeUnknown):
                # Whoever runs out of time on his last attempt does not know.
                return
        raise AssertionError("the disk is not full")

    def _last_words(self) -> str:
        return "\n".join(
            f"{machine} {unit}:\n{daemon.last_words}" for (machine, unit), daemon in self._daemons.items()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in self._daemons.values():
            daemon.kill()


@contextmanager
def machines(directory: Path) -> Iterator[Machines]:
    with Machines(directory) as made:
        yield made


def can_mount() -> bool:
    """Whether a machine can have a small disk here."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


def _free_network() -> str:
    """The first three numbers of addresses of loopback that nobody listens at."""
    while True:
        network = f"127.0.{random.randint(2, 254)}"
        with socket.socket() as tried:
            try:
                tried.bind((f"{network}.1", 7400))
            except OSError:
                continue
            return network


def _check_printed(step: Step, output: str) -> None:
    found = {_shape(line) for line in output.splitlines()}
    for line in step.printed:
        assert _shape(line) in found, f"{step.machine}$ {step.command}\nprinted no {line!r}, but\n{output}"


def _shape(line: str) -> str:
    """A line with every number alike, and without the widths of its columns."""
    return re.sub(r"[KMGT]iB", "iB", re.sub(r"\d[\d.,:]*", "0", " ".join(line.split())))
