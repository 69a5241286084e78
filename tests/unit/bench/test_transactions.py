"""The measuring code of transactions: everything they claim is there. Nothing here judges a time."""

from pathlib import Path
from typing import Any

import pytest

from hawser.bench.cluster import transactions
from hawser.bench.cluster.loads import Load
from hawser.bench.cluster.servers import hawser_servers
from hawser.bench.cluster.transactions import transact_in_flight, transact_lists, transact_one_at_a_time
from hawser.bench.plan import Plan
from hawser.bench.processes import run_sides

SHORT = 0.05


def test_transactions_are_measured(record_property: Any) -> None:
    with hawser_servers() as servers:
        for shards in transactions.BOUNDS:
            case = Load(SHORT), shards
            (times,) = run_sides([(transact_one_at_a_time, None)], servers.url, case)
            record_property(f"over {shards}", len(times))
            assert times
        (rate,) = run_sides([(transact_in_flight, None)], servers.url, (Load(SHORT, 4), True))
        (staged,) = run_sides([(transact_lists, None)], servers.url, Load(SHORT))
        assert rate > 0 and staged
        rows = list(transactions._bytes(servers))
    for row, name in zip(rows, ("on one shard", "over two"), strict=True):
        # A message of 100 bytes is not there without them, and what surrounds it is shared by the list.
        assert 100 < row.compared["plain"] < row.value < 150
        record_property(f"bytes of a message {name}", round(row.value, 1))


def test_a_transaction_is_held_against_a_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"publish_one_at_a_time": 100, 1: 199, 2: 401, 4: 599}

    def run(side: Any, url: str, case: Any) -> list[int]:
        return [found[case[1] if isinstance(case, tuple) else side.__name__]]

    monkeypatch.setattr(transactions, "_run", run)
    rows = list(transactions._latencies(Plan(tmp_path, quick=True), "nowhere"))
    assert [row.missed for row in rows] == [False, True, False]
    assert [row.targets[0].measured for row in rows] == [1.99, 4.01, 5.99]
