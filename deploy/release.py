"""Makes a release from CHANGELOG.md: ``python deploy/release.py DIR``. ``--notes`` prints what is new and makes nothing.

The version is ``common.__version__``; its section must stand first in CHANGELOG.md and carry a date. Made are the source distribution, the
wheel, notes and SHA256SUMS; what is left to do is printed (tag, push, upload), and done by a person. Needs ``pip install build``.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)


class NotReady(Exception):
    """Why there can be no release, and what to do."""


def newest(changelog: str) -> tuple[str, str, str]:
    """Version, date (or ``unreleased``) and notes of the first section. Raises NotReady."""
    found = list(HEADING.finditer(changelog))
    if not found:
        raise NotReady("CHANGELOG.md has no section '## X.Y.Z (YYYY-MM-DD)'")
    end = found[1].start() if len(found) > 1 else len(changelog)
    return found[0][1], found[0][2], changelog[found[0].end() : end].strip()


def version() -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', (ROOT / "common/__init__.py").read_text(), re.MULTILINE)
    assert found is not None, "common/__init__.py says the version"
    return found[1]


def check(dated: str, number: str) -> None:
    """Raises NotReady."""
    if number != version():
        raise NotReady(f"CHANGELOG.md begins with {number}, common/__init__.py says {version()}: make them one")
    if dated == "unreleased":
        raise NotReady(
            f"{number} is still 'unreleased' in CHANGELOG.md: give it the day of the release, commit, come again"
        )
    if git("status", "--porcelain"):
        raise NotReady("the tree has changes that are not committed: a release is what a commit holds")
    if git("tag", "--list", f"v{number}"):
        raise NotReady(f"there is a tag v{number} already: a version is released once")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def make(directory: Path, number: str, notes: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(directory), str(ROOT)], check=True)
    (directory / f"headrace-{number}-notes.md").write_text(notes + "\n")
    (directory / "constraints.txt").write_bytes((ROOT / "deploy/constraints.txt").read_bytes())
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (directory / "SHA256SUMS").write_text("".join(sums))
    notes_file = directory / f"headrace-{number}-notes.md"
    left = f"next: git tag -a v{number} -F {notes_file}; git push origin v{number}; upload what is in {directory}"
    sys.stdout.write("".join(sums) + f"\n{left}\n")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python deploy/release.py DIR | --notes\n")
        return 2
    try:
        number, dated, notes = newest((ROOT / "CHANGELOG.md").read_text())
        if arguments[0] == "--notes":
            sys.stdout.write(f"headrace {number} ({dated})\n\n{notes}\n")
            return 0
        check(dated, number)
        make(Path(arguments[0]), number, notes)
    except NotReady as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"release: {' '.join(error.cmd)} ended with {error.returncode}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
