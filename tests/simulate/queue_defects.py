"""Defects to plant into the queue: into what is applied, and into what its leader knows."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from hawser.log.queue.claims import Claim, Claims, Token
from hawser.log.queue.dead_letters import next_dead_letters
from hawser.log.replica import Replica
from hawser.log.state.queue import DEAD_LETTERS, MESSAGES, Queue
from hawser.log.state.results import Accepted, Reason, Rejected, Result
from hawser.log.state.subqueue import Subqueue
from hawser.record.batch import Batch
from hawser.record.record import Stamp
from hawser.testing import elsewhere, queue_clients
from hawser.testing.clients import Reply
from hawser.testing.queue_dispatchers import Dispatchers

__all__ = ["QUEUE_DEFECTS"]

Plant = Callable[[pytest.MonkeyPatch], None]


def accept_of_what_is_done(patch: pytest.MonkeyPatch) -> None:
    """And nobody at the desk looks who holds it."""
    patch.setattr(Subqueue, "are_there", lambda self, first, count, deliveries: first + count <= self.end)
    token_of_anybody_taken(patch)
    original = Claims.resolve

    def resolve(self: Claims, claims: list[Claim]) -> None:
        ended = dict(self._claims)
        original(self, [claim for claim in claims if claim.offset in self._claimed])
        self._claims.update({token: ended[token] for token in ended})

    patch.setattr(Claims, "resolve", resolve)


def token_of_anybody_taken(patch: pytest.MonkeyPatch) -> None:
    def find(self: Claims, name: str, token: Token) -> Claim | None:
        return self._claims.get(token.number) if token.epoch == self.epoch else None

    patch.setattr(Claims, "find", find)


def delivery_not_counted(patch: pytest.MonkeyPatch) -> None:
    def give_back(self: Subqueue, first: int, count: int, deliveries: int) -> None:
        self._runs.put(first, first + count, deliveries)

    patch.setattr(Subqueue, "give_back", give_back)


def lost_session_keeps_what_it_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Claims, "leave", lambda self, name: None)


def delivered_before_all_is_applied(patch: pytest.MonkeyPatch) -> None:
    """By a leader that does not know yet what was settled before it."""

    def open_early(self: Dispatchers, replica: Replica) -> None:
        leading = replica.node.leadership
        if leading is None or replica.halted:
            self.forget()
        elif self._epoch != leading.since:
            self._epoch = leading.since
            self._dispatchers = {
                subqueue: self._make(replica, subqueue) for subqueue in (MESSAGES, DEAD_LETTERS)
            }

    patch.setattr(Dispatchers, "open", open_early)


def maybe_redelivered_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Claims.__init__

    def begin(self: Claims, *arguments: Any) -> None:
        original(self, *arguments)
        self._began_at = 0

    patch.setattr(Claims, "__init__", begin)


def returned_to_the_end(patch: pytest.MonkeyPatch) -> None:
    original = Claims._take

    def take(self: Claims) -> tuple[int, int] | None:
        returned, self._returned = self._returned, []
        found = original(self)
        self._returned = returned
        return original(self) if found is None else found

    patch.setattr(Claims, "_take", take)


def dead_letters_not_kept(patch: pytest.MonkeyPatch) -> None:
    original = Queue._carry_out

    def carry_out(self: Queue, command: Any, entry: Any) -> int:
        if not command.moved:
            return original(self, command, entry)
        for first, count, deliveries in command.returned:
            self.subqueues[command.subqueue].give_back(first, count, deliveries)
        for first, count, _ in (*command.accepted, *command.moved):
            self.subqueues[command.subqueue].settle(first, count)
        return int(self.subqueues[1 - command.subqueue].end)

    patch.setattr(Queue, "_carry_out", carry_out)


def trimmed_beyond_what_is_held(patch: pytest.MonkeyPatch) -> None:
    original = Subqueue.settle

    def settle(self: Subqueue, first: int, count: int) -> None:
        if first == self.start + 1 and self._runs.get(self.start) >= 0:
            original(self, self.start, 1)
        original(self, first, count)

    patch.setattr(Subqueue, "settle", settle)


def never_full(patch: pytest.MonkeyPatch) -> None:
    original = Queue.put

    def put(self: Queue, *arguments: Any) -> Result:
        result = original(self, *arguments)
        if isinstance(result, Rejected) and result.reason is Reason.QUEUE_FULL:
            capacity, self.capacity_bytes = self.capacity_bytes, 1 << 60
            result = original(self, *arguments)
            self.capacity_bytes = capacity
        return result

    patch.setattr(Queue, "put", put)


def full_before_it_is_known(patch: pytest.MonkeyPatch) -> None:
    """A repeat of what is in the queue has no room either."""
    original = Queue.put

    def put(self: Queue, header: Any, entry: Any, context: Any) -> Result:
        if self.used_bytes > self.capacity_bytes // 2:
            return Rejected(Reason.QUEUE_FULL, self.used_bytes, 0)
        return original(self, header, entry, context)

    patch.setattr(Queue, "put", put)


def dead_letters_stamped_anew(patch: pytest.MonkeyPatch) -> None:
    """By each who sends them, each time."""
    numbers = itertools.count(1)

    def stamped(*arguments: Any) -> Batch | None:
        batch = next_dead_letters(*arguments)
        return batch and batch.stamped(Stamp(batch.stamp.producer, next(numbers), 1))

    patch.setattr(elsewhere, "next_dead_letters", stamped)


def dead_letters_ended_without_room(patch: pytest.MonkeyPatch) -> None:
    """Any answer is taken for a good one."""
    original = elsewhere.Forwarding.receive

    def receive(self: elsewhere.Forwarding, reply: Reply) -> elsewhere.ForwardedBatch | None:
        if isinstance(reply.outcome, Rejected):
            reply = Reply(reply.tag, Accepted(1, 1))
        return original(self, reply)

    patch.setattr(elsewhere.Forwarding, "receive", receive)


def sessions_shown_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_clients, "shown_as", lambda session: session)


QUEUE_DEFECTS: dict[str, Plant] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        accept_of_what_is_done,
        token_of_anybody_taken,
        delivery_not_counted,
        lost_session_keeps_what_it_held,
        delivered_before_all_is_applied,
        maybe_redelivered_forgotten,
        returned_to_the_end,
        dead_letters_not_kept,
        trimmed_beyond_what_is_held,
        never_full,
        full_before_it_is_known,
        dead_letters_stamped_anew,
        dead_letters_ended_without_room,
        sessions_shown_as_they_are,
    )
}
