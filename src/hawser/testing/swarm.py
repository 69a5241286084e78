"""The configuration of a simulated run, drawn from its seed.

Each run has only some of the faults, because a missing fault lets others go further (swarm testing). Limits
are small, so that rare situations are frequent.
"""

from random import Random
from typing import Any

import msgspec

from hawser.log.journal.journal import Settings as JournalSettings
from hawser.log.protocol.node import Limits
from hawser.log.queue.claims import DeliveryPolicy
from hawser.log.replica import Settings
from hawser.testing.network import NetworkFaults
from hawser.testing.store import StoreFaults

__all__ = ["Swarm"]


class Swarm(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a run. `weights` are relative frequencies of the adversary's faults; 0 is
    never."""

    members: int = 3
    spares: int = 1
    operators: int = 1
    patience: int = 5
    producers: int = 1
    readers: int = 1
    visitors: int = 0
    keepers: int = 1
    putters: int = 1
    consumers: int = 1
    pace: int = 2_000
    # The queue, and the pace of its clients.
    putting_pace: int = 2_000
    getting_pace: int = 2_000
    capacity_bytes: int = 8_192
    # Whether dead letters go to another queue; then clients do not get them here.
    forwards: bool = False
    policy: DeliveryPolicy = DeliveryPolicy(session_duration=30_000)
    # Transactions: the shards beside the first one, their members, the clients, and their pace.
    sides: int = 1
    side_members: int = 1
    movers: int = 1
    outsiders: int = 1
    applications: int = 0
    moving_pace: int = 5_000
    # The share of work that moves positions of groups.
    positions_share: float = 0.2
    # The share of decisions that coordinators do not deliver, so that participants ask; if it is not 0,
    # they hesitate to disown what is not decided.
    unheard_share: float = 0.0
    # The number of events with faults, and the maximum microseconds between two faults.
    events: int = 2_000
    interval: int = 8_000
    network: NetworkFaults = NetworkFaults()
    store: StoreFaults = StoreFaults()
    encoded_share: float = 0.05
    repeated_share: float = 0.0
    # The share of decided changes of the ensemble that are interrupted.
    striking_share: float = 0.0
    sync_delay_most: int = 1_000
    # The room of spare nodes beside an empty member; None for unlimited.
    spare_room_bytes: int | None = None
    # The maximum rate error of clocks.
    slowness: float = 1.0
    # Limits of the log.
    segment_bytes: int = 4_096
    window: int = 64
    message_bytes: int = 4_096
    uncommitted: int = 256
    piece_bytes: int = 1_024
    tail_bytes: int = 4_096
    checkpoint_entries: int = 32
    spare_entries: int = 16
    snapshot_ticks: int = 10
    weights: dict[str, float] = {}

    def settings(self) -> Settings:
        """The log limits of the members."""
        return Settings(
            journal=JournalSettings(
                segment_bytes=self.segment_bytes, tail_bytes=self.tail_bytes, ballast_bytes=8192
            ),
            limits=Limits(window=self.window, message_bytes=self.message_bytes, uncommitted=self.uncommitted),
            checkpoint_entries=self.checkpoint_entries,
            checkpoint_bytes=4 * self.segment_bytes,
            spare_entries=self.spare_entries,
            spare_bytes=2 * self.segment_bytes,
            index_places=3,
            piece_bytes=self.piece_bytes,
            snapshot_ticks=self.snapshot_ticks,
        )

    @classmethod
    def draw(cls, random: Random) -> "Swarm":
        """Draw a configuration. Most are a mixture of all faults; some aim at situations that a mixture
        hardly ever reaches."""
        mixture = cls._draw_mixture(random)
        drawn = random.random()
        chosen: dict[str, Any] = {}
        for share, special in _SPECIALS:
            if 0 <= drawn < share:
                chosen = special
            drawn -= share
        drawn_parts = _draw_queue(random) | _draw_transactions(random)
        return msgspec.structs.replace(mixture, **(drawn_parts | chosen))

    @classmethod
    def _draw_mixture(cls, random: Random) -> "Swarm":
        return cls(
            members=random.choice((1, 2, 3, 3, 3, 3, 4, 5)),
            spares=random.choice((0, 1, 1, 2)),
            operators=random.choice((1, 1, 2, 3)),
            patience=random.randint(3, 8),
            producers=random.randint(1, 3),
            readers=random.randint(0, 2),
            visitors=random.randint(0, 1),
            keepers=random.randint(0, 2),
            pace=random.choice((200, 1_000, 3_000)),
            events=random.randint(2_000, 15_000),
            interval=random.choice((6_000, 20_000, 60_000)),
            network=_draw_network(random),
            store=_draw_store(random),
            encoded_share=random.choice((0.02, 0.1)),
            repeated_share=random.choice((0.0, 0.05, 0.2)),
            sync_delay_most=random.choice((200, 1_000, 5_000)),
            striking_share=random.choice((0.0, 0.3)),
            spare_room_bytes=random.choice((None, None, None, 4_096, 20_000)),
            slowness=random.choice((1.0, 1.0, 3.0)),
            segment_bytes=random.choice((1_024, 2_048, 8_192)),
            window=random.choice((1, 4, 32)),
            message_bytes=random.choice((1, 512, 4_096)),
            uncommitted=random.choice((4, 16, 256)),
            piece_bytes=random.choice((256, 1_024, 4_096)),
            tail_bytes=random.choice((0, 1_024, 16_384)),
            checkpoint_entries=random.choice((4, 16, 64)),
            spare_entries=random.choice((0, 4, 32)),
            snapshot_ticks=random.choice((2, 10, 40)),
            weights=_draw_weights(random),
        )


# A nearly empty queue, because waiting messages keep the log long and hide the effects of a short log.
_SHORT_QUEUE: dict[str, Any] = {
    "movers": 1,
    "outsiders": 1,
    "applications": 0,
    "moving_pace": 6_000,
    "positions_share": 0.0,
    "putters": 1,
    "consumers": 1,
    "putting_pace": 500_000,
    "getting_pace": 3_000,
    "capacity_bytes": 500,
    "forwards": True,
    "policy": DeliveryPolicy(session_duration=5_000, lease_duration=5_000, max_deliveries=2),
}
# Leaders that are cut off one after the other, so that logs diverge at several entries.
_CHURN: dict[str, Any] = {
    "members": 3,
    "spares": 0,
    "operators": 2,
    "patience": 3,
    "interval": 6_000,
    "pace": 200,
    "network": NetworkFaults(delay_most=200),
    "store": StoreFaults(delay_most=300),
    "weights": {
        "each leader alone": 3.0,
        "leader alone": 4.0,
        "partition": 1.0,
        "kill": 1.0,
        "pause": 1.0,
        "old messages": 2.0,
    },
}
# Flipped bits and lost disks, under logs that are often read again.
_ROT: dict[str, Any] = {
    **_SHORT_QUEUE,
    "members": 5,
    "spares": 0,
    "interval": 20_000,
    "pace": 1_000,
    "readers": 2,
    "segment_bytes": 1_024,
    "tail_bytes": 0,
    "checkpoint_entries": 4,
    "spare_entries": 32,
    "weights": {"flip": 4.0, "wipe": 1.0, "kill": 1.0, "power": 1.0, "pause": 1.0, "slow disk": 1.0},
}
# Members that are removed one after the other while the others lag.
_SHRINKING: dict[str, Any] = {
    **_SHORT_QUEUE,
    "members": 5,
    "spares": 0,
    "operators": 1,
    "interval": 4_000,
    "pace": 200,
    "patience": 8,
    "network": NetworkFaults(delay_most=200),
    "store": StoreFaults(delay_most=200),
    "sync_delay_most": 200,
    "weights": {
        "contract": 3.0,
        "expand": 6.0,
        "slow disk": 4.0,
        "clog": 2.0,
        "elect": 1.0,
        "pause": 2.0,
        "contract twice": 12.0,
    },
}
# Members that are replaced under a leader whose disk is behind its commits.
_SWAPPING: dict[str, Any] = {
    **_SHORT_QUEUE,
    "members": 3,
    "spares": 2,
    "operators": 1,
    "interval": 6_000,
    "pace": 200,
    "producers": 3,
    "patience": 8,
    "network": NetworkFaults(delay_most=200),
    "store": StoreFaults(delay_most=200),
    "sync_delay_most": 200,
    "piece_bytes": 4_096,
    "striking_share": 0.3,
    "weights": {
        "swap": 5.0,
        "slow leader": 5.0,
        "slow disk": 2.0,
        "power": 1.0,
        "elect": 1.0,
        "old messages": 4.0,
    },
}
# Followers that fall behind repeatedly, and pieces of snapshots that arrive twice and late.
_LAGGING: dict[str, Any] = {
    **_SHORT_QUEUE,
    "events": 15_000,
    "members": 3,
    "spares": 0,
    "operators": 1,
    "interval": 10_000,
    "pace": 200,
    "producers": 2,
    "keepers": 2,
    "patience": 20,
    "network": NetworkFaults(delay_most=300, duplication=0.5, straggling=0.05, straggling_delay_most=20_000),
    "sync_delay_most": 200,
    "segment_bytes": 1_024,
    "checkpoint_entries": 4,
    "spare_entries": 0,
    "piece_bytes": 4_096,
    "uncommitted": 256,
    "snapshot_ticks": 2,
    "weights": {
        "follower alone": 6.0,
        "pause": 1.0,
        "kill": 1.0,
        "one way": 1.0,
        "slow disk": 1.0,
        "old messages": 6.0,
    },
}
# Leaders that are cut off and come back, with logs that are not trimmed and a network that repeats old
# messages.
_ECHOES: dict[str, Any] = {
    "events": 15_000,
    "members": 3,
    "spares": 1,
    "operators": 1,
    "patience": 3,
    "interval": 4_000,
    "pace": 200,
    "keepers": 0,
    "network": NetworkFaults(delay_most=200),
    "store": StoreFaults(delay_most=300),
    "weights": {
        "old messages": 5.0,
        "leader alone": 4.0,
        "each leader alone": 3.0,
        "leader restarts": 2.0,
        "slow leader": 1.0,
        "transfer": 2.0,
        "swap": 1.0,
    },
}
# Leaders with full disks and trimmed logs, and nodes that are too small to become members.
_NARROW: dict[str, Any] = {
    **_SHORT_QUEUE,
    "members": 3,
    "spares": 1,
    "operators": 1,
    "interval": 20_000,
    "pace": 200,
    "producers": 3,
    "visitors": 1,
    "keepers": 2,
    "spare_room_bytes": 4_096,
    "segment_bytes": 1_024,
    "checkpoint_entries": 4,
    "spare_entries": 0,
    "weights": {"full leader": 4.0, "full disk": 1.0, "expand": 2.0, "swap": 2.0, "slow leader": 1.0},
}
# Consumers that hold many messages when the leader changes.
_LENDING: dict[str, Any] = {
    "members": 3,
    "spares": 0,
    "interval": 20_000,
    "pace": 200,
    "readers": 0,
    "keepers": 0,
    "putters": 2,
    "consumers": 3,
    "capacity_bytes": 30_000,
    "weights": {
        "leader alone": 3.0,
        "leader restarts": 2.0,
        "transfer": 2.0,
        "pause": 1.0,
        "kill": 1.0,
        "power": 1.0,
        "slow leader": 1.0,
    },
}
# Many transactions over three shards, whose coordinators decide late and lose their answers, so that
# participants ask.
_DECIDING: dict[str, Any] = {
    "events": 15_000,
    "members": 3,
    "spares": 0,
    "operators": 1,
    "interval": 25_000,
    "pace": 3_000,
    "producers": 1,
    "readers": 0,
    "visitors": 0,
    "keepers": 0,
    "putters": 1,
    "consumers": 1,
    "putting_pace": 3_000,
    "getting_pace": 10_000,
    "capacity_bytes": 30_000,
    "sides": 2,
    "side_members": 1,
    "movers": 3,
    "outsiders": 0,
    "applications": 0,
    "unheard_share": 0.9,
    "network": NetworkFaults(delay_most=500, straggling=0.03, straggling_delay_most=60_000),
    "sync_delay_most": 200,
    "slowness": 1.0,
    "weights": {
        "pause": 2.0,
        "leader alone": 1.0,
        "leader restarts": 2.0,
        "slow leader": 3.0,
        "clog": 1.0,
    },
}

# The share of runs with each of them.
_SPECIALS = (
    *((0.1, _CHURN), (0.12, _ROT), (0.08, _SHRINKING), (0.1, _SWAPPING), (0.1, _LAGGING)),
    *((0.14, _ECHOES), (0.06, _NARROW), (0.1, _LENDING), (0.1, _DECIDING)),
)


def _draw_network(random: Random) -> NetworkFaults:
    return NetworkFaults(
        loss=random.choice((0.0, 0.0, 0.01, 0.05, 0.2)),
        duplication=random.choice((0.0, 0.02, 0.2)),
        delay_most=random.choice((100, 500, 3_000)),
        straggling=random.choice((0.0, 0.01, 0.1)),
        straggling_delay_most=random.choice((10_000, 60_000)),
    )


def _draw_queue(random: Random) -> dict[str, Any]:
    return {
        "putters": random.choice((1, 1, 2)),
        "consumers": random.choice((1, 2, 3)),
        "putting_pace": random.choice((1_000, 3_000, 10_000)),
        "getting_pace": random.choice((1_000, 3_000, 10_000)),
        "capacity_bytes": random.choice((1_000, 4_000, 30_000)),
        "forwards": random.choice((False, False, True)),
        "policy": DeliveryPolicy(
            session_duration=random.choice((10_000, 40_000)),
            lease_duration=random.choice((0, 0, 15_000)),
            max_deliveries=random.choice((0, 2, 4)),
            most_held=random.choice((5, 100)),
        ),
    }


def _draw_transactions(random: Random) -> dict[str, Any]:
    return {
        "sides": random.choice((1, 1, 1, 1, 2)),
        "side_members": random.choice((1, 1, 1, 1, 3)),
        "movers": random.choice((1, 2, 2)),
        "outsiders": random.choice((0, 1)),
        "applications": random.choice((0, 1)),
        "moving_pace": random.choice((2_000, 6_000)),
        "positions_share": random.choice((0.0, 0.2)),
        "unheard_share": random.choice((0.0, 0.0, 0.0, 0.9)),
    }


def _draw_store(random: Random) -> StoreFaults:
    lost = random.choice((0.0, 0.0, 0.05, 0.2))
    return StoreFaults(
        lost_requests=lost,
        lost_answers=random.choice((0.0, lost)),
        delay_most=random.choice((200, 2_000, 10_000)),
    )


# The weight of each fault in a run that has it, and the share of runs with it.
_WEIGHTS = {
    "kill": (3.0, 0.6),
    "power": (3.0, 0.6),
    "power in a step": (3.0, 0.5),
    "power everywhere": (0.5, 0.3),
    "leader restarts": (2.0, 0.5),
    "pause": (2.0, 0.5),
    "partition": (2.0, 0.5),
    "one way": (2.0, 0.4),
    "follower alone": (1.0, 0.3),
    "leader alone": (3.0, 0.5),
    "each leader alone": (1.0, 0.2),
    "clog": (2.0, 0.4),
    "old messages": (2.0, 0.5),
    "full disk": (1.0, 0.3),
    "full leader": (1.0, 0.3),
    "slow disk": (2.0, 0.4),
    "slow leader": (1.0, 0.3),
    "failing disk": (1.0, 0.4),
    "flip": (2.0, 0.5),
    "wipe": (1.0, 0.4),
    "operator crash": (1.5, 0.5),
    "operator pause": (1.0, 0.4),
    "store out of reach": (1.0, 0.3),
    "elect": (1.0, 0.5),
    "transfer": (2.0, 0.5),
    "swap": (3.0, 0.5),
    "expand": (3.0, 0.5),
    "contract": (3.0, 0.5),
    "contract twice": (1.0, 0.2),
}


def _draw_weights(random: Random) -> dict[str, float]:
    weights = {}
    for name, (weight, share) in _WEIGHTS.items():
        drawn = random.random()
        if drawn < share:
            weights[name] = weight * random.choice((0.5, 1.0, 2.0))
    return weights
