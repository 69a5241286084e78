"""The configuration of the daemons: file, then variables, then flags; whatever is wrong is named."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from hawser import UsageError
from hawser.cluster.config import Config, load, schema
from hawser.cluster.daemon import node_settings
from hawser.cluster.node.server import NodeSettings
from tests.support.processes import hawser_command

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def _file(directory: Path, text: str) -> Path:
    file = directory / "hawser.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_given_is_the_defaults() -> None:
    assert load(None, {}, {}) == Config()


def test_flags_count_more_than_variables_and_those_more_than_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, '[node]\nid = "file"\ndir = "file"\nlisten = "127.0.0.1:1"\n')
    variables = {"HAWSER_NODE__ID": "variable", "HAWSER_NODE__DIR": "variable", "HAWSER_NO_REBUILD": "1"}
    found = load(file, {"node": {"id": "flag", "dir": None}}, variables)
    assert (found.node.id, found.node.dir, found.node.listen) == ("flag", "variable", "127.0.0.1:1")


def test_variables_are_texts_of_whatever_is_wanted() -> None:
    variables = {
        "HAWSER_NODE__SEGMENT_BYTES": "8192",
        "HAWSER_NODE__TICK_SECONDS": "0.25",
        "HAWSER_OPERATOR__NODES": "n1=10.0.0.1:7400, n2=[::1]:7400",
    }
    found = load(None, {}, variables)
    assert (found.node.segment_bytes, found.node.tick_seconds) == (8192, 0.25)
    assert found.operator.nodes == {"n1": "10.0.0.1:7400", "n2": "[::1]:7400"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[node]\nlisten = 'nowhere'", "'nowhere' is no address"),
        ("[node]\nlisen = '127.0.0.1:1'", "lisen"),
        ("[nodes]\n", "nodes"),
        ("node = 3", "$.node"),
        ("[node]\nsegment_bytes = 1", "$.node.segment_bytes"),
        ("[operator.nodes]\nn1 = '10.0.0.1'", "'10.0.0.1' is no address"),
        ("[http]\nlisten = '127.0.0.1:99999'", "65535"),
        ("[log]\nlevel = 'loud'", "loud"),
        ("[node", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, text: str, named: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load(file, {}, {})
    assert named in str(caught.value) and str(file) in str(caught.value)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UsageError, match="HAWSER_NODE__LISEN"):
        load(None, {}, {"HAWSER_NODE__LISEN": "127.0.0.1:1"})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.toml cannot be read"):
        load(tmp_path / "missing.toml", {}, {})


def test_the_schema_is_published_and_has_every_key() -> None:
    printed = msgspec.json.decode(hawser_command("config", "schema").stdout)
    assert printed == schema()
    sections = {
        name: printed["$defs"][f"{name.title()}Section"] for name in ("node", "operator", "log", "http")
    }
    for name, section in sections.items():
        assert set(section["properties"]) == set(msgspec.structs.asdict(getattr(Config(), name)))
        assert section["additionalProperties"] is False


def test_config_check_says_right_or_wrong(tmp_path: Path) -> None:
    file = _file(tmp_path, '[node]\nid = "n1"\n')
    assert "is valid" in hawser_command("config", "check", str(file)).stderr
    shown = msgspec.json.decode(hawser_command("config", "check", str(file), "-o", "json").stdout)
    assert shown["node"]["id"] == "n1"
    file.write_text("[node]\nidd = 5\n", encoding="utf-8")
    assert "idd" in hawser_command("config", "check", str(file), code=2).stderr


def test_the_document_names_every_key_with_its_default(tmp_path: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    example = text.split("```toml\n", 1)[1].split("```", 1)[0]
    found = load(_file(tmp_path, example), {}, {})
    written = tomllib.loads(example)
    for name in ("node", "operator", "log", "http"):
        section = getattr(found, name)
        assert set(written[name]) == set(msgspec.structs.asdict(section)), name
    # All but what has no default worth showing is shown as it is without a file.
    assert msgspec.structs.replace(found.node, id="", dir="", listen=Config().node.listen) == Config().node
    assert (
        msgspec.structs.replace(found.operator, name="operator", metadata="", nodes={}) == Config().operator
    )
    assert found.log == Config().log


def test_a_node_without_a_file_works_as_one_that_is_embedded() -> None:
    assert node_settings(Config()) == NodeSettings()
