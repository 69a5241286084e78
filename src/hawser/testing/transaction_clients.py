"""The clients of transactions in a simulation: clients with lanes of their own, coordinators that use the XA
interface, crash and recover, applications that decide many branches at once, and a person who decides by
hand."""

from abc import abstractmethod
from random import Random
from typing import TYPE_CHECKING

from hawser.log.entry import Kind
from hawser.log.protocol.events import Command
from hawser.log.state.commands import encode_command
from hawser.log.state.results import Answered, Finished, Outcome, Reason, Rejected
from hawser.testing.checks import Violation
from hawser.testing.clients import Errand, Inquiry, Verdict
from hawser.testing.clients import Outcome as Heard
from hawser.testing.transaction_service import recoverable
from hawser.testing.transaction_workers import Worker
from hawser.transaction.client import Progress, Transaction
from hawser.transaction.commands import CoordinatorBatch, CoordinatorCall, CoordinatorDecide, to_fields
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, TransactionId, Xid
from hawser.transaction.xa.table import Call, Code

if TYPE_CHECKING:
    from hawser.testing.transaction_ring import Ring

__all__ = ["Actor", "Application", "Mover", "Outsider", "Person"]

# Microseconds from an answer to the next request.
_HASTE = 300
_COMPLETIONS = (Call.COMMIT, Call.COMMIT_ONE_PHASE, Call.ROLLBACK)
_ROLLED_BACK = (Code.RB_ROLLBACK, Code.RB_TIMEOUT)
_HEURISTIC = {Code.HEUR_COM: True, Code.HEUR_RB: False}


class Actor(Worker):
    """Acts at random times until it is stopped and has nothing left to do."""

    def __init__(self, ring: "Ring", name: str, random: Random) -> None:
        super().__init__(ring, name, random)
        self.stopped = False
        # Counts scheduled actions; only the last one is run.
        self._turn = 0
        ring.actors.append(self)

    @property
    def idle(self) -> bool:
        return self.transaction is None

    def describe(self) -> str:
        transaction = self.transaction
        return f"{transaction.id} {transaction.progress.name}" if transaction is not None else "idle"

    def start(self) -> None:
        self._act_within(self.ring.swarm.moving_pace)

    def _act_within(self, most: int, is_hasty: bool = False) -> None:
        self._turn += 1
        wait = 1 + int(self.random.random() * most)
        self.ring.main.clock.after(wait, self._act, self._turn, is_hasty)

    def _act(self, turn: int, is_hasty: bool) -> None:
        if turn == self._turn and not (self.stopped and self.idle):
            self._is_hasty = is_hasty
            self.step()
            self.start()

    def nudge(self) -> None:
        """Not because something else was answered."""
        if not self._is_hasty:
            super().nudge()

    def heard(self) -> None:
        """Schedule the next action, unless there is nothing left to do."""
        if not self.idle:
            self._act_within(_HASTE, is_hasty=True)

    @abstractmethod
    def step(self) -> None:
        """Run the next action; once stopped, begin nothing new."""


class Mover(Actor):
    """A client with a lane of its own: one transaction at a time, on one or several shards."""

    dying_share = 0.005

    def begin_session(self) -> None:
        super().begin_session()
        self._incarnation = 0
        self._waited = 0

    def step(self) -> None:
        transaction = self.transaction
        if transaction is None:
            self._incarnation += 1
            self._waited = 0
            names = self.ring.names
            self._shards = [self.random.choice(names)] if self.random.random() < 0.4 else names
            self._left = self.random.randint(1, 3)
            xid = Xid(LANE_FORMAT, self.session.encode(), b"")
            self.begin(TransactionId(xid, self._incarnation))
        elif transaction.progress is Progress.OVER:
            self._finish(transaction)
        elif self.random.random() < self.dying_share and not self.stopped:
            self.ring.probes.count("client died in a transaction")
            self.ring.lose(self.session)
            self.begin_session()
        elif transaction.progress is Progress.OPEN:
            self._go_on(transaction)
        else:
            self._wait(transaction)

    def _finish(self, transaction: Transaction) -> None:
        outcome = transaction.outcome
        if outcome is not None and transaction.shards:
            self.ring.count(outcome, len(transaction.shards))
        elif outcome is None:
            raise Violation(0, f"{self.name} was never told what became of {transaction.id}")
        self.finish((outcome is Outcome.COMMITTED) if transaction.shards else None)

    def _go_on(self, transaction: Transaction) -> None:
        self._waited += 1
        drawn = self.random.random()
        is_hasty = drawn < 0.05 and transaction.shards
        if self.stopped or transaction.refused is not None or drawn > 0.98:
            self.judge_refusal()
            self.send(transaction.rollback())
        elif self._left or (self._fetching is not None and self._waited < 12):
            self._left = max(0, self._left - 1)
            self.work(self._shards)
        elif transaction.is_staged or is_hasty:
            self._waited = 0
            self.ring.probes.count("committed before everything was staged", not transaction.is_staged)
            last = [self.last_line(shard) for shard in self._shards if self.random.random() < 0.5]
            is_short = len(transaction.shards) == 1 and len(last) == 1
            self.ring.probes.count("committed by the last operation", is_short)
            touched = len(transaction.shards)
            self.send(transaction.commit(last))
            self.ring.probes.count("committed with deliveries", len(transaction.shards) < touched)
        elif drawn < 0.5:
            self.nudge()

    def _wait(self, transaction: Transaction) -> None:
        self._waited += 1
        patient = self._waited < 20 or self.stopped
        if transaction.progress is Progress.COMMITTING and not patient and self.random.random() < 0.3:
            self.ring.probes.count("outcome asked for by a rollback")
            self.send(transaction.resolve())
        elif self.random.random() < 0.3:
            self.nudge()


class Outsider(Actor):
    """An external coordinator with one xid that it reuses."""

    crashing_share = 0.01

    def __init__(self, ring: "Ring", name: str, random: Random) -> None:
        super().__init__(ring, name, random)
        self._xid = Xid(7, name.encode(), b"branch")
        self._coordinator = ring.coordinator_of(self._xid)
        self._calls = 0

    def begin_session(self) -> None:
        super().begin_session()
        self._call: Call | None = None
        self._command: Command | None = None
        self._answer: Answered | None = None
        self._is_recovering = self._sessions > 1
        self._incarnation = self._worker = 0
        self._left = 0

    @property
    def idle(self) -> bool:
        return self._call is None and not self._is_recovering

    def describe(self) -> str:
        return f"{self._call!r} of {self._xid}#{self._incarnation}, got {self._answer}"

    @property
    def _id(self) -> TransactionId:
        return TransactionId(self._xid, self._incarnation)

    def step(self) -> None:
        if self._is_recovering:
            self._recover()
        elif self._call is None:
            self._ask(Call.START)
        elif self._answer is None:
            if not self._is_hasty and self.random.random() < 0.5:
                self._send()
        elif not self.stopped and self.random.random() < self._crashing_share:
            self.ring.probes.count("coordinator crashed")
            self.ring.probes.count("coordinator crashed with a prepared branch", self._call is Call.PREPARE)
            self.ring.lose(self.session)
            self.begin_session()
        else:
            self._go_on(self._call, Code(self._answer.code))

    @property
    def _crashing_share(self) -> float:
        """Crash, usually between the phases."""
        return 20 * self.crashing_share if self._call is Call.PREPARE else self.crashing_share

    def _ask(self, call: Call) -> None:
        """Send a call; retries have the same request number."""
        self._calls += 1
        self._call, self._answer = call, None
        request = f"{self.name}/{self._calls}".encode()
        participants = self.transaction.counts if self.transaction is not None else ()
        ends = call in (Call.END, Call.END_FAIL)
        if ends:
            self.stop_working()
        self._request = request
        named = (*self._xid, self._incarnation)
        command = CoordinatorCall(named, call, self.session, request, 5, participants if ends else ())
        self._command = Command(Kind.HOME_CALL, encode_command(command))
        self._send()

    def _send(self) -> None:
        request = self._request

        def answer(outcome: Heard) -> None:
            if isinstance(outcome, Answered) and self._request == request and self._answer is None:
                self._answer = outcome
                self._incarnation = outcome.incarnation or self._incarnation
                self._worker = outcome.worker or self._worker
            elif getattr(outcome, "reason", None) is Reason.OLD_INCARNATION and self._request == request:
                assert isinstance(outcome, Rejected) and self._call is Call.START
                self.ring.probes.count("xid found to have been used before")
                self._incarnation = outcome.current
                self._ask(Call.START)

        self.ask(self._coordinator, answer, self._command)

    def _recover(self) -> None:
        """Complete prepared branches; any other branch of its xid blocks the next start."""

        def recover(outcome: Heard) -> None:
            if not self._is_recovering:
                return
            assert isinstance(outcome, Verdict), outcome
            self._is_recovering = False
            found = [each.incarnation for each in outcome.prepared if each.xid == self._xid]
            self.ring.probes.count("prepared branch recovered", bool(found))
            self._incarnation = found[0] if found else 0
            self._ask(self.random.choice((Call.COMMIT, Call.ROLLBACK)) if found else Call.START)

        self.ask(self._coordinator, recover, errand=Errand(0, Inquiry()))

    def _go_on(self, call: Call, code: Code) -> None:
        """Continue after the answer to the last call."""
        choose = self.random.choice
        if call is Call.START and code is Code.OK:
            self._do_work()
        elif call is Call.END and code is Code.OK:
            self._ask(
                choose((Call.PREPARE, Call.PREPARE, Call.PREPARE, Call.COMMIT_ONE_PHASE, Call.ROLLBACK))
            )
        elif call is Call.PREPARE and code is Code.OK:
            self._ask(choose((Call.COMMIT, Call.COMMIT, Call.ROLLBACK)))
        elif call in (*_COMPLETIONS, Call.FORGET, Call.PREPARE):
            self._learn(call, code)
        else:
            self._ask(Call.ROLLBACK)

    def _do_work(self) -> None:
        transaction = self.transaction
        if transaction is None:
            self._left = self.random.randint(2, 4)
            transaction = self.begin(self._id, self._worker)
        if transaction.refused is not None or self.stopped:
            self.judge_refusal()
            self._ask(Call.END_FAIL)
        elif self._left:
            self._left -= 1
            self.work(self.ring.names)
        elif transaction.is_staged and transaction.shards:
            self._ask(Call.END)
        elif transaction.shards:
            self.nudge()
        else:
            self._left = 1

    def _learn(self, call: Call, code: Code) -> None:
        """End the transaction; a decision by hand is forgotten first."""
        if code in _HEURISTIC:
            self.ring.probes.count("told of a decision by a person")
            self._tell(_HEURISTIC[code])
            self._ask(Call.FORGET)
            return
        if call in (Call.COMMIT, Call.COMMIT_ONE_PHASE) and code is Code.OK:
            self._tell(True)
        elif code in _ROLLED_BACK or (call is Call.ROLLBACK and code is Code.OK):
            self._tell(False)
        if call is Call.PREPARE:
            self._ask(Call.ROLLBACK)
            return
        self.transaction = None
        self._call = None

    def _tell(self, committed: bool) -> None:
        self.ring.probes.count("branch of an outsider committed", committed)
        if self.transaction is not None:
            self.finish(committed)
        elif self._incarnation:
            self.ring.book.tell(self._id, committed, self.name)


class Application(Actor):
    """Writes batches: tasks prepare branches, and one decision commits the branches that it names."""

    restarting_share = 0.02
    mistaken_share = 0.1
    tasks_a_batch = 2

    def __init__(self, ring: "Ring", name: str, random: Random) -> None:
        super().__init__(ring, name, random)
        self._application = name.encode()
        self._coordinator = ring.coordinator_of(Xid(APPLICATION_FORMAT, self._application, b""))
        self._batch = 0
        self._runs = 0
        self._tasks = [Worker(ring, f"{name}task{number}", random) for number in range(self.tasks_a_batch)]
        self._named: list[TransactionId] = []
        self._is_over = False
        self._launch()

    @property
    def idle(self) -> bool:
        return self._is_over

    def describe(self) -> str:
        return f"batch {self._batch}, named {len(self._named)}"

    def _launch(self) -> None:
        """Start a run of the batch; an earlier run may have left branches."""
        self._runs += 1
        self._named = []
        for task in self._tasks:
            branch = f"{self._batch} {self._runs} {task.name}".encode()
            task.begin(TransactionId(Xid(APPLICATION_FORMAT, self._application, branch), 1))

    def step(self) -> None:
        if self.stopped:
            self._drop_all()
        elif self.random.random() < self.restarting_share:
            self.ring.probes.count("application restarted")
            self._launch()
        elif self._named:
            self._decide(self._batch, self._named)
        else:
            self._advance()

    def _advance(self) -> None:
        """Advance some tasks; once all are prepared, decide the batch."""
        prepared = []
        for task in self._tasks:
            transaction = task.transaction
            assert transaction is not None
            if transaction.progress is Progress.OPEN:
                self._write(task, transaction)
            elif transaction.progress is Progress.PREPARED:
                prepared.append(transaction.id)
            elif transaction.progress is Progress.OVER:
                self._launch()
                return
            elif self.random.random() < 0.3:
                task.nudge()
        if len(prepared) == len(self._tasks) or (prepared and self.random.random() < 0.1):
            self._named = prepared
            if self.random.random() < self.mistaken_share:
                stranger = Xid(APPLICATION_FORMAT, self._application, b"nobody")
                self._named = [*prepared, TransactionId(stranger, 1)]

    def _write(self, task: Worker, transaction: Transaction) -> None:
        if transaction.refused is not None:
            task.judge_refusal()
            task.send(transaction.rollback())
        elif len(transaction.shards) < 2:
            task.publish(self.random.choice(self.ring.names))
        elif transaction.is_staged:
            task.send(transaction.prepare(self._coordinator, self._application, self._batch, 6))
        elif self.random.random() < 0.3:
            task.nudge()

    def _decide(self, batch: int, named: list[TransactionId]) -> None:
        """Ask until the outcome is known; a decided batch does not change."""
        branches = tuple(each.xid.branch_id for each in named)
        command = CoordinatorBatch(self._application, self._application, batch, branches)

        def answer(outcome: Heard) -> None:
            if self._batch != batch or self._named is not named:
                return
            self.ring.probes.count("batch decided", isinstance(outcome, Finished))
            self.ring.probes.count("batch refused", isinstance(outcome, Rejected))
            self._batch += isinstance(outcome, Finished)
            self._is_over = self.stopped and isinstance(outcome, Finished)
            self._launch()

        self.ask(self._coordinator, answer, Command(Kind.HOME_BATCH, encode_command(command)))

    def _drop_all(self) -> None:
        """Drop undecided branches with a later batch that names none."""
        for task in self._tasks:
            transaction = task.transaction
            assert transaction is not None
            if transaction.progress is Progress.OPEN:
                task.send(transaction.rollback())
            elif transaction.progress is not Progress.OVER:
                task.nudge()
        if self._batch < 1_000:
            self._batch, self._named = 1_000, []
        self._decide(self._batch, self._named)


class Person(Actor):
    """Sometimes decides prepared transactions of others by hand."""

    def step(self) -> None:
        coordinator = self.random.choice(self.ring.homes)
        part = self.ring.shards[coordinator].truth.machine.part(Decisions)
        prepared = [each for each in recoverable(part) if each.xid.format != APPLICATION_FORMAT]
        if not prepared or self.random.random() < 0.8:
            return
        outcome = self.random.choice((Outcome.COMMITTED, Outcome.ROLLED_BACK))
        command = CoordinatorDecide(to_fields(prepared[0]), outcome, heuristic="he knows better")

        def answer(result: Heard) -> None:
            self.ring.probes.count("decided by a person", isinstance(result, Finished))

        self.ask(coordinator, answer, Command(Kind.HOME_DECIDE, encode_command(command)))
