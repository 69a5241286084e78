"""An agent as a process, and the figures it shows."""

import re
from datetime import datetime
from pathlib import Path

from hawser.testing import LocalBus
from tests.support.etcd import free_ports
from tests.support.processes import Daemon, page, until

NEVER_SECONDS = "3600"
_FIGURE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Agent(Daemon):
    """`hawser agent` of a domain. It looks at everything once, at its start, and then relies on what the
    kernel tells, unless it is told otherwise."""

    def __init__(
        self, local: LocalBus, directory: Path, *more: str, look_seconds: str = NEVER_SECONDS
    ) -> None:
        (port,) = free_ports(1)
        self.http = f"http://127.0.0.1:{port}"
        arguments = ["agent", "--url", local.url, "--http", f"127.0.0.1:{port}"]
        arguments += ["--look-seconds", look_seconds, *more]
        super().__init__(arguments, directory / f"agent-{port}.log")

    def figures(self) -> dict[tuple[str, ...], float]:
        """All figures, by name and the values of their labels."""
        code, text = page(f"{self.http}/metrics")
        assert code == 200, text
        return {
            (name, *(value for _, value in _LABEL.findall(labels or ""))): float(value)
            for name, labels, value in _FIGURE.findall(text)
        }

    def figure(self, name: str, *labels: str) -> float:
        """0 if there is none."""
        return self.figures().get((f"hawser_{name}", *labels), 0)

    def until_figure(self, least: float, name: str, *labels: str) -> None:
        until(lambda: self.figure(name, *labels) >= least, f"{name}{labels} of {least:g}")

    def look_every(self, seconds: str) -> None:
        """From its next start on."""
        self.arguments[self.arguments.index("--look-seconds") + 1] = seconds

    def last_recovery(self) -> float:
        """When it recovered somebody last, by the clock of this host."""
        lines = [line for line in self.log_lines() if line["message"].startswith("recovered ")]
        return datetime.fromisoformat(lines[-1]["time"]).timestamp()

    def messages(self) -> list[str]:
        """What it logged."""
        return [line["message"] for line in self.log_lines()]
