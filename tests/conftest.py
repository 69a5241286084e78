"""What every test may rely on: a native module as new as its sources, and soaking only when asked for.

An attack hands its figures to `record_property`; they are printed at the end of the run.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.support.cluster import RunningCluster

ROOT = Path(__file__).resolve().parent.parent
DURATIONS = Path(__file__).with_name("durations.json")
SOAK_GRACE_SECONDS = 600
SPARK_SESSION = "spark: SparkSession"


def soak_seconds_told() -> float:
    """How long the soak tests may take in all; 0 leaves them out."""
    return float(os.environ.get("HAWSER_SOAK_SECONDS") or 0)


# However busy the machine is; the same examples in each run, unless they are to be looked for.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=not soak_seconds_told())
hypothesis.settings.load_profile("tests")

# A JVM that lives for seconds spends most of them on compiling for the hours to come, and on idle collectors.
# Spark's script gives this to each driver, also in programs that tests start.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option that keeps the order of files true."""
    parser.addoption(
        "--record-durations",
        action="store_true",
        help=f"write the seconds that each file took into {DURATIONS.name}; the longest start first",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Bring the development install up to date; a run in any other environment tests what it finds."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # So it is in the background of a shell, and so it would be in every program that is started here.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_worker = hasattr(config, "workerinput")
    if is_worker or Path(sys.prefix) != ROOT / ".venv" or os.environ.get("HAWSER_NO_REBUILD"):
        return
    command = ["make", "--silent", "setup"]
    setup = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if setup.returncode != 0:
        raise pytest.UsageError(f"`make setup` failed; the tests would judge an old build:\n{setup.stderr}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Start the longest files first, so that no worker is left with one at the end. Leave the soak tests out,
    or give each its share of the time and a limit to match."""
    recorded: dict[str, int] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    lasting: Counter[str] = Counter()
    for file in {file_of(item.nodeid) for item in items}:
        lasting[work_of(file)] += recorded.get(file, 0)

    def order(item: pytest.Item) -> tuple[int, str, int]:
        file = file_of(item.nodeid)
        return -lasting[work_of(file)], work_of(file), -recorded.get(file, 0)

    items.sort(key=order)
    soaking = [item for item in items if item.get_closest_marker("soak")]
    told = soak_seconds_told()
    if not told:
        items[:] = [item for item in items if item not in soaking]
        config.hook.pytest_deselected(items=soaking)
    for item in soaking:
        item.add_marker(pytest.mark.timeout(told + SOAK_GRACE_SECONDS), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each file on one worker, as `--dist loadfile` says, and all files that share a JVM on the same one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = lambda nodeid: work_of(file_of(nodeid))
    return scheduling


@pytest.fixture
def soak_seconds(request: pytest.FixtureRequest) -> float:
    """This soak test's equal share of the time that was told."""
    soaking = [item for item in request.session.items if item.get_closest_marker("soak")]
    return soak_seconds_told() / max(1, len(soaking))


@pytest.fixture(scope="module")
def module_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for all tests of a file. It goes with the last of them, unless one has failed: what the
    clusters of all files leave would fill a disk."""
    failed = request.session.testsfailed
    path = tmp_path_factory.mktemp("module")
    yield path
    if request.session.testsfailed == failed:
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def cluster(module_path: Path) -> Iterator["RunningCluster"]:
    """Three nodes and an operator, for all tests of a file."""
    from tests.support.cluster import RunningCluster

    with RunningCluster(module_path) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Figures as they are printed: anything else would not get through to the process that prints them."""
    item.user_properties[:] = [(name, str(value)) for name, value in item.user_properties]
    return (yield)


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


@cache
def work_of(file: str) -> str:
    """What a worker runs as a whole: a file, or all files that use the one session of Spark."""
    return "Spark" if SPARK_SESSION in (ROOT / file).read_text(encoding="utf-8") else file


def record_durations(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the seconds of each file. Files that did not run keep what is recorded of them."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[file_of(report.nodeid)] += report.duration
    recorded: dict[str, int] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    recorded |= {file: round(took) for file, took in seconds.items()}
    lasting = {file: took for file, took in sorted(recorded.items()) if took and (ROOT / file).exists()}
    DURATIONS.write_text(json.dumps(lasting, indent=1) + "\n", encoding="utf-8")


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what each attack counted."""
    if config.getoption("--record-durations"):
        record_durations(terminalreporter)
    lines = list(figures(terminalreporter))
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


def figures(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    """One line a test that recorded properties: its name and what it counted."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport) and report.when == "call" and report.user_properties:
                counts = ", ".join(f"{name} {value}" for name, value in report.user_properties)
                yield f"{report.nodeid}: {counts}"
