"""Who runs transactions in the world of `transaction_world.py`: clients that move tokens, and coordinators of
their own that use the XA interface, crash, and find what they left by `recover`."""

from hawser.log.entry import Kind
from hawser.log.queue.claims import Token
from hawser.log.state.commands import GroupCommit, encode_command
from hawser.log.state.groups import Groups
from hawser.log.state.queue import Queue
from hawser.log.state.results import Answered, Finished, Outcome, Rejected, Result
from hawser.log.state.topic import Topic
from hawser.testing.transaction_service import recoverable
from hawser.transaction.client import Progress, Request, Transaction
from hawser.transaction.commands import CoordinatorBatch, CoordinatorDecide, to_fields
from hawser.transaction.coordinator.decisions import Decisions
from hawser.transaction.identity import APPLICATION_FORMAT, LANE_FORMAT, TransactionId, Xid, owner_of
from hawser.transaction.participant.branches import Branches
from hawser.transaction.xa.table import Call, Code

from .transaction_world import GROUP, MEMBER, Message, World, batch, reached


class Worker:
    """Takes tokens, puts them elsewhere, and writes that down."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.session = name
        self.transaction: Transaction | None = None
        self.taken: list[tuple[str, int, Token]] = []
        self.accepts: dict[Request, tuple[Token, ...]] = {}
        self.meant: dict[str, list[str]] = {}
        self.moves: dict[str, int] = {}
        # Operations that are sent when it is committed.
        self.unsent: list[Request] | None = None
        self.waited = 0

    def begin(self, transaction: TransactionId, worker: int = 0) -> None:
        seconds = self.world.chance.choice((60, 60, 60, 6))
        self.transaction = Transaction(transaction, owner_of(self.session), seconds, worker)
        self.taken, self.accepts, self.meant, self.moves, self.waited = [], {}, {}, {}, 0

    def stage(self, request: Request) -> None:
        """Send an operation, or have it wait for the commit."""
        if self.unsent is None:
            self.send([request])
        else:
            self.unsent.append(request)

    def send(self, requests: list[Request]) -> None:
        """What is for one shard goes together, or not."""
        apart = self.world.chance.random() < 0.2
        messages: dict[str, list[Message]] = {}
        for request in requests:
            messages.setdefault(request.shard, []).append(self.message_of(request))
        for together in messages.values():
            for each in [[message] for message in together] if apart else [together]:
                self.world.send(*each)

    def message_of(self, request: Request) -> Message:
        transaction = self.transaction
        assert transaction is not None

        def answer(result: Result) -> None:
            self.send_for(transaction, transaction.hear(request, result))

        return Message(
            request.shard, request.kind, request.payload, request.label, answer,
            self.accepts.get(request, ()), self.session, (transaction.id, None),
        )  # fmt: skip

    def send_for(self, transaction: Transaction, requests: list[Request]) -> None:
        if requests and transaction is self.transaction:
            self.send(requests)

    def work(self) -> None:
        """One move of a token, or one line in a topic."""
        transaction, chance, world = self.transaction, self.world.chance, self.world
        assert transaction is not None
        source, target = chance.sample(world.names, 2)
        mark = f"{transaction.id}/{next(self.world.numbers)}"
        if chance.random() < 0.4:
            self.publish(target, Kind.BATCH, mark)
            return
        if chance.random() < 0.3:
            self.move_group(source)
            return
        shard = world.shards[source]
        delivered = shard.take(self.session)
        if delivered is None:
            return
        token, offset = delivered
        place = shard.part(Queue).messages.locate(offset)
        records = shard.values(Queue, place.first_offset)
        value = records[offset - place.first_offset].split("/")[0]
        self.taken.append((source, shard.epoch, token))
        request = transaction.operation(source, Kind.QUEUE_SETTLE, b"")
        self.accepts[request] = (token,)
        self.stage(request)
        self.publish(target, Kind.QUEUE_PUT, f"{value}/{mark}")

    def move_group(self, name: str) -> None:
        """As a consumer that has read up to the end."""
        transaction, shard = self.transaction, self.world.shards[name]
        assert transaction is not None
        group, end = shard.part(Groups).get(GROUP), shard.part(Topic).end
        before = self.moves.get(name, group.position)
        command = GroupCommit(GROUP, MEMBER, group.generation, before, max(before, end))
        self.moves[name] = command.after
        self.stage(transaction.operation(name, Kind.GROUP_COMMIT, encode_command(command)))

    def publish(self, shard: str, kind: int, value: str) -> None:
        assert self.transaction is not None
        request = self.transaction.operation(shard, kind, batch(value))
        self.meant.setdefault(shard, []).append(value)
        self.stage(request)

    def mean(self, transaction: TransactionId) -> None:
        """This is what it is to do, if it is committed."""
        self.world.meant[transaction] = {name: list(values) for name, values in self.meant.items()}
        self.world.moves[transaction] = dict(self.moves)

    def let_go(self) -> None:
        """What was taken and not accepted may be lent to others."""
        for name, epoch, token in self.taken:
            shard = self.world.shards[name]
            if shard.epoch == epoch:
                shard.claims.take_back(self.session, [token])
        self.taken = []

    def nudge(self) -> None:
        """Send again what may be lost."""
        transaction = self.transaction
        assert transaction is not None
        for shard in dict.fromkeys((*transaction.shards, transaction.coordinator)):
            self.send(transaction.again(shard))


class Mover(Worker):
    """A client with a lane of its own."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.xid = Xid(LANE_FORMAT, name.encode(), b"")
        self.incarnation = 0

    def step(self) -> None:
        chance = self.world.chance
        transaction = self.transaction
        if transaction is None:
            self.incarnation += 1
            self.begin(TransactionId(self.xid, self.incarnation))
        elif transaction.progress is Progress.OVER:
            self.finish(transaction)
        elif transaction.progress is Progress.OPEN:
            self.go_on(transaction)
        else:
            self.waited += 1
            if self.waited > 15 and transaction.progress is Progress.COMMITTING and chance.random() < 0.2:
                reached["resolved"] += 1
                self.send(transaction.resolve())
            elif chance.random() < 0.3:
                self.nudge()

    def go_on(self, transaction: Transaction) -> None:
        chance = self.world.chance
        fate = chance.random()
        hasty = chance.random() < 0.05
        if fate < 0.4 and len(self.taken) < 3:
            self.work()
        elif fate < 0.5:
            self.nudge()
        elif fate < 0.96 and not transaction.is_staged and not hasty:
            return
        elif fate < 0.96:
            self.commit(transaction)
        elif fate < 0.99:
            self.send(transaction.rollback())
        else:
            self.die()

    def commit(self, transaction: Transaction) -> None:
        """With a few operations that go with it."""
        unsent: list[Request] = []
        self.unsent = unsent
        for _ in range(self.world.chance.choice((0, 0, 1, 2))):
            self.work()
        self.unsent = None
        self.mean(transaction.id)
        self.send(transaction.commit(unsent))
        withheld = sum(each.shard == transaction.coordinator for each in unsent)
        reached["withheld for the commit"] += withheld if transaction.progress is Progress.COMMITTING else 0

    def finish(self, transaction: Transaction) -> None:
        if transaction.outcome is not None and transaction.shards:
            reached[f"client heard {transaction.outcome.name}"] += 1
            self.world.agree(transaction.id, transaction.outcome)
            self.world.told[transaction.id] = transaction.outcome
        self.transaction = None
        self.let_go()

    def die(self) -> None:
        """Another one takes its place, with a lane of its own."""
        reached["client died"] += 1
        self.world.lost.add(owner_of(self.session))
        self.let_go()
        fresh = Mover(self.world, f"{self.name.split('+')[0]}+{next(self.world.numbers)}")
        self.__dict__.update(fresh.__dict__)

    def wind_up(self) -> None:
        """No faults any more: come to an end."""
        transaction = self.transaction
        if transaction is None:
            return
        if transaction.progress is Progress.OVER:
            self.finish(transaction)
        elif transaction.progress is Progress.OPEN:
            self.send(transaction.rollback())
        else:
            self.nudge()


class Session(Worker):
    """A session of the XA interface, which makes one call at a time."""

    def __init__(self, world: World, name: str, xid: Xid) -> None:
        super().__init__(world, name)
        self.xid = xid
        self.call: Call | None = None
        self.message: Message | None = None
        self.code: int | None = None
        self.incarnation = 0

    def ask(self, call: Call, **fields: object) -> None:
        """Under one request, however often it is sent."""
        self.call, self.code, self.waited = call, None, 0
        request = f"{self.name} {next(self.world.numbers)}".encode()

        def answer(result: Result) -> None:
            if isinstance(result, Answered) and self.request == request:
                self.code = result.code
                self.incarnation = result.incarnation or self.incarnation
                self.worker = result.worker

        self.request = request
        fields |= {"call": call, "session": self.session, "request": request, "incarnation": self.incarnation}
        self.message = self.world.call(self.xid, fields, answer)
        self.world.send(self.message)

    def ask_again(self) -> None:
        """What is not answered may be lost."""
        if self.world.chance.random() < 0.3:
            assert self.message is not None
            self.world.send(self.message)

    @property
    def id(self) -> TransactionId:
        return TransactionId(self.xid, self.incarnation)


class Helper(Session):
    """Another session that joins the branch of an `Outsider`, ends its work or not, and may die at any time.
    What it has ended outlives it."""

    def __init__(self, world: World, name: str, branch: TransactionId) -> None:
        super().__init__(world, f"{name}+{next(world.numbers)}", branch.xid)
        self.incarnation = branch.incarnation
        self.has_ended = self.is_over = False
        self.ask(Call.START_JOIN)

    def step(self) -> None:
        chance = self.world.chance
        if self.is_over:
            return
        if self.code is None:
            # Whether an end takes effect that is on its way would not be known.
            self.ask_again()
        elif chance.random() < 0.05 and self.call is not Call.END:
            reached["joined session died"] += 1
            self.die()
        elif self.code != Code.OK:
            self.die()
        elif self.call is Call.END:
            self.has_ended = True
            self.world.ended_sessions.add(self.session)
            self.die() if chance.random() < 0.5 else self.leave()
        else:
            self.do_work()

    def do_work(self) -> None:
        if self.transaction is None:
            self.begin(self.id, self.worker)
        transaction = self.transaction
        assert transaction is not None
        if transaction.refused is not None:
            self.die()
        elif len(transaction.shards) < 2:
            self.publish(
                self.world.chance.choice(self.world.names), Kind.BATCH, f"{self.session}/{len(self.meant)}"
            )
        elif transaction.is_staged:
            self.ask(Call.END, participants=transaction.counts)
        elif self.world.chance.random() < 0.3:
            self.nudge()

    def wind_up(self) -> None:
        if self.code is None:
            assert self.message is not None
            self.world.send(self.message)
        elif self.call is Call.END:
            self.step()
        else:
            self.die()

    def die(self) -> None:
        self.world.lost.add(owner_of(self.session))
        reached["session with ended work died"] += self.has_ended
        self.leave()

    def leave(self) -> None:
        self.is_over = True
        self.transaction = None


class Outsider(Session):
    """A coordinator of its own, with one xid that it uses again and again."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, Xid(7, name.encode(), b"branch"))
        self.helper: Helper | None = None

    def step(self) -> None:
        if self.call is None:
            self.ask(Call.START)
        elif self.code is None:
            self.ask_again()
        elif self.world.chance.random() < 0.02:
            self.crash()
        elif self.call is Call.END and self.helper is not None and not self.helper.is_over:
            # Until then it cannot be prepared.
            self.helper.step()
        else:
            self.go_on(Code(self.code))

    def go_on(self, code: Code) -> None:
        """What follows the answer to the last call."""
        call, chance = self.call, self.world.chance
        reached[f"xa {code.word}"] += 1
        if call is Call.START and code is Code.OK:
            self.do_work()
        elif call is Call.END and code is Code.OK:
            if self.helper is not None and self.helper.has_ended:
                for name, values in self.helper.meant.items():
                    self.meant.setdefault(name, []).extend(values)
            self.mean(self.id)
            self.ask(chance.choice((Call.PREPARE, Call.PREPARE, Call.COMMIT_ONE_PHASE, Call.ROLLBACK)))
        elif call is Call.PREPARE and code is Code.OK:
            self.ask(chance.choice((Call.COMMIT, Call.COMMIT, Call.ROLLBACK)))
        elif call in (Call.COMMIT, Call.COMMIT_ONE_PHASE, Call.ROLLBACK, Call.FORGET, Call.PREPARE):
            self.learn(call, code)
        else:
            self.ask(Call.ROLLBACK)

    def do_work(self) -> None:
        if self.transaction is None:
            self.begin(self.id, self.worker)
            self.helper = Helper(self.world, self.name, self.id) if self.world.chance.random() < 0.4 else None
        elif self.helper is not None and self.world.chance.random() < 0.5:
            self.helper.step()
        transaction = self.transaction
        assert transaction is not None
        if transaction.refused is not None:
            self.ask(Call.END_FAIL, participants=transaction.counts)
        elif len(transaction.shards) < 2 or self.world.chance.random() < 0.3:
            self.work()
        elif transaction.is_staged:
            self.ask(Call.END, participants=transaction.counts)
        else:
            self.nudge()

    def learn(self, call: Call, code: Code) -> None:
        """It is over, one way or the other."""
        if code in (Code.HEUR_COM, Code.HEUR_RB):
            self.world.agree(self.id, Outcome.COMMITTED if code is Code.HEUR_COM else Outcome.ROLLED_BACK)
            self.ask(Call.FORGET)
            return
        if call in (Call.COMMIT, Call.COMMIT_ONE_PHASE) and code is Code.OK:
            self.world.agree(self.id, Outcome.COMMITTED)
            self.world.told[self.id] = Outcome.COMMITTED
        elif code in (Code.RB_ROLLBACK, Code.RB_TIMEOUT):
            self.world.agree(self.id, Outcome.ROLLED_BACK)
            self.world.told[self.id] = Outcome.ROLLED_BACK
            if call is Call.PREPARE:
                self.ask(Call.ROLLBACK)
                return
        self.transaction = self.call = None
        self.lose_helper()
        self.let_go()

    def lose_helper(self) -> None:
        """It ends nothing any more."""
        if self.helper is not None and not self.helper.is_over:
            self.helper.die()

    def crash(self) -> None:
        """Forgets everything, and asks home which use there is; its session is found to be lost."""
        reached["coordinator crashed"] += 1
        self.world.lost.add(owner_of(self.session))
        self.let_go()
        self.session = f"{self.name}+{next(self.world.numbers)}"
        self.transaction = self.call = None
        self.lose_helper()
        coordinator = self.world.shards[self.world.coordinator_of(self.xid)]
        self.incarnation = coordinator.part(Decisions).ledger.register.latest(self.xid)
        self.ask(Call.ROLLBACK if self.world.chance.random() < 0.5 else Call.COMMIT)

    def wind_up(self) -> None:
        if self.helper is not None and not self.helper.is_over:
            self.helper.wind_up()
            return
        if self.call is not None and self.code is None:
            assert self.message is not None
            self.world.send(self.message)
        elif self.call is not None and self.call is not Call.START:
            self.go_on(Code(self.code or 0))
        elif self.call is Call.START:
            participants = self.transaction.counts if self.transaction is not None else ()
            self.ask(Call.END_FAIL, participants=participants)


class Driver:
    """An application that writes in batches: tasks prepare branches, one decision commits those it names."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.batch = 0
        self.tasks: list[Worker] = []
        self.named: list[TransactionId] = []
        self.transaction = None
        self.launch()

    def launch(self) -> None:
        """A run of the batch; an earlier one may have left branches."""
        self.named = []
        self.tasks = [Worker(self.world, f"{self.name} {next(self.world.numbers)}") for _ in range(3)]
        for task in self.tasks:
            xid = Xid(APPLICATION_FORMAT, self.name.encode(), f"{self.batch} {task.name}".encode())
            task.begin(TransactionId(xid, 1))

    def step(self) -> None:
        if self.world.chance.random() < 0.01:
            reached["driver restarted"] += 1
            self.launch()
        elif self.named:
            self.decide()
        else:
            self.advance()

    def advance(self) -> None:
        """Some tasks go on; when enough are prepared the batch is to be decided."""
        prepared = []
        for task in self.tasks:
            transaction = task.transaction
            assert transaction is not None
            if transaction.progress is Progress.OPEN:
                self.write(task, transaction)
            elif transaction.progress is Progress.PREPARED:
                prepared.append(transaction.id)
            elif transaction.progress is Progress.OVER:
                self.launch()
                return
            elif self.world.chance.random() < 0.3:
                task.nudge()
        if len(prepared) >= 2 and self.world.chance.random() < 0.3:
            self.named = prepared

    def write(self, task: Worker, transaction: Transaction) -> None:
        if len(transaction.shards) < 2:
            name = self.world.chance.choice(self.world.names)
            task.publish(name, Kind.BATCH, f"{transaction.id} {next(self.world.numbers)}")
        elif transaction.is_staged:
            task.mean(transaction.id)
            coordinator = self.world.coordinator_of(transaction.id.xid)
            task.send(transaction.prepare(coordinator, self.name.encode(), self.batch, 1_000))
        elif self.world.chance.random() < 0.3:
            task.nudge()

    def decide(self) -> None:
        """Ask until it is known; a batch that is decided stays as it is."""
        batch, named = self.batch, self.named
        application = self.name.encode()
        command = CoordinatorBatch(
            application, application, batch, tuple(each.xid.branch_id for each in named)
        )

        def answer(result: Result) -> None:
            if self.batch != batch or self.named is not named:
                return
            if isinstance(result, Finished):
                reached["batch decided"] += 1
                self.batch += 1
            elif isinstance(result, Rejected):
                reached["batch refused"] += 1
            self.launch()

        self.world.batches.setdefault(batch, []).append(set(named))
        coordinator = self.world.coordinator_of(named[0].xid)
        self.world.send(Message(coordinator, Kind.HOME_BATCH, encode_command(command), b"", answer))

    def wind_up(self) -> None:
        """What is not decided is dropped by the batch behind it."""
        self.named = []
        application = self.name.encode()
        payload = encode_command(CoordinatorBatch(application, application, self.batch + 10, ()))
        coordinator = self.world.coordinator_of(Xid(APPLICATION_FORMAT, application, b""))
        self.world.send(Message(coordinator, Kind.HOME_BATCH, payload, b"", lambda result: None))


def meddle(world: World) -> None:
    """A person decides about something prepared."""
    coordinator = world.shards[world.chance.choice(world.homes)]
    register = coordinator.part(Decisions).ledger.register
    found = [id for id in recoverable(coordinator.part(Decisions)) if not register.get(id).heuristic]
    found = [id for id in found if id.xid.format != APPLICATION_FORMAT]
    if found:
        reached["heuristic"] += 1
        outcome = world.chance.choice((Outcome.COMMITTED, Outcome.ROLLED_BACK))
        command = CoordinatorDecide(to_fields(found[0]), outcome, heuristic="the test wants it so")
        coordinator.propose(Kind.HOME_DECIDE, encode_command(command))


def complete(world: World) -> None:
    """Whoever finds something by `recover` may end it."""
    for name in world.homes:
        coordinator = world.shards[name]
        for transaction in recoverable(coordinator.part(Decisions)):
            record = coordinator.part(Decisions).ledger.register.get(transaction)
            call = Call.FORGET if record.heuristic else Call.ROLLBACK
            fields = {"call": call, "incarnation": transaction.incarnation}
            message = world.call(transaction.xid, fields, lambda result: None)
            world.send(message)
            reached["recovered"] += 1


def is_quiet(world: World) -> bool:
    """Whether nothing is left of any transaction but how it ended."""
    branches = [len(shard.part(Branches).register) for shard in world.shards.values()]
    records = [len(shard.part(Decisions).ledger.register) for shard in world.shards.values()]
    return not any(branches + records) and not world.bag
