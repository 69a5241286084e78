"""Validation of answers: the type and shape of the answer that a node may give to each request.

A client checks each answer once, on arrival. After that no answer has a wrong type, lacks a part, or refers
to something that was not asked about. Its claims may still be wrong: only its form is checked.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from hawser.cluster import wire
from hawser.cluster.transport import Address, BadAddress, Malformed
from hawser.errors import HawserError
from hawser.log.entry import Kind
from hawser.log.queue.dispatcher import DeliveryBatch
from hawser.log.state import results as r
from hawser.record.batch import Batch
from hawser.transaction.xa.table import State

__all__ = ["check_answer"]

_MOST_PARTITIONS: Final = 1024
_BATCH_RESULTS: Final = (r.Accepted, r.Repeated, r.Rejected)
_EXECUTED: Final[dict[int, tuple[type[r.Result], ...]]] = {
    Kind.GROUP_JOIN: (r.Joined, r.Rejected),
    Kind.GROUP_LEAVE: (r.Left, r.Rejected),
    Kind.GROUP_COMMIT: (r.Committed, r.Rejected),
    Kind.GROUP_DELETE: (r.Deleted, r.Rejected),
}
_TRANSACTED: Final = (r.Staged, r.Prepared, r.Finished, r.Answered, r.Rejected, r.Done)
_OUTCOMES: Final = frozenset(r.Outcome)
_STATES: Final = frozenset(each.value for each in State)
_SETTLED: Final = (r.Settled, r.Repeated, r.Rejected, r.Done)


def check_answer(request: Any, answer: wire.Answer) -> None:
    """Malformed unless a sound node may give this answer. For a producer's batch the request's type
    suffices."""
    if isinstance(answer, wire.Failed):
        _check_failed(answer)
        return
    kinds, check = _SHAPES[request if isinstance(request, type) else type(request)]
    if not isinstance(answer, kinds):
        raise Malformed(f"answered with {type(answer).__name__}")
    check(request, answer)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise Malformed(what)


def _check_failed(answer: wire.Failed) -> None:
    if answer.leader is not None:
        _check_address(answer.leader[1])
    _require(answer.start >= 0 and answer.end >= 0, "a refusal with impossible bounds")


def _check_address(text: str) -> None:
    try:
        address = Address.parse(text)
    except BadAddress as error:
        raise Malformed(str(error)) from None
    _require(address.port > 0, f"{text!r} as the address of a node")


def _result(data: bytes, kinds: tuple[type[r.Result], ...]) -> r.AnyResult:
    try:
        result = r.decode_result(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a result that cannot be read: {error}") from None
    _require(isinstance(result, kinds), f"the result {type(result).__name__}")
    return result


def _batch(data: Any) -> Batch:
    try:
        return Batch.read(data)
    except HawserError as error:
        raise Malformed(f"a batch that cannot be read: {error}") from None


def _check_map(_: wire.GetMap, answer: wire.Map) -> None:
    for node in answer.nodes.values():
        _check_address(node.address)
    for name, topic in answer.topics.items():
        _require(1 <= topic.partitions <= _MOST_PARTITIONS, f"{topic.partitions} partitions of {name!r}")


def _check_published(_: wire.Publish | wire.QueuePut, answer: wire.Executed) -> None:
    result = _result(answer.result, _BATCH_RESULTS)
    if not isinstance(result, r.Rejected):
        assert isinstance(result, r.Accepted | r.Repeated)
        _require(result.first_offset > 0 and result.count > 0, "a batch that begins nowhere")


def _check_executed(request: wire.Execute, answer: wire.Executed) -> None:
    result = _result(answer.result, _EXECUTED.get(request.kind, (r.Result,)))
    if isinstance(result, r.Joined):
        _require(result.position >= 0 and result.generation >= 0, "an impossible position of a group")
    elif isinstance(result, r.Committed):
        _require(result.position >= 0, "an impossible position of a group")


def _check_inspected(request: wire.Inspect, answer: wire.Inspected) -> None:
    _require(0 <= answer.start <= answer.end, "impossible bounds of a partition")
    if request.at_ns is not None:
        _require(answer.at is not None and answer.at >= 0, "no offset at the time that was asked about")
    groups = answer.groups.values()
    _require(all(each.position >= 0 and each.generation >= 0 for each in groups), "an impossible group")


def _check_batches(request: wire.Fetch, answer: wire.Batches) -> None:
    offset = request.offset
    for first, data in answer.batches:
        count = _batch(data).count
        _require(first <= offset < first + count, f"records from {first} on where {offset} is next")
        offset = first + count


def _check_alive(_: wire.KeepAlive, answer: wire.GroupState) -> None:
    _require(answer.generation >= 0, "an impossible generation of a group")
    _require(len(answer.settled) <= len(answer.members), "more settled members than there are")


def _check_delivery_batches(delivery_batches: tuple[DeliveryBatch, ...]) -> None:
    for delivery_batch in delivery_batches:
        batch = _batch(delivery_batch.batch)
        _require(
            batch.count == delivery_batch.count and delivery_batch.offset > 0,
            "another number of messages than it says",
        )
        try:
            # The iterator checks the body before its first record.
            next(batch.records(), None)
        except HawserError as error:
            raise Malformed(f"messages that cannot be read: {error}") from None


def _check_delivered(_: wire.QueueGet, answer: wire.Delivered) -> None:
    _check_delivery_batches(answer.delivery_batches)


def _check_settled(request: wire.QueueSettle, answer: wire.Executed | wire.Turned) -> None:
    if isinstance(answer, wire.Executed):
        _result(answer.result, _SETTLED)
        return
    runs = [*request.accepted, *request.released, *request.rejected]
    asked = {(epoch, first + place) for epoch, first, count in runs for place in range(count)}
    for epoch, first, count in answer.tokens:
        is_asked = count <= len(asked) and all((epoch, first + place) in asked for place in range(count))
        _require(is_asked, "claims that were not to be settled")


def _check_looked(request: wire.QueueLook, answer: wire.Looked) -> None:
    _require(0 <= answer.delivered <= answer.count, "more claimed messages than there are")
    _check_delivery_batches(answer.delivery_batches)
    offset = request.first
    for delivery_batch in answer.delivery_batches:
        _require(delivery_batch.offset >= offset, "messages out of their order")
        offset = delivery_batch.offset + delivery_batch.count


def _check_transacted(request: wire.Transact, answer: wire.Transacted) -> None:
    asked, told = len(request.entries), len(answer.results)
    _require(asked == told, f"{told} results of {asked} entries")
    for data in answer.results:
        result = _result(data, _TRANSACTED)
        if isinstance(result, r.Rejected) and result.reason is r.Reason.TRANSACTION_OVER:
            _check_outcome(result.current)


def _check_outcome(number: int) -> None:
    _require(not number or number in _OUTCOMES, f"the unknown outcome {number}")


def _check_transactions(_: wire.TransactionLook, answer: wire.TransactionsSeen) -> None:
    for record in answer.records:
        _require(record.state in _STATES, f"the unknown state {record.state!r} of a transaction")
        _check_outcome(record.outcome or 0)
    _check_outcome(answer.outcome or 0)


def _nothing(_: object, __: object) -> None:
    """For answers of which only the type is checked."""


_Shape = tuple[type[Any] | tuple[type[Any], ...], Callable[[Any, Any], None]]
_SHAPES: Final[dict[type[Any], _Shape]] = {
    wire.GetMap: (wire.Map, _check_map),
    wire.Publish: (wire.Executed, _check_published),
    wire.QueuePut: (wire.Executed, _check_published),
    wire.Execute: (wire.Executed, _check_executed),
    wire.Fetch: (wire.Batches, _check_batches),
    wire.Inspect: (wire.Inspected, _check_inspected),
    wire.KeepAlive: (wire.GroupState, _check_alive),
    wire.QueueGet: (wire.Delivered, _check_delivered),
    wire.QueueSettle: ((wire.Executed, wire.Turned), _check_settled),
    wire.QueueLook: (wire.Looked, _check_looked),
    wire.Transact: (wire.Transacted, _check_transacted),
    wire.TransactionLook: (wire.TransactionsSeen, _check_transactions),
    wire.Admin: (wire.AdminDone, _nothing),
}
