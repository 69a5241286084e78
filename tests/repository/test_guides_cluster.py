"""The examples for clusters, and what the guides for their clients show, run to their end."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cluster import RunningCluster
from tests.support.postgres import postgres_server

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "cluster"
EXAMPLES = sorted(FOLDER.glob("*.py"))
WITH_POSTGRES = "postgres_dtx.py"
LAST_LINES = {
    "consumer_group.py": "40 orders were billed, 0 of them twice",
    "exactly_once.py": "20 orders have an invoice, 0 have two",
    "hello_cluster.py": "received 'world' from 'hello', offset 3",
    "shared_jobs.py": "10 pictures were resized, 1 of them in a second attempt",
}


def run(cluster: RunningCluster, program: str, *arguments: str) -> str:
    command = [sys.executable, program, cluster.url, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_all_examples_are_known() -> None:
    assert [path.name for path in EXAMPLES] == sorted([*LAST_LINES, WITH_POSTGRES])


def test_a_transaction_over_postgres_is_all_or_nothing(cluster: RunningCluster) -> None:
    with postgres_server() as server:
        lines = run(cluster, str(FOLDER / WITH_POSTGRES), server).splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == [
        f"{orders} orders, {invoices} invoices in Hawser, {invoices} in PostgreSQL"
        for orders, invoices in [(5, 0), (4, 1), (3, 2), (0, 5)]
    ]


@pytest.mark.parametrize(
    ("name", "count", "last"), [("cluster-clients", 5, "b'"), ("transactions", 8, "illegal-state")]
)
def test_the_guide_runs(cluster: RunningCluster, tmp_path: Path, name: str, count: int, last: str) -> None:
    guide = (ROOT / "docs" / "howto" / f"{name}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == count
    program = tmp_path / "guide.py"
    program.write_text("import sys\nurl = sys.argv[1]\n" + "\n".join(blocks), encoding="utf-8")
    assert run(cluster, str(program)).splitlines()[-1].startswith(last)


def test_the_readme_and_the_examples_run(tmp_path: Path) -> None:
    """Twice, and after each other, as a reader tries them. Guides have topics of these names."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    _, first, second, _ = blocks
    given = "hawser://127.0.0.1:7400,127.0.0.1:7401"
    assert (first.count(given), second.count(given)) == (1, 1)
    program = tmp_path / "readme.py"
    with RunningCluster(tmp_path / "cluster") as cluster:
        program.write_text((first + second).replace(given, cluster.url), encoding="utf-8")
        for taken in ("b'two apples'", "b'ONE APPLE'"):
            assert run(cluster, str(program)).splitlines()[-1].endswith(taken)
            for name, last in LAST_LINES.items():
                assert run(cluster, str(FOLDER / name)).splitlines()[-1] == last
