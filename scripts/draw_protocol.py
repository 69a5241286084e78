"""Generate the protocol's diagrams and message tables in the documents, from the asserted tables and message
classes.

python scripts/draw_protocol.py           write the documents
python scripts/draw_protocol.py --check   exit with 1 if a document is out of date
"""

import re
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar, get_args, get_origin

import msgspec

from hawser.cluster import wire
from hawser.log.protocol import messages as m
from hawser.log.protocol.tables import ACTIVITIES, CURSORS, EXCHANGES, ROLES

State = TypeVar("State", bound=StrEnum)

ROOT: Final = Path(__file__).resolve().parent.parent
MARK: Final = re.compile(r"(<!-- drawn: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def state_diagram(table: Mapping[State, Mapping[State, str]]) -> str:
    """A table of transitions as a Mermaid diagram and as a Markdown table."""

    def name(state: State) -> str:
        return state.value.replace(" ", "_")

    changes = [(state, after, when) for state, others in table.items() for after, when in others.items()]
    arrows = [f"    {name(state)} --> {name(after)}" for state, after, _ in changes]
    rows = [f"| {state} | {after} | {when} |" for state, after, when in changes]
    diagram = ["```mermaid", "stateDiagram-v2", *arrows, "```"]
    return "\n".join([*diagram, "", "| from | to | when |", "|---|---|---|", *rows])


def sequence(requests: tuple[type[m.Message], ...]) -> str:
    """The exchanges in order, as a Mermaid diagram."""
    lines = ["```mermaid", "sequenceDiagram"]
    for request, sender, receiver, answer in EXCHANGES:
        if request in requests:
            ask, reply = _short(request), _short(answer)
            lines.append(f"    {sender}->>{receiver}: {ask}")
            lines.append(f"    {receiver}-->>{sender}: {reply}")
    return "\n".join([*lines, "```"])


def _short(kind: type[m.Message]) -> str:
    """The class name as words."""
    words = re.sub(r"(?<!^)([A-Z])", r" \1", kind.__name__)
    return words.replace(" Request", "").replace(" Response", " done")


def message_table() -> str:
    """Every message with its tag, sender, receiver and fields."""
    rows = ["| message | tag | from | to | fields | answer |", "|---|---|---|---|---|---|"]
    for request, sender, receiver, answer in EXCHANGES:
        rows.append(_row(request, sender, receiver, answer.__name__))
        if answer.__name__.removesuffix("Response") == request.__name__.removesuffix("Request"):
            rows.append(_row(answer, receiver, sender, ""))
    return "\n".join(rows)


def wire_table(union: object) -> str:
    """The messages between two kinds of processes, with their purpose."""
    rows = ["| message | tag | fields | meaning |", "|---|---|---|---|"]
    for kind in get_args(union):
        fields = ", ".join(f"{field.name}: {_type(field.type)}" for field in msgspec.structs.fields(kind))
        meaning = " ".join((kind.__doc__ or "").split())
        rows.append(f"| {kind.__name__} | `{kind.__struct_config__.tag}` | {fields} | {meaning} |")
    return "\n".join(rows)


def _row(kind: type[m.Message], sender: str, receiver: str, answer: str) -> str:
    fields = ", ".join(f"{field.name}: {_type(field.type)}" for field in msgspec.structs.fields(kind))
    tag = kind.__struct_config__.tag
    return f"| {kind.__name__} | `{tag}` | {sender} | {receiver} | {fields} | {answer} |"


def _type(kind: object) -> str:
    """A type as it is written in source code."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"[a-z_]+(?:\.[a-z_]+)*\.(?=[A-Z])", "", text)
    text = re.sub(r"Annotated\[int, [^\]]*\]", "int", text)
    return text.replace("|", "or").replace("NoneType", "None")


DRAWINGS: Final[dict[str, Callable[[], str]]] = {
    "roles": lambda: state_diagram(ROLES),
    "cursors": lambda: state_diagram(CURSORS),
    "activities": lambda: state_diagram(ACTIVITIES),
    "election": lambda: sequence((m.FenceRequest, m.BecomeLeaderRequest, m.AddFollowerRequest)),
    "replication": lambda: sequence((m.TruncateRequest, m.AddEntriesRequest, m.HeartbeatRequest)),
    "reconfiguration": lambda: sequence(
        (m.PrepareReconfigurationRequest, m.SnapshotRequest, m.CommitReconfigurationRequest)
    ),
    "messages": message_table,
    "told": lambda: wire_table(wire.Told),
    "requests": lambda: wire_table(wire.Request),
    "answers": lambda: wire_table(wire.Answer),
}


def drawn(text: str) -> str:
    """The text with the content between its marks regenerated."""
    return MARK.sub(lambda found: f"{found[1]}\n{DRAWINGS[found[2]]()}\n\n{found[3]}", text)


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    names = ("protocol.md", "formats/messages.md", "formats/wire.md")
    for path in (ROOT / "docs" / name for name in names):
        text = path.read_text(encoding="utf-8")
        if drawn(text) != text:
            stale.append(path)
            if not check:
                path.write_text(drawn(text), encoding="utf-8")
    if check:
        for path in stale:
            name = path.relative_to(ROOT)
            print(f"{name} is not what the tables say; run python scripts/draw_protocol.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
