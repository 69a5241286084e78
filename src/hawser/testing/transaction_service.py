"""The transaction service of a simulated leader.

The maintenance of branches and the coordinator are made and dropped as `hawser.transaction` asks for.
They speak with other shards over those shards' networks, which lose what they like. A second of theirs is
short, so that time-outs are common.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.replica import Replica
from hawser.log.state.results import Answered, Outcome, Reason, Rejected, Result
from hawser.testing.clients import Errand, Failure, Inquiry, Reply, Request, Tag, Verdict
from hawser.transaction.commands import CoordinatorCall, CoordinatorClose, id_of
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import LANE_FORMAT, TransactionId
from hawser.transaction.participant import maintenance as k
from hawser.transaction.participant.branches import Branches
from hawser.transaction.xa.table import RECOVERABLE, Call, Code

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster
    from hawser.testing.node import SimNode

__all__ = ["SECOND", "Chore", "TransactionService", "recoverable"]

# A second of the keepers and the coordinators, in microseconds.
SECOND: Final = 15_000
TICK_SECONDS: Final = 0.5
PATIENCE: Final = 15_000
# From an answer that nothing is decided to what a slow process makes of that, at the most.
_HESITATION: Final = 60_000
# How far back a staged batch lies before it is carried forward.
CARRY_ENTRIES: Final = 80

_read_close: Final = msgspec.msgpack.Decoder(CoordinatorClose).decode
_read_call: Final = msgspec.msgpack.Decoder(CoordinatorCall).decode

# What a client waits for: a transaction, or what a call of this name gets.
_Awaited = tuple[TransactionId, Call | None, bytes]


def recoverable(coordinator: Decisions) -> list[TransactionId]:
    """What coordinators are told that ask for it, in order."""
    return sorted(each for each, record in coordinator.ledger.register if record.state("") in RECOVERABLE)


class Chore:
    """The tag of an entry that a leader wants by itself. No two are the same, and nobody waits for one."""

    def __repr__(self) -> str:
        return "Chore()"


class TransactionService:
    """That of one process. `address` is where other shards send their answers."""

    def __init__(self, cluster: "Cluster", host: "SimNode") -> None:
        self.address = f"{cluster.shard}-{host.name}"
        self._cluster = cluster
        self._host = host
        self._random = cluster.stream(f"{host.name}/office")
        self._asked: dict[int, c.Tell | k.Ask] = {}
        self._number = 0
        self.forget()

    def forget(self) -> None:
        """The process ended, or leads no more."""
        self._epoch = 0
        self._branch_maintenance: k.BranchMaintenance | None = None
        self._coordinator: c.Coordinator | None = None
        self._asked.clear()
        self._awaited: dict[Tag, _Awaited] = {}
        self._events: list[c.Event] = []
        self._applied = 0
        self._ticked = 0.0

    @property
    def _now(self) -> float:
        return self._cluster.clock.now / SECOND

    def open(self, replica: Replica) -> None:
        """To be called after every step: be there if this process leads and has applied all that came before
        it did, and look at what was applied since."""
        leading = replica.node.leadership
        if leading is None or self._cluster.ring is None:
            if self._epoch:
                self.forget()
            return
        if self._epoch != leading.since:
            self.forget()
            if not leading.ready:
                return
            self._begin(replica, leading.since)
        elif replica.machine.applied != self._applied and len(
            replica.machine.part(Decisions).ledger.register
        ):
            self._add(c.Changed(self._now))
        self._applied = replica.machine.applied

    def _begin(self, replica: Replica, epoch: int) -> None:
        self._epoch = epoch
        branches, coordinator = replica.machine.part(Branches), replica.machine.part(Decisions)
        probes = self._cluster.probes
        probes.count("led by another one, with open branches", branches.open_count > 0 and epoch > 1)
        probes.count("led by another one, with prepared branches", branches.prepared_count > 0)
        probes.count("home led by another one", len(coordinator.ledger.register) > 0)
        is_lane = any(each.xid.format == LANE_FORMAT for each, _ in coordinator.ledger.register)
        probes.count("others told by another leader", is_lane and epoch > 1)
        self._branch_maintenance = k.BranchMaintenance(branches)
        self._coordinator = c.Coordinator(coordinator, self._coordinator_name)
        self._add(c.Began(self._now))

    @property
    def _coordinator_name(self) -> str:
        ring = self._cluster.ring
        assert ring is not None
        return ring.home_on(self._cluster)

    def _add(self, event: c.Event) -> None:
        """It is looked at when the step that it came from is through."""
        if not self._events:
            self._cluster.clock.after(1, self._work, self._host.incarnation, self._epoch)
        self._events.append(event)

    def _work(self, incarnation: int, epoch: int) -> None:
        if incarnation != self._host.incarnation or epoch != self._epoch:
            return
        events, self._events = self._events, []
        for event in events:
            if self._coordinator is not None:
                self._do(self._coordinator.step(event))

    def tick(self, replica: Replica) -> None:
        """Time has passed."""
        if (
            self._branch_maintenance is None
            or self._coordinator is None
            or self._now - self._ticked < TICK_SECONDS
        ):
            return
        self._ticked = self._now
        ring = self._cluster.ring
        assert ring is not None
        sessions = replica.machine.part(Decisions).ledger.sessions
        lost = tuple(sorted(sessions & ring.lost_sessions)) if sessions else ()
        branch_maintenance = self._branch_maintenance
        self._do(self._coordinator.step(c.Tick(self._now, lost)))
        carry_before = replica.machine.applied + 1 - CARRY_ENTRIES
        is_lost = ring.lost_owners.__contains__
        for action in branch_maintenance.tick(self._now, is_lost, carry_before=carry_before):
            if self._host.replica is replica and self._branch_maintenance is branch_maintenance:
                self._carry_out(replica, action)

    def _carry_out(self, replica: Replica, action: k.Action) -> None:
        if isinstance(action, k.Propose):
            self._propose(action.kind, action.payload, action.label)
        elif isinstance(action, k.Carry):
            self._cluster.probes.count("staged batch carried forward")
            entry = replica.journal.read(action.index, action.index, 1)[0]
            self._propose(entry.kind, bytes(entry.payload), action.label)
        else:
            self._cluster.probes.count("home asked by a branch")
            ring = self._cluster.ring
            assert ring is not None
            coordinator = action.coordinator or ring.coordinator_of(action.transaction.xid)
            asked = k.Ask(coordinator, action.transaction, action.reason)
            self._ask(coordinator, asked, errand=Errand(0, Inquiry(action.transaction)))

    def _do(self, effects: list[c.Effect]) -> None:
        """What the coordinator wants."""
        for effect in effects:
            if isinstance(effect, c.Tell):
                command = Command(effect.kind, effect.payload, transaction=effect.label)
                self._ask(effect.shard, effect, command)
            elif isinstance(effect, c.Propose):
                self._propose(effect.kind, effect.payload)
            else:
                assert isinstance(effect.tag, tuple)
                self._cluster.network.send(self._host.name, effect.tag[0], Reply(effect.tag, effect.result))

    def _propose(self, kind: int, payload: bytes, label: bytes = b"") -> None:
        if self._epoch:
            self._host.propose(Command(kind, payload, Chore(), transaction=label))

    # Other shards.

    def _ask(
        self, shard: str, asked: c.Tell | k.Ask, command: Command | None = None, errand: Errand | None = None
    ) -> None:
        ring = self._cluster.ring
        assert ring is not None
        self._number += 1
        self._asked[self._number] = asked
        tag = (self.address, self._number, 0)
        commands = (msgspec.structs.replace(command, tag=tag),) if command is not None else ()
        # A participant asks for an outcome that it was not told, but only the coordinator knows a delivery.
        is_decision = isinstance(asked, c.Tell) and asked.kind in (Kind.BRANCH_COMMIT, Kind.BRANCH_ABORT)
        is_heard = not (is_decision and ring.unheard_share and self._random.random() < ring.unheard_share)
        if is_heard:
            ring.send(shard, self.address, Request(tag, commands, errand=errand), self._random)
        self._cluster.clock.after(PATIENCE, self._give_up, self._number)

    def _give_up(self, number: int) -> None:
        asked = self._asked.pop(number, None)
        if isinstance(asked, c.Tell):
            self._add(c.Lost(self._now, asked.shard, asked.transaction))

    def receive(self, sender: str, to: str, payload: object) -> None:
        """An answer; a process that stands still never sees it."""
        assert isinstance(payload, Reply)
        number, outcome = payload.tag[1], payload.outcome
        if number not in self._asked or self._host.paused:
            return
        asked = self._asked.pop(number)
        if isinstance(asked, c.Tell) and isinstance(outcome, Result):
            event = c.Heard(self._now, asked.shard, asked.transaction, asked.kind, outcome)
            self._add(event)
        elif isinstance(asked, c.Tell):
            assert isinstance(outcome, Failure), outcome
            self._add(c.Lost(self._now, asked.shard, asked.transaction))
        else:
            self._hear_of_branch(asked, outcome)

    def _hear_of_branch(self, asked: k.Ask, outcome: object) -> None:
        """Home has said what became of it, or knows nothing of it and is told to roll it back."""
        assert self._branch_maintenance is not None and self._cluster.ring is not None
        if isinstance(outcome, Verdict) and not outcome.is_known:
            if asked.reason is None:
                return
            self._cluster.ring.probes.count("branch disowned by home")
            disowned = self._branch_maintenance.disown(asked.transaction, asked.reason)
            command = Command(disowned.kind, disowned.payload, transaction=disowned.label)
            is_slow = self._cluster.ring.unheard_share > 0
            wait = 1 + int(self._random.random() * _HESITATION) if is_slow else 1
            self._cluster.clock.after(wait, self._disown, self._host.incarnation, self._epoch, asked, command)
            return
        is_old = isinstance(outcome, Rejected) and outcome.reason is Reason.OLD_INCARNATION
        found = Outcome.ROLLED_BACK if is_old else getattr(outcome, "outcome", None)
        if isinstance(found, Outcome):
            self._cluster.probes.count("branch ended by asking home")
            decided = self._branch_maintenance.decided(asked.transaction, found)
            self._propose(decided.kind, decided.payload, decided.label)

    def _disown(self, incarnation: int, epoch: int, asked: k.Ask, command: Command) -> None:
        if (incarnation, epoch) == (self._host.incarnation, self._epoch):
            self._ask(asked.coordinator, asked, command)

    # Clients.

    def expect(self, commands: tuple[Command, ...]) -> None:
        """Clients want these: some are answered when the votes are in."""
        for command in commands:
            assert isinstance(command.tag, tuple)
            if command.kind == Kind.HOME_CLOSE:
                self._awaited[command.tag] = id_of(_read_close(command.payload).transaction), None, b""
            elif command.kind == Kind.HOME_CALL:
                call = _read_call(command.payload)
                self._awaited[command.tag] = id_of(call.xid), Call(call.call), call.request

    def is_to_wait(self, tag: Tag, result: Result) -> bool:
        """Whether whoever asked hears later, from here; or asks again, if this process leads no more."""
        awaited = self._awaited.pop(tag, None)
        if not isinstance(result, Answered) or result.code != Code.PENDING:
            return False
        if awaited is not None and self._epoch:
            self._add(c.Await(self._now, tag, *awaited))
        return True

    def inquire(self, replica: Replica, inquiry: Inquiry) -> Verdict:
        """Serve a read of the coordinator's newest state."""
        coordinator, branches = replica.machine.part(Decisions), replica.machine.part(Branches)
        transaction = inquiry.transaction
        if transaction is None:
            return Verdict(None, tuple(recoverable(coordinator)))
        outcome = branches.decision(transaction, coordinator.ledger)
        has_gone_on = branches.register.latest(transaction.xid) > transaction.incarnation
        is_late = has_gone_on and outcome is Outcome.COMMITTED and transaction.xid.format == LANE_FORMAT
        self._cluster.probes.count("decision asked for after the lane went on", is_late)
        is_known = outcome is not None or coordinator.ledger.register.get(transaction) is not None
        return Verdict(outcome, is_known=is_known)
