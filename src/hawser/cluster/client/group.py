"""A member of a group: it shares the partitions of a topic with the others, and keeps the group's place.

The members of group g are those of g on its home shard, the partition `xxh3_64(g) mod partitions`. Every
change of members is a new generation, in which each computes from the sorted members which partitions are its
own: ranges, as equal as can be. In another partition the group has one member, its owner: whoever takes it
over joins there and makes the one before leave. Generations are counted by the shard, so what the former
owner commits from then on is refused; no commit ever moves a position back.

Nobody is robbed of what it has just taken: a member that learns of a new generation takes nothing more from
what is not its own any more, and says that it has *settled* once all it took of that is committed, or after
half a session. The others take over when all have settled, or after a session.

A transaction moves the group from where the one before it was to leave it, whatever became of that: if it was
not committed, the group is not there and this one is refused. If one is not committed, the member goes back
to where the group is, and what was taken behind that is void.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, NoReturn

from hawser.cluster import wire
from hawser.cluster.client import starts
from hawser.cluster.client.asking import ask
from hawser.cluster.client.consumer import Consumer
from hawser.cluster.client.failures import Backoff
from hawser.cluster.client.producers import partition_of
from hawser.cluster.client.routing import Router
from hawser.cluster.client.starts import Place
from hawser.cluster.transport import TransportError
from hawser.cluster.wire import TopicEntry, shard_of
from hawser.errors import Fenced, HawserError, Unavailable, UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import (
    AT_END,
    GroupCommit,
    GroupDelete,
    GroupJoin,
    GroupLeave,
    Payload,
    encode_command,
)
from hawser.log.state.results import (
    AnyResult,
    Committed,
    Deleted,
    Joined,
    Left,
    Reason,
    Rejected,
    decode_result,
)

__all__ = ["Member", "Taken", "delete_group", "share_of"]

_log = logging.getLogger("hawser.cluster.client")

# How often a member had gone back, and what was taken by then.
Taken = tuple[int, dict[int, int]]


def share_of(member: str, members: tuple[str, ...], partitions: int) -> set[int]:
    """The partitions of one of the sorted members: a range, the first ones one longer if it does not come out
    even."""
    if member not in members:
        return set()
    place, count = members.index(member), len(members)
    least, more = divmod(partitions, count)
    first = place * least + min(place, more)
    return set(range(first, first + least + (place < more)))


class Member(Consumer):
    """A subscription with a group."""

    def __init__(
        self,
        router: Router,
        topic: str,
        entry: TopicEntry,
        decode: Callable[[Any], Any] | None,
        group: str,
        name: str,
        place: tuple[Place, int],
    ) -> None:
        super().__init__(router, topic, entry.uuid, decode)
        self.group = group
        self.member = f"{name}#{secrets.token_hex(6)}"
        self._partitions = entry.partitions
        self._place = place
        self._home = partition_of(group.encode(), entry.partitions)
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._known_settled = 0
        self._settled = 0
        self._learned = 0.0
        # Of each partition that is ours: the generation we own it in, and the group's position as we know it.
        self._owned: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        # And up to where what was taken is committed, or in a transaction.
        self._claimed: dict[int, int] = {}
        # Not ours any more, up to these positions taken and not committed.
        self._leaving: dict[int, int] = {}
        # What was taken of these is void, and nobody was told yet.
        self._robbed: set[int] = set()
        # How often this member went back; and what `received` was when what was taken became void, unless
        # somebody has tried to take more since.
        self._returns = 0
        self._void_at: int | None = None
        # The group went on without us.
        self._is_out = False
        self._changing = asyncio.Lock()
        self._backoff = Backoff(router.settings)
        self._has_all = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def _session_seconds(self) -> float:
        return self.router.settings.session_seconds

    def _deadline(self) -> float:
        return self.router.loop.time() + self.router.settings.timeout

    async def start(self) -> None:
        """Join; return when this member has its share, if nobody else has to give some of it away first."""
        await self._join()
        self._task = self.router.loop.create_task(self._live())
        if self._members == (self.member,):
            await self._until_complete()

    async def _until_complete(self) -> None:
        assert self._task is not None
        waiting = self.router.loop.create_task(self._has_all.wait())
        seconds = self.router.settings.timeout
        await asyncio.wait([waiting, self._task], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.inbox.failure is not None:
            raise self.inbox.failure
        if not self._has_all.is_set():
            raise Unavailable(
                f"group {self.group!r} of topic {self.topic!r} could not take its partitions within "
                f"{seconds:g} s; see `hawser cluster status`"
            )

    async def close(self) -> None:
        """Leave: the others go on behind what was committed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        partitions = {*self._owned, *self._leaving, self._home}
        await super().close()
        deadline = self.router.loop.time() + 1.0
        leaving = [self._execute(each, Kind.GROUP_LEAVE, self._leave(), deadline) for each in partitions]
        # If nobody can be told, the session ends by itself.
        await asyncio.gather(*leaving, return_exceptions=True)

    # Entries.

    def _leave(self, member: str | None = None) -> GroupLeave:
        return GroupLeave(self.group, member or self.member)

    async def _execute(
        self, partition: int, kind: Kind, command: Payload, deadline: float | None = None
    ) -> AnyResult:
        shard = self.shard(partition)
        what = f"group {self.group!r} of topic {self.topic!r}, partition {partition}"
        request = wire.Execute(shard, kind, encode_command(command))
        answer = await self.router.ask_leader(
            self.topic, shard, request, what, self._deadline() if deadline is None else deadline
        )
        assert isinstance(answer, wire.Executed), answer
        return decode_result(answer.result)

    async def _join_shard(self, partition: int) -> Joined:
        position = await self._first_position(partition)
        joined = await self._execute(partition, Kind.GROUP_JOIN, GroupJoin(self.group, self.member, position))
        if not isinstance(joined, Joined):
            raise UsageError(f"group {self.group!r} cannot be joined: {joined}")
        return joined

    async def _first_position(self, partition: int) -> int:
        """Where the group begins if it is new."""
        start, history = self._place
        if start == "earliest":
            return 0
        if isinstance(start, int):
            return start
        if not history and (start is None or start == "latest"):
            return AT_END
        shard = self.shard(partition)
        return await starts.resolve(self.router, self.topic, shard, start, history, self._deadline())

    # Membership.

    async def _join(self) -> None:
        joined = await self._join_shard(self._home)
        self._learn(joined.generation, joined.members)

    async def _live(self) -> None:
        """Follow the group for as long as this member lives; then take nothing more."""
        try:
            await self._follow()
        except HawserError as error:
            failure = error
        except Exception as error:
            _log.exception("a member of group %s failed", self.group)
            failure = HawserError(
                f"group {self.group!r} of topic {self.topic!r}: this member cannot go on: {error!r}; "
                "report it, and subscribe again"
            )
        # Others take over what was ours as soon as our session ends; what was taken can still be committed.
        for partition in self.partitions:
            self._leaving.setdefault(partition, self.positions[partition])
            await self.forget(partition)
        self.inbox.fail(failure)

    async def _follow(self) -> NoReturn:
        while True:
            try:
                if self._is_out:
                    await self._begin_anew()
                async with self._changing:
                    await self._let_go()
                    await self._take_over()
                await self._listen()
            except Fenced:
                self._is_out = True
            except HawserError as error:
                if not error.retryable and error.outcome != "unknown":
                    raise
                _log.warning("%s", error)
                await asyncio.sleep(self._backoff.next())

    async def _begin_anew(self) -> None:
        """The group went on without us: everything we had is somebody else's."""
        async with self._changing:
            for partition in list(self._owned):
                await self._give_up(partition)
            self._leaving.clear()
            self._settled = 0
            await self._join()
            self._is_out = False

    def _learn(self, generation: int, members: tuple[str, ...]) -> None:
        if generation != self._generation:
            self._generation, self._members = generation, members
            self._known_settled = 0
            self._learned = self.router.loop.time()

    async def _listen(self) -> None:
        """Wait for news of the group, or until something is to be done without."""
        shard = self.shard(self._home)
        wait = max(0.0, min(self._session_seconds / 3, self._next_move() - self.router.loop.time()))
        request = wire.KeepAlive(
            shard,
            self.group,
            self.member,
            self._generation,
            self._known_settled,
            self._settled,
            self._session_seconds,
            wait,
        )
        answer = await self._ask(shard, wire.encode(request), wait + self._session_seconds / 3)
        if isinstance(answer, wire.Alive):
            self._backoff = Backoff(self.router.settings)
            self._learn(answer.generation, answer.members)
            self._known_settled = len(answer.settled)
        elif isinstance(answer, wire.Failed) and answer.code is wire.Code.REJECTED:
            raise Fenced(answer.text)
        else:
            await asyncio.sleep(self._backoff.next())
            await self.router.look_after(self.topic, shard)

    async def _ask(self, shard: str, body: bytes, seconds: float) -> wire.Answer | None:
        link = self.router.leader_link(shard)
        if link is None:
            return None
        try:
            answer = await ask(link, body, seconds)
        except TransportError:
            return None
        if isinstance(answer, wire.Failed):
            self.router.note(shard, answer)
        return answer

    def _next_move(self) -> float:
        """When something is due though nothing is heard."""
        if self._leaving:
            return self._learned + self._session_seconds / 2
        if share_of(self.member, self._members, self._partitions) - self._owned.keys():
            return self._learned + self._session_seconds
        return inf

    # Partitions come and go.

    async def _let_go(self) -> None:
        """Take no more from what is not ours; settle when nothing of it is left to commit."""
        share = share_of(self.member, self._members, self._partitions)
        for partition in self._owned.keys() - share - self._leaving.keys():
            position = self.positions.get(partition, 0)
            await self.forget(partition)
            self._leaving[partition] = position
        now = self.router.loop.time()
        is_late = now >= self._learned + self._session_seconds / 2
        for partition, position in list(self._leaving.items()):
            if is_late or position <= self._committed.get(partition, position):
                await self._give_up(partition)
        if not self._leaving:
            self._settled = self._generation

    async def _give_up(self, partition: int) -> None:
        """Somebody else goes on behind what was committed."""
        position = self._leaving.pop(partition, self.positions.get(partition, 0))
        if position > self._committed.get(partition, position):
            self._robbed.add(partition)
        await self.forget(partition)
        self._disown(partition)
        if partition != self._home:
            await self._execute(partition, Kind.GROUP_LEAVE, self._leave())

    async def _take_over(self) -> None:
        missing = share_of(self.member, self._members, self._partitions) - self._owned.keys()
        everybody = self._known_settled >= len(self._members) or self._members == (self.member,)
        if missing and (everybody or self.router.loop.time() >= self._learned + self._session_seconds):
            # All have ended before anything else happens: one that went on would take what is not ours then.
            taken = await asyncio.gather(*map(self._take, sorted(missing)), return_exceptions=True)
            for error in taken:
                if error is not None:
                    raise error
            missing = set()
        if not missing:
            self._has_all.set()

    async def _take(self, partition: int) -> None:
        generation = self._generation
        joined = await self._join_shard(partition)
        if partition != self._home:
            generation = joined.generation
            for other in joined.members:
                if other != self.member:
                    left = await self._execute(partition, Kind.GROUP_LEAVE, self._leave(other))
                    generation = left.generation if isinstance(left, Left) else generation
        self._owned[partition] = generation
        self._committed[partition] = self._claimed[partition] = joined.position
        self.read(partition, joined.position)

    # Positions.

    async def commit(self, positions: dict[int, int]) -> None:
        """Move the group to these positions, as far as they are ours to commit; Fenced if some are not."""
        async with self._changing:
            due = {
                partition: position
                for partition, position in {**positions, **self._leaving}.items()
                if partition in self._owned and position > self._committed[partition]
            }
            commits: list[Coroutine[Any, Any, None]] = [self._commit(*each) for each in due.items()]
            settled = await asyncio.gather(*commits, return_exceptions=True)
            is_free = await self._let_go_of_committed()
        if is_free and self._task is not None:
            await self._tell_settled()
        for error in settled:
            if isinstance(error, BaseException):
                raise error
        self._check_robbed()

    async def _let_go_of_committed(self) -> bool:
        """Whether nothing of what is not ours any more was left to commit."""
        is_free = bool(self._leaving) and all(
            position <= self._committed.get(partition, position)
            for partition, position in self._leaving.items()
        )
        if is_free:
            await self._let_go()
        return is_free

    def _check_robbed(self) -> None:
        """Fenced, once, if others take again what was taken here."""
        robbed, self._robbed = self._robbed, set()
        if robbed:
            raise Fenced(
                f"group {self.group!r} of topic {self.topic!r}: what was taken of partitions "
                f"{', '.join(map(str, sorted(robbed)))} and not committed is taken again, because another "
                "member has taken over, or a transaction was rolled back; go on with the next sample"
            )

    async def _commit(self, partition: int, position: int) -> None:
        while True:
            before = self._committed[partition]
            command = self._move(partition, before, position)
            result = await self._execute(partition, Kind.GROUP_COMMIT, command)
            if isinstance(result, Committed):
                self._committed[partition] = self._claimed[partition] = result.position
                return
            assert isinstance(result, Rejected), result
            if result.reason is Reason.MOVED and before < result.current <= position:
                # An earlier try of ours, or of whoever has it now; either way it is forward.
                self._committed[partition] = self._claimed[partition] = result.current
                if result.current == position:
                    return
            elif result.reason is Reason.OTHER_GENERATION and partition == self._home:
                if not await self._catch_up():
                    break
            else:
                break
        self._robbed.add(partition)
        await self._lose(partition)

    def _move(self, partition: int, before: int, after: int) -> GroupCommit:
        generation = self._generation if partition == self._home else self._owned[partition]
        return GroupCommit(self.group, self.member, generation, before, after)

    async def _lose(self, partition: int) -> None:
        self._leaving.pop(partition, None)
        await self.forget(partition)
        self._disown(partition)

    def _disown(self, partition: int) -> None:
        for each in (self._owned, self._committed, self._claimed):
            each.pop(partition, None)

    # Positions that a transaction moves.

    def taken(self) -> Taken:
        """What was taken so far, in the thread of whoever takes. UsageError if a transaction with it was
        rolled back, or may have been, and nobody has taken anything since."""
        if self.received == self._void_at:
            raise UsageError(
                f"group {self.group!r} of topic {self.topic!r}: a transaction with what was taken was not "
                "committed, so that is taken again, and nothing was taken since; take the samples in the "
                "block or function that is run again"
            )
        return self._returns, dict(self.positions)

    def _open_next(self) -> bool:
        self._void_at = None
        return super()._open_next()

    def moves(self, taken: Taken) -> dict[int, GroupCommit]:
        """What moves the group behind what was taken, by partition; Fenced if some of that is void."""
        returns, positions = taken
        if returns != self._returns:
            self._robbed.update(positions)
        self._check_robbed()
        found = {}
        for partition, position in {**positions, **self._leaving}.items():
            before = self._claimed.get(partition, position)
            if position > before:
                found[partition] = self._move(partition, before, position)
                self._claimed[partition] = position
        return found

    async def moved(self, positions: dict[int, int]) -> None:
        """The transaction was committed: the group is there."""
        async with self._changing:
            for partition, position in positions.items():
                if partition in self._owned:
                    self._committed[partition] = max(position, self._committed[partition])
            is_free = await self._let_go_of_committed()
        if is_free and self._task is not None:
            await self._tell_settled()

    async def rewind(self, received: int) -> None:
        """The transaction was not committed, as far as is known: what was taken and is not committed is taken
        again. So many had been taken when it was ended; those since are void, and nobody knows."""
        async with self._changing:
            positions = {**self.positions, **self._leaving}
            behind = {each for each, at in positions.items() if at > self._committed.get(each, at)}
            read = self.partitions
            await asyncio.gather(*map(self.forget, read))
            if behind:
                self._returns += 1
                self._void_at = self.received
            if self.received > received:
                self._robbed |= behind
            await asyncio.gather(*map(self._look_at, read))
            for partition in read:
                if partition in self._owned and self.inbox.failure is None:
                    self._claimed[partition] = self._committed[partition]
                    self.read(partition, self._committed[partition])
            self._leaving = {each: self._committed[each] for each in self._leaving}
            is_free = await self._let_go_of_committed()
        if is_free and self._task is not None:
            await self._tell_settled()

    async def _look_at(self, partition: int) -> None:
        """Learn where the group is, and whether this partition is still ours. If nobody answers, what is
        known has to do: a commit from another position is refused."""
        shard = self.shard(partition)
        try:
            found = await starts.inspect(self.router, self.topic, shard, self._deadline(), with_groups=True)
        except HawserError as error:
            _log.warning("%s", error)
            return
        group = found.groups.get(self.group)
        is_home = partition == self._home
        is_ours = group is not None and self.member in group.members
        if group is None or not is_ours or not (is_home or group.generation == self._owned[partition]):
            await self._lose(partition)
            return
        self._committed[partition] = group.position
        if is_home:
            self._learn(group.generation, group.members)

    async def _catch_up(self) -> bool:
        """Learn the generation that the home shard is in; whether we may commit in it."""
        joined = await self._execute(self._home, Kind.GROUP_JOIN, GroupJoin(self.group, self.member, AT_END))
        assert isinstance(joined, Joined), joined
        self._learn(joined.generation, joined.members)
        return self._settled != self._generation

    async def _tell_settled(self) -> None:
        """Now, and not with the next question, which may be a while off."""
        shard = self.shard(self._home)
        request = wire.KeepAlive(
            shard, self.group, self.member, 0, 0, self._settled, self._session_seconds, 0.0
        )
        await self._ask(shard, wire.encode(request), 1.0)


async def delete_group(router: Router, topic: str, entry: TopicEntry, group: str, deadline: float) -> bool:
    """Forget a group and its positions; whether there was one."""
    existed = False
    for partition in range(entry.partitions):
        shard = shard_of(topic, entry.uuid, partition)
        request = wire.Execute(shard, Kind.GROUP_DELETE, encode_command(GroupDelete(group)))
        what = f"forgetting group {group!r} of topic {topic!r}"
        answer = await router.ask_leader(topic, shard, request, what, deadline)
        assert isinstance(answer, wire.Executed), answer
        result = decode_result(answer.result)
        existed = existed or (isinstance(result, Deleted) and result.existed)
    return existed
