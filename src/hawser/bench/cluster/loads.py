"""Loads of cluster clients: 100-byte values, each acknowledged after a majority synced it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hawser.bench.processes import now_ns

VALUE = b"v" * 100


@dataclass(frozen=True, slots=True)
class Load:
    """Calls for `seconds`, `in_flight` at a time, each with `batch` values."""

    seconds: float
    in_flight: int = 1
    batch: int = 1


def one_at_a_time(call: Callable[[int], object], load: Load) -> list[int]:
    """The nanoseconds of each call; the calls are numbered."""
    times: list[int] = []
    end = now_ns() + int(load.seconds * 1e9)
    while (started := now_ns()) < end:
        call(len(times))
        times.append(now_ns() - started)
    return times


async def one_at_a_time_async(call: Callable[[int], Awaitable[object]], load: Load) -> list[int]:
    """The nanoseconds of each call of an asynchronous client."""
    times: list[int] = []
    end = now_ns() + int(load.seconds * 1e9)
    while (started := now_ns()) < end:
        await call(len(times))
        times.append(now_ns() - started)
    return times


async def rate_in_flight(call: Callable[[int], Awaitable[object]], load: Load) -> float:
    """Values acknowledged per second, by one task for each call in flight."""
    count, started = 0, now_ns()
    end = started + int(load.seconds * 1e9)

    async def work() -> None:
        nonlocal count
        while now_ns() < end:
            count += 1
            await call(count)

    await asyncio.gather(*(work() for _ in range(load.in_flight)))
    return count * load.batch / (now_ns() - started) * 1e9


def rate_of_futures(begin: Callable[[int], Any], load: Load) -> float:
    """Values acknowledged per second, by one thread that starts calls and waits for the oldest."""
    flying: deque[Any] = deque()
    count, started = 0, now_ns()
    end = started + int(load.seconds * 1e9)
    while now_ns() < end:
        while len(flying) < load.in_flight:
            flying.append(begin(count))
            count += 1
        flying.popleft().result()
    for future in flying:
        future.result()
    return count * load.batch / (now_ns() - started) * 1e9
