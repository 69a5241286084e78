"""The event loop of links: uvloop's where it is installed, else asyncio's.

Both behave the same, and uvloop takes less time; docs/decisions/0026-transport.md says why it is not
required.
"""

import asyncio
import importlib
import importlib.util
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["new_event_loop", "run"]

R = TypeVar("R")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop, which the caller closes."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


def run(work: Coroutine[Any, Any, R]) -> R:
    """As asyncio.run, with such a loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
