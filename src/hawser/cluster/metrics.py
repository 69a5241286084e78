"""The metrics of a node and of an operator, as `/metrics` shows them.

Shards are counted, not listed, where a metric for each would add little: a node may host thousands. A metric
exists by being yielded here; `docs/configuration.md` says which ones to watch.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hawser.cluster.health import Metric
from hawser.cluster.node.server import Node
from hawser.cluster.node.shard import Shard
from hawser.cluster.operator.service import OperatorService
from hawser.cluster.stall_watch import StallWatch
from hawser.cluster.transport import Counters
from hawser.errors import Corrupt
from hawser.log.protocol.metadata import Status
from hawser.log.state.queue import MESSAGES, Queue
from hawser.log.state.results import Outcome

__all__ = ["node_metrics", "operator_metrics"]

_LINKS: Final = {
    "bytes_in": ("hawser_link_received_bytes_total", "Bytes received over all links."),
    "bytes_out": ("hawser_link_sent_bytes_total", "Bytes sent over all links."),
    "frames_in": ("hawser_link_received_frames_total", "Frames received over all links."),
    "frames_out": ("hawser_link_sent_frames_total", "Frames sent over all links."),
    "tells_dropped": (
        "hawser_messages_dropped_total",
        "Messages dropped because a queue was full or there was no link.",
    ),
    "asks": ("hawser_asks_total", "Requests sent to peers."),
    "asks_timed_out": ("hawser_asks_timed_out_total", "Requests to peers without an answer in time."),
    "requests": ("hawser_requests_total", "Requests of peers and clients."),
    "links_opened": ("hawser_links_opened_total", "Links opened since the start."),
    "links_refused": ("hawser_links_refused_total", "Links refused: another cluster or another version."),
    "links_malformed": ("hawser_links_malformed_total", "Links closed because of malformed bytes."),
    "links_silent": ("hawser_links_silent_total", "Links closed because the peer was silent."),
    "links": ("hawser_links", "Links that are open."),
    "asks_in_flight": ("hawser_asks_in_flight", "Requests to peers that are not answered yet."),
    "requests_in_progress": ("hawser_requests_in_progress", "Requests of peers and clients in progress."),
}


def node_metrics(node: Node, directory: Path) -> Iterator[Metric]:
    """The metrics of a node whose logs are in `directory`."""
    shards = list(node.shards.values())
    yield Metric("hawser_shards", "Shards on this node.", len(shards))
    yield Metric("hawser_shards_led", "Shards that this node leads.", sum(each.leads for each in shards))
    halted = sum(each.replica.halted is not None for each in shards)
    yield Metric("hawser_shards_halted", "Shards halted by a disk error or a broken invariant.", halted)
    for name, shard in node.shards.items():
        replica, labels = shard.replica, (("shard", name),)
        yield Metric("hawser_shard_epoch", "Epoch of the shard on this node.", replica.node.epoch, labels)
        yield Metric("hawser_shard_head", "Last entry in this node's log.", replica.node.head.index, labels)
        yield Metric("hawser_shard_commit", "Last entry known to be committed.", replica.node.commit, labels)
        yield Metric("hawser_shard_apply", "Last entry applied.", replica.node.applied, labels)
        yield Metric("hawser_shard_leads", "1 if this node leads the shard.", int(shard.leads), labels)
    for shard in shards:
        yield from _queue_metrics(shard)
    yield from _transaction_metrics(node)
    disk = node.disk_counters
    yield Metric("hawser_disk_syncs_total", "Syncs of files and directories.", disk.syncs)
    yield Metric("hawser_disk_sync_seconds_total", "Time that syncs took.", disk.sync_seconds)
    yield Metric("hawser_disk_written_bytes_total", "Bytes written to the logs.", disk.written_bytes)
    free_bytes = shutil.disk_usage(directory).free
    yield Metric("hawser_disk_free_bytes", "Free bytes where this node keeps its logs.", free_bytes)
    text = (
        "Seconds by which this node's clock is ahead of the time that half of all nodes' clocks have reached."
    )
    yield Metric("hawser_clock_ahead_seconds", text, node.clocks.ahead_seconds() or 0.0)
    text = "1 if no majority of the nodes' clocks confirms this node's."
    yield Metric("hawser_clock_wrong", text, int(node.clocks.is_wrong()))
    yield from _stall_metrics(node.stalls)
    yield from _link_metrics(node.counters)


def _queue_metrics(shard: Shard) -> Iterator[Metric]:
    """The metrics of a queue that this node leads."""
    delivery = shard.current_delivery
    if delivery is None:
        return
    labels = (("queue", delivery.queue),)
    queue, claimed = shard.replica.machine.part(Queue), delivery.held(MESSAGES)
    counts = {"ready": queue.messages.count - claimed, "claimed": claimed, "dead": queue.dead_letters.count}
    for state, count in counts.items():
        text = "Messages that wait for a consumer, are held by one, or are dead letters."
        yield Metric("hawser_queue_messages", text, count, (*labels, ("state", state)))
    try:
        oldest_ns = delivery.oldest_ns(MESSAGES)
    except (Corrupt, OSError):
        # The age is unknown; the log names the damage.
        pass
    else:
        age = 0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9)
        text = (
            "Age of the oldest message that is not accepted; 0 without one, missing while it is unreadable."
        )
        yield Metric("hawser_queue_oldest_age_seconds", text, age, labels)
    yield Metric(
        "hawser_queue_used_bytes", "Bytes that count against the capacity.", queue.used_bytes, labels
    )
    yield Metric(
        "hawser_queue_capacity_bytes", "Capacity of the queue in bytes.", queue.capacity_bytes, labels
    )


def _transaction_metrics(node: Node) -> Iterator[Metric]:
    """The totals of the shards that this node leads."""
    services = [shard.transactions for shard in node.shards.values() if shard.transactions is not None]
    branches = [transactions.participant for transactions in services]
    unfinished = sum(transactions.coordinator.unfinished_count for transactions in services)
    text = "Branches of transactions on the shards that this node leads."
    for state, count in (
        ("open", sum(each.open_count for each in branches)),
        ("prepared", sum(each.prepared_count for each in branches)),
    ):
        yield Metric("hawser_transaction_branches", text, count, (("state", state),))
    text = "Branches, not transactions, that were prepared more than 10 s ago and await their decision."
    yield Metric("hawser_transactions_in_doubt", text, sum(each.in_doubt_count for each in branches))
    text = "Age of the oldest branch since this leader first saw it or it was prepared; 0 without one."
    oldest = max((each.oldest_age_seconds for each in branches), default=0.0)
    yield Metric("hawser_transaction_oldest_age_seconds", text, oldest)
    text = "Transactions that this node decides and that are not over on every shard."
    yield Metric("hawser_transactions_unfinished", text, unfinished)
    text = "Branches that ended while this node led their shards, by outcome."
    for outcome in Outcome:
        labels = (("outcome", outcome.name.lower().replace("_", " ")),)
        yield Metric("hawser_transaction_branches_ended_total", text, node.observers.ended[outcome], labels)
    text = "Records that transactions published, and messages they accepted, where this node led the shards."
    for done, count in (("published", node.observers.published), ("accepted", node.observers.accepted)):
        yield Metric("hawser_transaction_records_total", text, count, (("done", done),))
    text = "Batches of applications, such as Spark, skipped because they had been written before."
    yield Metric("hawser_transaction_batches_skipped_total", text, node.observers.skipped_batches)
    text = "Errors of transaction observers."
    yield Metric("hawser_transaction_observer_failures_total", text, node.observers.failures)


def operator_metrics(operator: OperatorService) -> Iterator[Metric]:
    """The metrics of an operator."""
    found = [driver.metadata for driver in operator.drivers.values()]
    states = Counter(metadata.status for metadata in found if metadata is not None)
    yield Metric("hawser_nodes_alive", "Nodes that answer this operator.", len(operator.alive))
    kinds = Counter(each.kind for each in operator.topics.values() if not each.deleted)
    yield Metric("hawser_topics", "Topics.", kinds["topic"])
    yield Metric("hawser_queues", "Queues.", kinds["queue"])
    for status in Status:
        text = "Shards by what the store says of them."
        yield Metric("hawser_shards", text, states[status], (("state", status.value),))
    epochs = sum(metadata.epoch for metadata in found if metadata is not None)
    yield Metric("hawser_epochs", "Epochs of all shards together: elections, transfers and changes.", epochs)
    for node, rolled in operator.rolls.items():
        text = "Free bytes on a node's disk, as it said last."
        yield Metric("hawser_node_disk_free_bytes", text, rolled.free_bytes, (("node", node),))
    yield from _stall_metrics(operator.stalls)
    yield from _link_metrics(operator.counters)


def _stall_metrics(stalls: StallWatch) -> Iterator[Metric]:
    text = "Times for which the event loop stood still, each of 50 ms or more."
    yield Metric("hawser_loop_stalls_total", text, stalls.count)
    text = "How long the event loop stood still at these times, together."
    yield Metric("hawser_loop_stall_seconds_total", text, stalls.seconds)
    text = "The longest of these times."
    yield Metric("hawser_loop_stall_seconds", text, stalls.longest)
    text = "The most that this process spent on a processor in one of these times."
    yield Metric("hawser_loop_stall_busy_seconds", text, stalls.longest_busy)


def _link_metrics(counters: Counters) -> Iterator[Metric]:
    for field, (name, text) in _LINKS.items():
        yield Metric(name, text, getattr(counters, field))
