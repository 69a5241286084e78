"""Stories told by chance: safety after every command, agreement at the end, and every message idempotent."""

import itertools
import time
from collections.abc import Callable

import pytest

from hawser.log.protocol.leader import Leadership
from hawser.log.protocol.node import Node
from tests.unit.test_protocol_idempotence import Listener

from .story import Story, Wrong
from .test_scripts import _attach_anywhere, _commit_by_count

Recorder = Callable[[str, object], None]

STEPS = 120


def told(seed: int) -> Story:
    story = Story(seed)
    story.tell(STEPS)
    story.end()
    return story


def test_stories(record_property: Recorder) -> None:
    commands = letters = epochs = 0
    for seed in range(60):
        story = told(seed)
        commands += len(story.lines)
        letters += len(story.stage.history)
        epochs += max(story.leaders)
    record_property("stories", 60)
    record_property("commands", commands)
    record_property("letters", letters)
    record_property("epochs", epochs)
