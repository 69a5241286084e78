"""Sessions of the members of groups, at the leader of the shard where a group has its members.

Who belongs to a group is in the log; whether a member lives is known only here, and by time. Each member
asks again and again for news of its group, and is told when the members change or when others have settled:
have let go of what is not theirs any more. One that has not asked for as long as it said is made to leave, by
an entry as any other. A new leader knows no sessions: with the first member that asks, all of its group get
new ones, so a change of leaders drops nobody.
"""

import asyncio
from collections.abc import Callable
from math import inf

from hawser.cluster.wire import Code, Failed, GroupState, KeepAlive
from hawser.log.state.groups import Group, Groups

__all__ = ["GroupSessions"]


class _Session:
    __slots__ = ("ends", "seconds", "settled")

    def __init__(self, ends: float, seconds: float) -> None:
        self.ends = ends
        self.seconds = seconds
        self.settled = 0


class GroupSessions:
    """Those of one shard. `groups` are what the shard has applied; `leave(group, member)` proposes an end."""

    def __init__(self, groups: Callable[[], Groups], leave: Callable[[str, str], None]) -> None:
        self._groups = groups
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, dict[str, _Session]] = {}
        self._news = asyncio.Event()
        # Of the groups, when the members were woken last.
        self._changes = 0

    async def keep_alive(self, request: KeepAlive) -> GroupState | Failed:
        """The group as it is, at once if that is news to the member, or else when there are some."""
        session = self._session(request)
        if session is None:
            return _not_member(request)
        if request.settled > session.settled:
            session.settled = request.settled
            self._wake()
        session.ends = inf
        try:
            async with asyncio.timeout(request.wait_seconds):
                while True:
                    group = self._groups().get(request.group)
                    if group is None or request.member not in group.members:
                        return _not_member(request)
                    settled = self._settled(request.group, group)
                    if group.generation != request.generation or len(settled) != request.known_settled:
                        break
                    await self._news.wait()
        except TimeoutError:
            pass
        finally:
            session.ends = self._loop.time() + session.seconds
        group = self._groups().get(request.group)
        if group is None or request.member not in group.members:
            return _not_member(request)
        return GroupState(group.generation, group.members, self._settled(request.group, group))

    def _session(self, request: KeepAlive) -> _Session | None:
        group = self._groups().get(request.group)
        if group is None or request.member not in group.members:
            return None
        known = self._sessions.setdefault(request.group, {})
        ends = self._loop.time() + request.session_seconds
        for member in group.members:
            known.setdefault(member, _Session(ends, request.session_seconds))
        known[request.member].seconds = request.session_seconds
        return known[request.member]

    def _settled(self, name: str, group: Group) -> tuple[str, ...]:
        known = self._sessions.get(name, {})
        return tuple(
            each for each in group.members if each in known and known[each].settled == group.generation
        )

    def applied(self) -> None:
        """Entries were applied. Few of them are news to the members."""
        changes = self._groups().changes
        if changes != self._changes:
            self._changes = changes
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def forget(self) -> None:
        """This member of the shard leads no more; the next leader hears from everybody."""
        if self._sessions:
            self._sessions.clear()
            self._wake()

    def tick(self) -> None:
        """Let those leave that were silent for too long."""
        now = self._loop.time()
        for name, known in list(self._sessions.items()):
            group = self._groups().get(name)
            members = () if group is None else group.members
            for member in [each for each in known if each not in members]:
                del known[member]
            for member in members:
                session = known.setdefault(member, _Session(inf, 0.0))
                if session.ends == inf and session.seconds == 0.0:
                    # Joined, and not heard of yet: as patient with it as with the others.
                    session.seconds = max(each.seconds for each in known.values())
                    session.ends = now + session.seconds
                elif session.ends <= now:
                    session.ends = now + session.seconds
                    self._leave(name, member)
            if not known:
                del self._sessions[name]


def _not_member(request: KeepAlive) -> Failed:
    return Failed(
        Code.REJECTED, f"{request.member} is no member of group {request.group!r}; join it again", False
    )
