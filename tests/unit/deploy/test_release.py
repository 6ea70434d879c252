"""Releases from the changelog, and the lock of tested versions."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from common import __version__

ROOT = Path(__file__).parents[3]


@pytest.fixture
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_changelog_begins_with_the_version_that_is_here(release: ModuleType) -> None:
    number, _, notes = release.newest((ROOT / "CHANGELOG.md").read_text())
    assert number == __version__ == release.version()
    assert len(notes) > 100


def test_the_first_section_alone_is_taken(release: ModuleType) -> None:
    text = "# Changelog\n\n## 1.1.0 (2027-01-02)\n\n- new\n\n## 1.0.0 (2026-12-01)\n\n- old\n"
    assert release.newest(text) == ("1.1.0", "2027-01-02", "- new")
    with pytest.raises(release.NotReady, match="no section"):
        release.newest("# Changelog\n\n## soon\n")


def test_what_is_not_ready_is_refused_with_the_reason(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"status": "", "tag": ""}
    monkeypatch.setattr(release, "git", lambda word, *_rest: said[word])
    release.check("2027-01-01", __version__)
    with pytest.raises(release.NotReady, match="make them one"):
        release.check("2027-01-01", "9.9.9")
    with pytest.raises(release.NotReady, match="still 'unreleased'"):
        release.check("unreleased", __version__)
    said["tag"] = f"v{__version__}"
    with pytest.raises(release.NotReady, match="released once"):
        release.check("2027-01-01", __version__)
    said["status"] = " M README.md"
    with pytest.raises(release.NotReady, match="not committed"):
        release.check("2027-01-01", __version__)


def test_the_command() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy/release.py", "--notes"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith(f"headrace {__version__} (")
    assert (
        subprocess.run([sys.executable, ROOT / "deploy/release.py"], capture_output=True, check=False).returncode == 2
    )


def parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def test_the_lock_has_every_dependency_at_a_version_that_may_do() -> None:
    lines = [line for line in (ROOT / "deploy/constraints.txt").read_text().splitlines() if not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    assert list(locked) == sorted(locked)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for each in wanted:
        name, least = each.split(">=")
        assert parts(locked[name]) >= parts(least), each
    assert {"aiosignal", "pydantic-core", "yarl"} <= locked.keys(), "and what those need"


def test_what_is_installed_leaves_out_no_code_and_no_file() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert tools["packages"]["find"]["include"] == ["common*", "hub*", "spoke*"], "a list by hand forgets new ones"
    data = {
        ROOT / package.replace(".", "/") / name for package, names in tools["package-data"].items() for name in names
    }
    for path in (path for top in ("common", "hub", "spoke") for path in (ROOT / top).rglob("*") if path.is_file()):
        if path.suffix == ".py":
            assert (path.parent / "__init__.py").exists(), path
        else:
            assert path in data or "__pycache__" in path.parts, path
