"""A network that loses, repeats, delays and cuts, and holds back what is for a process that stands still.

An address is "host" or "host.something"; the network looks at the host only. Whether the rest still fits is
for the receiver to judge. Nothing is ever promised about order: each message draws its own delay.
"""

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from hawser.log.protocol.messages import Message, decode, encode
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


def host_of(address: str) -> str:
    """The part of an address that the network looks at."""
    return address.partition(".")[0]


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
        self.sent = self.lost = self.duplicated = self.encoded = self.cut = self.held = 0
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

    def isolate(self, hosts: Iterable[str]) -> None:
        """Cut both ways between these hosts and all others."""
        inside = set(hosts)
        for one in self._receivers:
            for other in self._receivers:
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
