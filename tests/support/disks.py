"""Small disks, to be filled."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A tmpfs of this size (as mount knows it) at `place`, which is made. Skips where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "small", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
