"""A simulated network that loses, repeats and delays messages, cuts links, and holds messages for paused
processes.

An address is "host" or "host.something"; the network uses the host only, and the receiver checks the rest.
Order is not guaranteed: each message has a random delay. If it is configured, a sample of old messages is
kept, and any of them may arrive again at any time, across restarts and epochs.
"""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random

import msgspec

from hawser.log.protocol.messages import Message, ReadSnapshotRequest, ReadSnapshotResponse, decode, encode
from hawser.testing.clock import SimClock

__all__ = ["NetworkFaults", "SimNetwork", "host_of"]

# (sender's address, receiver's address, payload)
Receiver = Callable[[str, str, object], None]


class NetworkFaults(msgspec.Struct, frozen=True):
    """The faults of the network. Shares are between 0 and 1, delays in microseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_least: int = 50
    delay_most: int = 500
    straggling: float = 0.0  # the share that takes `straggling_delay_most` at the worst
    straggling_delay_most: int = 50_000


# The maximum delay of repeated messages.
_OLD_DELAY_MOST = 2_000
_NEWEST = 32
# (sender's address, receiver's address, message)
_DeadLetter = tuple[str, str, Message]


def host_of(address: str) -> str:
    """The host in an address."""
    return address.partition(".")[0]


class _Memory:
    """Old messages of one kind: the newest ones, and a uniform sample of all."""

    __slots__ = ("_count", "_newest", "_sample")

    def __init__(self) -> None:
        self._count = 0
        self._newest: deque[_DeadLetter] = deque(maxlen=_NEWEST)
        self._sample: list[_DeadLetter] = []

    def keep(self, letter: _DeadLetter, most: int, random: Random) -> None:
        self._count += 1
        self._newest.append(letter)
        if len(self._sample) < most:
            self._sample.append(letter)
        else:
            place = int(random.random() * self._count)
            if place < most:
                self._sample[place] = letter

    def newest_between(self, sender: str, to: str) -> list[_DeadLetter]:
        return [letter for letter in self._newest if letter[:2] == (sender, to)]

    def recall(self, random: Random) -> _DeadLetter:
        return random.choice(self._newest if random.random() < 0.5 else self._sample)


class SimNetwork:
    """Carries any objects; a share of the protocol's messages is encoded and decoded."""

    def __init__(
        self,
        clock: SimClock,
        random: Random,
        faults: NetworkFaults | None = None,
        encoded_share: float = 0.1,
    ) -> None:
        self.clock = clock
        self.random = random
        self.faults = faults or NetworkFaults()
        self.encoded_share = encoded_share
        self.sent = self.lost = self.duplicated = self.encoded = self.cut = self.held = self.recalled = 0
        # The number of kept messages of each kind, and the share of sent messages after which one arrives
        # again.
        self.remembered_most = 0
        self.recalled_share = 0.0
        self._remembered: dict[tuple[type, bool], _Memory] = {}
        self._kinds: list[tuple[type, bool]] = []
        self._receivers: dict[str, Receiver] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._clogs: dict[tuple[str, str], int] = {}
        self._held: dict[str, list[tuple[str, str, object]]] = {}

    def attach(self, host: str, receive: Receiver) -> None:
        """Deliver messages for `host` to `receive`."""
        self._receivers[host] = receive

    def send(self, sender: str, to: str, payload: object) -> None:
        """Deliver the message later: once, several times, or never."""
        self.sent += 1
        random, faults = self.random, self.faults
        if self.remembered_most and isinstance(payload, Message):
            self._remember(sender, to, payload)
        link = (host_of(sender), host_of(to))
        if link in self._cuts:
            self.cut += 1
            return
        if faults.loss and random.random() < faults.loss:
            self.lost += 1
            return
        if isinstance(payload, Message) and random.random() < self.encoded_share:
            payload = self._through_bytes(payload)
        self.clock.after(self._delay(link), self._deliver, sender, to, payload)
        if faults.duplication and random.random() < faults.duplication:
            self.duplicated += 1
            self.clock.after(self._delay(link), self._deliver, sender, to, payload)

    def cut_link(self, sender: str, to: str) -> None:
        """Cut the link from one host to the other, in this direction; messages in flight arrive."""
        self._cuts.add((sender, to))

    def isolate(self, hosts: Iterable[str], among: Iterable[str] | None = None) -> None:
        """Cut the links between these hosts and the others, in both directions."""
        inside = set(hosts)
        involved = self._receivers if among is None else list(among)
        for one in involved:
            for other in involved:
                if (one in inside) != (other in inside):
                    self._cuts.add((one, other))

    def clog(self, sender: str, to: str, duration: int) -> None:
        """Delay messages that are sent on this link until that time."""
        self._clogs[(sender, to)] = self.clock.now + duration

    def heal(self) -> None:
        """Restore all links. `faults` do not change."""
        self._cuts.clear()
        self._clogs.clear()

    def pause(self, host: str) -> None:
        """Pause the process of the host; messages for it wait."""
        self._held.setdefault(host, [])

    def resume(self, host: str) -> None:
        """Resume the process; waiting messages arrive in order."""
        for sender, to, payload in self._held.pop(host, []):
            self._deliver(sender, to, payload)

    def forget(self, host: str) -> None:
        """Remove the process of the host and its waiting messages."""
        self._held.pop(host, None)

    def _remember(self, sender: str, to: str, message: Message) -> None:
        """Keep the message, and sometimes deliver a kept one again, with equal chance for each kind."""
        # A refusal is a kind of its own, because it is rarer than an approval.
        random, kind = self.random, (type(message), getattr(message, "accepted", True))
        memory = self._remembered.get(kind)
        if memory is None:
            memory = self._remembered[kind] = _Memory()
            self._kinds.append(kind)
        memory.keep((sender, to, message), self.remembered_most, random)
        if self.recalled_share:
            self._recall(sender, to, message)

    def _recall(self, sender: str, to: str, message: Message) -> None:
        random = self.random
        begins = isinstance(message, ReadSnapshotRequest) and not message.snapshot
        if begins and random.random() < 0.5:
            self._recall_pieces(sender, to)
        if random.random() < self.recalled_share:
            self.recalled += 1
            old = self._remembered[random.choice(self._kinds)].recall(random)
            self.clock.after(1 + int(random.random() * _OLD_DELAY_MOST), self._deliver, *old)

    def _recall_pieces(self, puller: str, leader: str) -> None:
        """Deliver pieces of earlier snapshots, in order, before the requested one."""
        memory = self._remembered.get((ReadSnapshotResponse, True))
        pieces = memory.newest_between(leader, puller) if memory is not None else []
        for delay, piece in enumerate(pieces, 1):
            self.recalled += 1
            self.clock.after(delay, self._deliver, *piece)

    def _delay(self, link: tuple[str, str]) -> int:
        faults, random = self.faults, self.random
        most = faults.delay_most
        if faults.straggling and random.random() < faults.straggling:
            most = faults.straggling_delay_most
        delay = faults.delay_least + int(random.random() * (most - faults.delay_least))
        if self._clogs:
            delay += max(0, self._clogs.get(link, 0) - self.clock.now)
        return delay

    def _deliver(self, sender: str, to: str, payload: object) -> None:
        host = host_of(to)
        if host in self._held:
            self.held += 1
            self._held[host].append((sender, to, payload))
        elif host in self._receivers:
            self._receivers[host](sender, to, payload)

    def _through_bytes(self, message: Message) -> Message:
        data = encode(message)
        copy = decode(data)
        assert copy == message, f"{message!r} came out of its bytes as {copy!r}"
        assert encode(copy) == data, f"{message!r} has more than one encoding"
        self.encoded += 1
        return copy
