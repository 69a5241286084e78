"""Entries of transactions on their way to a leader that answers, refuses or is silent as each test wants."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import hawser
from hawser.cluster import wire
from hawser.cluster.client.settings import ClientSettings
from hawser.cluster.client.transaction import shard_pipeline
from hawser.cluster.client.transaction.shard_pipeline import Leftover, ShardPipeline
from hawser.cluster.transport import TransportError
from hawser.log.entry import Kind
from hawser.log.state.results import Result, Staged, encode_result
from hawser.transaction.client import Request

SECONDS = 60.0
Answers = Callable[[list[bytes]], Any]


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, SECONDS))


class Leader:
    """Of a shard, as a client reaches it: answers as it is told, and knows what was asked."""

    def __init__(self, answers: Answers) -> None:
        self.settings = ClientSettings(batch_bytes=100, backoff_least_seconds=0.001)
        self.loop = asyncio.get_running_loop()
        self.asked: list[list[bytes]] = []
        self.is_known = True
        self._answers = answers

    def leader_link(self, shard: str) -> "Leader | None":
        return self if self.is_known else None

    def flush(self) -> None:
        """Nothing waits."""

    async def look_after(self, topic: str, shard: str) -> None:
        self.is_known = True

    async def ask(self, link: object, body: bytes, timeout_seconds: float) -> Any:
        request = wire.decode_request(body)
        assert isinstance(request, wire.Transact)
        payloads = [bytes(each.payload) for each in request.entries]
        self.asked.append(payloads)
        await asyncio.sleep(0)
        answer = self._answers(payloads)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            answer = None
        if isinstance(answer, Exception):
            raise answer
        return answer or wire.Transacted(tuple(encode_result(Staged(1)) for _ in payloads))


class Client:
    """A transaction of which these are sent; the last one commits it."""

    def __init__(self, *payloads: bytes) -> None:
        self.doubts = 0
        self.heard_all = asyncio.Event()
        self.errors: list[Exception] = []
        last = len(payloads) - 1
        self.requests = [
            Request("s", Kind.BATCH, each, commits=number == last) for number, each in enumerate(payloads)
        ]

    def heard(self, request: Request, result: Result) -> None:
        self.requests.remove(request)
        if not self.requests:
            self.heard_all.set()

    def lost(self, shard: str, error: hawser.HawserError) -> None:
        self.errors.append(error)
        self.requests.clear()
        self.heard_all.set()

    def unanswered(self, shard: str) -> list[Request]:
        return list(self.requests)

    def send_waiting(self) -> None:
        """Nothing waits."""


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], Leader]:
    def lead(answers: Answers) -> Leader:
        leader = Leader(answers)
        monkeypatch.setattr(shard_pipeline, "ask", leader.ask)
        return leader

    return lead


def test_nothing_goes_out_for_a_transaction_that_has_left(lead: Any) -> None:
    async def story() -> None:
        large = [b"%d" % number + bytes(100) for number in range(3)]
        leaver, other = Client(*large), Client(b"other")

        def answer(payloads: list[bytes]) -> None:
            if payloads == large[:1]:
                # Parts are asked for one by one: this one wants no others any more.
                courier.leave(leaver)

        leader = lead(answer)
        leader.is_known = False
        courier = ShardPipeline(leader, "topic", "s")
        courier.carry(leaver, leaver.requests[:])
        courier.carry(other, other.requests[:])
        await other.heard_all.wait()
        assert leader.asked == [large[:1], [b"other"]]
        assert (leaver.doubts, other.doubts) == (0, 1)

    run(story())


def test_nothing_overtakes_what_has_failed(lead: Any) -> None:
    async def story() -> None:
        parts = [b"1" * 100, b"2" * 100]
        first, second = Client(*parts), Client(b"3" * 100)
        arrived = asyncio.Event()
        script = [TransportError("lost", was_sent=False), arrived]

        def answer(payloads: list[bytes]) -> Any:
            return script.pop(0) if script else None

        leader = lead(answer)
        courier = ShardPipeline(leader, "topic", "s")
        courier.carry(first, first.requests[:])
        while not courier._has_failed or courier._is_due:
            await asyncio.sleep(0)
        # One was lost and one is under way.
        courier.carry(second, second.requests[:])
        arrived.set()
        await asyncio.gather(first.heard_all.wait(), second.heard_all.wait())
        assert leader.asked == [parts[:1], parts[1:], parts[:1], [b"3" * 100]]

    run(story())


def test_what_was_refused_together_may_have_been_done(lead: Any) -> None:
    async def story() -> None:
        first, bad, good = Client(b"first"), Client(b"bad"), Client(b"good")

        def answer(payloads: list[bytes]) -> Any:
            return wire.Failed(wire.Code.BAD_REQUEST, "no", False) if b"bad" in payloads else None

        leader = lead(answer)
        courier = ShardPipeline(leader, "topic", "s")
        for each in (first, bad, good):
            courier.carry(each, each.requests[:])
        await asyncio.gather(bad.heard_all.wait(), good.heard_all.wait())
        assert leader.asked == [[b"first"], [b"bad", b"good"], [b"bad"], [b"good"]]
        assert [type(error) for error in bad.errors] == [hawser.UsageError] and not good.errors
        # Nobody said whether the first request got as far as them.
        assert (bad.doubts, good.doubts) == (1, 2)

    run(story())


def test_of_many_in_step_half_ask_again_before_the_others_hear(lead: Any) -> None:
    async def story() -> None:
        under_way: list[int] = []

        class Busy(Client):
            """It has more to send at once when it hears, so many times."""

            def __init__(self, times: int, *payloads: bytes) -> None:
                super().__init__(*payloads)
                self._times = times

            def heard(self, request: Request, result: Result) -> None:
                super().heard(request, result)
                under_way.append(len(leader.asked))
                if self._times:
                    following = Busy(self._times - 1, b"+")
                    leader.loop.call_soon(courier.carry, following, following.requests[:])

        leader = lead(lambda payloads: None)
        courier = ShardPipeline(leader, "topic", "s")
        many = Busy(2, *(b"%d" % number for number in range(32)))
        courier.carry(many, many.requests[:])
        while len(under_way) < 96:
            await asyncio.sleep(0)
        assert under_way[:64] == 32 * [1] + 16 * [2] + 16 * [3]
        assert [len(payloads) for payloads in leader.asked] == [32, 32, 16, 16]

    run(story())


def test_what_is_left_is_sent_until_it_is_answered_or_of_no_use(lead: Any) -> None:
    async def story() -> None:
        def answer(payloads: list[bytes]) -> Any:
            if len(leader.asked) < 4:
                return TransportError("nobody there", was_sent=len(leader.asked) == 2)
            answered.set()
            return None

        answered = asyncio.Event()
        leader = lead(answer)
        courier = ShardPipeline(leader, "topic", "s")
        now = leader.loop.time()
        for until, payload in ((now + 2 * SECONDS, b"abort"), (now, b"late")):
            left = [Request("s", Kind.BRANCH_ABORT, payload)]
            courier.carry(Leftover(left, until), left)
        await answered.wait()
        assert leader.asked == 4 * [[b"abort"]]
        await courier.close()

    run(story())
