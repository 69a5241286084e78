"""The README's example runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from hawser.testing import LocalBus

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_first_example_runs() -> None:
    block = re.search(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    with LocalBus() as local:
        done = subprocess.run(
            [sys.executable, "-c", block.group(1)],
            env={**os.environ, "HAWSER_DIR": str(local.directory)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
