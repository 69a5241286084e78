"""`python -m tests.history`, and the files that it reads."""

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from tests.history.events import Event, HistoryError, Outcome, Recorder, operations, read_events
from tests.history.generate import correct_history
from tests.history.story import Story

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, events: list[Event]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return path


def judge(*paths: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.history", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_good_history(tmp_path: Path) -> None:
    code, said = judge(write(tmp_path / "history", correct_history(1)))
    assert code == 0, said
    assert "no violation found" in said and "orders:0: linearizable" in said


def test_a_bad_history(tmp_path: Path) -> None:
    story = Story().publish("p", "a", 1).state("s", 1).publish("p", "b", 2).final("a")
    code, said = judge(write(tmp_path / "history", story.events))
    assert code == 1
    assert "violations: 1 stale, 1 lost" in said
    assert "the first: stale: log: the end was told as 1 when offset 1 was known already" in said


def test_a_history_that_only_a_search_can_refute(tmp_path: Path) -> None:
    code, said = judge(write(tmp_path / "history", Story().publish("p", "a", 1).state("s", 5).events))
    assert code == 1
    assert "fits nowhere" in said


def test_no_final_read_is_said(tmp_path: Path) -> None:
    code, said = judge(write(tmp_path / "history", Story().publish("p", "a", 1).events))
    assert code == 0
    assert "whether something was lost is not judged" in said


@pytest.mark.parametrize(
    "content", ['{"type": "invoke"}\n\n', "{\n}\n", '{"type":"ok","id":"1","process":"p","time":1}\n']
)
def test_what_is_no_history(tmp_path: Path, content: str) -> None:
    (tmp_path / "history").write_text(content)
    code, said = judge(tmp_path / "history")
    assert code == 2
    assert "not a history" in said


def test_no_file(tmp_path: Path) -> None:
    assert judge(tmp_path / "missing")[0] == 2
    assert judge()[0] == 2


def test_a_recorder_writes_what_is_read(tmp_path: Path) -> None:
    recorders = [Recorder(tmp_path / f"c{number}", f"c{number}") for number in range(2)]

    def work(recorder: Recorder, name: str) -> None:
        for number in range(50):
            invocation = recorder.invoke("publish", "log", process=name, values=[f"{name}/{number}"])
            recorder.end(invocation, "info" if number % 10 == 3 else "ok", offset=number)

    threads = [
        threading.Thread(target=work, args=(recorder, f"{recorder.process}.{number}"))
        for recorder in recorders
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for recorder in recorders:
        recorder.close()
    found = operations(read_events([tmp_path / "c0", tmp_path / "c1"]))
    assert len(found) == 200
    assert sum(operation.outcome is Outcome.UNKNOWN for operation in found) == 20
    assert all(operation.invoked <= operation.returned for operation in found)


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "history", Story().publish("p", "a", 1).publish("p", "b", 2).events)
    path.write_bytes(path.read_bytes()[:-5])
    found = operations(read_events([path]))
    assert [operation.outcome for operation in found] == [Outcome.DONE, Outcome.UNKNOWN]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "history", Story().publish("p", "a", 1).events)
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(HistoryError, match="history, line 1"):
        read_events([path])


def event(type: str, time: int, identity: str = "1", process: str = "p") -> Event:
    name = "state" if type == "invoke" else None
    return Event(type=type, id=identity, process=process, time=time, operation=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "events",
    [
        [event("ok", 1)],
        [event("invoke", 1), event("invoke", 2)],
        [event("invoke", 1), event("ok", 2), event("ok", 3)],
        [event("invoke", 1), event("ok", 2, process="q")],
        [event("invoke", 2), event("ok", 1)],
        [event("invoke", 1), event("ok", 2), event("invoke", 3)],
    ],
)
def test_ends_belong_to_beginnings(events: list[Event]) -> None:
    with pytest.raises(HistoryError, match="'1'"):
        operations(events)
