"""The errors of a client's calls, made of refusals by nodes and of lost answers; and the backoff of
retries."""

from collections.abc import Sequence
from random import SystemRandom
from typing import Final

from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.wire import Code, Failed
from hawser.errors import (
    Closed,
    Corrupt,
    Full,
    HawserError,
    NotFound,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    UsageError,
)

__all__ = ["Backoff", "copy_of", "ended", "error_of", "given_up", "joint_error", "refused"]

_KINDS: Final[dict[Code, type[HawserError]]] = {
    Code.NOT_LEADER: NotLeader,
    Code.NOT_FOUND: NotFound,
    Code.BUSY: Unavailable,
    Code.FULL: Full,
    Code.QUEUE_FULL: Full,
    Code.OUT_OF_RANGE: OffsetOutOfRange,
    Code.UNAVAILABLE: Unavailable,
    Code.UNKNOWN: OutcomeUnknown,
    Code.REJECTED: Rejected,
    Code.BAD_REQUEST: UsageError,
    Code.DAMAGED: Corrupt,
    Code.OTHER_LOG: OffsetOutOfRange,
    Code.OTHER: Rejected,
}
assert set(_KINDS) == set(Code)
_OUTCOMES: Final = ("none", "applied", "unknown")
# Not the program's own generator, whose state a fork copies.
_RANDOM: Final = SystemRandom()


def error_of(failed: Failed, what: str) -> HawserError:
    """The error for a request that was refused for good. A subscription handles OUT_OF_RANGE and OTHER_LOG
    itself (`Fetcher._refused`)."""
    error = _KINDS[failed.code](f"{what}: {failed.text}")
    error.retryable, error.outcome = failed.retryable, failed.outcome
    return error


def refused(failed: Failed, what: str, doubt: bool) -> HawserError:
    """As `error_of`, or OutcomeUnknown if there is `doubt`: an earlier attempt may have taken effect."""
    if not doubt:
        return error_of(failed, what)
    return OutcomeUnknown(
        f"{what}: perhaps done, because an attempt was not answered; the next one was refused "
        f"({failed.text}). Check whether it took effect before you repeat it"
    )


def ended(closed: Closed, what: str, doubt: bool) -> HawserError:
    """The error for a request whose topic was deleted, or whose bus was closed, before an answer;
    OutcomeUnknown if there is `doubt`."""
    if not doubt:
        return closed
    return OutcomeUnknown(f"{what}: perhaps done, because an attempt was not answered; since then: {closed}")


def copy_of(error: HawserError) -> HawserError:
    """A copy for another caller: a caller may modify the error that it gets."""
    copy = type(error)(str(error))
    copy.retryable, copy.outcome, copy.published = error.retryable, error.outcome, error.published
    return copy


def joint_error(errors: Sequence[HawserError], published: int) -> HawserError:
    """The error for a batch of which some parts failed while `published` messages were published. Its outcome
    is true of all parts; it is retryable only if no part can be published already."""
    worst = max(errors, key=lambda error: _OUTCOMES.index(error.outcome))
    joint = type(worst)("; ".join(dict.fromkeys(map(str, errors))))
    joint.published = published
    joint.outcome = "applied" if worst.outcome == "none" and published else worst.outcome
    joint.retryable = joint.outcome == "none" and all(error.retryable for error in errors)
    return joint


def given_up(what: str, seconds: float, trouble: "str | Failed", doubt: bool) -> HawserError:
    """The error for a request whose time is over; OutcomeUnknown if there is `doubt`."""
    text = trouble.text if isinstance(trouble, Failed) else trouble
    if doubt:
        return OutcomeUnknown(
            f"{what}: perhaps done, because no answer came within {seconds:.1f} s ({text}). "
            "Check whether it took effect before you repeat it"
        )
    kind = _KINDS[trouble.code] if isinstance(trouble, Failed) else Unavailable
    error = (Unavailable if kind in (NotLeader, NotFound) else kind)(
        f"{what}: not done within {seconds:.1f} s ({text}). Try again, or see `hawser cluster status`"
    )
    error.retryable, error.outcome = True, "none"
    return error


class Backoff:
    """Exponential backoff with jitter, so that many clients do not retry at the same time."""

    def __init__(self, settings: ClientSettings) -> None:
        self._bound = settings.backoff_least_seconds
        self._most = settings.backoff_most_seconds

    def next(self) -> float:
        pause = _RANDOM.uniform(self._bound / 2, self._bound)
        self._bound = min(2 * self._bound, self._most)
        return pause
