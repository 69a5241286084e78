"""A cluster of real processes for each file of tests that asks for it, and a connection for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hawser
from tests.support.processes import ClusterProcesses, cluster_processes


@pytest.fixture(scope="module")
def processes(module_path: Path) -> Iterator[ClusterProcesses]:
    with cluster_processes(module_path) as cluster:
        yield cluster


@pytest.fixture
def bus(processes: ClusterProcesses) -> Iterator[hawser.Bus]:
    with processes.connect() as bus:
        yield bus
