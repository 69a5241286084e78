"""Simulate a cluster from a seed, with all faults, and check it.

    python -m hawser.testing.simulate --seed 7 --trace

First faults occur for a random number of events, and safety is checked after each event. Then faults stop,
all processes are started, and the cluster must settle: every request is done, every change of the ensemble is
complete or undone, and all members are equal.
"""

import argparse
import sys
from collections.abc import Callable
from random import Random
from time import perf_counter

import msgspec

from hawser.log.state.queue import DEAD_LETTERS, MESSAGES
from hawser.testing.adversary import Adversary
from hawser.testing.cluster import Cluster, Stuck
from hawser.testing.network import NetworkFaults, host_of
from hawser.testing.queue_clients import Consumer, Drain, Putter
from hawser.testing.store import StoreFaults
from hawser.testing.swarm import Swarm
from hawser.testing.transaction_ring import Ring
from hawser.testing.workload import Keeper, Producer, Reader, Visitor

__all__ = ["Outcome", "Simulation", "simulate"]

# Far more than a cluster needs to settle.
MOST_EVENTS_TO_SETTLE = 300_000
_BETWEEN_LOOKS = 100
_RESTARTED_SHARE = 0.3


class Outcome(msgspec.Struct, frozen=True):
    """The result of a run."""

    seed: int
    events: int
    looks: int
    committed: int
    records: int
    messages: int
    transactions: int
    requests: int
    probes: dict[str, int]
    deeds: dict[str, int]


class Simulation:
    """One run. `run` returns its result, or raises Violation or Stuck."""

    def __init__(
        self, seed: int, swarm: Swarm | None = None, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.swarm = swarm or Swarm.draw(Random(f"{seed}/swarm"))
        swarm = self.swarm
        self.cluster = Cluster(
            seed,
            swarm.members + swarm.spares,
            members=swarm.members,
            operators=swarm.operators,
            swarm=swarm,
            trace=trace,
        )
        self.cluster.network.faults = swarm.network
        self.cluster.store.faults = swarm.store
        self.adversary = Adversary(self.cluster, swarm, self.cluster.stream("adversary"))
        self.ring = Ring(self.cluster, swarm)
        for kind, count in (
            (Producer, swarm.producers),
            (Reader, swarm.readers),
            (Visitor, swarm.visitors),
            (Keeper, swarm.keepers),
            (Putter, swarm.putters),
            (Consumer, swarm.consumers),
        ):
            for number in range(1, count + 1):
                name = f"{kind.__name__.lower()}{number}"
                kind(self.cluster, name, self.cluster.stream(name)).begin()

    def run(self) -> Outcome:
        """Run both phases."""
        self.adversary.start()
        self.ring.start()
        self.cluster.run(self.swarm.events)
        self.heal()
        self.settle()
        if self.adversary.random.random() < _RESTARTED_SHARE:
            self.restart_everything()
            self.settle()
        cluster = self.cluster
        cluster.compare()
        self.ring.compare()
        cluster.probes.count("write lost to another operator", cluster.store.conflicts > 0)
        cluster.probes.count("old messages came again", cluster.network.recalled > 0)
        cluster.probes.count("batch of a producer that was replaced", cluster.truth.zombies > 0)
        return Outcome(
            seed=self.seed,
            events=cluster.clock.events,
            looks=cluster.judge.looks,
            committed=cluster.truth.last,
            records=len(cluster.truth.values),
            messages=sum(map(len, cluster.truth.queue.subqueues)),
            transactions=self.ring.book.committed,
            requests=sum(client.done for client in cluster.clients),
            probes=cluster.probes.counts,
            deeds=self.adversary.deeds,
        )

    def heal(self) -> None:
        """Stop all faults, and start at least one operator."""
        cluster, random = self.cluster, self.adversary.random
        cluster.note("faults stop")
        self.adversary.stopped = True
        for client in cluster.clients:
            client.stopped = True
        cluster.network.faults = NetworkFaults()
        cluster.network.recalled_share = 0.0
        cluster.network.heal()
        cluster.store.faults = StoreFaults()
        cluster.store.cut_off.clear()
        for node in cluster.nodes.values():
            node.resume()
            node.free_disk()
            node.disk.power_lost_before = None
            node.disk.fail_sync = False
            node.sync_delay_most = 1_000
            node.start_if_down()
        for number, operator in enumerate(cluster.operators.values()):
            operator.resume()
            operator.start_if_down()
            if number and random.random() < 0.5:
                operator.crash()
        for subqueue in (MESSAGES,) if self.swarm.forwards else (MESSAGES, DEAD_LETTERS):
            name = f"drain{subqueue}"
            Drain(cluster, name, cluster.stream(name), subqueue).begin()
        self.ring.heal()

    def restart_everything(self) -> None:
        """Fail the power once more after everything is done; all data must survive."""
        for node in self.cluster.nodes.values():
            node.stop(power_loss=True)
            node.start()

    def settle(self) -> None:
        """Wait until the cluster is settled and stays so. A member whose disk is too small gets a larger one;
        a new member does not."""
        cluster = self.cluster
        for _ in range(MOST_EVENTS_TO_SETTLE // _BETWEEN_LOOKS):
            for member in cluster.members:
                cluster.nodes[host_of(member)].enlarge_disk()
            cluster.run(_BETWEEN_LOOKS)
            if not (self.ring.unsettled() or cluster.unsettled()):
                return
        raise Stuck(f"{self.ring.unsettled() or cluster.unsettled()}\n{cluster.describe()}")


def simulate(seed: int, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed. An error names the command that repeats the run."""
    try:
        return Simulation(seed, trace=trace).run()
    except Exception as error:
        error.add_note(f"again: python -m hawser.testing.simulate --seed {seed} --trace")
        raise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hawser.testing.simulate", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other")
    parser.add_argument("--trace", action="store_true", help="a line for each event, a column for each node")
    arguments = parser.parse_args()
    trace = _print if arguments.trace else None
    began, events = perf_counter(), 0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        outcome = simulate(seed, trace)
        events += outcome.events
        print(msgspec.json.encode(outcome).decode())
    print(f"{events / (perf_counter() - began):,.0f} events a second", file=sys.stderr)


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
