"""What docs/howto/queues.md shows runs as it stands there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from hawser.testing import LocalBus
from tests.support.cluster import RunningCluster

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "howto" / "queues.md").read_text(encoding="utf-8")


def run(local: LocalBus, *arguments: str) -> str:
    environment = {**os.environ, "HAWSER_DIR": str(local.directory)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def blocks() -> str:
    found = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert len(found) == 6
    return "\n".join(["import sys", "url = sys.argv[1]", *found])


def test_the_guide_runs_on_one_host() -> None:
    with LocalBus() as local:
        assert run(local, "-c", blocks(), "shm://").splitlines()[-1] == "[]"


def test_the_guide_runs_on_a_cluster(cluster: RunningCluster) -> None:
    with LocalBus() as local:
        assert run(local, "-c", blocks(), cluster.url).splitlines()[-1] == "[]"


def test_the_commands_run() -> None:
    commands = re.findall(r"^    hawser (.*)$", GUIDE, re.MULTILINE)
    assert len(commands) == 8
    with LocalBus() as local:
        queue = local.connect().queue("jobs")
        queue.put(b"bad")
        message = queue.get(0)
        assert message is not None
        message.reject()
        queue.close()
        told = {each: run(local, "-m", "hawser", *shlex.split(each)) for each in commands}
        assert "resize 4.png" in told["queue get jobs"]
        assert "bad" in told["queue peek jobs --dead"]
        assert local.connect().queues() == ["jobs.dead"]
