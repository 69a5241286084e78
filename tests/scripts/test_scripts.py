"""Every script is played, and what is said must be what stands there. `--rewrite` replaces what stands there.

The canaries break the protocol in one place and must change what is said.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hawser.log.entry import EntryId
from hawser.log.protocol import leader as leading
from hawser.log.protocol.events import Promise, Serve
from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.metadata import Metadata, majority
from hawser.log.protocol.node import Node
from hawser.log.protocol.tables import CursorState

from .dialogue import parse, play, scripts
from .stage import Stage
from .words import KINDS

Recorder = Callable[[str, object], None]

HERE = Path(__file__).parent
SCRIPTS = scripts()
WANTED = ("d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_script(script: Path, request: pytest.FixtureRequest) -> None:
    text = script.read_text()
    played = play(text)
    if request.config.getoption("--rewrite", default=False):
        script.write_text(played)
    else:
        assert played.splitlines() == text.splitlines()


def test_no_script_is_in_trouble() -> None:
    """A script that asks for something impossible would go on saying so for ever."""
    for script in SCRIPTS:
        answers = [line for block in parse(script.read_text()) for line in block.answer or ()]
        assert not [line for line in answers if line.startswith("trouble")], script.name
        assert not [line for line in answers if "TAKES BACK" in line], script.name


def test_every_defect_has_its_script() -> None:
    for defect in WANTED:
        found = [script for script in SCRIPTS if script.stem.split("-")[0] == defect]
        assert found, defect
        assert all(f"Defect {defect.upper()}" in script.read_text() for script in found)


def test_every_message_is_spoken(record_property: Recorder) -> None:
    """The scripts as a whole leave no kind of message out."""
    heard: set[type] = set()
    dead_letters = 0

    def listen(script: Path) -> None:
        nonlocal dead_letters
        stages: list[Stage] = []
        play(script.read_text(), stages.append)
        dead_letters += len(stages[0].history)
        heard.update(type(letter.message) for letter in stages[0].history)

    for script in SCRIPTS:
        listen(script)
    record_property("scripts", len(SCRIPTS))
    record_property("letters", dead_letters)
    assert set(KINDS) - heard == set()


def _attach_anywhere(self: Leadership, member: str, head: EntryId) -> None:
    """D1: believe the head that comes back from a truncation."""
    cursor = self.cursors[member]
    cursor.state = CursorState.ATTACHED
    cursor.pushed = cursor.confirmed = min(head.index, self._node.head.index)
    self._push(member, cursor)


def _count_to_three(members: int) -> int:
    """D2: a majority of what the ensemble once was."""
    return majority(min(members, 3))


def _commit_by_count(self: Leadership) -> None:
    """Figure 8 of the Raft paper: what is on a majority is committed, whoever wrote it."""
    confirmed = [each.confirmed for each in self.cursors.values() if each.state is CursorState.ATTACHED]
    counts = sorted([*confirmed, self._node.synced], reverse=True)
    needed = majority(len(self.members))
    if len(counts) >= needed and counts[needed - 1] > self._node.commit:
        self._node.commit_through(counts[needed - 1])


def _begin_without_an_entry(self: Leadership, heads: dict[str, EntryId]) -> None:
    """D8: wait for a client to write something."""
    for follower, head in heads.items():
        self._meet(follower, head)


def _serve_at_once(self: Leadership) -> None:
    """Believe to be the leader."""
    for tag, _ in self._reads_in_flight:
        self._node.emit(Serve(tag))
    self._reads_in_flight = []


_make_node = Node.__init__


def _forget_to_have_led(self: Node, member: str, incarnation: int, promise: Promise, *rest: Any) -> None:
    _make_node(self, member, incarnation, Promise(promise.epoch, False, promise.installed), *rest)


def _fence_who_was_there(self: Metadata) -> tuple[str, ...]:
    return self.members


# What is broken, where, and the script that shows it.
CANARIES: dict[str, tuple[object, str, object, str]] = {
    "attached where it is not": (Leadership, "_meet", _attach_anywhere, "d1-truncation-in-rounds"),
    "a count": (leading, "majority", _count_to_three, "d2-membership-not-a-count"),
    "prior epochs count": (Leadership, "advance", _commit_by_count, "commit-of-prior-epochs"),
    "contract is always safe": (Leadership, "_can_lose_one", lambda self: True, "d5-contract-guard"),
    "the new one is not fenced": (
        Metadata,
        "fencing_ensemble",
        property(_fence_who_was_there),
        "d7-fence-the-fencing-ensemble",
    ),
    "a restarted leader leads": (Node, "__init__", _forget_to_have_led, "restarted-leader"),
    "no entry of its own": (Leadership, "begin", _begin_without_an_entry, "d8-nobody-is-left-behind"),
    "read without a majority": (Leadership, "_serve", _serve_at_once, "linearizable-read"),
}


@pytest.mark.parametrize("bug", CANARIES)
def test_canary_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, name, replacement, script = CANARIES[bug]
    text = (HERE / f"{script}.txt").read_text()
    assert play(text) == text
    monkeypatch.setattr(target, name, replacement)
    try:
        played = play(text)
    except AssertionError:
        return
    assert played != text
