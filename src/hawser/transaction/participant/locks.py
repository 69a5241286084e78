"""Messages that a session holds, accepted in a transaction.

The leader that lent them (`hawser.log.queue.claims`) knows by their tokens that this session holds them; the
entry that locks them says how many deliveries of each had ended, as every settlement does. Of a late accept
in a transaction and any other end of the same delivery one takes effect.
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
    """What to propose under the label of a transaction; `Claims.resolve` is to be called with its claims when
    it is applied, or refused."""
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
