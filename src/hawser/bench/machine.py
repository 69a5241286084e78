"""The machine a figure was measured on, and the cores the measured processes are pinned to."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def two_cores() -> tuple[int, int]:
    """Two different cores this process may use; the same one twice where there is no second."""
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[1 % len(usable)]


def pin(core: int) -> None:
    """Keep this process, and the threads it starts from now on, on one core."""
    os.sched_setaffinity(0, {core})


def processor() -> str:
    """The processor's name as the kernel gives it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def describe() -> dict[str, Any]:
    """What belongs beside every figure: processor, cores, kernel, Python, load now."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
