"""The limits that keep the tree readable, and what `import hawser` may bring with it."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["native", "src", "tests", "bench", "examples", "scripts", "docs"]
PYTHON = {".py", ".pyi"}
NATIVE = {".cpp", ".hpp", ".h"}
CODE = PYTHON | NATIVE | {".sh"}
TEXT = CODE | {".md", ".toml", ".txt", ".json"}
MOST_FILE_LINES = 600
MOST_FUNCTION_LINES = 70
HEAVY_MODULES = ["numpy", "pyarrow", "rich", "asyncio"]

MARKERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
APOLOGIES = re.compile(r"\b(?:for " r"now|work" r"around|quick " r"fix|sor" r"ry)\b", re.IGNORECASE)
CONTAINER = re.compile(
    r"^(?:\w+:\s+)*(?:template\s*<.*>\s*)?(?:inline\s+)?(?:namespace|class|struct|union|enum|extern)\b", re.S
)
NOISE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^\s*#[^\n]*", re.S | re.M)


def files(suffixes: set[str]) -> list[Path]:
    """The project's own files with these suffixes."""
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        found.extend((ROOT / folder).rglob("*"))
    return sorted(path for path in found if path.suffix in suffixes and path.is_file())


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def native_functions(text: str) -> Iterator[tuple[str, int]]:
    """Heading and number of lines of each function body that is not inside another."""
    code = NOISE.sub(lambda noise: "\n" * noise.group().count("\n"), text)
    containers: list[bool] = []
    function = ("", 0)
    heading_start = 0
    for place, character in enumerate(code):
        if character == "{":
            heading = code[heading_start:place].strip()
            is_container = bool(CONTAINER.match(heading)) or heading.endswith("=")
            if not is_container and all(containers):
                function = (heading.partition("(")[0], code.count("\n", 0, place))
            containers.append(is_container)
        elif character == "}":
            assert containers, "braces do not match"
            if not containers.pop() and all(containers):
                yield function[0], code.count("\n", 0, place) - function[1] + 1
        if character in "{};":
            heading_start = place + 1


def too_long(path: Path) -> Iterator[str]:
    """One line for each way in which a file is over a limit."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    name = path.relative_to(ROOT)
    if lines > MOST_FILE_LINES:
        yield f"{name} has {lines} lines"
    functions = python_functions(text) if path.suffix in PYTHON else native_functions(text)
    for function, length in functions if path.suffix in PYTHON | NATIVE else ():
        if length > MOST_FUNCTION_LINES:
            yield f"{name}: {function} has {length} lines"


def test_files_and_functions_are_short() -> None:
    assert [fault for path in files(CODE) for fault in too_long(path)] == []


def test_the_measure_of_functions_is_right() -> None:
    native = "namespace a {\nstruct B {\n  int c() {\n    if (d) {\n    }\n    return '{';\n  }\n};\n}\n"
    native += "int t[] = {\n1};\n"
    assert [(name.split()[-1], lines) for name, lines in native_functions(native)] == [("c", 5)]
    assert list(python_functions("def f():\n    def g():\n        pass\n")) == [("f", 3), ("g", 2)]


def test_no_file_holds_a_forbidden_word() -> None:
    faults = []
    for path in files(TEXT):
        text = path.read_text(encoding="utf-8")
        found = MARKERS.findall(text) + (APOLOGIES.findall(text) if path.suffix in CODE else [])
        found += ["this machine's path"] if len(ROOT.parts) > 2 and f"{ROOT}/" in text else []
        faults += [f"{path.relative_to(ROOT)}: {word}" for word in found]
    assert faults == []


def test_the_version_is_the_changelogs() -> None:
    import hawser

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert hawser.__version__ == project["version"] == newest.group(1)


@pytest.mark.parametrize("module", HEAVY_MODULES)
def test_import_stays_light(module: str) -> None:
    program = f"import sys, hawser; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
