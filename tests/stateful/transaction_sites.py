"""A transaction of a client, and the sites that it is about: they are all there, and answer when told to."""

from hawser.log.entry import Kind
from hawser.log.state.commands import QueueSettle, encode_command
from hawser.log.state.results import Result
from hawser.transaction.client import Request, Transaction
from hawser.transaction.coordinator import coordinator as c
from hawser.transaction.identity import TransactionId

from .log_shard import batch
from .transaction_shard import HOME, Site, lane


class Client:
    """A transaction over sites with these names."""

    def __init__(self, *names: str, transaction: TransactionId | None = None) -> None:
        self.sites = {name: Site() for name in (*names, HOME)}
        self.transaction = Transaction(transaction or lane(), owner=5, timeout_seconds=30)

    def publish(self, name: str, count: int = 1) -> Request:
        return self.transaction.operation(name, Kind.BATCH, batch(count))

    def accept_nothing(self, name: str) -> Request:
        """A message that is not there, which is refused."""
        accept = encode_command(QueueSettle(0, ((1, 1, 0),)))
        return self.transaction.operation(name, Kind.QUEUE_SETTLE, accept)

    def commit_asking(self, unsent: list[Request]) -> list[Request]:
        """Commit with everybody asked to prepare: of no shard it is known who leads it."""
        return self.transaction.commit(unsent, lambda shard: None)

    def apply(self, request: Request) -> Result:
        """What its site says to it."""
        site = self.sites[request.shard]
        return site.put(request.kind, request.payload, transaction=request.label)

    def deliver(self, request: Request, answered: bool = True) -> list[Request]:
        result = self.apply(request)
        return self.transaction.hear(request, result) if answered else []

    def deliver_all(self, requests: list[Request]) -> None:
        for request in requests:
            self.deliver_all(self.deliver(request))

    def spread(self) -> list[str]:
        """A new leader of the site that decides tells others, and writes down that it has; whom it told."""
        name = self.transaction.coordinator
        site = self.sites[name]
        coordinator = c.Coordinator(site.decisions, name)
        tells = [each for each in coordinator.step(c.Began(0.0)) if isinstance(each, c.Tell)]
        for tell in tells:
            result = self.sites[tell.shard].put(tell.kind, tell.payload, transaction=tell.label)
            coordinator.step(c.Heard(0.0, tell.shard, tell.transaction, tell.kind, result))
        for effect in coordinator.step(c.Tick(0.5)):
            assert isinstance(effect, c.Propose)
            site.put(effect.kind, effect.payload)
        return [tell.shard for tell in tells]

    def end(self, name: str) -> int:
        return self.sites[name].topic.end

    def branches(self, *names: str) -> list[int]:
        """How many are not over, on each of these."""
        return [len(self.sites[name].branches.register) for name in names]
