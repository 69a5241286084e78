"""The sessions of group members, at the leader of the shard that keeps the group's members.

    unknown --group member sends a heartbeat, or another member of its group does--> live
    live --no heartbeat for session_seconds--> expired: a GROUP_LEAVE entry removes the member

The log says who belongs to a group; only the leader's sessions say who is alive. Each member repeats a long
poll (KeepAlive). It is answered when the members change, or when others have settled, that is, have released
the partitions that are no longer theirs. A new leader has no sessions; the first heartbeat of any member
starts sessions for its whole group, so a change of leaders removes no member.
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
    """The sessions of one shard. `groups` gives the groups as applied; `leave(group, member)` proposes that
    the member leaves."""

    def __init__(self, groups: Callable[[], Groups], leave: Callable[[str, str], None]) -> None:
        self._groups = groups
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, dict[str, _Session]] = {}
        self._news = asyncio.Event()
        # The count of changes to groups when the members were woken last.
        self._changes = 0

    async def keep_alive(self, request: KeepAlive) -> GroupState | Failed:
        """The state of the group: at once if the member does not know it, else when it changes."""
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
        """Wakes the members if an applied entry has changed a group."""
        changes = self._groups().changes
        if changes != self._changes:
            self._changes = changes
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def forget(self) -> None:
        """This node no longer leads; the next leader starts new sessions."""
        if self._sessions:
            self._sessions.clear()
            self._wake()

    def tick(self) -> None:
        """Removes the members whose sessions have expired."""
        now = self._loop.time()
        for name, known in list(self._sessions.items()):
            group = self._groups().get(name)
            members = () if group is None else group.members
            for member in [each for each in known if each not in members]:
                del known[member]
            for member in members:
                session = known.setdefault(member, _Session(inf, 0.0))
                if session.ends == inf and session.seconds == 0.0:
                    # A member that joined and has sent no heartbeat gets the longest session of the others.
                    session.seconds = max(each.seconds for each in known.values())
                    session.ends = now + session.seconds
                elif session.ends <= now:
                    session.ends = now + session.seconds
                    self._leave(name, member)
            if not known:
                del self._sessions[name]


def _not_member(request: KeepAlive) -> Failed:
    return Failed(
        Code.REJECTED, f"{request.member} is not a member of group {request.group!r}; join it again", False
    )
