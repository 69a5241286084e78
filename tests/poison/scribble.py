"""Ways to damage a control region, each drawn from a seed."""

import random
from dataclasses import dataclass
from typing import Protocol

LINE = 64
WORD = 8
LABEL_BYTES = 1024
PAGE = 4096
ENTRY_BYTES = 192
RECORD_BYTES = 128
SLOT_BYTES = 128
ORIGIN_BYTES = 64


class Bytes(Protocol):
    """Memory to write to: a bytearray or a mapping."""

    def __getitem__(self, place: slice, /) -> bytes | bytearray: ...
    def __setitem__(self, place: slice, value: bytes, /) -> None: ...


@dataclass(frozen=True)
class Parts:
    """Where the parts of a small control region begin and end (docs/formats)."""

    sections: dict[str, tuple[int, int]]
    control_bytes: int


def parts_of(settings: dict[str, int], *, is_queue: bool = False) -> Parts:
    """The parts for these settings of a topic or as many of a queue, with at most 63 subscribers."""
    ring = settings["history"] + settings["depth"]
    held = (settings["max_subscribers"] + 1) * settings["max_held"]
    slots = ring + held + settings["max_publishers"] * (settings["max_loans"] + 1)
    entries = settings["max_publishers"] + settings["max_subscribers"] + 1
    records_at = PAGE + entries * ENTRY_BYTES
    ring_at = records_at + (settings["max_subscribers"] + 1) * RECORD_BYTES
    slots_at = -(-(ring_at + ring * WORD) // LINE) * LINE
    end = slots_at + slots * (SLOT_BYTES + is_queue * ORIGIN_BYTES)
    sections = {
        "label": (0, LABEL_BYTES),
        "header": (LABEL_BYTES, LABEL_BYTES + 11 * LINE),
        "entries": (PAGE, records_at),
        "records": (records_at, ring_at),
        "ring": (ring_at, ring_at + ring * WORD),
        "slots": (slots_at, end),
    }
    return Parts(sections, -(-end // PAGE) * PAGE)


def scribble(memory: Bytes, parts: Parts, chance: random.Random) -> str:
    """Damage one to three places; what was done, in words."""
    done = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        section = chance.choice(list(parts.sections))
        low, high = parts.sections[section]
        kind = chance.choice(list(KINDS))
        done.append(f"{kind} in {section} at {KINDS[kind](memory, low, high, chance)}")
    return ", ".join(done)


def lose_references(memory: Bytes, parts: Parts) -> str:
    """No slot says any more that somebody reads it; the same in words."""
    low, high = parts.sections["slots"]
    for place in range(low, low + (high - low) // SLOT_BYTES * SLOT_BYTES, SLOT_BYTES):
        memory[place : place + WORD] = bytes(WORD)
    return "references lost in slots"


def _byte(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = chance.randrange(low, high)
    memory[place : place + 1] = chance.randbytes(1)
    return place


def _bit(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = chance.randrange(low, high)
    memory[place : place + 1] = bytes([memory[place : place + 1][0] ^ 1 << chance.randrange(8)])
    return place


def _word_at(low: int, high: int, chance: random.Random) -> int:
    return low + chance.randrange((high - low) // WORD) * WORD


def _word(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = _word_at(low, high, chance)
    memory[place : place + WORD] = chance.randbytes(WORD)
    return place


def _small_word(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = _word_at(low, high, chance)
    memory[place : place + WORD] = chance.randrange(64).to_bytes(WORD, "little")
    return place


def _near_word(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = _word_at(low, high, chance)
    value = int.from_bytes(memory[place : place + WORD], "little")
    step = chance.choice((1, -1, 2, 8, -8, 1 << 16, -(1 << 16), 1 << 32, 1 << 48, 12 << 16, -(12 << 16)))
    memory[place : place + WORD] = (value + step & (1 << 64) - 1).to_bytes(WORD, "little")
    return place


def _copied_word(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place, source = _word_at(low, high, chance), _word_at(low, high, chance)
    memory[place : place + WORD] = bytes(memory[source : source + WORD])
    return place


def _zeros(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = _word_at(low, high, chance)
    size = min(chance.choice((WORD, LINE, 256)), high - place)
    memory[place : place + size] = bytes(size)
    return place


def _ones(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = _word_at(low, high, chance)
    size = min(chance.choice((WORD, LINE)), high - place)
    memory[place : place + size] = b"\xff" * size
    return place


def _line(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    place = low + chance.randrange(max(1, (high - low) // LINE)) * LINE
    size = min(LINE, high - place)
    memory[place : place + size] = chance.randbytes(size)
    return place


def _copied_line(memory: Bytes, low: int, high: int, chance: random.Random) -> int:
    lines = max(1, (high - low) // LINE)
    place, source = (low + chance.randrange(lines) * LINE for _ in range(2))
    size = min(LINE, high - max(place, source))
    memory[place : place + size] = bytes(memory[source : source + size])
    return place


KINDS = {
    "byte": _byte,
    "bit": _bit,
    "word": _word,
    "small word": _small_word,
    "near word": _near_word,
    "copied word": _copied_word,
    "zeros": _zeros,
    "ones": _ones,
    "line": _line,
    "copied line": _copied_line,
}
