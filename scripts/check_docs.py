"""Check the references in documents.

Each relative link in a Markdown file must lead to a file, and to a heading if it names one. Each test in
backticks must exist, and each file that ARCHITECTURE.md names in backticks.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {"build", "dist"}
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(test_\w+)`")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
NAMED_FILE = re.compile(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|pyi|cpp|hpp|md|toml|txt|sh))`")


def documents() -> Iterator[Path]:
    """The Markdown files of the project, without hidden and built folders."""
    for path in sorted(ROOT.rglob("*.md")):
        parts = path.relative_to(ROOT).parts
        if not any(part.startswith(".") or part in SKIPPED for part in parts):
            yield path


def anchor(heading: str) -> str:
    """The link fragment of a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """The link fragments of a document's headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in HEADING.findall(text)}


def broken_links(document: Path) -> Iterator[str]:
    """One line for each broken relative link of the document."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        place, _, fragment = target.partition("#")
        path = (document.parent / place).resolve() if place else document
        name = document.relative_to(ROOT)
        if not path.exists():
            yield f"{name}: the link {target} leads to no file"
        elif fragment and path.suffix == ".md" and fragment not in anchors(path):
            yield f"{name}: the link {target} leads to no heading"


def tests() -> set[str]:
    """The names of all tests."""
    return {name for path in (ROOT / "tests").rglob("*.py") for name in TEST.findall(path.read_text("utf-8"))}


def missing_tests(document: Path, known: set[str]) -> Iterator[str]:
    """One line for each test in backticks that does not exist."""
    for name in sorted(set(NAMED_TEST.findall(document.read_text(encoding="utf-8"))) - known):
        yield f"{document.relative_to(ROOT)}: there is no test {name}"


def missing_files(document: Path) -> Iterator[str]:
    """One line for each file or folder in backticks that does not exist."""
    places = [ROOT, ROOT / "src", ROOT / "src" / "hawser"]
    for name in sorted(set(NAMED_FILE.findall(document.read_text(encoding="utf-8")))):
        if not any((place / name).exists() for place in places):
            yield f"{document.relative_to(ROOT)}: there is no {name}"


def main() -> int:
    """Print every fault, and return 1 if there is one."""
    faults: list[str] = []
    count = 0
    known = tests()
    for document in documents():
        count += 1
        faults.extend(broken_links(document))
        faults.extend(missing_tests(document, known))
    architecture = ROOT / "ARCHITECTURE.md"
    if architecture.exists():
        faults.extend(missing_files(architecture))
    else:
        faults.append("ARCHITECTURE.md is missing")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"docs: {count} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
