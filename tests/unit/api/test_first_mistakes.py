"""What a new user gets wrong first, and what is said then."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

import hawser
from hawser.cli.main import root
from hawser.testing import LocalBus


@pytest.mark.parametrize("url", ["127.0.0.1:7400", "kafka://h1:9092", "", None])
def test_an_url_of_neither_kind(url: Any) -> None:
    with pytest.raises(hawser.UsageError, match=r"write shm:// .*, or hawser://host:port for a cluster$"):
        hawser.connect(url)


ARGUMENTS: list[tuple[Callable[[Any, Any], object], str]] = [
    (
        lambda topic, queue: topic.publish(b"x", delay=3),
        r"^publish\(\) has no argument 'delay'; it has data, key, ",
    ),
    (lambda topic, queue: queue.put(b"x", delay=3), r"^put\(\) has no argument 'delay'; it has data, key, "),
    (lambda topic, queue: queue.get(wait=3), r"^get\(\) has no argument 'wait'; it has timeout$"),
    (
        lambda topic, queue: topic.publish(b"x", data=b"y"),
        r"^publish\(\) was given data twice, by place and by name$",
    ),
    (
        lambda topic, queue: topic.publish(b"x", b"key"),
        r"^publish\(\) takes 1 argument by place, not 2; name the oth",
    ),
]


@pytest.mark.parametrize(("call", "words"), ARGUMENTS)
def test_an_argument_that_a_call_does_not_have(
    local: LocalBus, call: Callable[[Any, Any], object], words: str
) -> None:
    bus = local.connect()
    topic, queue = bus.topic("orders"), bus.queue("jobs")
    # From the second call on they are bound to the native participant.
    topic.publish(b"first")
    queue.put(b"first")
    assert queue.get(0) is not None
    with pytest.raises(TypeError, match=words):
        call(topic, queue)


def test_put_without_data(local: LocalBus) -> None:
    queue = local.connect().queue("jobs")
    queue.put(b"first")
    put: Any = queue.put
    with pytest.raises(hawser.UsageError, match=r"^put\(\) needs the data of the message$"):
        put(key=b"k")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["topc", "list"], "Did you mean 'topic'?"),
        (["topic", "pbu", "orders"], "Did you mean 'pub'?"),
        (["topic", "pub", "--keyy", "x", "orders"], "Did you mean '--key'?"),
    ],
)
def test_a_command_or_option_that_is_spelled_wrong(command: list[str], words: str) -> None:
    done = CliRunner().invoke(root, command)
    assert (done.exit_code, words in done.output) == (2, True), done.output
