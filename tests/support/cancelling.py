"""Calls that are cancelled at their n-th await."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any, Final, Literal

from hawser import aio

__all__ = [
    "CANCELLED",
    "MODES",
    "PATIENCE_SECONDS",
    "Cut",
    "Mode",
    "Scene",
    "Stage",
    "as_coroutine",
    "is_empty",
    "play",
    "play_for",
    "soon",
    "until",
]

# At the n-th await the task is cancelled: at once; when what it awaits is done, before it hears of it; or by
# `asyncio.timeout`, which comes with the next turn of the loop.
Mode = Literal["at once", "when done", "timeout"]
MODES: Final[tuple[Mode, ...]] = ("at once", "when done", "timeout")
CANCELLED: Final = object()
PATIENCE_SECONDS: Final = 60.0
# So many awaits of a call are looked at in a short sweep.
_SHORT: Final = 12
_numbers = itertools.count()


class Cut:
    """Cancels one call. `was_reached` says whether the call had an n-th await."""

    def __init__(self, place: int, mode: Mode) -> None:
        self.place = place
        self.mode = mode
        self.awaits = 0
        self.was_reached = False
        self._scope: asyncio.Timeout | None = None

    async def __call__(self, call: Coroutine[Any, Any, Any]) -> Any:
        """The result of the call, or CANCELLED. AssertionError if it gets stuck, or goes on as if it had not
        been cancelled."""
        task = asyncio.create_task(self._run(call))
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        assert task.done(), f"{self} is stuck: {task}"
        if self.was_reached and (task.cancelled() or isinstance(task.exception(), TimeoutError)):
            return CANCELLED
        return task.result()

    async def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with asyncio.timeout(None) as self._scope:
                return await _Counted(self, call)
        finally:
            # It knows the task, and so the result, which is the scene's to keep or drop.
            self._scope = None

    def step(self, call: Coroutine[Any, Any, Any], error: BaseException | None) -> Any:
        """Run the call to its next await."""
        return call.send(None) if error is None else call.throw(error)

    def reached(self, awaited: Any) -> None:
        """The n-th await begins."""
        self.was_reached = True
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None and self._scope is not None
        if self.mode == "timeout":
            self._scope.reschedule(loop.time())
        elif self.mode == "when done" and awaited is not None:
            # Before the task hears of it.
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()

    def __repr__(self) -> str:
        return f"<{self.mode}, await {self.place}>"


class _Counted:
    """Awaits a call step by step."""

    def __init__(self, cut: Cut, call: Coroutine[Any, Any, Any]) -> None:
        self._cut = cut
        self._call = call

    def __await__(self) -> Generator[Any, Any, Any]:
        cut, call = self._cut, self._call
        error: BaseException | None = None
        while True:
            try:
                awaited = cut.step(call, error)
            except StopIteration as end:
                return end.value
            error = None
            cut.awaits += 1
            if cut.awaits == cut.place:
                cut.reached(awaited)
            try:
                yield awaited
            except BaseException as raised:
                error = raised


class Stage:
    """What a scene has: a bus, fresh names, and the cut of its one call."""

    def __init__(self, url: str, bus: Any, cut: Cut) -> None:
        self.url = url
        self.bus = bus
        self.cut = cut

    @property
    def name(self) -> str:
        return f"cut {next(_numbers)}"

    @property
    def is_cluster(self) -> bool:
        return self.url.startswith("hawser:")


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


async def soon(call: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(call, PATIENCE_SECONDS)


Scene = Callable[[Stage], Awaitable[None]]


async def as_coroutine(call: Awaitable[Any]) -> Any:
    return await call


async def is_empty(queue: Any) -> bool:
    """Whether nothing is in a queue, held or not."""
    info = await queue.info()
    return (info.ready, info.claimed) == (0, 0)


def play(url: str, scene: Scene, place: int) -> None:
    """A short sweep: on a cluster with one mode, and with the others in other places."""
    modes = (MODES[place % len(MODES)],) if url.startswith("hawser:") else MODES
    for mode in modes:
        asyncio.run(_sweep(url, scene, mode, _SHORT))


def play_for(url: str, scenes: Mapping[str, Scene], seconds: float) -> int:
    """Sweeps over all awaits in all modes, beside a task that keeps the loop busy; how many awaits there
    were."""
    deadline, awaits = time.monotonic() + seconds, 0
    for scene, mode in itertools.cycle(itertools.product(scenes.values(), MODES)):
        awaits += asyncio.run(_crowded(url, scene, mode))
        if time.monotonic() > deadline:
            break
    return awaits


async def _crowded(url: str, scene: Scene, mode: Mode) -> int:
    async def keep_busy() -> None:
        while True:
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.001)

    busy = asyncio.create_task(keep_busy())
    try:
        return await _sweep(url, scene, mode, 1000)
    finally:
        busy.cancel()


async def _sweep(url: str, scene: Scene, mode: Mode, most: int) -> int:
    """Play the scene with a cut at each await; how many there were."""
    async with aio.connect(url, name="sweep") as bus:
        for place in range(1, most + 1):
            cut = Cut(place, mode)
            try:
                await scene(Stage(url, bus, cut))
            except BaseException as error:
                error.add_note(f"cut {cut}")
                raise
            if not cut.was_reached:
                break
    return place
