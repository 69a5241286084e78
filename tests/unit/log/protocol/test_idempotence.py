"""Statement 15: every handler is idempotent. Replaying any message changes nothing and gets the same answer.

The streams are those of the dialogue scripts, which speak every message in every phase. Whenever one arrives,
a copy of the member hears it twice, and another hears earlier ones again.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Receive, Send
from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.node import Node
from hawser.log.replica import Output, Replica
from tests.scripts.dialogue import play, scripts
from tests.scripts.stage import Host, Letter, Stage

Recorder = Callable[[str, object], None]

MOST_REPLAYS = 30
REQUESTS = (
    m.FenceRequest,
    m.BecomeLeaderRequest,
    m.AddFollowerRequest,
    m.TruncateRequest,
    m.AddEntriesRequest,
    m.HeartbeatRequest,
    m.PrepareReconfigurationRequest,
    m.SnapshotRequest,
    m.SnapshotNeeded,
    m.CommitReconfigurationRequest,
    m.AbortReconfigurationRequest,
    m.HandOverRequest,
    m.StatusRequest,
    m.ReadSnapshotRequest,
)


class Changed(Exception):
    """A message that came again did something."""


def bound(replica: Replica) -> object:
    """What a member has promised, written and committed: none of it may change by a replay."""
    node = replica.node
    leading = node.leadership
    return (
        node.promise,
        node.epochs.pairs(),
        node.head,
        node.synced,
        node.commit,
        node.applied,
        replica.machine.hash,
        (leading.members, leading.change, leading.since) if leading else None,
    )


def standing(replica: Replica) -> object:
    """And how it stands with the others, which a message heard twice in a row leaves alone too."""
    node = replica.node
    leading = node.leadership
    cursors = (
        {name: (each.state, each.confirmed) for name, each in leading.cursors.items()} if leading else {}
    )
    return bound(replica), node.role, node.pulling, cursors, leading.successor if leading else None


def is_open(replica: Replica, letter: Letter) -> bool:
    """What is asked for until it is done: a contraction that was not safe, pieces for a pull under way."""
    leading, message = replica.node.leadership, letter.message
    if isinstance(message, m.ReadSnapshotResponse):
        return replica.node.pulling is not None
    commits = isinstance(message, m.CommitReconfigurationRequest)
    return commits and leading is not None and leading.change == message.change


def was_taken(replica: Replica, letter: Letter) -> bool:
    """What came too early or found no room is as good as lost: again, it may be news."""
    message, node = letter.message, replica.node
    if isinstance(message, m.AddEntriesRequest) and message.entries:
        return message.entries[-1].id in node.epochs
    if isinstance(message, m.BecomeLeaderRequest) and message.epoch == node.epoch:
        return node.promise.led
    return bool(message.epoch <= node.epoch)


def hear(replica: Replica, letter: Letter, syncs: bool) -> list[Output]:
    outputs = list(replica.step(Receive(letter.sender, letter.message)))
    if syncs:
        while replica.sync_wanted:
            sync = replica.begin_sync()
            sync.run()
            outputs += replica.finish_sync(sync)
    return outputs


def answers(outputs: list[Output], to: str) -> list[m.Message]:
    """What is said to whoever asked; to begin a pull is to ask something in turn."""
    sent = [output.message for output in outputs if isinstance(output, Send) and output.to == to]
    return [message for message in sent if not isinstance(message, m.ReadSnapshotRequest)]


class Listener:
    """Stands beside the stage and replays what arrives, on copies."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.heard: dict[str, list[tuple[int, Letter]]] = {}
        self.twice = self.again = 0
        self.kinds: set[type] = set()

    def attach(self, stage: Stage) -> None:
        stage.on_delivery = self.listen

    def listen(self, host: Host, letter: Letter) -> None:
        assert host.replica is not None
        if host.disk.fail_sync:
            return
        twin = copy.deepcopy(host.replica)
        self._hear_twice(twin, letter, not host.slow)
        earlier = self.heard.setdefault(host.replica.member, [])
        self._hear_again(copy.deepcopy(host.replica), earlier, not host.slow)
        if was_taken(twin, letter):
            earlier.append((host.incarnation, letter))

    def _hear_twice(self, replica: Replica, letter: Letter, syncs: bool) -> None:
        first = answers(hear(replica, letter, syncs), letter.sender)
        if replica.halted is not None:
            return
        before = standing(replica)
        second = answers(hear(replica, letter, syncs), letter.sender)
        if standing(replica) != before:
            raise Changed(f"{letter} came twice: {before} became {standing(replica)}")
        if isinstance(letter.message, REQUESTS) and first != second:
            raise Changed(f"{letter} came twice and was answered {first}, then {second}")
        self.twice += 1
        self.kinds.add(type(letter.message))

    def _hear_again(self, replica: Replica, earlier: list[tuple[int, Letter]], syncs: bool) -> None:
        """A restart forgets; what was heard before it in the current epoch may be news again."""
        chosen = self.random.sample(earlier, min(len(earlier), MOST_REPLAYS))
        before = bound(replica)
        for incarnation, letter in chosen:
            forgotten = incarnation != replica.node.incarnation
            if (forgotten and letter.message.epoch >= replica.node.epoch) or is_open(replica, letter):
                continue
            hear(replica, letter, syncs)
            if bound(replica) != before or replica.halted:
                raise Changed(f"{letter} came again: {before} became {bound(replica)}, {replica.halted}")
            self.again += 1


def listen_to(script: Path) -> Listener:
    listener = Listener(len(script.stem))
    play(script.read_text(), listener.attach)
    return listener


def test_every_message_twice_and_again(record_property: Recorder) -> None:
    twice = again = 0
    kinds: set[type] = set()
    for script in scripts():
        listener = listen_to(script)
        twice += listener.twice
        again += listener.again
        kinds |= listener.kinds
    record_property("messages heard twice", twice)
    record_property("heard again later", again)
    record_property("kinds", len(kinds))
    assert set(REQUESTS) <= kinds


def _prepare_twice(self: Leadership, sender: str, message: m.PrepareReconfigurationRequest) -> None:
    """Do it once more instead of saying so once more."""
    self.change = message.change
    self._append((self._node.nothing(),))
    self._node.send(sender, m.PrepareReconfigurationResponse(message.epoch, message.change))


def _cut_whatever(self: Node, sender: str, message: m.TruncateRequest) -> None:
    """Without looking at the head that the request is about."""
    if self._follow(message.epoch):
        if message.target < self.head:
            self._cut(message.target)
        self.send(sender, m.TruncateResponse(self.epoch, self.head))


def _lead_whenever(self: Node, sender: str, message: m.BecomeLeaderRequest) -> None:
    """Begin each time one is told to."""
    if message.epoch == self.epoch:
        self.leadership = Leadership(self, message.members)
        self.leadership.begin(message.followers)


def _answer_once(self: Node, sender: str, message: m.FenceRequest) -> None:
    """D8: nothing is said to a fence of an epoch that is known."""
    if message.epoch > self.epoch:
        self._enter(message.epoch)
        self.send(sender, m.FenceResponse(self.epoch, self.head))


CANARIES: dict[str, tuple[type, str, object, str]] = {
    "prepares twice": (Leadership, "_prepare", _prepare_twice, "node-swap"),
    "cuts whatever": (Node, "_truncate", _cut_whatever, "d1-truncation-in-rounds"),
    "begins twice": (Node, "_become_leader", _lead_whenever, "leader-election"),
    "answers once": (Node, "_fence", _answer_once, "leader-election"),
}


@pytest.mark.parametrize("bug", CANARIES)
def test_canary_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, name, replacement, script = CANARIES[bug]
    monkeypatch.setattr(target, name, replacement)
    found = [each for each in scripts() if each.stem == script]
    with pytest.raises(Changed):
        listen_to(found[0])
