"""Locks messages that a session holds, so that a transaction can accept them.

The leader that delivered them (`hawser.log.queue.claims`) checks by their tokens that the session holds them.
The locking entry names the number of ended deliveries of each message, as every settlement does, so of an
accept in a transaction and any other end of the same delivery only one takes effect.
"""

from collections import Counter
from collections.abc import Sequence

from hawser.log.queue.claims import Claim, Claims, Token
from hawser.log.queue.dispatcher import Proposal, RefusalReason, SettlementRefusal, ranges_of
from hawser.log.state.commands import QueueSettle, encode_command

__all__ = ["lock"]


def lock(
    claims: Claims, subqueue: int, session: str, tokens: Sequence[Token]
) -> Proposal | SettlementRefusal:
    """The entry to propose under the label of a transaction. Call `Claims.resolve` with its claims when the
    entry is applied or refused."""
    if any(token.epoch > claims.epoch for token in tokens):
        return SettlementRefusal(RefusalReason.OTHER_LEADER)
    times = Counter(tokens)
    held: list[Claim] = []
    strange: list[Token] = []
    for token in tokens:
        claim = claims.find(session, token)
        if claim is None or times[token] > 1:
            strange.append(token)
        else:
            held.append(claim)
    if strange or not held:
        return SettlementRefusal(RefusalReason.NOT_HELD, tuple(strange))
    for claim in held:
        claim.pending += 1
    return Proposal(encode_command(QueueSettle(subqueue, ranges_of(held))), held)
