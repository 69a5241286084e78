"""The deletion of a topic or queue, in three steps that any operator can continue:

    open --TransactionGate.close--> closed --mark_deleted--> deleting --all members retired--> gone

The gate tells the leaders to refuse new transactions, then asks which transactions have work there. Each
shard refuses later ones itself, so none is missed; open transactions continue. If there are any, the gate
opens again and nothing is deleted. If the operator dies here, the leaders allow transactions again after a
while.

A shard leaves the store when every member that can be reached has deleted its files. The members that are
away are recorded first, under `retiring/` and the shard's name, and told when they return. The deletion waits
for no lost machine: a topic created anew under the same name has shards of other names.
"""

import asyncio
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from hawser.cluster import wire
from hawser.cluster.operator.validation import unnotified_commits
from hawser.cluster.shard_map import node_of
from hawser.cluster.stores.shard_metadata import StoredShard
from hawser.cluster.stores.store import Conflict, Store
from hawser.cluster.transport import Link, TransportError
from hawser.errors import Unavailable
from hawser.log.entry import Kind
from hawser.log.protocol import messages as m
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Done, decode_result
from hawser.transaction.commands import BranchLimit
from hawser.transaction.participant.branches import DEFAULT_LIMIT

__all__ = [
    "Retiring",
    "ShardDeletion",
    "TransactionGate",
    "forget_retiring",
    "keep_retiring",
    "list_retiring",
]

_RETIRING: Final = "retiring/"


class Retiring(msgspec.Struct, frozen=True):
    """The members that were away when their shard was deleted in `epoch`."""

    epoch: int
    members: frozenset[str]


_decode = msgspec.json.Decoder(Retiring).decode


class ShardDeletion:
    """The members that still have to delete a shard; `stored` is its metadata in the store, if there is
    any."""

    def __init__(self, shard: str, epoch: int, members: set[str], stored: StoredShard | None = None) -> None:
        self.shard = shard
        self.stored = stored
        self.epoch = epoch
        self.members = frozenset(members)
        self.remaining = members
        self._told = 0

    @classmethod
    def of(cls, shard: str, stored: StoredShard) -> "ShardDeletion":
        """The deletion of a shard in the store, with all members that may have files of it."""
        metadata = stored.metadata
        change = metadata.change
        new = (change.new,) if change is not None and change.new is not None else ()
        members = {*metadata.members, *metadata.removed, *new}
        return cls(shard, metadata.epoch + 1, members, stored)

    def tell(self, send: Callable[[str, str, m.Message], None]) -> None:
        self._told += 1
        for member in self.remaining:
            send(self.shard, member, m.RetireRequest(self.epoch))

    def is_done(self, alive: Container[str], patience: int) -> bool:
        """Whether all other members are on nodes that are not alive, and have been told `patience` times."""
        if not self.remaining:
            return True
        return self._told > patience and not any(node_of(member) in alive for member in self.remaining)


def list_retiring(store: Store) -> dict[str, Retiring]:
    """The members to be told yet, by shard."""
    found = store.list(_RETIRING)
    return {key.removeprefix(_RETIRING): _decode(value.data) for key, value in found.items()}


def keep_retiring(store: Store, shard: str, retiring: Retiring) -> None:
    """Records members that have to be told, beside those recorded before."""
    value = store.get(_RETIRING + shard)
    version = None
    if value is not None:
        known = _decode(value.data)
        retiring = Retiring(max(known.epoch, retiring.epoch), known.members | retiring.members)
        version = value.version
    if isinstance(store.put(_RETIRING + shard, msgspec.json.encode(retiring), version), Conflict):
        keep_retiring(store, shard, retiring)


def forget_retiring(store: Store, shard: str, members: frozenset[str]) -> None:
    """Removes these members. If others were recorded meanwhile, all stay and are told again."""
    value = store.get(_RETIRING + shard)
    if value is not None and _decode(value.data).members <= members:
        store.delete(_RETIRING + shard, value.version)


Result = TypeVar("Result")

_CLOSED: Final = msgspec.structs.replace(DEFAULT_LIMIT, most_open=0)
_ASK_SECONDS: Final = 2.0


class TransactionGate:
    """`leader` gives the link to a shard's leader, if there is one. Failures are retried every
    `pause_seconds`, for `seconds` altogether: much sooner than a leader allows transactions again by itself.
    """

    def __init__(self, leader: Callable[[str], Link | None], seconds: float, pause_seconds: float) -> None:
        self._leader = leader
        self._seconds = seconds
        self._pause_seconds = pause_seconds

    async def close(self, shards: Sequence[str]) -> list[wire.TransactionsSeen]:
        """Lets no transaction begin on these shards, and returns the transactions that have. Unavailable if
        that is not known of all shards."""
        deadline = self._deadline
        await _all(self._limit(shard, _CLOSED, deadline) for shard in shards)
        while True:
            seen = await _all(self._look(shard, deadline) for shard in shards)
            is_telling = any(map(unnotified_commits, seen)) and not any(each.branches for each in seen)
            if not is_telling or self._deadline - deadline > self._seconds / 2:
                return seen
            # Commits here take a moment to reach the other shards.
            await asyncio.sleep(self._pause_seconds)

    async def open(self, shards: Sequence[str]) -> None:
        """Lets transactions begin again, as far as leaders can be reached."""
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
        """The answer of the leader."""
        trouble = "it has no leader"
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
            f"cannot tell whether transactions have work on shard {shard}: {trouble}; are its nodes up?"
        )


async def _all(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Their results, or the first error, but only when all have ended: no request may arrive late."""
    ended = await asyncio.gather(*works, return_exceptions=True)
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    return [each for each in ended if not isinstance(each, BaseException)]
