"""Hosts of a network that can be cut: network namespaces on a bridge, for whoever may make them."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pytest

__all__ = ["Hosts"]

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """A namespace for each name, all on one bridge, which this process reaches too. Skips the test where
    namespaces cannot be made."""

    def __init__(self, names: Sequence[str]) -> None:
        # The kernel takes its time to remove a namespace: the next network has another name and addresses.
        number = os.getpid() % 10_000 * 10 + next(_numbers)
        self._tag = f"hw{number}"
        self._net = f"10.{77 + number % 100}.{number // 100 % 250}"
        self.addresses = {name: f"{self._net}.{number}" for number, name in enumerate(names, 1)}
        self._cuts: set[tuple[str, str]] = set()

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def prefix(self, name: str) -> list[str]:
        """What runs a command on that host."""
        return ["ip", "netns", "exec", self.namespace(name)]

    def cut(self, source: str, target: str) -> None:
        """Packets from `source` to `target` are lost; the other way they still come."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            _ip("-n", self.namespace(source), "route", "add", "blackhole", f"{self.addresses[target]}/32")

    def part(self, *groups: Sequence[str]) -> None:
        """Nobody of one group hears anybody of another."""
        for group in groups:
            for other in groups:
                if group is not other:
                    for source in group:
                        for target in other:
                            self.cut(source, target)

    def heal(self) -> None:
        for source, target in sorted(self._cuts):
            _ip("-n", self.namespace(source), "route", "del", "blackhole", f"{self.addresses[target]}/32")
        self._cuts.clear()

    def __enter__(self) -> Self:
        if shutil.which("ip") is None or os.geteuid() != 0:
            pytest.skip("network namespaces need root and iproute2")
        try:
            _ip("link", "add", self._tag, "type", "bridge")
            _ip("addr", "add", f"{self._net}.254/24", "dev", self._tag)
            _ip("link", "set", self._tag, "up")
            for name, address in self.addresses.items():
                self._add(name, address)
        except subprocess.CalledProcessError as error:
            self._remove()
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        return self

    def _add(self, name: str, address: str) -> None:
        namespace, outer = self.namespace(name), f"{self._tag}{name}"
        _ip("netns", "add", namespace)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", outer, "master", self._tag)
        _ip("link", "set", outer, "up")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in self.addresses:
            subprocess.run(["ip", "netns", "del", self.namespace(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._tag], capture_output=True, check=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
