"""The measuring code of the recorder. Nothing here judges a time."""

from pathlib import Path

import pytest

from hawser.bench.cluster import recorder
from hawser.bench.plan import Plan


def test_every_message_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "repeats", 1)
    monkeypatch.setattr(Plan, "scaled", lambda self, count: count // 1000)
    (row,) = recorder.recorder(Plan(tmp_path))
    assert row.name == "recorder: shared memory to acknowledged, 100 B"
    assert row.value > 0
    assert [target.text for target in row.targets] == ["200 thousand messages a second"]
