"""A domain of its own for each test."""

from collections.abc import Iterator

import pytest

from hawser.testing import LocalBus


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made
