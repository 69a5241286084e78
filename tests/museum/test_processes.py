"""What a forked child could still read, and how a program could not end. Found by tests/hostile."""

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.builds import Build
from tests.support.children import Channel, Child

END_WHILE_A_THREAD_WAITS = """
import contextlib, sys, threading, hawser
topic = hawser.connect(sys.argv[1]).topic("waiting")
def wait():
    # The bus is closed at the end of the program, perhaps while the thread subscribes.
    with contextlib.suppress(hawser.Closed):
        topic.subscribe().take()
threading.Thread(target=wait, daemon=True).start()
"""


def test_a_forked_child_reads_neither_samples_nor_history() -> None:
    with LocalBus() as local:
        topic = local.connect().topic("forked", slot_size=64)
        topic.publish(b"x")
        sample = topic.subscribe(history=1).take(0)
        assert sample is not None

        def read(channel: Channel) -> None:
            for use in (lambda: sample.data, lambda: bytes(sample), lambda: topic.read_oldest(1)):
                with pytest.raises(hawser.UsageError, match="parent process"):
                    use()

        with Child(read):
            pass


@pytest.mark.parametrize("attempt", range(5))
def test_a_program_ends_while_a_daemon_thread_waits(attempt: int) -> None:
    """The thread was unwound through C++ when it wanted the GIL back, and that aborted the process."""
    with LocalBus() as local:
        done = Build().run("-c", END_WHILE_A_THREAD_WAITS, local.url)
        assert (done.returncode, done.stderr) == (0, "")
