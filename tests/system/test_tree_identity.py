"""A tree of 1,000 files with every awkward size, name and link reads back identical: cold, warm, and without the hub."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from random import Random
from typing import NamedTuple

import pytest
from pair import Pair

pytestmark = [pytest.mark.mount, pytest.mark.timeout(180)]

MIB = 1024 * 1024
FILES = 1000
EDGE_SIZES = (0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1)
BIG_BYTES = 48 * MIB
SPARSE_BYTES = 32 * MIB

AWKWARD_NAMES = (
    b"with space",
    b" leading and trailing ",
    b"quotes ' and \"",
    b"new\nline",
    b"tab\tand\x01control",
    b"not utf-8 \xff\xfe\x80",
    b"-rf",
    b"*glob?[a]",
    b"back\\slash",
    b"%2e%2e",
    "e\u0301 decomposed".encode(),
    "\u00e9 composed".encode(),
    b"...",
    b".hidden",
    b"~",
    b"l" * 255,
)
TIMES_NS = (0, 1, -1, -86_400_000_000_000 - 5, 1_700_000_000_123_456_789, 4_102_444_800_000_000_001)


class Seen(NamedTuple):
    """What one name looks like; ``content``: sha256 of a file, the target of a symlink."""

    kind: int
    size_bytes: int
    mtime_ns: int
    executable: bool
    content: bytes


def look(root: bytes) -> dict[bytes, Seen]:
    """Everything below ``root`` by its path relative to it. A directory's size is its file system's own affair."""
    found: dict[bytes, Seen] = {}
    waiting = [b""]
    while waiting:
        directory = waiting.pop()
        for name in os.listdir(os.path.join(root, directory)):
            path = os.path.join(directory, name)
            full = os.path.join(root, path)
            status = os.lstat(full)
            kind, size_bytes, content = stat.S_IFMT(status.st_mode), status.st_size, b""
            if kind == stat.S_IFDIR:
                waiting.append(path)
                size_bytes = 0
            elif kind == stat.S_IFLNK:
                content = os.readlink(full)
            else:
                with open(full, "rb", buffering=0) as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            executable = kind == stat.S_IFREG and bool(status.st_mode & 0o100)
            found[path] = Seen(kind, size_bytes, status.st_mtime_ns, executable, content)
    return found


def grow(root: bytes, seed: int = 7420) -> None:
    """The tree, the same for the same seed."""
    dice = Random(seed)
    directories = [b""]
    for name in AWKWARD_NAMES:
        directories.append(os.path.join(dice.choice(directories), name))
    deep = b""
    for level in range(24):
        deep = os.path.join(deep, b"level %d" % level)
        directories.append(deep)
    directories += [os.path.join(dice.choice(directories), b"d%02d" % number) for number in range(40)]
    for directory in directories:
        os.makedirs(os.path.join(root, directory), exist_ok=True)
    os.mkdir(os.path.join(root, b"empty directory"))

    pool = memoryview(dice.randbytes(MIB) * 2)

    def put(path: bytes, size_bytes: int, mode: int = 0o644) -> None:
        full = os.path.join(root, path)
        with open(full, "xb", buffering=0) as file:
            for start_bytes in range(0, size_bytes, MIB):
                turn = dice.randrange(MIB)  # every piece starts elsewhere in the pool: no two alike, and quickly made
                file.write(pool[turn : turn + min(MIB, size_bytes - start_bytes)])
        os.chmod(full, mode)

    put(b"big.bin", BIG_BYTES)
    with open(os.path.join(root, b"sparse"), "xb") as sparse:
        sparse.truncate(SPARSE_BYTES)
        os.pwrite(sparse.fileno(), dice.randbytes(5000), 10 * MIB + 77)
        os.pwrite(sparse.fileno(), b"end", SPARSE_BYTES - 3)
    put(b"run.sh", 100, 0o755)
    put(b"read only", 100, 0o444)
    names = [os.path.join(dice.choice(directories), name) for name in AWKWARD_NAMES]
    names = [name for name in names if not os.path.lexists(os.path.join(root, name))]
    while len(names) < FILES - 4:
        names.append(os.path.join(dice.choice(directories), b"f%04d.bin" % len(names)))
    for number, name in enumerate(names):
        # Each edge several times, the megabytes among them rarely; between them anything up to three blocks.
        edge = number % 40 < 5 or number < 3 * len(EDGE_SIZES)
        put(
            name,
            EDGE_SIZES[number % len(EDGE_SIZES) if number < 24 else number % 5] if edge else dice.randrange(12_289),
        )

    for path, target in (
        (b"link to a file", b"run.sh"),
        (b"link to a directory", b"level 0/level 1"),
        (deep + b"/link up", b"../../.."),
        (b"link dangling", b"not here\nat all \xff"),
        (b"link out absolute", b"/etc/passwd"),
        (b"link out relative", b"../../outside"),
        (b"link to itself", b"link to itself"),
        (b"link long", b"x/" * 1500 + b"x"),
    ):
        os.symlink(target, os.path.join(root, path))

    paths = sorted(look_names(root), key=lambda path: (-path.count(b"/"), path))
    for number, path in enumerate(paths):  # the children first: making them moved their directory's time
        mtime_ns = TIMES_NS[number] if number < len(TIMES_NS) else dice.randrange(2_000_000_000 * 10**9)
        os.utime(os.path.join(root, path), ns=(mtime_ns, mtime_ns), follow_symlinks=False)


def look_names(root: bytes) -> list[bytes]:
    return [
        os.path.relpath(os.path.join(directory, name), root)
        for directory, directories, files in os.walk(root)
        for name in directories + files
    ]


def assert_same(expected: dict[bytes, Seen], found: dict[bytes, Seen]) -> None:
    """Says which names differ, not the whole of both trees."""
    assert sorted(expected.keys() ^ found.keys()) == []
    differing = {path: (expected[path], found[path]) for path in expected if expected[path] != found[path]}
    assert differing == {}


def test_a_tree_reads_back_identical(pair: Pair) -> None:
    root = os.fsencode(pair.data)
    grow(root)
    expected = look(root)
    kinds = [seen.kind for seen in expected.values()]
    assert kinds.count(stat.S_IFREG) == FILES
    assert {*EDGE_SIZES, BIG_BYTES, SPARSE_BYTES} <= {seen.size_bytes for seen in expected.values()}

    hub = pair.hub()
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "30s"])
    mounted = os.fsencode(spoke.mountpoint)
    assert_same(expected, look(mounted))
    fetched_bytes = spoke.settled().metrics()["headrace_spoke_fetched_bytes_total"]
    assert fetched_bytes <= 1.02 * sum(seen.size_bytes for seen in expected.values())

    assert_same(expected, look(mounted))
    told = subprocess.run(
        ["diff", "-r", "--no-dereference", pair.data, spoke.mountpoint], capture_output=True, timeout=60, check=False
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, b"", b"")
    assert spoke.metrics()["headrace_spoke_fetched_bytes_total"] == fetched_bytes

    assert spoke.terminate() == 0
    assert hub.terminate() == 0
    spoke = pair.spoke(hub.address, extra=["--read-timeout", "30s"])
    assert_same(expected, look(mounted))
    assert spoke.metrics()["headrace_spoke_fetched_bytes_total"] == 0
