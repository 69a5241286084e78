"""Before a topic or queue is deleted: no transaction may have work on its shards.

Their leaders are told to let none begin any more, and are asked afterwards which ones there are: what began
before is seen, what comes later is refused by the shard itself. Whatever is open goes on meanwhile. If there
is something, transactions may begin again and nothing is deleted. An operator that dies on the way does no
harm: leaders let transactions begin again after a while.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from hawser.cluster import wire
from hawser.cluster.operator.checks import unheard_commits
from hawser.cluster.transport import Link, TransportError
from hawser.errors import Unavailable
from hawser.log.entry import Kind
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Done, decode_result
from hawser.transaction.commands import BranchLimit
from hawser.transaction.participant.branches import DEFAULT_LIMIT

__all__ = ["Closing"]

Result = TypeVar("Result")

_CLOSED: Final = msgspec.structs.replace(DEFAULT_LIMIT, most_open=0)
_ASK_SECONDS: Final = 2.0


class Closing:
    """`leader` gives the link to whoever leads a shard, if there is one. What fails is tried again, every
    `pause_seconds` for `seconds` altogether: much sooner than a leader lets transactions begin again."""

    def __init__(self, leader: Callable[[str], Link | None], seconds: float, pause_seconds: float) -> None:
        self._leader = leader
        self._seconds = seconds
        self._pause_seconds = pause_seconds

    async def close(self, shards: Sequence[str]) -> list[wire.TransactionsSeen]:
        """Let no transaction begin on these any more; what those that did begin have there. Unavailable if
        that is not known of all of them."""
        deadline = self._deadline
        await _all(self._limit(shard, _CLOSED, deadline) for shard in shards)
        while True:
            seen = await _all(self._look(shard, deadline) for shard in shards)
            is_telling = any(map(unheard_commits, seen)) and not any(each.branches for each in seen)
            if not is_telling or self._deadline - deadline > self._seconds / 2:
                return seen
            # What was committed here is told to others, which takes a moment.
            await asyncio.sleep(self._pause_seconds)

    async def open(self, shards: Sequence[str]) -> None:
        """Let them begin again, where it can be said."""
        with suppress(Unavailable):
            deadline = self._deadline
            await _all(self._limit(shard, DEFAULT_LIMIT, deadline) for shard in shards)

    @property
    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._seconds

    async def _limit(self, shard: str, limit: BranchLimit, deadline: float) -> None:
        entry = wire.Labelled(Kind.BRANCH_LIMIT, encode_command(limit))
        answer = await self._ask(shard, wire.Transact(shard, (entry,)), deadline)
        assert isinstance(answer, wire.Transacted), answer
        (result,) = map(decode_result, answer.results)
        assert isinstance(result, Done), result

    async def _look(self, shard: str, deadline: float) -> wire.TransactionsSeen:
        answer = await self._ask(shard, wire.TransactionLook(shard), deadline)
        assert isinstance(answer, wire.TransactionsSeen), answer
        return answer

    async def _ask(self, shard: str, request: wire.Request, deadline: float) -> wire.Answer:
        """What the leader says."""
        trouble = "nobody leads it"
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            link = self._leader(shard)
            if link is not None:
                try:
                    answer = wire.decode_answer(await link.ask(wire.encode(request), _ASK_SECONDS))
                except TransportError as error:
                    trouble = str(error)
                else:
                    if not isinstance(answer, wire.Failed):
                        return answer
                    trouble = answer.text
            await asyncio.sleep(self._pause_seconds)
        raise Unavailable(
            f"whether transactions have work on shard {shard} is not known: {trouble}; see that its nodes run"
        )


async def _all(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Their results, or the first that went wrong: but only when all have ended, so that none comes late."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
