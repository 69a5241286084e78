"""The operator of a shard: elections, reconfigurations, supervision. All its durable state is in the store.

Every write to the metadata is a compare-and-set, and an operator continues only after its own write. Of two
operators, the one whose write came second reads what the other wrote and starts from there: they can cost
each other time, never a write. `tables.py` has the activities and their transitions.

An election resolves what stalls: it completes a swap or an expansion whose commit was stored, and undoes any
other change. Only a change whose new member does not appear is given up without one.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from hawser.log.entry import NO_ENTRY, EntryId
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import (
    Effect,
    Elect,
    Event,
    Load,
    Loaded,
    Order,
    Receive,
    Reconfigure,
    Report,
    Send,
    Store,
    Tick,
    Transfer,
)
from hawser.log.protocol.messages import ChangeKind, Member, Role
from hawser.log.protocol.metadata import Metadata, Phase, Status, majority
from hawser.log.protocol.tables import ACTIVITIES, Activity

__all__ = ["Operator"]

# The multiple of its patience that an operator waits for slow steps: a snapshot, a contraction that is not
# safe yet, a successor that catches up, an unavailable store.
_LONG = 8


class Operator:
    """One operator's view of one shard. `name` is unique to the process; `patience` is in ticks."""

    def __init__(self, name: str, patience: int = 10) -> None:
        assert patience > 1
        self.name = name
        self.patience = patience
        self.metadata: Metadata | None = None
        self.activity = Activity.WAITING
        self.status: dict[Member, m.StatusResponse] = {}
        self._silence: dict[Member, int] = {}
        # The most bytes of a snapshot that each member has pulled since the metadata last changed.
        self._pulled: dict[Member, int] = {}
        # Ticks since the activity began or last moved.
        self._idle = 0
        self._intended: Metadata | None = None
        self._heads: dict[Member, EntryId] = {}
        self._chosen: Member | None = None
        self._preferred: Member | None = None
        self._avoided: Member | None = None
        # Ticks for which the leader had uncommitted entries without progress.
        self._stuck = 0
        self._order: Order | None = None
        self._orders: deque[Order] = deque()
        self._handing_over = False
        # Whether the change in progress is a repair. Only the operator that began a contraction completes it.
        self._is_repair = False
        self._effects: list[Effect] = []
        self._messages: dict[type, Callable[[Member, Any], None]] = {
            m.FenceResponse: self._fenced,
            m.BecomeLeaderResponse: self._leads,
            m.PrepareReconfigurationResponse: self._prepared,
            m.SnapshotResponse: self._installed,
            m.CommitReconfigurationResponse: self._committed,
            m.HandOverResponse: self._handed_over,
            m.RetireResponse: self._retired,
            m.StatusResponse: self._told,
        }

    def step(self, event: Event | Order) -> list[Effect]:
        """The effects of `event`, in order."""
        self._effects = []
        if isinstance(event, Receive):
            handler = self._messages.get(type(event.message))
            if handler is not None and self.metadata is not None:
                handler(event.sender, event.message)
        elif isinstance(event, Tick):
            self._tick()
        elif isinstance(event, Loaded):
            self._loaded(event.metadata)
        else:
            assert isinstance(event, Order), event
            self._orders.append(event)
            self._begin_order()
        return self._effects

    # The store.

    def _store(self, metadata: Metadata) -> None:
        """Write the metadata; the next step begins when the store has it."""
        self._intended = metadata
        self._idle = 0
        self._effects.append(Store(metadata))

    def _next(self, **changes: object) -> Metadata:
        assert self.metadata is not None
        return self.metadata.next(writer=self.name, **changes)

    def _loaded(self, metadata: Metadata) -> None:
        if self.metadata is not None and metadata.version <= self.metadata.version:
            if self._intended is not None:
                # The write has not taken effect: repeat it.
                self._effects.append(Store(self._intended))
            return
        mine = metadata == self._intended
        self.metadata = metadata
        self._intended = None
        self._idle = 0
        self._pulled.clear()
        if mine:
            self._entered()
        else:
            self._taken_over()

    def _turn_to(self, activity: Activity) -> None:
        assert activity is self.activity or activity in ACTIVITIES[self.activity], (self.activity, activity)
        self.activity = activity

    def _taken_over(self) -> None:
        """Wait: another operator wrote, or this one before a restart; its work is not continued."""
        assert self.metadata is not None
        steady = self.metadata.status is Status.STEADY
        self._turn_to(Activity.WATCHING if steady else Activity.WAITING)
        self._preferred = self._avoided = None
        self._silence.clear()
        if steady and isinstance(self._order, Reconfigure) and self._is_done(self._order):
            self._finish_order(True, "the members are " + ", ".join(self.metadata.members))
        else:
            self._finish_order(False, "another operator changed the shard; ask again")
        if steady:
            self._begin_order()
        elif not self.metadata.writer:
            # A new shard that no operator has seen.
            self.elect()

    def _entered(self) -> None:
        """Carry out our own write, which the store has now."""
        metadata = self.metadata
        assert metadata is not None
        if metadata.status is Status.ELECTION:
            self._turn_to(Activity.FENCING)
            self._heads.clear()
            self._chosen = None
        elif metadata.status is Status.STEADY:
            self._settled()
            return
        elif metadata.phase is Phase.PREPARE:
            self._turn_to(Activity.PREPARING)
        else:
            self._turn_to(Activity.COMMITTING)
        self._ask()

    def _settled(self) -> None:
        """Report the order: our write made the shard steady."""
        metadata = self.metadata
        assert metadata is not None
        self._turn_to(Activity.WATCHING)
        self._silence.clear()
        self._stuck = 0
        self._preferred = self._avoided = None
        order = self._order
        if isinstance(order, Transfer):
            self._finish_order(metadata.leader == order.to, f"the leader is {metadata.leader}")
        elif isinstance(order, Reconfigure):
            self._settle_change(order)
        else:
            self._finish_order(True, f"the leader is {metadata.leader}")
        self._begin_order()

    def _is_done(self, order: Reconfigure) -> bool:
        assert self.metadata is not None
        members, change = self.metadata.members, order.change
        return change.old not in members and (change.new is None or change.new in members)

    def _settle_change(self, order: Reconfigure) -> None:
        metadata, change = self.metadata, order.change
        assert metadata is not None
        if self._is_done(order):
            self._finish_order(True, "the members are " + ", ".join(metadata.members))
        elif self._handing_over and change.old in metadata.members and change.old != metadata.leader:
            # The leader has handed over and can be removed now.
            self._handing_over = False
            self._orders.appendleft(order)
            self._order = None
        else:
            self._finish_order(False, f"the {change.kind} was undone; ask again")

    # Time passes.

    def _tick(self) -> None:
        self._idle += 1
        if self.metadata is None or self._intended is not None:
            self._effects.append(Load())
            if self._idle > self.patience * _LONG:
                self._withdraw_orders()
            return
        for member in self._watched():
            self._silence[member] = self._silence.get(member, 0) + 1
            self._send(member, m.StatusRequest(self.metadata.epoch))
        if self.activity is Activity.WATCHING:
            self._watch()
        elif self.activity is Activity.WAITING:
            self._effects.append(Load())
            if self._idle > self._patience_with_others():
                self.elect()
        else:
            self._go_on()

    def _withdraw_orders(self) -> None:
        """Fail the orders while the store is away. A write may still take effect and is then carried out."""
        metadata = self.metadata
        if metadata is None:
            return
        if self._handing_over and metadata.leader is not None:
            self._send(metadata.leader, m.HandOverRequest(metadata.epoch, None))
        while self._order is not None or self._orders:
            self._order = self._order or self._orders.popleft()
            self._finish_order(
                False, "the metadata store does not answer; the order may still be done when it does"
            )

    def _patience_with_others(self) -> int:
        """The ticks that another operator's work may stand still; the store does not show its snapshot."""
        metadata = self.metadata
        assert metadata is not None
        leader = metadata.leader
        alive = leader is not None and self._silence.get(leader, 0) <= self.patience
        return self.patience * (_LONG + 1) if alive else self.patience

    def _watched(self) -> list[Member]:
        metadata = self.metadata
        assert metadata is not None
        new = metadata.change.new if metadata.change else None
        return [*metadata.members, *([new] if new else [])]

    def _watch(self) -> None:
        metadata = self.metadata
        assert metadata is not None
        for member in metadata.removed:
            self._send(member, m.RetireRequest(metadata.epoch))
        if self._idle % self.patience == 0:
            # Another operator may have begun a change and died before any member heard of it.
            self._effects.append(Load())
        if metadata.leader is None or self._silence.get(metadata.leader, 0) > self.patience:
            self.elect()
        elif self._stuck > self.patience * _LONG:
            # The leader answers, but too few members answer it.
            self._avoided = metadata.leader
            self.elect()
        elif self._handing_over:
            self._ask_to_hand_over()
        else:
            self._begin_order()

    def _go_on(self) -> None:
        """Repeat the requests of an election or a change; if it stalls, elect anew or give the change up."""
        leader = self.metadata.leader if self.metadata else None
        quiet = self._silence.get(leader, 0) if leader is not None else self._idle
        if self.activity in (Activity.FENCING, Activity.APPOINTING):
            if self.activity is Activity.APPOINTING and self._idle > self.patience:
                # It was fenced but does not lead: its disk may be full.
                self._avoided = self._chosen
                self.elect()
                return
            self._choose()
        elif quiet > self.patience or self._idle > self.patience * _LONG:
            if self.activity is Activity.INSTALLING and quiet <= self.patience:
                self._give_up()
            else:
                self.elect()
            return
        self._ask()

    def _give_up(self) -> None:
        """Give up a change whose new member does not appear; only the leader knows of the change."""
        removed = self._without_new()
        self._store(self._next(status=Status.STEADY, change=None, phase=None, new_head=None, removed=removed))

    def _without_new(self) -> tuple[Member, ...]:
        """The members that must delete their data when the change is dropped, its new member included."""
        metadata = self.metadata
        assert metadata is not None
        new = metadata.change.new if metadata.change else None
        return metadata.removed if new is None else (*metadata.removed, new)

    def _ask(self) -> None:
        """Send or repeat the requests that the current activity waits for."""
        metadata = self.metadata
        assert metadata is not None
        epoch, change, leader = metadata.epoch, metadata.change, metadata.leader
        if self.activity is Activity.FENCING:
            for member in metadata.fencing_ensemble:
                if member not in self._heads:
                    self._send(member, m.FenceRequest(epoch))
        elif self.activity is Activity.APPOINTING:
            assert self._chosen is not None
            followers = {
                member: self._heads[member]
                for member in metadata.final_ensemble
                if member in self._heads and member != self._chosen
            }
            self._send(self._chosen, m.BecomeLeaderRequest(epoch, metadata.final_ensemble, followers))
        elif change is not None and leader is not None:
            if self.activity is Activity.PREPARING:
                self._send(leader, m.PrepareReconfigurationRequest(epoch, change))
            elif self.activity is Activity.INSTALLING:
                assert change.new is not None
                self._send(change.new, m.SnapshotRequest(epoch, leader))
            elif self.activity is Activity.COMMITTING:
                head = metadata.new_head or NO_ENTRY
                self._send(leader, m.CommitReconfigurationRequest(epoch, change, head))

    def _send(self, to: Member, message: m.Message) -> None:
        self._effects.append(Send(to, message))

    # Elections.

    def elect(self) -> None:
        """Begin an election: a stalled change is completed if its commit decides it, else dropped."""
        metadata = self.metadata
        assert metadata is not None
        decided = metadata.decided_change
        self._store(
            self._next(
                epoch=metadata.epoch + 1,
                status=Status.ELECTION,
                leader=None,
                change=decided,
                phase=metadata.phase if decided else None,
                new_head=metadata.new_head if decided else None,
                removed=metadata.removed if decided else self._without_new(),
            )
        )

    def _fenced(self, sender: Member, message: m.FenceResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        if message.epoch != metadata.epoch:
            return
        if self.activity is Activity.FENCING and sender in metadata.fencing_ensemble:
            self._heads[sender] = message.head
            self._choose()
        elif self.activity is Activity.APPOINTING:
            self._heads[sender] = message.head
            if self._chosen is not None and sender != self._chosen and sender in metadata.final_ensemble:
                # The leader may lead already without knowing this one.
                self._send(self._chosen, m.AddFollowerRequest(message.epoch, sender, message.head))
        elif self.activity is Activity.WATCHING and metadata.leader and sender in metadata.members:
            self._send(metadata.leader, m.AddFollowerRequest(message.epoch, sender, message.head))

    def _choose(self) -> None:
        """Choose the member with the highest head; with a majority fenced, no entry can be committed."""
        metadata = self.metadata
        assert metadata is not None
        if self.activity is not Activity.FENCING:
            return
        if len(self._heads) < majority(len(metadata.fencing_ensemble)):
            return
        heads, preferred = self._heads, self._preferred
        if self._idle < self.patience and preferred in metadata.final_ensemble and preferred not in heads:
            return
        if self._avoided in heads and len(heads) > majority(len(metadata.fencing_ensemble)):
            heads = {member: head for member, head in heads.items() if member != self._avoided}
        elif self._avoided in heads and self._idle < self.patience:
            return
        candidates = [member for member in metadata.final_ensemble if member in heads]
        if candidates:
            self._chosen = max(candidates, key=lambda member: (heads[member], member == preferred))
            self._turn_to(Activity.APPOINTING)
            self._idle = 0
            self._ask()

    def _leads(self, sender: Member, message: m.BecomeLeaderResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        if self.activity is not Activity.APPOINTING or message.epoch != metadata.epoch:
            return
        if sender != self._chosen or self._intended is not None:
            return
        final = metadata.final_ensemble
        removed = tuple(member for member in metadata.members if member not in final)
        self._store(
            self._next(
                status=Status.STEADY,
                leader=sender,
                members=final,
                copies=max(metadata.copies, len(final)),
                change=None,
                phase=None,
                new_head=None,
                removed=(*metadata.removed, *removed),
            )
        )

    # Reconfigurations.

    def _begin_order(self) -> None:
        """Begin the next order if the shard is steady."""
        metadata = self.metadata
        if self._order is not None or not self._orders or metadata is None or self._intended is not None:
            return
        if self.activity is not Activity.WATCHING:
            return
        order = self._order = self._orders.popleft()
        if isinstance(order, Elect):
            self.elect()
        elif isinstance(order, Transfer):
            self._begin_transfer(order)
        else:
            self._begin_change(order)

    def _begin_transfer(self, order: Transfer) -> None:
        assert self.metadata is not None
        if order.to not in self.metadata.members:
            self._finish_order(False, f"{order.to} is not a member; expand or swap it in first")
        elif order.to == self.metadata.leader:
            self._finish_order(True, f"the leader is {order.to}")
        else:
            self._start_handing_over(order.to)

    def _begin_change(self, order: Reconfigure) -> None:
        metadata, change = self.metadata, order.change
        assert metadata is not None
        wrong = _why_not(metadata, order)
        if wrong:
            self._finish_order(False, wrong)
        elif change.old == metadata.leader:
            others = [member for member in metadata.members if member != change.old]
            leading = self.status.get(metadata.leader) if metadata.leader else None
            lag = leading.lag if leading else {}
            self._start_handing_over(min(others, key=lambda member: (lag.get(member, 1 << 62), member)))
        else:
            self._is_repair = order.is_repair
            self._store(
                self._next(
                    epoch=metadata.epoch + 1,
                    status=Status.RECONFIGURATION,
                    change=change,
                    phase=Phase.PREPARE,
                    new_head=None,
                )
            )

    def _prepared(self, _: Member, message: m.PrepareReconfigurationResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        if self.activity is not Activity.PREPARING or message.epoch != metadata.epoch or self._intended:
            return
        if message.change.kind is ChangeKind.CONTRACT:
            self._store(self._next(phase=Phase.COMMIT))
        else:
            self._turn_to(Activity.INSTALLING)
            self._idle = 0
            self._ask()

    def _installed(self, sender: Member, message: m.SnapshotResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        if self.activity is not Activity.INSTALLING or message.epoch != metadata.epoch or self._intended:
            return
        if metadata.change is not None and sender == metadata.change.new:
            self._store(self._next(phase=Phase.COMMIT, new_head=message.head))

    def _committed(self, _: Member, message: m.CommitReconfigurationResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        if self.activity is not Activity.COMMITTING or message.epoch != metadata.epoch or self._intended:
            return
        if message.safe:
            old, members = message.change.old, message.change.applied_to(metadata.members)
            is_contracted = message.change.kind is ChangeKind.CONTRACT and not self._is_repair
            self._store(
                self._next(
                    status=Status.STEADY,
                    members=members,
                    copies=len(members) if is_contracted else max(metadata.copies, len(members)),
                    change=None,
                    phase=None,
                    new_head=None,
                    removed=(*metadata.removed, *([old] if old else [])),
                )
            )

    def _finish_order(self, done: bool, text: str) -> None:
        self._handing_over = False
        if self._order is not None:
            order, self._order = self._order, None
            self._effects.append(Report(order.tag, done, text))

    # Handing over.

    def _start_handing_over(self, to: Member) -> None:
        self._preferred = to
        self._handing_over = True
        self._idle = 0
        self._ask_to_hand_over()

    def _ask_to_hand_over(self) -> None:
        metadata = self.metadata
        assert metadata is not None and metadata.leader is not None
        if self._idle > self.patience * _LONG:
            self._send(metadata.leader, m.HandOverRequest(metadata.epoch, None))
            self._finish_order(False, f"{self._preferred} did not catch up; it can be asked again")
            self._preferred = None
        else:
            self._send(metadata.leader, m.HandOverRequest(metadata.epoch, self._preferred))

    def _handed_over(self, _: Member, message: m.HandOverResponse) -> None:
        assert self.metadata is not None
        if message.epoch != self.metadata.epoch or self._intended is not None:
            return
        if self.activity is Activity.WATCHING and self._handing_over and message.successor == self._preferred:
            self.elect()

    # Supervision: what members report, and members that delete their data.

    def _told(self, sender: Member, message: m.StatusResponse) -> None:
        """Note a member's status: reload after a higher epoch, elect if the leader does not lead any more."""
        metadata = self.metadata
        assert metadata is not None
        self._silence[sender] = 0
        before = self.status.get(sender)
        self.status[sender] = message
        if self._intended is not None:
            return
        if message.epoch > metadata.epoch:
            self._effects.append(Load())
        elif sender == metadata.leader:
            self._told_by_leader(metadata, message, before)
        # A snapshot in progress counts as progress, and its leader may have to wait for it.
        elif message.pulled > self._pulled.get(sender, 0):
            self._pulled[sender] = message.pulled
            self._stuck = 0
            if self.activity in (Activity.INSTALLING, Activity.WAITING):
                self._idle = 0

    def _told_by_leader(
        self, metadata: Metadata, message: m.StatusResponse, before: m.StatusResponse | None
    ) -> None:
        changing = metadata.status is Status.RECONFIGURATION
        if message.role is not Role.LEADER:
            # It was restarted or deposed if it led in the epoch it should lead in; otherwise the status is an
            # old one.
            if message.led and message.epoch >= metadata.epoch - changing:
                self.elect()
        elif self.activity is Activity.WATCHING and message.epoch == metadata.epoch:
            self._stuck = 0 if _moves(before, message) else self._stuck + 1
            leader = metadata.leader
            assert leader is not None
            if message.change is not None:
                self._send(leader, m.AbortReconfigurationRequest(metadata.epoch, message.change))
            elif message.handing_over and not self._handing_over:
                self._send(leader, m.HandOverRequest(metadata.epoch, None))

    def _retired(self, sender: Member, _: m.RetireResponse) -> None:
        metadata = self.metadata
        assert metadata is not None
        busy = self.activity is not Activity.WATCHING or self._order is not None or self._intended is not None
        if not busy and sender in metadata.removed:
            removed = tuple(member for member in metadata.removed if member != sender)
            self._store(self._next(removed=removed))


def _moves(before: m.StatusResponse | None, now: m.StatusResponse) -> bool:
    """Whether a leader has made progress with its writes and reads, if there are any."""
    if before is None:
        return True
    writes = before.commit != now.commit or now.head.index == now.commit
    reads = before.reading != now.reading or now.reading == 0
    return writes and reads


def _why_not(metadata: Metadata, order: Reconfigure) -> str:
    """Why this change of the ensemble cannot begin; empty if it can."""
    change, members = order.change, metadata.members
    if change.old is not None and change.old not in members:
        return f"{change.old} is not a member; the members are {', '.join(members)}"
    if change.new is not None and change.new in members:
        return f"{change.new} is a member already"
    if change.new is not None and change.new in metadata.removed:
        return f"{change.new} was removed and is to be deleted; give it a new disk first"
    if change.kind is ChangeKind.SWAP and len(members) < 3:
        return f"a swap needs three members, there are {len(members)}; expand, then contract"
    if change.kind is ChangeKind.EXPAND and order.is_repair and len(members) >= metadata.copies:
        return f"a repair is not needed any more, all copies are there: {', '.join(members)}"
    if change.kind is ChangeKind.CONTRACT and len(members) < 2:
        return "the last member cannot be removed; delete the topic or queue instead"
    return ""
