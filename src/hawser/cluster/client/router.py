"""Where requests go: the map of the shards as this client knows it, and a link to each node it talks to.

The map is a hint. Whoever is refused, or hears nothing, tells the router, which asks any node it reaches for
a newer one; nothing here decides what is true.

A node counts a client as present while it has a link to it (`node/transaction/client_registry.py`), so the
router keeps a link to every node of the cluster. It asks the nodes periodically, one after the other, for the
list of nodes, because an idle client would otherwise never learn of a new one. An address that the newest
list does not have is forgotten when its link is down."""

import asyncio
import secrets
from collections.abc import Callable, Sequence, Set
from itertools import count
from math import inf
from typing import Any

from hawser.cluster import wire
from hawser.cluster.client.errors import Backoff, ended, given_up, refused
from hawser.cluster.client.rpc import ask, checked
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.shard_map import ShardMap, node_of, topic_of
from hawser.cluster.transport import Dialer, Identity, Link, PeerRole, TransportError
from hawser.errors import Closed, Unavailable

__all__ = ["Router"]

_ASK_MAP_SECONDS = 1.0
_SOON_SECONDS = 0.05
# So long a node is left in peace after it was dialed out of turn, however many partitions want it.
_HURRY_SECONDS = 0.2
# The pause between two requests for the nodes of the cluster.
_NODES_SECONDS = 3.0
# No topic has this name, so the answer is about the nodes alone.
_NO_TOPIC = ""
_LOOKS = (wire.Inspect, wire.QueueLook, wire.TransactionLook)
_Repeatable = (
    wire.Execute | wire.Inspect | wire.Publish | wire.QueuePut | wire.QueueLook
    | wire.Transact | wire.TransactionLook
)  # fmt: skip


class Router:
    """One per client, in its event loop."""

    def __init__(
        self, addresses: Sequence[str], name: str, settings: ClientSettings, role: PeerRole = PeerRole.CLIENT
    ) -> None:
        self.settings = settings
        self.map = ShardMap()
        self._seeds = list(addresses)
        self._name = name
        self._role = role
        # What nodes know this client by: it is there as long as one of its links is.
        self.run = secrets.token_hex(8)
        self._dialers: dict[str, Dialer] = {}
        self._hints: dict[str, tuple[int, str]] = {}
        self._asked: set[asyncio.Task[bool]] = set()
        self._forgetting: set[asyncio.Task[None]] = set()
        self._ignorant: set[str] = set()
        self._hurried: dict[str, float] = {}
        self._followed: dict[str, float] = {}
        self._refreshing: dict[str | None, asyncio.Task[bool]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.loop = asyncio.get_running_loop()
        # When the closing of the client is to be over; it has not begun.
        self.leave_by = inf
        # Runs a callback in the loop, from any thread. `LoopThread.post` raises Closed once it has ended.
        self.post: Callable[..., object] = self.loop.call_soon_threadsafe

    async def start(self, timeout_seconds: float) -> None:
        """Return when one node has answered; Unavailable if none does in time."""
        for address in self._seeds:
            self._dialer(address)
        deadline = self.loop.time() + timeout_seconds
        backoff = Backoff(self.settings)
        while not await self.refresh(None, deadline):
            if (left := deadline - self.loop.time()) <= 0:
                raise Unavailable(
                    f"no node of the cluster answers within {timeout_seconds:g} s: {self.trouble()}"
                )
            await asyncio.sleep(min(backoff.next(), left))
        self._watching = self.loop.create_task(self._watch_nodes())

    async def close(self, seconds: float | None = None) -> None:
        """Close the links, within so many seconds or the time that a link takes."""
        tasks: list[asyncio.Task[Any]] = [*self._refreshing.values(), *self._asked]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._forgetting, return_exceptions=True)
        closing = (dialer.close("the client closes", seconds) for dialer in self._dialers.values())
        await asyncio.gather(*closing)

    def end(self) -> None:
        """Cut the links that are left: the loop is about to stop."""
        for dialer in self._dialers.values():
            if dialer.link is not None:
                dialer.link.abort("the client ends")

    def trouble(self) -> str:
        """Why no node is of use."""
        reasons = [dialer.trouble for dialer in self._dialers.values() if dialer.link is None]
        reasons += [f"{each} has no operator yet; is one running?" for each in sorted(self._ignorant)]
        return "; ".join(reasons)

    # Links.

    def _dialer(self, address: str) -> Dialer:
        dialer = self._dialers.get(address)
        if dialer is None:
            dialer = self._dialers[address] = Dialer(address, self._identity)
            dialer.start()
        return dialer

    def _identity(self) -> Identity:
        return Identity(role=self._role, name=self._name, run=self.run, cluster=self.map.cluster)

    def link(self, address: str) -> Link | None:
        """The open link to a node, if there is one; otherwise it is dialed."""
        dialer = self._dialer(address)
        if dialer.link is not None and dialer.link.is_open:
            return dialer.link
        self._hurry(address, dialer)
        return None

    def _hurry(self, address: str, dialer: Dialer) -> None:
        now = self.loop.time()
        if now - self._hurried.get(address, -inf) >= _HURRY_SECONDS:
            self._hurried[address] = now
            dialer.hurry()

    def leader_link(self, shard: str) -> Link | None:
        """A link to whoever leads the shard as far as is known; None if there is no such link now."""
        address = self._leader_address(shard)
        return None if address is None else self.link(address)

    def reading_link(self, shard: str) -> Link | None:
        """A link to the leader, or else to any node that has a replica."""
        link = self.leader_link(shard)
        entry = self.map.shards.get(shard)
        if link is not None or entry is None:
            return link
        for member in entry.members:
            known = self.map.nodes.get(node_of(member))
            if known is not None and (link := self.link(known.address)) is not None:
                return link
        return None

    def _leader_address(self, shard: str) -> str | None:
        entry = self.map.shards.get(shard)
        hint = self._hints.get(shard)
        if hint is not None and (entry is None or entry.version <= hint[0]):
            return hint[1]
        if entry is None or entry.leader is None:
            return None
        known = self.map.nodes.get(node_of(entry.leader))
        return None if known is None else known.address

    def note(self, shard: str, failed: wire.Failed) -> bool:
        """A node sent us elsewhere; whether it is worth trying there at once. Not twice in a row: two nodes
        that know too little would send us to and fro."""
        self._hints.pop(shard, None)
        if failed.code is not wire.Code.NOT_LEADER or failed.leader is None:
            return False
        address = failed.leader[1]
        if address == self._leader_address(shard):
            return False
        entry = self.map.shards.get(shard)
        self._hints[shard] = (0 if entry is None else entry.version, address)
        now, pause = self.loop.time(), self.settings.backoff_most_seconds
        self._followed = {each: at for each, at in self._followed.items() if now - at <= pause}
        is_first = shard not in self._followed
        self._followed[shard] = now
        return is_first

    # The map.

    async def refresh(self, topic: str | None, deadline: float = inf) -> bool:
        """Ask any node for what it knows of a topic, or of all; False if none answers by the deadline. Calls
        at the same time share the answer."""
        task = self._refreshing.get(topic)
        if task is None:
            task = self._refreshing[topic] = self.loop.create_task(self._ask_for_map(topic))
            task.add_done_callback(lambda _: self._refreshing.pop(topic, None))
        await asyncio.wait((task,), timeout=self._left(deadline))
        if task.cancelled():
            raise Closed("this bus was closed meanwhile; connect again")
        return task.done() and task.result()

    def _left(self, deadline: float) -> float | None:
        return None if deadline == inf else max(0.0, deadline - self.loop.time())

    async def hear_late(self, deadline: float) -> None:
        """Return when every node that was asked for the map has answered, or will not any more, or at the
        deadline."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=self._left(deadline))

    async def _ask_for_map(self, topic: str | None) -> bool:
        links = [dialer.link for dialer in self._dialers.values() if dialer.link is not None]
        links = [link for link in links if link.is_open]
        if not links:
            for address in self._seeds:
                self._dialer(address)
            for address, dialer in self._dialers.items():
                self._hurry(address, dialer)
            return False
        # All of them, because one that is cut off from its operator knows an old map; but one that hangs must
        # not hold up the others.
        asked = {self.loop.create_task(self._map_of(link, topic)) for link in links}
        self._asked |= asked
        for each in asked:
            each.add_done_callback(self._asked.discard)
        answered, late = await asyncio.wait(asked, timeout=_SOON_SECONDS)
        if late and not any(each.result() for each in answered):
            more, _ = await asyncio.wait(late)
            answered |= more
        return any(each.result() for each in answered)

    async def _watch_nodes(self) -> None:
        """Dial the new nodes, and forget those that left."""
        for turn in count():
            await asyncio.sleep(_NODES_SECONDS)
            links = [dialer.link for dialer in self._dialers.values() if dialer.link is not None]
            links = [link for link in links if link.is_open]
            if links:
                await self._extract_of(links[turn % len(links)], _NO_TOPIC)

    async def _map_of(self, link: Link, topic: str | None) -> bool:
        found = await self._extract_of(link, topic)
        if found is None:
            return False
        self.map.merge(found)
        self._forget_hints()
        return True

    def _forget_hints(self) -> None:
        """Of deleted topics, and those that the map has caught up with."""
        for shard, (version, _) in list(self._hints.items()):
            name, entry = topic_of(shard), self.map.shards.get(shard)
            topic = self.map.topics.get(name)
            is_gone = topic is not None and (topic.deleted or not wire.has_shard(name, topic, shard))
            if is_gone or (entry is not None and entry.version > version):
                del self._hints[shard]

    async def _extract_of(self, link: Link, topic: str | None) -> wire.Map | None:
        """The map that a node knows: its nodes are merged and dialed, nothing else."""
        try:
            request = wire.GetMap(topic)
            answer = checked(link, request, await ask(link, wire.encode(request), _ASK_MAP_SECONDS))
        except TransportError:
            return None
        if not isinstance(answer, wire.Map) or not answer.cluster:
            # One that has just started knows nothing until an operator has told it.
            self._ignorant.add(link.address)
            return None
        self._ignorant.discard(link.address)
        self.map.merge_nodes(answer)
        addresses = {node.address for node in self.map.nodes.values()}
        for address in addresses:
            self._dialer(address)
        self._forget_others(addresses)
        return answer

    def _forget_others(self, addresses: Set[str]) -> None:
        """Dial only these, once one of them is reached; others as long as their links are open."""
        links = {address: dialer.link for address, dialer in self._dialers.items()}
        up = {address for address, link in links.items() if link is not None and link.is_open}
        if not addresses & up:
            return
        for address in links.keys() - addresses - up:
            task = self.loop.create_task(self._dialers.pop(address).close("the node left the cluster"))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)
            self._ignorant.discard(address)
            self._hurried.pop(address, None)
            for shard in [each for each, hint in self._hints.items() if hint[1] == address]:
                del self._hints[shard]

    def check_topic(self, topic: str, shard: str) -> None:
        """Closed if the topic that a shard belongs to is no more, as far as is known."""
        entry = self.map.topics.get(topic)
        if entry is not None and (entry.deleted or not wire.has_shard(topic, entry, shard)):
            kind = entry.kind
            raise Closed(f"{kind} {topic!r} was deleted; open it again with bus.{kind}()")

    async def look_after(self, topic: str, shard: str, deadline: float = inf) -> None:
        """Get a newer map, if one comes by the deadline; Closed if the topic is no more."""
        await self.refresh(topic, deadline)
        self.check_topic(topic, shard)

    # Requests.

    async def ask_leader(
        self,
        topic: str,
        shard: str,
        request: "_Repeatable",
        what: str,
        deadline: float,
        may_repeat: bool = True,
    ) -> wire.Answer:
        """The leader's answer to a request, which is sent again elsewhere until the time runs out. A request
        that must not be repeated is sent again only if it certainly had no effect; otherwise
        OutcomeUnknown."""
        body = wire.encode(request)
        began = self.loop.time()
        changes = not isinstance(request, _LOOKS)
        backoff, doubt = Backoff(self.settings), False
        trouble: str | wire.Failed = "nobody leads the shard"
        while (left := deadline - self.loop.time()) > 0:
            link = self.leader_link(shard)
            if link is not None:
                try:
                    seconds = min(left, self.settings.attempt_seconds)
                    answer = checked(link, request, await ask(link, body, seconds))
                except TransportError as error:
                    doubt, trouble = doubt or error.was_sent, str(error)
                else:
                    if not isinstance(answer, wire.Failed):
                        return answer
                    if not answer.retryable:
                        raise refused(answer, what, doubt and changes)
                    doubt, trouble = doubt or answer.outcome == "unknown", answer
                    if self.note(shard, answer) and (may_repeat or not doubt):
                        continue
            if doubt and not may_repeat:
                break
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - self.loop.time())))
            try:
                await self.look_after(topic, shard, deadline)
            except Closed as closed:
                raise ended(closed, what, doubt and changes) from None
        raise given_up(what, self.loop.time() - began, trouble, doubt and changes)

    async def ask_once(self, shard: str, request: wire.Request, seconds: float) -> wire.Answer | None:
        """The leader's answer to a single attempt; None if there is none."""
        link = self.leader_link(shard)
        if link is None:
            return None
        try:
            answer = checked(link, request, await ask(link, wire.encode(request), seconds))
        except TransportError:
            return None
        if isinstance(answer, wire.Failed):
            self.note(shard, answer)
        return answer

    async def ask_any(self, request: wire.Admin, what: str, deadline: float) -> wire.Answer:
        """The answer of any node to a request that may be repeated."""
        body = wire.encode(request)
        began = self.loop.time()
        backoff, doubt, turn = Backoff(self.settings), False, 0
        trouble: str | wire.Failed = "no node can be reached"
        heard = ""
        while (left := deadline - self.loop.time()) > 0:
            links = [each.link for each in self._dialers.values() if each.link is not None]
            if links:
                turn += 1
                try:
                    link = links[turn % len(links)]
                    answer = checked(link, request, await ask(link, body, left))
                except TransportError as error:
                    doubt, trouble = doubt or error.was_sent, f"{error}{heard}"
                else:
                    if not isinstance(answer, wire.Failed):
                        return answer
                    heard = f"; before that: {answer.text}"
                    if not answer.retryable:
                        # What is not there is certain, and all that a deletion in doubt wants to hear.
                        raise refused(answer, what, doubt and answer.code is not wire.Code.NOT_FOUND)
                    doubt, trouble = doubt or answer.outcome == "unknown", answer
            else:
                trouble = self.trouble()
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - self.loop.time())))
        raise given_up(what, self.loop.time() - began, trouble, doubt)
