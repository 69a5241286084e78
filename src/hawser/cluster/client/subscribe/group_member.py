"""A member of a consumer group: it reads its share of a topic's partitions and commits the group's positions.

    partition state  meaning                                       next
    not ours         another member owns it, or none does          reading, by `_take` after all have settled
    reading          owned, and fetched from the position          leaving, going back, not ours (fenced)
    leaving          revoked; taken samples may be uncommitted     not ours, on commit or after half a session
    going back       a transaction with its samples failed         reading again, by `_read_again`

Promise: no commit moves a position back, and samples that become void raise once for each of their takers.

The group's coordinator is the shard of partition `xxh3_64(group) mod partitions`, whose members are the
group's. Each change of members is a new generation, in which each member computes its share from the sorted
members: a range of partitions. In every other partition the group has one member, the owner: the next owner
joins there and removes the former one; the shard counts generations and refuses its later commits.

*Settled*: a member that learns of a new generation stops taking from partitions that are no longer its own,
and reports that it has settled once everything it took there is committed, or after half a session. The
others take those partitions when all members have settled, or after a session.

A transaction *claims* what was taken: it moves the group on from the end of the claim before it, even if that
can only be rolled back. If the earlier transaction is not committed, the shard refuses the later one.

If a transaction is not committed, the member *goes back*: taken and uncommitted samples are void at once, and
nothing is taken until the member has asked the leaders for the group's positions and reads there again. The
cancellation of a caller does not end that. A plain commit is refused while what it would commit is claimed,
or void. Only `_read_again` and `_take` begin to read, and both hold `_changing`.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Any, NoReturn

from hawser.cluster import wire
from hawser.cluster.client.admin import offsets
from hawser.cluster.client.admin.offsets import Place, share_of
from hawser.cluster.client.errors import Backoff
from hawser.cluster.client.publish.partitioner import partition_of
from hawser.cluster.client.router import Router
from hawser.cluster.client.subscribe.subscription import Consumer, Taker
from hawser.cluster.client.subscribe.takers import Claim, Taken, Takers
from hawser.cluster.wire import TopicEntry
from hawser.errors import Fenced, HawserError, Unavailable, UsageError
from hawser.log.entry import Kind
from hawser.log.state.commands import AT_END, GroupCommit, GroupJoin, GroupLeave, Payload, encode_command
from hawser.log.state.results import AnyResult, Committed, Joined, Reason, Rejected, decode_result

__all__ = ["GroupMember", "share_of"]

_log = logging.getLogger("hawser.cluster.client")


class GroupMember(Consumer):
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
        self._coordinator_partition = partition_of(group.encode(), entry.partitions)
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._known_settled = 0
        self._settled = 0
        self._learned = 0.0
        # For each owned partition: the generation in which it is owned, and the group's last known position.
        self._owned: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        # And the position up to which taken samples are committed or claimed. It is lower than the group's if
        # a commit followed after this member went back: the shard refuses what moves the group from here.
        self._claimed: dict[int, int] = {}
        # Partitions that are leaving, and the positions behind the samples taken.
        self._leaving: dict[int, int] = {}
        self._takers = Takers()
        # How often this member went back; and `received` when samples became void, until the next take.
        self._returns = 0
        self._void_at: int | None = None
        # The group has removed this member.
        self._is_out = False
        self._changing = asyncio.Lock()
        self._backoff = Backoff(router.settings)
        self._has_all = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Tasks that follow the ends of transactions.
        self._following: set[asyncio.Task[None]] = set()

    @property
    def _session_seconds(self) -> float:
        return self.router.settings.session_seconds

    def _deadline(self) -> float:
        return self.router.loop.time() + self.router.settings.timeout

    async def start(self) -> None:
        """Join. A member that is alone returns once it reads every partition."""
        deadline = self._deadline()
        await self._join(deadline)
        self._task = self.router.loop.create_task(self._live())
        if self._members == (self.member,):
            await self._until_complete(deadline)
        elif self._place[0] in (None, "latest"):
            others = set(range(self._partitions)) - {self._coordinator_partition}
            await asyncio.gather(*(self._begin(each, deadline) for each in sorted(others)))

    async def _begin(self, partition: int, deadline: float) -> None:
        """Fix where a new group begins in this partition now, before a member takes it."""
        shard = self.shard(partition)
        position = await offsets.group_start(self.router, self.topic, shard, *self._place, deadline)
        await offsets.begin_group(self.router, self.topic, shard, self.group, position, deadline)

    async def _until_complete(self, deadline: float) -> None:
        assert self._task is not None
        waiting = self.router.loop.create_task(self._has_all.wait())
        left = max(0.0, deadline - self.router.loop.time())
        try:
            await asyncio.wait([waiting, self._task], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self.inbox.failure is not None:
            raise self.inbox.failure
        if not self._has_all.is_set():
            raise Unavailable(
                f"group {self.group!r} of topic {self.topic!r} could not take its partitions within "
                f"{self.router.settings.timeout:g} s; see `hawser cluster status`"
            )

    async def close(self) -> None:
        """Leave the group: the other members resume from its committed positions."""
        self.end()
        tasks = [*self._following, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        partitions = {*self._owned, *self._leaving, self._coordinator_partition}
        await super().close()
        deadline = min(self.router.loop.time() + 1.0, self.router.leave_by)
        leaving = [self._execute(each, Kind.GROUP_LEAVE, self._leave(), deadline) for each in partitions]
        # If no leader can be reached, the session ends at its timeout.
        await asyncio.gather(*leaving, return_exceptions=True)

    # Commands.

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

    async def _join_shard(self, partition: int, deadline: float) -> Joined:
        shard = self.shard(partition)
        position = await offsets.group_start(self.router, self.topic, shard, *self._place, deadline)
        command = GroupJoin(self.group, self.member, position)
        joined = await self._execute(partition, Kind.GROUP_JOIN, command, deadline)
        if not isinstance(joined, Joined):
            raise UsageError(f"group {self.group!r} cannot be joined: {joined}")
        return joined

    # Membership.

    async def _join(self, deadline: float) -> None:
        joined = await self._join_shard(self._coordinator_partition, deadline)
        self._learn(joined.generation, joined.members)

    async def _live(self) -> None:
        """Follow the group until the member fails; then end the inbox with the reason."""
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
        # Other members take its partitions when the session ends; until then taken samples can be committed.
        for partition in self.partitions:
            self._set_leaving(partition)
        self.inbox.fail(failure)

    async def _follow(self) -> NoReturn:
        while self.inbox.failure is None:
            try:
                if self._is_out:
                    await self._begin_anew()
                async with self._changing:
                    await self._leave_revoked()
                    await self._take_over()
                await self._wait_for_change()
            except Fenced:
                self._is_out = True
            except HawserError as error:
                if not error.retryable and error.outcome != "unknown":
                    raise
                _log.warning("%s", error)
                await asyncio.sleep(self._backoff.next())
        raise self.inbox.failure

    async def _begin_anew(self) -> None:
        """Join again: the group removed this member, or its log was restored and counts generations again."""
        await asyncio.gather(*(reader.check_if_answered() for reader in list(self._readers.values())))
        async with self._changing:
            for partition in list(self._owned):
                await self._give_up(partition)
            self._leaving.clear()
            self._generation = self._settled = 0
            await self._join(self._deadline())
            self._is_out = False

    def _learn(self, generation: int, members: tuple[str, ...]) -> None:
        if generation > self._generation:
            self._generation, self._members = generation, members
            self._known_settled = 0
            self._learned = self.router.loop.time()
        elif generation == self._generation and members != self._members:  # only in a restored log
            self._is_out = True

    async def _wait_for_change(self) -> None:
        """Send a heartbeat that waits for a change of the group, or until this member has to act."""
        shard = self.shard(self._coordinator_partition)
        wait = max(0.0, min(self._session_seconds / 3, self._next_move() - self.router.loop.time()))
        known = self._generation, self._known_settled, self._settled
        request = wire.KeepAlive(shard, self.group, self.member, *known, self._session_seconds, wait)
        answer = await self.router.ask_once(shard, request, wait + self._session_seconds / 3)
        # Another answer may have brought a newer generation meanwhile.
        if isinstance(answer, wire.GroupState) and answer.generation >= self._generation:
            self._backoff = Backoff(self.router.settings)
            self._learn(answer.generation, answer.members)
            self._known_settled = len(answer.settled)
        elif isinstance(answer, wire.Failed) and answer.code is wire.Code.REJECTED:
            raise Fenced(answer.text)
        else:
            if isinstance(answer, wire.GroupState) and answer.generation < known[0]:
                await self._catch_up(self._deadline())
            await asyncio.sleep(self._backoff.next())
            await self.router.look_after(self.topic, shard)

    def _next_move(self) -> float:
        """When this member has to act even if the group does not change."""
        if self._leaving:
            return self._learned + self._session_seconds / 2
        if share_of(self.member, self._members, self._partitions) - self._owned.keys():
            return self._learned + self._session_seconds
        return inf

    # The partitions of this member.

    async def _leave_revoked(self, deadline: float | None = None) -> None:
        """Stop reading revoked partitions; the member has settled when none has anything left to commit."""
        share = share_of(self.member, self._members, self._partitions)
        for partition in self._owned.keys() - share - self._leaving.keys():
            self._set_leaving(partition)
        now = self.router.loop.time()
        is_late = now >= self._learned + self._session_seconds / 2
        for partition, position in list(self._leaving.items()):
            if is_late or position <= self._committed.get(partition, position):
                await self._give_up(partition, deadline)
        if not self._leaving:
            self._settled = self._generation

    def _set_leaving(self, partition: int) -> None:
        position = self.drop(partition)
        self._leaving[partition] = self._committed[partition] if position is None else position

    async def _give_up(self, partition: int, deadline: float | None = None) -> None:
        """Leave a partition: its next owner resumes from the committed position."""
        dropped = self.drop(partition)
        position = self._leaving.pop(partition, dropped)
        if position is not None and self._is_void(partition, position):
            self._revoke(partition)
        self._forget_partition(partition)
        if partition != self._coordinator_partition:
            await self._execute(partition, Kind.GROUP_LEAVE, self._leave(), deadline)

    async def _take_over(self) -> None:
        """Read the missing partitions of its share once all members have settled, or a session is over."""
        missing = share_of(self.member, self._members, self._partitions) - self._owned.keys()
        all_settled = self._known_settled >= len(self._members) or self._members == (self.member,)
        if missing and (all_settled or self.router.loop.time() >= self._learned + self._session_seconds):
            # Wait for all of them: one that continued later could take a partition that is not ours by then.
            taken = await asyncio.gather(*map(self._take, sorted(missing)), return_exceptions=True)
            for error in taken:
                if error is not None:
                    raise error
            missing = set()
        if not missing:
            self._has_all.set()

    async def _take(self, partition: int) -> None:
        deadline = self._deadline()
        joined = await self._join_shard(partition, deadline)
        if partition != self._coordinator_partition and joined.members != (self.member,):
            for other in joined.members:
                if other != self.member:
                    await self._execute(partition, Kind.GROUP_LEAVE, self._leave(other), deadline)
            # Until the other owner left, it may have moved the group.
            joined = await self._join_shard(partition, deadline)
        self._owned[partition] = joined.generation
        self._committed[partition] = self._claimed[partition] = joined.position
        self.read(partition, joined.position)

    # Positions.

    async def commit(self, taken: Taken) -> None:
        """Commit the positions behind the samples taken. Fenced if some of the partitions are not owned any
        more; those that are owned are committed all the same."""
        deadline = self._deadline()
        async with self._in_turn(deadline):
            deadline = max(deadline, self.router.loop.time() + self.router.settings.attempt_seconds)
            if taken.returns != self._returns:
                raise self._fenced(self._take_notices(taken.taker) | taken.positions.keys())
            due = {
                partition: position
                for partition, position in {**self._leaving, **taken.positions}.items()
                if partition in self._owned and position > self._committed[partition]
            }
            self._check_unclaimed(due)
            commits: list[Coroutine[Any, Any, None]] = [self._commit(*each, deadline) for each in due.items()]
            settled = await asyncio.gather(*commits, return_exceptions=True)
            is_free = False
            with suppress(HawserError):  # The commits are done. The next owner removes this member.
                is_free = await self._leave_committed(deadline)
        if is_free and self._task is not None:
            await self._report_settled()
        for error in settled:
            if isinstance(error, BaseException):
                raise error
        self._check_notices(taken.taker)
        with self.locked():
            self._takers.cover(self.received, taken.received)

    def _check_unclaimed(self, partitions: Iterable[int]) -> None:
        """UsageError if an unfinished transaction has claimed samples of these partitions."""
        claimed = sorted(each for each in partitions if self._claimed[each] > self._committed[each])
        if claimed:
            raise UsageError(
                f"group {self.group!r} of topic {self.topic!r}: an unfinished transaction moves partitions "
                f"{', '.join(map(str, claimed))}; end it before commit(), or commit in transactions alone"
            )

    @asynccontextmanager
    async def _in_turn(self, deadline: float) -> AsyncIterator[None]:
        """Hold `_changing`; Unavailable if something else holds it until the deadline."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._changing.acquire()
        except TimeoutError:
            raise Unavailable(
                f"group {self.group!r} of topic {self.topic!r} is changing its partitions; nothing was "
                "committed. Commit again, or see `hawser cluster status`"
            ) from None
        try:
            yield
        finally:
            self._changing.release()

    async def _leave_committed(self, deadline: float | None = None) -> bool:
        """Leave the revoked partitions if nothing of them is left to commit; whether that is so."""
        is_free = bool(self._leaving) and all(
            position <= self._committed.get(partition, position)
            for partition, position in self._leaving.items()
        )
        if is_free:
            await self._leave_revoked(deadline)
        return is_free

    def _is_void(self, partition: int, position: int) -> bool:
        """Whether samples before this position are not committed, as far as is known."""
        return position > min(self._committed[partition], self._claimed.get(partition, position))

    def _revoke(self, partition: int) -> None:
        """Note for their takers that uncommitted samples of this partition go to another member."""
        with self.locked():
            self._takers.notify_next({partition})
            self._takers.notify(self._takers.holders(self.received), {partition})

    def _take_notices(self, taker: Taker | None) -> set[int]:
        with self.locked():
            return self._takers.take_notices(taker)

    def _check_notices(self, taker: Taker | None) -> None:
        """Fenced, once for each taker, if its samples are taken again."""
        robbed = self._take_notices(taker)
        if robbed:
            raise self._fenced(robbed)

    def _fenced(self, partitions: set[int]) -> Fenced:
        return Fenced(
            f"group {self.group!r} of topic {self.topic!r}: what was taken of partitions "
            f"{', '.join(map(str, sorted(partitions)))} and not committed is taken again, because another "
            "member has taken over, or a transaction was rolled back; go on with the next sample"
        )

    async def _commit(self, partition: int, position: int, deadline: float) -> None:
        while True:
            before = self._committed[partition]
            command = self._move(partition, before, position)
            result = await self._execute(partition, Kind.GROUP_COMMIT, command, deadline)
            if isinstance(result, Committed):
                self._moved_to(partition, result.position)
                return
            assert isinstance(result, Rejected), result
            if result.reason is Reason.MOVED and before < result.current <= position:
                # An earlier attempt of this member, or the next owner, moved it; either way it moved forward.
                self._moved_to(partition, result.current)
                if result.current == position:
                    return
            elif result.reason is Reason.OTHER_GENERATION and partition == self._coordinator_partition:
                if not await self._catch_up(deadline):
                    break
            else:
                break
        if partition in self._readers:
            await self._readers[partition].check()
        self._revoke(partition)
        self._remove_partition(partition)

    def _moved_to(self, partition: int, position: int) -> None:
        self._committed[partition] = max(position, self._committed[partition])
        self._claimed[partition] = max(position, self._claimed[partition])

    def _move(self, partition: int, before: int, after: int) -> GroupCommit:
        generation = self._generation if partition == self._coordinator_partition else self._owned[partition]
        term = self._terms[partition].at(after - 1) if partition in self._terms else 0
        return GroupCommit(self.group, self.member, generation, before, after, term)

    def _remove_partition(self, partition: int) -> None:
        self._leaving.pop(partition, None)
        self.drop(partition)
        self._forget_partition(partition)

    def _forget_partition(self, partition: int) -> None:
        for each in (self._owned, self._committed, self._claimed):
            each.pop(partition, None)

    # Positions that a transaction moves.

    def taking(self, taker: Taker) -> None:
        self._takers.take(taker, self.received)

    def taken(self, taker: Taker | None) -> Taken:
        """The samples taken so far; to be called in the taker's thread. UsageError if a transaction with them
        was or may have been rolled back, and nothing was taken since."""
        with self.lock:
            self._check_not_taking()
            if self.received == self._void_at:
                raise UsageError(
                    f"group {self.group!r} of topic {self.topic!r}: a transaction with the samples taken was "
                    "not committed, so they are taken again, and nothing was taken since; take the samples "
                    "in the block or function that is run again"
                )
            return Taken(self._returns, self.positions, self.received, taker)

    def _open_next(self) -> bool:
        self._void_at = None
        return super()._open_next()

    def claim(self, taken: Taken, claim: Claim) -> list[tuple[int, GroupCommit]]:
        """For a transaction: the commands that move the group behind the samples taken, by partition. The
        claim stays even if the transaction can only be rolled back: the next claim does not begin before
        it."""
        moves: list[tuple[int, GroupCommit]] = []
        claim.received = self.received
        if taken.returns == self._returns:
            for partition, position in {**self._leaving, **taken.positions}.items():
                before = self._claimed.get(partition, position)
                if position > before:
                    moves.append((partition, self._move(partition, before, position)))
                    self._claimed[partition] = claim.positions[partition] = position
            with self.locked():
                covered = self._takers.cover(self.received, taken.received)
            claim.others += [each for each in covered if each is not taken.taker]
        claim.taker = taken.taker
        return moves

    def check(self, taken: Taken) -> None:
        """Fenced if some of the samples taken are void."""
        if taken.returns != self._returns:
            raise self._fenced(self._take_notices(taken.taker) | taken.positions.keys())
        self._check_notices(taken.taker)

    def moved(self, claim: Claim) -> "asyncio.Task[None] | None":
        """Note that the transaction was committed, and with it the group's positions. Returns a task if
        revoked partitions may now be left."""
        for partition, position in claim.positions.items():
            if partition in self._owned:
                self._committed[partition] = max(position, self._committed[partition])
        return self._follow_with(self._settle()) if self._leaving else None

    async def _settle(self) -> None:
        async with self._changing:
            is_free = await self._leave_committed()
        if is_free and self._task is not None:
            await self._report_settled()

    def go_back(self, claim: Claim) -> "asyncio.Task[None]":
        """Go back after a transaction that was not committed, as far as is known: taken and uncommitted
        samples are void from here on. The task ends when they can be taken again."""
        positions = {**self._leaving, **{each: self.drop(each) or 0 for each in self.partitions}}
        behind = {each for each, at in positions.items() if self._is_void(each, at)}
        self._leaving = {each: self._committed[each] for each in self._leaving}
        if behind:
            with self.locked():
                self._returns += 1
                self._void_at = self.received
                # A taker that took samples since then does not know that they are void.
                if self.received > claim.received:
                    self._takers.notify_next(behind)
                holders = self._takers.holders(self.received, claim.taker, claim.received)
                self._takers.notify([*holders, *claim.others], behind)
                self._takers.void(self.received)
        return self._follow_with(self._read_again())

    def give_back(self, taken: Taken) -> None:
        """As `go_back`, for samples that were offered to a transaction that is over."""
        claim = Claim()
        self.claim(taken, claim)
        self.go_back(claim)

    def _follow_with(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A task for this work, which goes on if the caller that waits for it is cancelled."""
        task = self.router.loop.create_task(work)
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return task

    def _unread(self) -> list[int]:
        """The owned partitions that are neither leaving nor read."""
        return sorted(self._owned.keys() - self._leaving.keys() - self._readers.keys())

    async def _read_again(self) -> None:
        async with self._changing:
            if self.inbox.failure is None:
                await asyncio.gather(*map(self._query_partition, self._unread()))
            if self.inbox.failure is None:
                for partition in self._unread():
                    self._claimed[partition] = self._committed[partition]
                    self.read(partition, self._committed[partition])
        await self._settle()

    async def _query_partition(self, partition: int) -> None:
        """Learn the group's position, and whether this member still owns the partition. Without an answer the
        known position is kept: the shard refuses a commit from another one."""
        shard = self.shard(partition)
        try:
            found = await offsets.inspect(self.router, self.topic, shard, self._deadline(), with_groups=True)
        except HawserError as error:
            _log.warning("%s", error)
            return
        except Exception:
            _log.exception("querying the position of group %s in shard %s failed", self.group, shard)
            return
        group = found.groups.get(self.group)
        is_home = partition == self._coordinator_partition
        is_ours = group is not None and self.member in group.members
        if group is None or not is_ours or not (is_home or group.generation == self._owned[partition]):
            self._remove_partition(partition)
            return
        self._committed[partition] = group.position
        if is_home:
            self._learn(group.generation, group.members)

    async def _catch_up(self, deadline: float) -> bool:
        """Learn the generation, lower only in a restored log; whether this member may commit in it."""
        known = self._generation
        command = GroupJoin(self.group, self.member, AT_END)
        joined = await self._execute(self._coordinator_partition, Kind.GROUP_JOIN, command, deadline)
        assert isinstance(joined, Joined), joined
        self._learn(joined.generation, joined.members)
        self._is_out = self._is_out or joined.generation < known
        return not self._is_out and self._settled != self._generation

    async def _report_settled(self) -> None:
        """Report now that this member has settled; the next heartbeat may be a while off."""
        shard = self.shard(self._coordinator_partition)
        request = wire.KeepAlive(
            shard, self.group, self.member, 0, 0, self._settled, self._session_seconds, 0.0
        )
        await self.router.ask_once(shard, request, 1.0)
