"""Files that are synced in threads and heard of in the loop."""

import asyncio
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hawser.cluster.node.sync_pool import SyncPool
from hawser.errors import Closed, UsageError
from hawser.memory import Syncs

SECONDS = 30


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[list[int]]:
    found = [os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT) for number in range(3)]
    for each in found:
        os.write(each, bytes(100))
    yield found
    for each in found:
        os.close(each)


async def sync(sync_pool: SyncPool, descriptors: list[int]) -> tuple[int, float]:
    heard: asyncio.Future[tuple[int, float]] = asyncio.get_running_loop().create_future()
    sync_pool.begin(descriptors, lambda error, seconds: heard.set_result((error, seconds)))
    return await asyncio.wait_for(heard, SECONDS)


def test_syncs_are_heard_of_in_the_loop(descriptors: list[int]) -> None:
    async def main() -> None:
        sync_pool = SyncPool(2)
        sync_pool.start()
        found = await asyncio.gather(*(sync(sync_pool, descriptors) for _ in range(50)))
        assert all(error == 0 and 0 < seconds < SECONDS for error, seconds in found)
        assert (await sync(sync_pool, []))[0] == 0
        sync_pool.close()

    asyncio.run(main())


def test_the_first_file_that_fails_is_the_error(descriptors: list[int]) -> None:
    async def main() -> None:
        sync_pool = SyncPool(1)
        sync_pool.start()
        reading, writing = os.pipe()
        error, _ = await sync(sync_pool, [descriptors[0], reading, -1])
        assert errno.errorcode[error] == "EINVAL"
        error, _ = await sync(sync_pool, [-1, reading])
        assert errno.errorcode[error] == "EBADF"
        assert (await sync(sync_pool, descriptors))[0] == 0
        os.close(reading)
        os.close(writing)
        sync_pool.close()

    asyncio.run(main())


def test_one_that_cannot_go_on_does_not_hold_up_the_others(
    descriptors: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(error: int, seconds: float) -> None:
        raise RuntimeError("planted")

    async def main() -> None:
        sync_pool = SyncPool(1)
        sync_pool.start()
        for _ in range(3):
            sync_pool.begin(descriptors, fail)
        assert (await sync(sync_pool, descriptors))[0] == 0
        sync_pool.close()

    asyncio.run(main())
    # Not the text: a session of Spark in this process has errors written as JSON.
    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert [repr(error) for error in errors] == [repr(RuntimeError("planted"))] * 3


def test_no_sync_needs_the_interpreter(descriptors: list[int]) -> None:
    """This thread does not give it away, so a thread of Python would have no turn."""
    syncs, before = Syncs(2), sys.getswitchinterval()
    sys.setswitchinterval(2 * SECONDS)
    try:
        syncs.begin([(7, descriptors), (8, descriptors)])
        ended: list[tuple[int, int, float]] = []
        deadline = time.monotonic() + SECONDS
        while len(ended) < 2 and time.monotonic() < deadline:
            ended += syncs.ended()
    finally:
        sys.setswitchinterval(before)
    assert sorted((number, error) for number, error, _ in ended) == [(7, 0), (8, 0)]
    syncs.close()


def test_the_threads_go(descriptors: list[int]) -> None:
    # Other tests of this process may have left theirs.
    others = set(os.listdir("/proc/self/task"))

    def own() -> set[str]:
        threads = set(os.listdir("/proc/self/task")) - others
        return {thread for thread in threads if _name_of(thread) == "hawser-sync\n"}

    syncs = Syncs(5)
    _wait_until(lambda: len(own()) == 5)
    syncs.begin([(1, descriptors)])
    del syncs
    _wait_until(lambda: not own())


def _name_of(thread: str) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text()
    except OSError:
        return "gone"


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_none_and_is_told_so(descriptors: list[int]) -> None:
    syncs = Syncs(2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            syncs.begin([(1, descriptors)])
        except UsageError:
            # Not its own threads: to end it must not wait for them.
            del syncs
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    syncs.begin([(1, descriptors)])
    deadline = time.monotonic() + SECONDS
    ended: list[tuple[int, int, float]] = []
    while not ended and time.monotonic() < deadline:
        ended = syncs.ended()
    assert ended[0][:2] == (1, 0)


@pytest.mark.parametrize(
    "wanted", [[5], [()], [(1,)], [("x", [1])], [(-1, [1])], [(1, ["a"])], [(1, [2**40])], 7]
)
def test_bad_input_is_a_type_error(wanted: Any) -> None:
    with pytest.raises(TypeError):
        Syncs(1).begin(wanted)


def test_what_can_never_be_synced_is_refused(descriptors: list[int]) -> None:
    with pytest.raises(UsageError, match="a thread at least"):
        Syncs(0)
    syncs = Syncs(1)
    syncs.close()
    with pytest.raises(Closed):
        syncs.begin([(1, descriptors)])
