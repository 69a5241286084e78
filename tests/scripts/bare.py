"""A node without a disk: its log is a list, and what it must keep to the letter is checked at every step."""

from collections.abc import Iterable, Sequence

from hawser.log.entry import NO_ENTRY, Entry, EntryId, Kind
from hawser.log.epochs import Epochs
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Append,
    Command,
    Effect,
    Event,
    Persist,
    Promise,
    Propose,
    Receive,
    Send,
    Synced,
    Truncate,
)
from hawser.log.protocol.messages import Role
from hawser.log.protocol.node import Limits, Node

__all__ = ["Bare", "epochs_of", "log_of"]


def log_of(*epochs: int) -> list[Entry]:
    """A log whose first entry is of the first of these epochs, and so on."""
    return [Entry.make(epoch, index) for index, epoch in enumerate(epochs, 1)]


def epochs_of(entries: Sequence[Entry]) -> Epochs:
    epochs = Epochs()
    epochs.extend(entries)
    return epochs


class Bare:
    """Nothing is synced before `sync` says so; what is there at the beginning is."""

    def __init__(
        self,
        member: str = "n1",
        entries: Iterable[Entry] = (),
        promise: Promise | None = None,
        limits: Limits | None = None,
        first: int = 1,
    ) -> None:
        self.log = list(entries)
        self.first = first
        head = self.log[-1].id if self.log else NO_ENTRY
        self.persisted = promise or Promise(head.epoch)
        self.node = Node(member, 1, self.persisted, epochs_of(self.log), 0, self, limits or Limits())

    # The log as the node reads it.

    def read(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        assert self.first <= first <= last <= len(self.log)
        chosen: list[Entry] = []
        for entry in self.log[first - 1 : last]:
            max_bytes -= len(entry.frame)
            if chosen and max_bytes < 0:
                break
            chosen.append(entry)
        return chosen

    # Events.

    def step(self, event: Event) -> list[Effect]:
        node = self.node
        epoch, commit = node.epoch, node.commit
        effects = node.step(event)
        for effect in effects:
            self._carry_out(effect)
        assert node.epoch >= epoch, "the epoch went back"
        assert commit <= node.commit, "the commit index went back"
        assert node.applied <= min(node.commit, node.synced)
        assert node.halted or node.head == (self.log[-1].id if self.log else NO_ENTRY)
        return effects

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Persist):
            assert effect.promise.epoch >= self.persisted.epoch
            self.persisted = effect.promise
        elif isinstance(effect, Append):
            assert effect.entries[0].index == len(self.log) + 1
            self.log += effect.entries
        elif isinstance(effect, Truncate):
            assert effect.to.index >= self.node.commit
            del self.log[effect.to.index :]
        elif isinstance(effect, Send):
            self._check_said(effect.message)

    def _check_said(self, message: m.Message) -> None:
        """Durable before said: the epoch, and every entry that is spoken for."""
        assert message.epoch <= self.persisted.epoch
        if isinstance(message, m.FenceResponse | m.TruncateResponse | m.SnapshotResponse):
            assert message.head.index <= self.node.synced
        elif isinstance(message, m.AddEntriesResponse) and message.accepted:
            assert message.head.index <= self.node.synced
            assert message.head in self.node.epochs

    def hear(self, sender: str, message: m.Message) -> list[Effect]:
        return self.step(Receive(sender, message))

    def told(self, sender: str, message: m.Message) -> list[m.Message]:
        """What the sender gets for it."""
        effects = self.hear(sender, message)
        return [each.message for each in effects if isinstance(each, Send) and each.to == sender]

    def sync(self) -> list[Effect]:
        return self.step(Synced(len(self.log)))

    def propose(self, *names: str) -> list[Effect]:
        return self.step(Propose(tuple(Command(Kind.BATCH, name.encode(), name) for name in names)))

    def lead(self, epoch: int, members: tuple[str, ...], heads: dict[str, EntryId]) -> list[Effect]:
        """Fence it and make it the leader."""
        self.hear("o", m.FenceRequest(epoch))
        effects = self.hear("o", m.BecomeLeaderRequest(epoch, members, heads))
        assert self.node.role is Role.LEADER
        return effects
