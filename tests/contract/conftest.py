"""What the suites share: one API, on one host and on a cluster, in threads and in event loops."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
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


@pytest.fixture(params=["one host", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cluster":
        running: RunningCluster = request.getfixturevalue("cluster")
        yield running.url
    else:
        with LocalBus() as local:
            yield local.url


@pytest.fixture
def bus(url: str) -> Iterator[hawser.Bus]:
    with hawser.connect(url, name="worker") as made:
        yield made


@pytest.fixture(params=["threads", "loop"])
def worker(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    """A bus whose calls wait, or are awaited."""
    with Loop() as loop:
        made: Any = (hawser.connect if request.param == "threads" else loop.connect)(url, name="worker")
        yield made
        made.close()
