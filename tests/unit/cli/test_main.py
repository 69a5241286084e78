"""The root of the command: help, exit codes, start-up, completion."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.command import Command

COMMANDS = [
    "topic", "queue", "tx", "up", "node", "operator", "agent", "pipeline", "cluster", "log", "config", "ps",
    "reap", "doctor", "bench", "demo", "completion",
]  # fmt: skip
TOPIC_COMMANDS = ["list", "info", "pub", "echo", "hz", "bw", "trace", "record", "replay", "forget", "delete"]
QUEUE_COMMANDS = ["list", "info", "put", "get", "peek", "trace", "retry", "forget", "delete"]
TX_COMMANDS = ["list", "show", "recover", "commit", "rollback", "forget"]
START_RATIO = 12
HEAVY = ["rich", "numpy", "asyncio", "ctypes", "pyspark", "pyarrow", "hawser.bench"]


@pytest.fixture
def command() -> Iterator[Command]:
    with LocalBus() as local:
        yield Command(local.url)


def test_help_names_every_command(command: Command) -> None:
    assert [line.split()[0] for line in _commands(command.run("--help").stdout)] == COMMANDS
    assert [line.split()[0] for line in _commands(command.run("topic", "--help").stdout)] == TOPIC_COMMANDS
    assert [line.split()[0] for line in _commands(command.run("queue", "--help").stdout)] == QUEUE_COMMANDS
    assert [line.split()[0] for line in _commands(command.run("tx", "--help").stdout)] == TX_COMMANDS


def _commands(text: str) -> list[str]:
    return text.partition("Commands:\n")[2].splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        *([name] for name in COMMANDS),
        *(["topic", name] for name in TOPIC_COMMANDS),
        *(["queue", name] for name in QUEUE_COMMANDS),
        *(["tx", name] for name in TX_COMMANDS),
    ],
)
def test_every_command_has_help_and_takes_output(command: Command, arguments: list[str]) -> None:
    text = command.run(*arguments, "--help").stdout
    assert "-o, --output" in text
    assert len(text.splitlines()) > 4


def test_the_version(command: Command) -> None:
    assert command.run("--version").stdout.strip() == hawser.__version__


def test_the_console_script_is_the_module() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="hawser")
    assert script.value == "hawser.cli.main:main"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nonsense"], 2, "No such command"),
        (["topic", "pub", "x"], 2, "Give one of"),
        (["topic", "pub", "x", "1", "--slot-size", "much"], 2, "not a number of bytes"),
        (["topic", "pub", "x", "1", "--history", "-1"], 2, "outside 0"),
        (["topic", "pub", "a//b", "1"], 2, "empty part"),
        (["topic", "pub", "x", "1", "--header", "nothing"], 2, "NAME=VALUE"),
        (["topic", "echo", "x", "--raw", "--hex"], 2, "Give one of"),
        (["topic", "info", "x"], 3, "no topic 'x'"),
        (["topic", "delete", "x"], 3, "no topic 'x'"),
        (["topic", "echo", "x", "--timeout", "0.1"], 5, "no topic 'x' within"),
        (["--url", "shm://relative", "topic", "list"], 2, "three slashes"),
        (["--url", "hawser://127.0.0.1:1", "topic", "list"], 4, "127.0.0.1:1 cannot be reached"),
        (["topic", "list", "--url", "shm:///proc/nowhere"], 0, "no topics"),
        (["topic", "pub", "x", "1", "--url", "shm:///proc/nowhere"], 2, "cannot be made"),
    ],
)
def test_failures_say_why_and_end_with_their_code(
    command: Command, arguments: list[str], code: int, said: str
) -> None:
    done = command.run(*arguments, code=code)
    assert said in done.stderr
    assert done.stdout == ""


def test_a_contradicting_setting_is_a_usage_error(command: Command) -> None:
    command.run("topic", "pub", "x", "1", "--slot-size", "4K")
    assert "slot_size" in command.run("topic", "pub", "x", "1", "--slot-size", "8K", code=2).stderr
    assert command.json("topic", "info", "x")["head"] == 1


def test_a_domain_of_somebody_else_is_a_permission_error(command: Command) -> None:
    command.run("topic", "pub", "x", "1")
    directory = command.url.removeprefix("shm://")
    subprocess.run(["chmod", "o+w", directory], check=True)
    assert "world-writable" in command.run("topic", "list", code=6).stderr


def test_options_may_stand_anywhere(command: Command) -> None:
    elsewhere = ["--url", command.url]
    command.run(*elsewhere, "topic", "pub", "x", "1")
    for arguments in (
        ["-o", "json", *elsewhere, "topic", "info", "x"],
        ["topic", "-o", "json", "info", "x", *elsewhere],
        [*elsewhere, "topic", "info", "-o", "json", "x"],
    ):
        assert '"head":1' in command.run(*arguments).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(command: Command, shell: str) -> None:
    assert "_HAWSER_COMPLETE" in command.run("completion", shell).stdout


def test_topics_are_completed(command: Command) -> None:
    command.run("topic", "pub", "camera/front", "1")
    command.run("topic", "pub", "sound", "1")
    environment = {
        "HAWSER_DIR": command.url.removeprefix("shm://"),
        "_HAWSER_COMPLETE": "bash_complete",
        "COMP_WORDS": "hawser topic info cam",
        "COMP_CWORD": "3",
    }
    program = "from hawser.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["plain,camera/front"]


def test_start_up_is_quick(command: Command, record_property: Callable[[str, object], None]) -> None:
    """As a ratio to an interpreter that does nothing, since machines differ; in time of the processor, which
    others do not take away."""

    def spent_seconds() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    helped, bare = [], []
    for _ in range(7):
        start = spent_seconds()
        command.run("--help")
        middle = spent_seconds()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        helped.append(middle - start)
        bare.append(spent_seconds() - middle)
    record_property("times a bare interpreter", round(min(helped) / min(bare), 1))
    assert min(helped) < START_RATIO * min(bare)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["topic", "list"],
        ["topic", "pub", "x", "1"],
        ["queue", "list"],
        ["queue", "put", "x", "1"],
    ],
)
def test_start_up_imports_little(command: Command, arguments: list[str]) -> None:
    report = f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    program = (
        f"import sys, atexit; sys.argv = ['hawser', *{arguments!r}]; "
        f"atexit.register(lambda: {report}); from hawser.cli.main import main; main()"
    )
    environment = {"HAWSER_DIR": command.url.removeprefix("shm://")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
