"""A domain of its own for each test that asks for one, and the command that works on it."""

from collections.abc import Iterator

import pytest

from hawser.testing import LocalBus
from tests.support.command import Command


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


@pytest.fixture
def command(local: LocalBus) -> Command:
    return Command(local.url)
