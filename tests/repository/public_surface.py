"""The public surface as text: `python -m tests.repository.public_surface` writes it to `public_surface.txt`.

It is read from the sources where that is possible, so that the text does not depend on the version of Python.
"""

import ast
import inspect
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from hawser import errors
from tests.repository.json_keys import json_keys

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
SURFACE_FILE = Path(__file__).with_name("public_surface.txt")
MODULES = (
    "hawser",
    "hawser.aio",
    "hawser.xa",
    "hawser.testing",
    "hawser.spark",
    "pyspark_hawser",
)
METRIC = re.compile(r"hawser_[a-z0-9_]+")
VARIABLE = re.compile(r"HAWSER_[A-Z0-9_]+")
RUN_MODULE = re.compile(r"python -m (hawser[\w.]*)")
# Methods by which the interpreter uses an object: `with`, `for`, `len()`, `[]` and the like.
PROTOCOLS = {
    f"__{name}__"
    for name in (
        "aenter", "aexit", "aiter", "anext", "bool", "buffer", "bytes", "call", "contains", "enter", "eq",
        "exit", "getitem", "hash", "iter", "len", "next",
    )
}  # fmt: skip


def surface(directory: Path) -> str:
    """Every part of the surface, a section each. Commands are run in `directory`."""
    sections: dict[str, Iterable[str]] = {
        "Python": python_names(),
        "errors": error_tree(),
        "error texts": error_texts(),
        "commands": commands(import_module("hawser.cli.main").root, "hawser"),
        "JSON of commands": json_keys(directory),
        "exit codes": exit_codes(),
        "configuration": configuration(),
        "settings of topics and queues": topic_settings(),
        "environment variables": constants(VARIABLE),
        "metrics": constants(METRIC),
        "loggers": loggers(),
        "trace events": trace_events(),
        "Spark options": spark_options(),
        "modules that documents run": documented_modules(),
    }
    return "\n".join(
        f"[{title}]\n" + "".join(f"{line}\n" for line in lines) for title, lines in sections.items()
    )


def python_names() -> Iterator[str]:
    """Names of the public modules, with signatures, and members of their classes."""
    for module_name in MODULES:
        module = import_module(module_name)
        for name in sorted(public_names(module)):
            yield from described(f"{module_name}.{name}", getattr(module, name))


def public_names(module: ModuleType) -> Iterable[str]:
    return getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]


def described(name: str, value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base is not object and base.__name__[0] != "_"]
        yield f"class {name}({', '.join(bases)})"
        if issubclass(value, errors.Rejected | errors.OutcomeUnknown):
            # They have what HawserError has; [errors] says how they differ.
            return
        yield from (f"  {line}" for _, line in sorted(members(value).items()))
    elif inspect.isfunction(value):
        yield signature(source_tree(value), name)
    else:
        yield name


def members(kind: type) -> dict[str, str]:
    """A line for each public member, inherited ones of this project included."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not owner.__module__.startswith(("hawser", "pyspark_hawser")):
            continue
        try:
            body = source_tree(owner).body
        except (OSError, TypeError):
            # A class of the native module.
            found |= {name: name for name in vars(owner) if is_public(name)}
            continue
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_public(node.name):
                found[node.name] = signature(node, node.name)
            elif isinstance(node, ast.AnnAssign) and is_public(target := ast.unparse(node.target)):
                found[target] = ast.unparse(node)
    return found


def is_public(name: str) -> bool:
    return name == "__init__" or name in PROTOCOLS or not name.startswith("_")


def source_tree(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    properties = {"property", "cached_property"}
    if any(ast.unparse(decorator) in properties for decorator in node.decorator_list):
        word = "property"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{word} {name}({ast.unparse(node.args)}){returns}"


def error_tree() -> Iterator[str]:
    """Each class with its bases, and what it says of a repetition."""
    for name in sorted(errors.__all__):
        kind: type[errors.HawserError] = getattr(errors, name)
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        yield f"{name}({bases}) retryable={kind.retryable} outcome={kind.outcome}"


def error_texts() -> Iterator[str]:
    """The texts of errors that are raised where they are written. Values in them are shown as {}."""
    found: set[str] = set()
    for _, tree in source_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                kind = ast.unparse(node.exc.func).rpartition(".")[2]
                text = template(node.exc.args[0])
                if text and kind in errors.__all__:
                    found.add(f"{kind}: {text}")
    yield from sorted(found)


def template(node: ast.expr) -> str:
    """The constant parts of a text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    return ""


def source_trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def commands(command: click.Command, path: str) -> Iterator[str]:
    """Every command with its arguments and options."""
    yield path
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        names = "/".join([*parameter.opts, *parameter.secondary_opts])
        kind = parameter.type
        shown = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name
        marks = [mark for mark in ("required", "multiple", "is_flag") if getattr(parameter, mark, False)]
        default = parameter.default
        plain = isinstance(default, str | int | float) and not isinstance(default, bool)
        yield f"  {names} {shown} {' '.join(marks)}{f' = {default}' if plain else ''}".rstrip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(child, f"{path} {name}")


def exit_codes() -> Iterator[str]:
    main = import_module("hawser.cli.main")
    yield from (line.strip() for line in (main.__doc__ or "").partition("Exit codes:")[2].splitlines())
    for kind, code in main._EXIT_CODES:
        yield f"{kind.__name__} {code}"


def configuration() -> Iterator[str]:
    """The keys of a configuration file."""
    from hawser.cluster.config import Config

    for section in Config.__struct_fields__:
        part = getattr(Config(), section)
        for key in part.__struct_fields__:
            yield f"{section}.{key} = {getattr(part, key)!r}"


def topic_settings() -> Iterator[str]:
    from hawser.limits import QUEUE_SETTING_BOUNDS, SETTING_BOUNDS

    for kind, bounds in (("topic", SETTING_BOUNDS), ("queue", QUEUE_SETTING_BOUNDS)):
        for name, bound in sorted(bounds.items()):
            yield f"{kind} {name}: {bound.lowest} to {bound.highest}, {bound.default} if not given"


def constants(pattern: re.Pattern[str]) -> list[str]:
    """The texts in the sources that are written like this."""
    found: set[str] = set()
    for _, tree in source_trees():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and pattern.fullmatch(node.value)
            ):
                found.add(node.value)
    return sorted(found)


def loggers() -> list[str]:
    found: set[str] = set()
    for _, tree in source_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and node.args:
                found.add(ast.unparse(node.args[0]))
    return sorted(found)


def trace_events() -> Iterator[str]:
    from hawser.record.trace import TraceKind

    yield from (f"{kind.value} {kind.name}" for kind in TraceKind)


def spark_options() -> Iterator[str]:
    for part in ("source", "sink"):
        names = import_module(f"hawser.spark.{part}.options")._NAMES
        yield from (f"{part}: {name}" for name in names)


def documented_modules() -> list[str]:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = {name.rstrip(".") for path in documents for name in RUN_MODULE.findall(path.read_text("utf-8"))}
    for name in found:
        import_module(name)
    return sorted(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        SURFACE_FILE.write_text(surface(Path(temporary)), encoding="utf-8")
    print(f"wrote {SURFACE_FILE.relative_to(ROOT)}")
