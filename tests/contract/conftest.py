"""What the suites of transactions share: one API, in threads and in event loops."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hawser
from tests.support.cluster import RunningCluster
from tests.support.looped import Loop


@pytest.fixture(params=["threads", "loop"])
def connect(request: pytest.FixtureRequest, cluster: RunningCluster) -> Iterator[Callable[..., Any]]:
    """Buses of one kind, closed at the end."""
    buses: list[Any] = []
    with Loop() as loop:

        def connect(**options: Any) -> Any:
            opened = hawser.connect if request.param == "threads" else loop.connect
            buses.append(opened(cluster.url, **options))
            return buses[-1]

        yield connect
        for bus in buses:
            bus.close()
