"""Turns: as many as there are, first come, first served, and none is ever lost."""

import asyncio

import pytest

from hawser.cluster.transport.errors import LinkClosed
from hawser.cluster.transport.outgoing_requests import RequestCredits
from tests.support.links import run


def test_first_come_first_served() -> None:
    async def scenario() -> None:
        turns = RequestCredits(lambda: True)
        assert not turns.try_take()
        order: list[int] = []

        async def take(number: int) -> None:
            await turns.take()
            order.append(number)

        waiting = [asyncio.create_task(take(number)) for number in range(4)]
        await asyncio.sleep(0)
        turns.give(3)
        assert not turns.try_take(), "nobody passes by those who wait"
        turns.give(1)
        await asyncio.gather(*waiting)
        assert order == [0, 1, 2, 3]

    run(scenario())


def test_a_turn_given_to_one_who_left_goes_to_the_next() -> None:
    async def scenario() -> None:
        turns = RequestCredits(lambda: True)
        first, second = (asyncio.create_task(turns.take()) for _ in range(2))
        await asyncio.sleep(0)
        turns.give(1)
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        turns.give(1)
        assert turns.try_take()

    run(scenario())


def test_one_who_left_before_is_passed_over() -> None:
    async def scenario() -> None:
        turns = RequestCredits(lambda: True)
        first, second = (asyncio.create_task(turns.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        turns.give(1)
        await second
        assert not turns.try_take()

    run(scenario())


def test_no_turn_while_nothing_may_be_sent() -> None:
    async def scenario() -> None:
        may_send = False
        turns = RequestCredits(lambda: may_send)
        turns.give(2)
        assert not turns.try_take()
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        may_send = True
        turns.hand_out()
        await waiting
        assert turns.try_take()

    run(scenario())


def test_closing_ends_the_waiting() -> None:
    async def scenario() -> None:
        turns = RequestCredits(lambda: True)
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        turns.close("the link is gone")
        with pytest.raises(LinkClosed, match="the link is gone"):
            await waiting

    run(scenario())
