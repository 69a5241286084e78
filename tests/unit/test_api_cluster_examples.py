"""The examples for clusters, and what the guide for their clients shows, run to their end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import RunningCluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples" / "cluster").glob("*.py"))
LAST_LINES = {
    "consumer_group.py": "40 orders were billed, 0 of them twice",
    "hello_cluster.py": "received 'world' from 'hello', offset 3",
    "shared_jobs.py": "10 pictures were resized, 1 of them in a second attempt",
}


def run(cluster: RunningCluster, *program: str) -> str:
    done = subprocess.run(
        [sys.executable, *program, cluster.url], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_all_examples_are_known() -> None:
    assert [path.name for path in EXAMPLES] == sorted(LAST_LINES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(cluster: RunningCluster, path: Path) -> None:
    assert run(cluster, str(path)).splitlines()[-1] == LAST_LINES[path.name]


def test_the_guide_runs(cluster: RunningCluster, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "howto" / "cluster-clients.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 5
    program = tmp_path / "guide.py"
    program.write_text("import sys\nurl = sys.argv[1]\n" + "\n".join(blocks), encoding="utf-8")
    assert run(cluster, str(program)).splitlines()[-1].startswith("b'")
