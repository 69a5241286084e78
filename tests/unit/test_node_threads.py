"""Work for the disk, done in threads and heard of in the loop."""

import asyncio
import threading

import pytest

from hawser.cluster.node.threads import DiskThreads


def test_work_is_done_elsewhere_and_heard_of_here() -> None:
    async def main() -> None:
        threads = DiskThreads(2, "disk")
        places: list[threading.Thread] = []
        heard: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
        threads.run(
            lambda: places.append(threading.current_thread()),
            lambda error: heard.set_result(threading.current_thread()),
        )
        assert await heard is threading.current_thread()
        assert places[0] is not threading.current_thread()
        threads.close()
        assert not places[0].is_alive()

    asyncio.run(main())


def test_an_error_reaches_whoever_waits_and_the_thread_goes_on() -> None:
    def fail() -> None:
        raise OSError("planted")

    async def main() -> None:
        threads = DiskThreads(1, "disk")
        with pytest.raises(OSError, match="planted"):
            await threads.wait_for(fail)
        await threads.wait_for(lambda: None)
        threads.close()

    asyncio.run(main())


def test_there_are_as_many_threads_as_are_busy_and_never_too_many() -> None:
    async def main() -> int:
        threads, gate, busy = DiskThreads(3, "disk"), threading.Event(), set[int]()

        def work() -> None:
            busy.add(threading.get_ident())
            gate.wait()

        for _ in range(3):
            await threads.wait_for(lambda: None)
        assert len(threads._threads) == 1
        waiting = [asyncio.ensure_future(threads.wait_for(work)) for _ in range(10)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waiting)
        threads.close()
        return len(threads._threads)

    assert asyncio.run(main()) == 3
