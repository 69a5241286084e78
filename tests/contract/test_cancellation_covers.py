"""The sweeps of cancellation reach every public coroutine: each scene is played without a cut, and what its
one call runs is written down."""

import asyncio
import inspect
import sys
from collections.abc import Coroutine
from types import FrameType
from typing import Any

from hawser import aio
from hawser.api.aio.handle import LazyHandle
from hawser.api.aio.transaction import AsyncWork
from hawser.testing import LocalBus
from hawser.xa import AsyncXA
from tests.contract import test_cancellation, test_cancelled_openings, test_cancelled_work
from tests.support.cancelling import Cut, Scene, Stage
from tests.support.cluster import RunningCluster

PUBLIC: list[type[Any]] = [
    aio.AsyncBus, aio.AsyncTopic, aio.AsyncPublisher, aio.AsyncSubscription, aio.AsyncLoan,
    aio.AsyncQueue, aio.AsyncConsumer, aio.AsyncMessage, aio.AsyncMessages, aio.AsyncValues,
    aio.AsyncValueLoop, AsyncWork, aio.AsyncTransaction, AsyncXA,
]  # fmt: skip
SCENES: dict[str, Scene] = test_cancellation.SCENES | test_cancelled_openings.SCENES
CLUSTER_SCENES: dict[str, Scene] = (
    test_cancellation.CLUSTER_SCENES | test_cancelled_openings.CLUSTER_SCENES | test_cancelled_work.SCENES
)
STEPS = ("__aexit__", "__anext__")


class Watch(Cut):
    """Cuts nothing; knows which methods of public objects have run in the call."""

    def __init__(self) -> None:
        super().__init__(0, "at once")
        self.seen: set[str] = set()

    def step(self, call: Coroutine[Any, Any, Any], error: BaseException | None) -> Any:
        sys.setprofile(self._profile)
        try:
            return super().step(call, error)
        finally:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and "self" in frame.f_locals:
            for each in PUBLIC:
                if isinstance(frame.f_locals["self"], each):
                    self.seen.add(f"{each.__name__}.{frame.f_code.co_name}")


def coroutines() -> set[str]:
    """The names of all of them. Leaving the block of an object that is opened is closing it."""
    return {
        f"{each.__name__}.{name}"
        for each in PUBLIC
        for name in dir(each)
        if (not name.startswith("_") or name in STEPS)
        and inspect.iscoroutinefunction(method := getattr(each, name))
        and method is not LazyHandle.__aexit__
    }


async def play(url: str, scenes: dict[str, Scene], watch: Watch) -> None:
    async with aio.connect(url, name="sweep") as bus:
        for name, scene in scenes.items():
            try:
                await scene(Stage(url, bus, watch))
            except BaseException as error:
                error.add_note(name)
                raise


def test_every_public_coroutine_is_swept(cluster: RunningCluster) -> None:
    watch = Watch()
    with LocalBus() as local:
        asyncio.run(play(local.url, SCENES, watch))
    asyncio.run(play(cluster.url, CLUSTER_SCENES, watch))
    assert coroutines() - watch.seen == set()
