"""The process of an operator in a simulated cluster: its clock, its way to the store, its crashes."""

from typing import TYPE_CHECKING, Final

from hawser.log.protocol.events import Effect, Load, Loaded, Order, Receive, Report, Send, Store, Tick
from hawser.log.protocol.messages import Message
from hawser.log.protocol.metadata import Metadata
from hawser.log.protocol.operator import Operator

if TYPE_CHECKING:
    from hawser.testing.cluster import Cluster

__all__ = ["SimOperator"]

TICK: Final = 2_000


class SimOperator:
    """A host on which an operator runs, or not. Each run has an address of its own: what was meant for an
    earlier one is lost."""

    def __init__(self, cluster: "Cluster", name: str, patience: int) -> None:
        self.cluster = cluster
        self.name = name
        self.patience = patience
        self.run = 0
        self.operator: Operator | None = None
        self.paused = False
        self.orders: dict[object, Order] = {}
        cluster.network.attach(name, self._receive)

    @property
    def address(self) -> str:
        return f"{self.name}.{self.run}"

    def start(self) -> None:
        """A new process, which knows nothing of what the last one did."""
        assert self.operator is None
        self.run += 1
        self.operator = Operator(self.address, self.patience)
        self._tick(self.run)

    def start_if_down(self) -> None:
        if self.operator is None:
            self.start()

    def crash(self) -> None:
        """The process is gone, with the orders it had."""
        self.operator = None
        self.orders.clear()
        self.resume()

    def pause(self) -> None:
        """The process stands still until it is resumed."""
        self.paused = True
        self.cluster.network.pause(self.name)

    def resume(self) -> None:
        self.paused = False
        self.cluster.network.resume(self.name)

    def take(self, order: Order) -> None:
        """Hand it an order; `orders` holds what it has not reported on."""
        if self.operator is not None and not self.paused:
            self.orders[order.tag] = order
            self._carry_out(self.operator.step(order))

    def _tick(self, run: int) -> None:
        if run != self.run or self.operator is None:
            return
        if not self.paused:
            self._carry_out(self.operator.step(Tick()))
        self.cluster.clock.after(self.cluster.drift(TICK), self._tick, run)

    def _receive(self, sender: str, to: str, payload: object) -> None:
        if self.operator is not None and to == self.address:
            assert isinstance(payload, Message)
            self._carry_out(self.operator.step(Receive(sender, payload)))
            self.cluster.note(f"{self.name}: {payload} from {sender}")

    def _loaded(self, run: int, metadata: Metadata) -> None:
        if run == self.run and self.operator is not None:
            if self.paused:
                self.cluster.clock.after(TICK, self._loaded, run, metadata)
            else:
                self._carry_out(self.operator.step(Loaded(metadata)))

    def _carry_out(self, effects: list[Effect]) -> None:
        run, store = self.run, self.cluster.store
        for effect in effects:
            if isinstance(effect, Send):
                self.cluster.network.send(self.address, effect.to, effect.message)
            elif isinstance(effect, Load):
                store.load(self.name, lambda metadata: self._loaded(run, metadata))
            elif isinstance(effect, Store):
                store.store(self.name, effect.metadata, lambda metadata: self._loaded(run, metadata))
            else:
                assert isinstance(effect, Report), effect
                self.orders.pop(effect.tag, None)
                self.cluster.reported(effect)
