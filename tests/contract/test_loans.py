"""A loan is one message: its block can be entered once. Both scopes."""

import asyncio
import itertools
from typing import Any

import pytest

import hawser
from hawser import aio

_numbers = itertools.count()


@pytest.mark.parametrize("kind", ["loan", "loan_array"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_loan_is_published_once(bus: hawser.Bus, kind: str, fails: bool) -> None:
    """On a cluster each block published another message."""
    topic: Any = bus.topic(f"loans {next(_numbers)}")
    loan = getattr(topic, kind)(3)
    try:
        with loan:
            assert not fails
    except AssertionError:
        pass
    with pytest.raises((hawser.UsageError, BufferError), match=r"loan (is over|was published)"), loan:
        pass
    assert len(topic.read_oldest(9).samples) == 1 - fails


@pytest.mark.parametrize("kind", ["loan", "loan_array"])
def test_a_loan_in_an_event_loop_is_published_once(url: str, kind: str) -> None:
    async def story() -> None:
        async with aio.connect(url) as bus:
            topic: Any = bus.topic(f"loans {next(_numbers)}")
            loan = getattr(topic, kind)(3)
            async with loan:
                pass
            with pytest.raises((hawser.UsageError, BufferError), match=r"loan (is over|was published)"):
                async with loan:
                    pass
            assert len((await topic.read_oldest(9)).samples) == 1

    asyncio.run(story())
