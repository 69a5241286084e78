"""A script: blocks of commands, a line `----`, and what was said, up to the next blank line.

Lines that begin with # are for the reader and stay where they are.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .commands import obey
from .stage import Endless, Stage, Trouble

__all__ = ["Block", "parse", "play", "scripts"]

SEPARATOR = "----"
SILENCE = "ok"


class Block(NamedTuple):
    """Comments and commands as they stand in the file, and the answer, if there is one."""

    lines: tuple[str, ...]
    answer: tuple[str, ...] | None

    def text(self) -> str:
        lines = self.lines if self.answer is None else (*self.lines, SEPARATOR, *self.answer)
        return "\n".join(lines)


def parse(text: str) -> list[Block]:
    """A paragraph without a separator is all comment."""
    blocks = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = tuple(paragraph.strip("\n").split("\n"))
        if SEPARATOR in lines:
            place = lines.index(SEPARATOR)
            blocks.append(Block(lines[:place], lines[place + 1 :]))
        else:
            stray = [line for line in lines if not line.startswith("#")]
            if stray:
                raise Trouble(f"a command without {SEPARATOR}: {stray[0]}")
            blocks.append(Block(lines, None))
    return blocks


def play(text: str, prepare: Callable[[Stage], None] | None = None) -> str:
    """The script with the answers that are really given."""
    stage = Stage()
    if prepare is not None:
        prepare(stage)
    played = []
    for block in parse(text):
        if block.answer is not None:
            block = block._replace(answer=_answer(stage, block.lines))  # noqa: PLW2901
        played.append(block.text())
    return "\n\n".join(played) + "\n"


def _answer(stage: Stage, lines: tuple[str, ...]) -> tuple[str, ...]:
    for line in lines:
        if line.startswith("#"):
            continue
        try:
            obey(stage, line)
        except (Trouble, Endless) as trouble:
            stage.tell(f"trouble: {trouble}")
    told, stage.told = stage.told, []
    return tuple(told) or (SILENCE,)


def scripts() -> list[Path]:
    """Every script, by name."""
    return sorted(Path(__file__).parent.glob("*.txt"))
