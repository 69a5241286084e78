"""Each batch of a producer is accepted once and in order: every row of the table in producers.py."""

from typing import Any

import pytest

import hawser.log.state.producers as producers_module
from hawser.log.state.commands import AdvanceTime, ExpireProducers
from hawser.log.state.part import BadState
from hawser.log.state.producers import RECEIPTS, Producers
from hawser.log.state.results import Accepted, Expired, Reason, Rejected, Repeated
from hawser.record.record import Stamp
from tests.stateful.log_shard import Shard


def of(sequence: int, incarnation: int = 1, producer: bytes = b"p") -> Stamp:
    return Stamp(producer, incarnation, sequence)


def shard_at(last: int) -> Shard:
    """Sequence s is a batch of s % 3 + 1 records."""
    shard = Shard()
    for sequence in range(1, last + 1):
        assert isinstance(shard.publish(sequence % 3 + 1, of(sequence)), Accepted)
    return shard


def test_batches_are_accepted_in_their_order() -> None:
    shard = Shard()
    assert shard.publish(2, of(1)) == Accepted(1, 2)
    assert shard.publish(3, of(2)) == Accepted(3, 3)
    assert shard.publish(1, of(1, producer=b"q")) == Accepted(6, 1)
    assert shard.publish(1, of(3)) == Accepted(7, 1)


def test_a_repeat_gets_its_first_receipt_and_changes_nothing() -> None:
    shard = shard_at(5)
    end = shard.topic.end
    digest = shard.topic.digest(), shard.producers.digest()
    assert shard.publish(9, of(1)) == Repeated(1, 2)
    assert shard.publish(1, of(5)) == Repeated(end - 3, 3)
    assert (shard.topic.digest(), shard.producers.digest()) == digest


def test_the_last_receipts_are_kept_and_no_more() -> None:
    last = 2 * RECEIPTS + 5
    shard = shard_at(last)
    firsts = [1]
    for sequence in range(1, last + 1):
        firsts.append(firsts[-1] + sequence % 3 + 1)
    for sequence in range(1, last + 1):
        result = shard.publish(1, of(sequence))
        if sequence > last - RECEIPTS:
            assert result == Repeated(firsts[sequence - 1], sequence % 3 + 1)
        else:
            assert result == Rejected(Reason.TOO_OLD, last, sequence)
            assert not result.retryable and result.outcome == "applied"


def test_a_gap_is_retryable() -> None:
    shard = shard_at(2)
    result = shard.publish(1, of(4))
    assert result == Rejected(Reason.GAP, 3, 4)
    assert result.retryable and result.outcome == "none"
    assert shard.publish(1, of(3)) == Accepted(6, 1)
    assert isinstance(shard.publish(1, of(4)), Accepted)


@pytest.mark.parametrize("sequence", [2, 1 << 62])
def test_an_unknown_producer_begins_at_one(sequence: int) -> None:
    shard = Shard()
    result = shard.publish(1, of(sequence))
    assert result == Rejected(Reason.UNKNOWN_PRODUCER, 0, sequence)
    assert not result.retryable
    assert len(shard.producers) == 0
    assert shard.publish(1, of(1)) == Accepted(1, 1)


def test_a_higher_incarnation_begins_at_one_and_fences_the_lower() -> None:
    shard = shard_at(3)
    assert shard.publish(1, of(4, incarnation=2)) == Rejected(Reason.UNKNOWN_PRODUCER, 0, 4)
    assert isinstance(shard.publish(1, of(4)), Accepted), "nothing was changed by what was rejected"
    assert isinstance(shard.publish(1, of(1, incarnation=5)), Accepted)
    for sequence in (1, 4, 5, 6):
        assert shard.publish(1, of(sequence)) == Rejected(Reason.FENCED, 5, 1)
    assert isinstance(shard.publish(1, of(2, incarnation=5)), Accepted)


def test_without_a_producer_a_repeat_is_another_batch() -> None:
    shard = Shard()
    assert [shard.publish(), shard.publish()] == [Accepted(1, 1), Accepted(2, 1)]
    assert len(shard.producers) == 0


def test_expiry_forgets_those_that_have_not_gone_on() -> None:
    shard = Shard()
    for producer in (b"a", b"b", b"c"):
        shard.publish(1, of(1, producer=producer))
    seen = tuple(shard.producers)
    assert seen == ((b"a", 1, 1), (b"b", 1, 1), (b"c", 1, 1))
    shard.publish(1, of(2, producer=b"a"))
    shard.publish(1, of(1, incarnation=2, producer=b"b"))
    assert shard.do(ExpireProducers((*seen, (b"nobody", 1, 1)))) == Expired(1)
    assert list(shard.producers) == [(b"a", 1, 2), (b"b", 2, 1)]
    assert shard.publish(1, of(2, producer=b"c")) == Rejected(Reason.UNKNOWN_PRODUCER, 0, 2)
    assert isinstance(shard.publish(1, of(1, producer=b"c")), Accepted)


def test_receipts_outlive_a_checkpoint() -> None:
    shard = shard_at(RECEIPTS + 3)
    shard.save()
    shard.restart()
    assert shard.publish(1, of(4)) == Repeated(7, 2)
    assert shard.publish(1, of(3)) == Rejected(Reason.TOO_OLD, RECEIPTS + 3, 3)


def test_a_producer_is_idle_since_the_time_was_moved_behind_its_newest_batch() -> None:
    shard = Shard()
    shard.publish(1, of(1, producer=b"a"))
    assert list(shard.producers.idle_since(1000)) == []
    shard.do(AdvanceTime(0, 100, 1))
    shard.publish(1, of(1, producer=b"b"))
    shard.do(AdvanceTime(100, 200, 1))
    shard.publish(1, of(2, producer=b"a"))
    shard.save()
    shard.restart()
    assert list(shard.producers.idle_since(199)) == []
    assert list(shard.producers.idle_since(200)) == [(b"b", 1, 1)]
    shard.do(AdvanceTime(200, 300, 1))
    assert sorted(shard.producers.idle_since(300)) == [(b"a", 1, 2), (b"b", 1, 1)]
    shard.do(ExpireProducers(((b"a", 1, 2),)))
    shard.do(AdvanceTime(300, 400, 1))
    assert list(shard.producers.idle_since(400)) == [(b"b", 1, 1)]


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xc1",
        b"\x90more",
        b"\x91\x96\xc4\x01p\x01\x02\x91\x01\x92\x01\x01\x00",  # two batches, one first offset
        b"\x91\x96\xc4\x01p\x01\x01\x91\xff\x91\x01\x00",  # a negative offset
    ],
)
def test_a_state_that_cannot_be_is_refused(state: bytes) -> None:
    with pytest.raises(BadState):
        Producers().load(state)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason: Reason) -> None:
    text = Rejected(reason, 17, 23).text
    assert text[0].islower() and "{" not in text and len(text) < 200


def test_the_newest_batch_of_a_producer_is_known() -> None:
    shard = shard_at(RECEIPTS + 3)
    last = RECEIPTS + 3
    assert shard.producers.newest(b"p") == (1, shard.topic.end - (last % 3 + 1), last % 3 + 1)
    assert shard.publish(5, of(1, incarnation=7)) == Accepted(shard.topic.end - 5, 5)
    assert shard.producers.newest(b"p") == (7, shard.topic.end - 5, 5)
    assert shard.producers.newest(b"q") is None


def test_a_checkpoint_encodes_the_producers_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It encoded all of them each time: a shard with 50,000 producers stood still for 0.3 s."""
    encoded: list[bytes] = []
    encode = producers_module._saved

    def counted(name: bytes, producer: Any) -> Any:
        encoded.append(name)
        return encode(name, producer)

    monkeypatch.setattr(producers_module, "_saved", counted)
    shard = Shard()
    for name in (b"a", b"b", b"c"):
        shard.publish(1, of(1, producer=name))
    steps: list[tuple[Any, list[bytes]]] = [
        (lambda: None, [b"a", b"b", b"c"]),
        (lambda: None, []),
        (lambda: shard.publish(1, of(2, producer=b"b")), [b"b"]),
        (lambda: shard.publish(1, of(1, incarnation=2, producer=b"c")), [b"c"]),
        (lambda: shard.do(AdvanceTime(0, 100, 1)), [b"a", b"b", b"c"]),
        (lambda: shard.do(ExpireProducers(((b"a", 1, 1),))), []),
    ]
    for change, expected in steps:
        change()
        encoded.clear()
        found = shard.producers.digest()
        assert encoded == expected
        other = Producers()
        other.load(found)
        assert other.digest() == found
        assert sorted(other) == sorted(shard.producers)
