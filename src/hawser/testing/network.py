"""A network that loses, repeats, delays and cuts, and holds back what is for a process that stands still.

An address is "host" or "host.something"; the network looks at the host only. Whether the rest still fits is
for the receiver to judge. Nothing is ever promised about order: each message draws its own delay. What was
sent once may come again at any time, over restarts and epochs: a sample of it is kept, if that is asked for.
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
    """How bad the network is. Shares are between 0 and 1, delays in microseconds."""

    loss: float = 0.0
    duplication: float = 0.0
    delay_least: int = 50
    delay_most: int = 500
    straggling: float = 0.0  # the share that takes `straggling_delay_most` at the worst
    straggling_delay_most: int = 50_000


# Messages that come again take so long at the most.
_OLD_DELAY_MOST = 2_000
_NEWEST = 32
# (sender's address, receiver's address, message)
_DeadLetter = tuple[str, str, Message]


def host_of(address: str) -> str:
    """The part of an address that the network looks at."""
    return address.partition(".")[0]


class _Memory:
    """Messages of one kind: the newest, and a sample in which each ever sent is as likely to be."""

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
    """Carries any object; a share of the protocol's messages goes through its bytes and back."""

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
        # How many messages of each kind are kept, and for what share of those sent one of them comes again.
        self.remembered_most = 0
        self.recalled_share = 0.0
        self._remembered: dict[tuple[type, bool], _Memory] = {}
        self._kinds: list[tuple[type, bool]] = []
        self._receivers: dict[str, Receiver] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._clogs: dict[tuple[str, str], int] = {}
        self._held: dict[str, list[tuple[str, str, object]]] = {}

    def attach(self, host: str, receive: Receiver) -> None:
        """What is for `host` is handed to `receive`."""
        self._receivers[host] = receive

    def send(self, sender: str, to: str, payload: object) -> None:
        """Deliver it later: once, more than once, or not at all."""
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
        """Nothing gets from one host to the other, in this direction; what is under way arrives."""
        self._cuts.add((sender, to))

    def isolate(self, hosts: Iterable[str], among: Iterable[str] | None = None) -> None:
        """Cut both ways between these hosts and all others, or all others among these."""
        inside = set(hosts)
        involved = self._receivers if among is None else list(among)
        for one in involved:
            for other in involved:
                if (one in inside) != (other in inside):
                    self._cuts.add((one, other))

    def clog(self, sender: str, to: str, duration: int) -> None:
        """What is sent on this link until then arrives after it."""
        self._clogs[(sender, to)] = self.clock.now + duration

    def heal(self) -> None:
        """No link is cut or clogged any more. `faults` stay as they are."""
        self._cuts.clear()
        self._clogs.clear()

    def pause(self, host: str) -> None:
        """The host's process stands still: what is for it waits."""
        self._held.setdefault(host, [])

    def resume(self, host: str) -> None:
        """It gets everything that waited, in the order of its arrival."""
        for sender, to, payload in self._held.pop(host, []):
            self._deliver(sender, to, payload)

    def forget(self, host: str) -> None:
        """The host's process is gone, and what waited for it too."""
        self._held.pop(host, None)

    def _remember(self, sender: str, to: str, message: Message) -> None:
        """Keep it, and now and then let one of those that are kept come again; rare kinds come as often."""
        # To say no is another thing than to say yes, and much rarer.
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
        """A snapshot is asked for: the pieces of earlier ones come before it, in their order."""
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
