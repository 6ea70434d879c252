"""The source distribution and the wheel made from it: whole, installed into a clean environment, and run from there."""

from __future__ import annotations

import os
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from pair import eventually

ROOT = Path(__file__).parents[2]
PACKAGES = ("common", "hub", "spoke")


def files_of_ours() -> list[Path]:
    """All that the packages are made of: code, formats, pages, schemas."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


pytestmark = pytest.mark.timeout(400)


def run(*command: str | Path, timeout_s: float = 180, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment_with(directory: Path, *packages: str | Path) -> Path:
    """Its bin directory; skips where no package can be had."""
    venv.create(directory, with_pip=True)
    done = subprocess.run(
        [str(directory / "bin/python"), "-m", "pip", "install", "-q", "--retries", "1", *map(str, packages)],
        capture_output=True, text=True, timeout=300, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    if done.returncode != 0:
        if any(
            words in done.stderr for words in ("Connection", "Temporary failure", "timed out", "from versions: none")
        ):
            pytest.skip(f"no package index answers: {done.stderr.strip().splitlines()[-1]}")
        raise AssertionError(done.stderr)
    return directory / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    work_dir = tmp_path_factory.mktemp("packages")
    binaries = environment_with(work_dir / "builder", "build", "setuptools>=77")
    source = work_dir / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in files_of_ours():
        (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        (source / path.relative_to(ROOT)).write_bytes(path.read_bytes())
    run(binaries / "python", "-m", "build", "--no-isolation", source, "--outdir", work_dir / "dist")
    (sdist,) = (work_dir / "dist").glob("*.tar.gz")
    (wheel,) = (work_dir / "dist").glob("*.whl")
    return sdist, wheel


def test_nothing_of_ours_is_left_out(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    ours = {str(path.relative_to(ROOT)) for path in files_of_ours()}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert ours <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    with tarfile.open(sdist) as archive:
        assert ours <= {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="module")
def binaries(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel and what it asks for, nothing else."""
    return environment_with(tmp_path_factory.mktemp("clean") / "env", built[1])


def test_the_commands_answer(binaries: Path, tmp_path: Path) -> None:
    assert "serve" in run(binaries / "headrace-hub", "--help", cwd=tmp_path)
    assert "mount" in run(binaries / "headrace-spoke", "--help", cwd=tmp_path)
    assert run(binaries / "headrace-hub", "--version", cwd=tmp_path).startswith("headrace-hub ")


@pytest.mark.mount
def test_it_serves_and_mounts_where_nothing_else_is(binaries: Path, tmp_path: Path) -> None:
    data, mountpoint = tmp_path / "data", tmp_path / "mnt"
    data.mkdir()
    mountpoint.mkdir()
    (data / "f").write_bytes(os.urandom(3 << 20))
    with (tmp_path / "hub.log").open("wb") as log:
        hub = subprocess.Popen(
            [str(binaries / "headrace-hub"), "serve", "--dataset", f"d={data}", "--listen", "127.0.0.1:0", "--metrics",
             "127.0.0.1:0", "--state-dir", str(tmp_path / "state")],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path,
        )  # fmt: skip
    try:
        assert hub.stdout is not None
        said = hub.stdout.readline()
        assert said, (tmp_path / "hub.log").read_text()[-2000:]
        address = said.replace(",", "").split()[2]
        run(
            binaries / "headrace-spoke", "mount", mountpoint, "--hub", address, "--dataset", "d", "--cache-dir",
            tmp_path / "cache", "--cache-size", "1GiB", "--metrics", "127.0.0.1:0", "--background", "--log-file",
            tmp_path / "spoke.log", cwd=tmp_path,
        )  # fmt: skip
        try:
            assert (mountpoint / "f").read_bytes() == (data / "f").read_bytes()
            run(binaries / "headrace-spoke", "warm", mountpoint, "--quiet")
        finally:
            run(binaries / "headrace-spoke", "umount", mountpoint)
        eventually(lambda: not os.path.ismount(mountpoint))
    finally:
        hub.terminate()
        hub.wait(10)
        if hub.stdout is not None:
            hub.stdout.close()
