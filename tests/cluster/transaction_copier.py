"""Workers that copy one topic into another, exactly once: with what they write goes how far they have read.

They are members of one group, and share the partitions of what they read; they come and go. After a rollback
a subscription gives the same again; after any other error a worker begins anew, where the group is.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any, Final

import hawser
from hawser import aio
from tests.cluster.transaction_scene import COPY, ECHO, GROUP, OPTIONS, Notes, Orders

__all__ = ["copy", "copy_in_a_loop", "copy_some", "copy_with_replay"]

_MOST_COPIED: Final = 50


def copy(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """In `with` blocks, some of which end with an error."""
    random = Random(name)
    while goes_on:
        with suppress(hawser.HawserError), hawser.connect(url, name=name, **OPTIONS) as bus:
            target: Any = bus.topic(COPY, create=False)
            with bus.topic(ECHO, create=False).subscribe(group=GROUP, start="earliest") as subscription:
                while goes_on:
                    with suppress(hawser.TransactionAborted, _Undone):
                        copy_some(bus, subscription, target, random.random() < 0.1)
                        notes.write("copied")


class _Undone(Exception):
    """Raised in a transaction to have it rolled back."""


def copy_some(bus: hawser.Bus, subscription: Any, target: Any, fails: bool = False) -> int:
    """What the group has not copied yet, if there is something; how many records."""
    samples = subscription.take_many(_MOST_COPIED, timeout=0.2)
    if samples:
        with bus.transaction() as transaction:
            transaction.publish_many(target, [bytes(each) for each in samples])
            transaction.commit_offsets(subscription)
            if fails:
                raise _Undone
    return len(samples)


def copy_with_replay(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """With `run_transaction`, which may call the function again."""
    while goes_on:
        with suppress(hawser.HawserError), hawser.connect(url, name=name, **OPTIONS) as bus:
            target: Any = bus.topic(COPY, create=False)
            with bus.topic(ECHO, create=False).subscribe(group=GROUP, start="earliest") as subscription:

                def attempt(transaction: Any, subscription: Any = subscription, target: Any = target) -> None:
                    samples = subscription.take_many(_MOST_COPIED, timeout=0.2)
                    if samples:
                        transaction.publish_many(target, [bytes(each) for each in samples])
                        transaction.commit_offsets(subscription)

                while goes_on:
                    bus.run_transaction(attempt)
                    notes.write("copied")


def copy_in_a_loop(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    """In an event loop; some are cancelled, wherever they are."""
    asyncio.run(_copy_in_a_loop(url, name, notes, goes_on))


async def _copy_in_a_loop(url: str, name: str, notes: Notes, goes_on: Orders) -> None:
    random = Random(name)
    while goes_on:
        with suppress(hawser.HawserError, TimeoutError):
            async with aio.connect(url, name=name, **OPTIONS) as bus:
                source, target = bus.topic(ECHO, create=False), bus.topic(COPY, create=False)
                async with source.subscribe(group=GROUP, start="earliest") as subscription:
                    while goes_on:
                        is_patient = random.random() < 0.9
                        async with asyncio.timeout(None if is_patient else random.uniform(0, 0.3)):
                            await _copy_some_in_a_loop(bus, subscription, target)
                        notes.write("copied")


async def _copy_some_in_a_loop(bus: aio.AsyncBus, subscription: Any, target: Any) -> None:
    samples = await subscription.take_many(_MOST_COPIED, timeout=0.2)
    if samples:
        with suppress(hawser.TransactionAborted):
            async with bus.transaction() as transaction:
                await transaction.publish_many(target, [bytes(each) for each in samples])
                await transaction.commit_offsets(subscription)
