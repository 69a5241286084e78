"""Nothing that users rely on changes by accident."""

import difflib
from pathlib import Path

from tests.repository.public_surface import SURFACE_FILE, surface


def test_the_public_surface_is_the_recorded_one(tmp_path: Path) -> None:
    recorded = SURFACE_FILE.read_text(encoding="utf-8").splitlines()
    found = surface(tmp_path).splitlines()
    changed = "\n".join(difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=0))
    assert not changed, f"if this is meant: python -m tests.repository.public_surface\n{changed}"
