"""Stories told by chance: safety after every command, agreement at the end, and every message heard twice.

They are for what a handful of letters in an odd order can do. Long histories are the simulator's.
"""

import itertools
import time
from collections.abc import Callable

import pytest

from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.node import Node
from tests.unit.log.protocol.test_idempotence import Listener

from .story import Story, Wrong
from .test_scripts import CANARIES

Recorder = Callable[[str, object], None]

STEPS = 160
STORIES = 80
LISTENED = 6
FIRST_SOAK_SEED = 1_000_000


def tell(seed: int, listen: bool = False) -> Story:
    story = Story(seed)
    if listen:
        Listener(seed).attach(story.stage)
    story.tell(STEPS)
    story.end()
    return story


def test_nothing_is_lost_and_all_agree(record_property: Recorder) -> None:
    commands = dead_letters = epochs = writes = 0
    for seed in range(STORIES):
        story = tell(seed)
        commands += len(story.lines)
        dead_letters += len(story.stage.history)
        epochs += max(story.leaders)
        writes += len(story.acknowledged)
    record_property("stories", STORIES)
    record_property("commands", commands)
    record_property("letters", dead_letters)
    record_property("epochs", epochs)
    record_property("acknowledged writes", writes)
    assert writes > STORIES


def test_every_message_twice(record_property: Recorder) -> None:
    twice = again = 0
    for seed in range(LISTENED):
        story, listener = Story(seed), Listener(seed)
        listener.attach(story.stage)
        story.tell(STEPS)
        story.end()
        twice += listener.twice
        again += listener.again
    record_property("messages heard twice", twice)
    record_property("heard again later", again)


def test_a_story_is_the_same_every_time() -> None:
    first, second = tell(7), tell(7)
    assert first.lines == second.lines
    assert first.stage.history == second.stage.history


@pytest.mark.parametrize("bug", ["attached where it is not", "a restarted leader leads"])
def test_canary_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch, record_property: Recorder) -> None:
    target, name, replacement, _ = CANARIES[bug]
    assert target in (Leadership, Node)
    monkeypatch.setattr(target, name, replacement)
    for seed in range(STORIES):
        try:
            tell(seed)
        except Wrong as caught:
            record_property("caught by story", seed)
            assert str(caught).endswith("----")
            return
    pytest.fail(f"no story notices: {bug}")


@pytest.mark.soak
def test_stories_for_as_long_as_told(soak_seconds: float, record_property: Recorder) -> None:
    end = time.monotonic() + soak_seconds
    for seed in itertools.count(FIRST_SOAK_SEED):
        if time.monotonic() > end:
            break
        tell(seed, listen=seed % 10 == 0)
    record_property("stories", seed - FIRST_SOAK_SEED)
