"""A domain of its own for each test, and an agent for it that relies on news alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hawser.testing import LocalBus
from tests.agent.support import Agent


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


@pytest.fixture
def agent(local: LocalBus, tmp_path: Path) -> Iterator[Agent]:
    with Agent(local, tmp_path) as started:
        yield started


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """A topic or queue of the cluster that only this test has."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:60]
