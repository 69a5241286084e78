"""The machine of a measurement, and the cores of the measured processes."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def two_cores() -> tuple[int, int]:
    """Two cores that this process may use, or the same core twice if there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 % len(usable)]


def pin(core: int) -> None:
    """Pin this process and its future threads to one core."""
    os.sched_setaffinity(0, {core})


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def describe() -> dict[str, Any]:
    """The facts that are printed with each figure: processor, cores, kernel, Python, load."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
