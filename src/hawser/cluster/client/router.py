"""The router of a client: the shard map as the client knows it, and a link to each node.

The map is a hint. After a refusal or a timeout the router asks any node that it reaches for a newer map; the
nodes alone decide which one leads.

A node counts a client as present while it has a link to it (`node/transaction/client_registry.py`), so the
router keeps a link to every node of the cluster. It asks the nodes periodically, in turn, for the list of
nodes, because an idle client would otherwise never learn of a new one. An address that the newest list lacks
is forgotten when its link is down."""

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
# The least time between two immediate dials of a node, however many partitions want it.
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
    """One for each client. Lives in its event loop."""

    def __init__(
        self, addresses: Sequence[str], name: str, settings: ClientSettings, role: PeerRole = PeerRole.CLIENT
    ) -> None:
        self.settings = settings
        self.map = ShardMap()
        self._seeds = list(addresses)
        self._name = name
        self._role = role
        # The id of this client's session, which lives as long as one of its links.
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
        # The deadline of the client's closing; infinite until it begins.
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
        """Close the links, each of which says goodbye within `seconds`."""
        tasks: list[asyncio.Task[Any]] = [*self._refreshing.values(), *self._asked]
        if self._watching is not None:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._forgetting, return_exceptions=True)
        closing = (dialer.close("the client closes", seconds) for dialer in self._dialers.values())
        await asyncio.gather(*closing)

    def end(self) -> None:
        """Cut the remaining links, because the loop is about to stop."""
        for dialer in self._dialers.values():
            if dialer.link is not None:
                dialer.link.abort("the client ends")

    def trouble(self) -> str:
        """Why no node can be used."""
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
        """A link to the shard's leader by the known map; None if there is none now."""
        address = self._leader_address(shard)
        return None if address is None else self.link(address)

    def reading_link(self, shard: str) -> Link | None:
        """A link to the leader, or else to any replica."""
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
        """Learn from a refusal that names another leader; whether to try that one at once. Not twice in a
        row: two nodes with outdated maps would redirect the client to each other."""
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
        """Fetch a newer map of a topic, or of all, from any node; False if none answers by the deadline.
        Concurrent calls share the answer."""
        task = self._refreshing.get(topic)
        if task is None:
            task = self._refreshing[topic] = self.loop.create_task(self._ask_for_map(topic))
            task.add_done_callback(lambda _: self._refreshing.pop(topic, None))
        await asyncio.wait((task,), timeout=self._left(deadline))
        if task.cancelled():
            raise Closed("this bus was closed during the call; connect again")
        return task.done() and task.result()

    def _left(self, deadline: float) -> float | None:
        return None if deadline == inf else max(0.0, deadline - self.loop.time())

    async def hear_late(self, deadline: float) -> None:
        """Return when every node that was asked for the map has answered or failed, or at the deadline."""
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
        # Ask all of them: a node that is cut off from its operator has an old map. A node that hangs does not
        # delay the others.
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
        """Forget hints about deleted topics, and hints that the map has caught up with."""
        for shard, (version, _) in list(self._hints.items()):
            name, entry = topic_of(shard), self.map.shards.get(shard)
            topic = self.map.topics.get(name)
            is_gone = topic is not None and (topic.deleted or not wire.has_shard(name, topic, shard))
            if is_gone or (entry is not None and entry.version > version):
                del self._hints[shard]

    async def _extract_of(self, link: Link, topic: str | None) -> wire.Map | None:
        """Ask one node for its map; of the answer only the nodes are merged and dialed here."""
        try:
            request = wire.GetMap(topic)
            answer = checked(link, request, await ask(link, wire.encode(request), _ASK_MAP_SECONDS))
        except TransportError:
            return None
        if not isinstance(answer, wire.Map) or not answer.cluster:
            # A node that has just started knows no map until the operator sends it one.
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
        """Once one of these addresses is reached, dial only these, and keep other links only while they are
        open."""
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
        """Closed if the known map says that the shard's topic was deleted."""
        entry = self.map.topics.get(topic)
        if entry is not None and (entry.deleted or not wire.has_shard(topic, entry, shard)):
            kind = entry.kind
            raise Closed(f"{kind} {topic!r} was deleted; open it again with bus.{kind}()")

    async def look_after(self, topic: str, shard: str, deadline: float = inf) -> None:
        """Wait for a newer map until the deadline; Closed if the topic was deleted."""
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
        """The leader's answer to a request, which is retried, at other nodes if need be, until the deadline.
        A request that must not be repeated is retried only if it certainly had no effect, and otherwise
        raises OutcomeUnknown."""
        body = wire.encode(request)
        began = self.loop.time()
        changes = not isinstance(request, _LOOKS)
        backoff, doubt = Backoff(self.settings), False
        trouble: str | wire.Failed = "the shard has no leader"
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
        """The leader's answer to one attempt; None if there is none."""
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
        """The answer of any node to a repeatable request."""
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
                        # NotFound is certain, and the goal of a deletion in doubt.
                        raise refused(answer, what, doubt and answer.code is not wire.Code.NOT_FOUND)
                    doubt, trouble = doubt or answer.outcome == "unknown", answer
            else:
                trouble = self.trouble()
            await asyncio.sleep(min(backoff.next(), max(0.0, deadline - self.loop.time())))
        raise given_up(what, self.loop.time() - began, trouble, doubt)
