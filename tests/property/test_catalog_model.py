"""Random file operations on a real directory: the catalog, its change log and a fresh walk must agree, and one version
must mean one content for ever."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from common.blocks import whole_file
from common.entries import Change, Entry, Kind
from hub.source import HubSource
from hub.watcher import WatcherSettings

NAMES = ["a", "b", "c d", "e\udcff"]
PATHS = [*NAMES, *(f"{one}/{two}" for one in NAMES for two in NAMES[:3]), "a/b/x", "a/b/y", "b/a/x", "b/a/x/z"]


def replay(model: dict[bytes, Entry], changes: list[Change]) -> None:
    """What a replica does with changes; fails on one that no tree could take."""
    for change in changes:
        below = [path for path in model if path.startswith(change.path + b"/")]
        parent = change.path.rpartition(b"/")[0]
        if change.entry is None:
            for path in [change.path, *below]:
                del model[path]
            continue
        assert not parent or model[parent].kind is Kind.DIRECTORY
        known = model.get(change.path)
        if known is not None and known.kind is not change.entry.kind:
            for path in below:
                del model[path]
        model[change.path] = change.entry


def walk(root: bytes) -> dict[bytes, tuple[object, ...]]:
    found: dict[bytes, tuple[object, ...]] = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            seen = os.lstat(path)
            if stat.S_ISDIR(seen.st_mode):
                facts: tuple[object, ...] = (Kind.DIRECTORY, 0, b"")
            elif stat.S_ISLNK(seen.st_mode):
                facts = (Kind.SYMLINK, seen.st_size, os.readlink(path))
            elif stat.S_ISREG(seen.st_mode):
                facts = (Kind.FILE, seen.st_size, b"")
            else:
                continue
            found[os.path.relpath(path, root)] = (*facts, stat.S_IMODE(seen.st_mode), seen.st_mtime_ns)
    return found


def shown(tree: dict[bytes, Entry]) -> dict[bytes, tuple[object, ...]]:
    return {
        path: (entry.kind, entry.size_bytes, entry.target, entry.mode, entry.mtime_ns) for path, entry in tree.items()
    }


def write(path: Path, other: Path, number: int) -> None:
    if not path.is_fifo():
        path.write_bytes(bytes([65 + number]) * (number * 1000))


def append(path: Path, other: Path, number: int) -> None:
    if not path.is_fifo():
        with path.open("ab") as file:
            file.write(bytes([97 + number]) * (1 + number))


def truncate(path: Path, other: Path, number: int) -> None:
    os.truncate(path, number * 10)


def edit_in_disguise(path: Path, other: Path, number: int) -> None:
    """Other bytes of the same size, and the old mtime put back."""
    seen = path.stat()
    if stat.S_ISREG(seen.st_mode):
        path.write_bytes(os.urandom(seen.st_size))
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def rename(path: Path, other: Path, number: int) -> None:
    path.rename(other)


def replace_by_temporary(path: Path, other: Path, number: int) -> None:
    temporary = path.with_name("tmp")
    temporary.write_bytes(os.urandom(number * 100))
    temporary.rename(path)


def remove(path: Path, other: Path, number: int) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


OPERATIONS = {
    "write": write,
    "append": append,
    "truncate": truncate,
    "edit_in_disguise": edit_in_disguise,
    "rename": rename,
    "replace_by_temporary": replace_by_temporary,
    "remove": remove,
    "mkdir": lambda path, other, number: path.mkdir(),
    "symlink": lambda path, other, number: path.symlink_to("x" * (number + 1)),
    "chmod": lambda path, other, number: path.chmod(0o700 + number),
    "link": lambda path, other, number: os.link(path, other, follow_symlinks=False),
    "fifo": lambda path, other, number: os.mkfifo(path),
}
# What the source is asked in between; "down": closed, to be started again by the next of these.
MOMENTS = ["settled", "settled", "rescan", "down", "drop_catalog"]

step = st.tuples(
    st.sampled_from([*OPERATIONS, "write", "edit_in_disguise", "rename", "link", *MOMENTS]),
    st.sampled_from(PATHS),
    st.sampled_from(PATHS),
    st.integers(0, 7),
)


ON_EXISTING = {"append", "truncate", "edit_in_disguise", "rename", "remove", "chmod", "link"}


def operate(root: Path, name: str, path: str, other: str, number: int) -> None:
    """One operation; what the kernel refuses is no operation. ``path`` is led to a name that exists where one is needed."""
    existing = sorted(walk(os.fsencode(root)))
    source = root / path
    if name in ON_EXISTING and existing:
        source = root / os.fsdecode(existing[(PATHS.index(path) * 8 + number) % len(existing)])
    with contextlib.suppress(OSError):
        for made in (source, root / other):
            made.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        OPERATIONS[name](source, root / other, number)


class Run:
    def __init__(self, top: Path) -> None:
        self.root = top / "data"
        self.root.mkdir()
        self.state_dir = top / "state"
        self.contents: dict[bytes, bytes] = {}
        self.replica: dict[bytes, Entry] = {}
        self.trees: dict[int, dict[bytes, Entry]] = {}
        self.seen_revision = 0
        self.catalog_id = b""
        self.source: HubSource | None = None
        self.linked = False

    async def started(self) -> HubSource:
        if self.source is None:
            settings = WatcherSettings(settle_s=0.001, max_delay_s=0.001, rescan_interval_s=0)
            self.source = HubSource("ds", self.root, self.state_dir, settings=settings)
            await self.source.start()
        return self.source

    async def stop(self) -> None:
        if self.source is not None:
            await self.source.close()
            self.source = None

    async def moment(self, name: str) -> None:
        if name in {"down", "drop_catalog"}:
            await self.stop()
            if name == "drop_catalog":
                shutil.rmtree(self.state_dir, ignore_errors=True)
            return
        source = await self.started()
        if name == "rescan":
            await source.rescan()
        await source.settled()
        if self.linked:
            await self.look_at_links(source)
        await self.check(source)

    async def look_at_links(self, source: HubSource) -> None:
        """A link that came and went in a directory too new to be watched leaves no event about the file's other names,
        whose ctime it moved. A reader finds out, and asks for a look; so do we."""
        self.linked = False
        for path, facts in walk(os.fsencode(self.root)).items():
            if facts[0] is Kind.FILE:
                await source.recheck(path)
        await source.settled()

    async def check(self, source: HubSource) -> None:
        if source.catalog_id != self.catalog_id:
            self.catalog_id, self.seen_revision, self.replica = source.catalog_id, 0, {}
            self.trees = {}
        changes = await source.changes_since(self.seen_revision, 1_000_000)
        assert [change.revision for change in changes] == list(range(self.seen_revision + 1, source.head_revision + 1))
        self.seen_revision = source.head_revision
        for change in changes:
            replay(self.replica, [change])
            self.trees[change.revision] = dict(self.replica)
        snapshot = await source.snapshot()
        listed = [item async for page in snapshot.pages for item in page]
        tree = dict(listed)
        assert len(listed) == len(tree) == snapshot.entry_count == source.status.entries
        assert snapshot.revision == source.head_revision
        assert [(path.rpartition(b"/")[0], path.rpartition(b"/")[2]) for path, _ in listed] == sorted(
            (path.rpartition(b"/")[0], path.rpartition(b"/")[2]) for path in tree
        )
        assert self.replica == tree
        await self.check_earlier(source)
        assert shown(tree) == walk(os.fsencode(self.root))
        await self.check_versions(source, tree)

    async def check_earlier(self, source: HubSource) -> None:
        """Trees of earlier revisions, those in the middle of a batch included, are what the log said they were."""
        for revision in sorted(self.trees)[-4:-1] + sorted(self.trees)[:2]:
            snapshot = await source.snapshot(revision)
            listed = [item async for page in snapshot.pages for item in page]
            assert len(listed) == snapshot.entry_count
            assert dict(listed) == self.trees[revision]

    async def check_versions(self, source: HubSource, tree: dict[bytes, Entry]) -> None:
        by_inode: dict[int, bytes] = {}
        for path, entry in tree.items():
            if entry.kind is not Kind.FILE:
                assert entry.version == b""
                continue
            real = os.path.join(os.fsencode(self.root), path)
            content = b""
            if entry.size_bytes:
                # By the reader, which leaves the time pass in which a further edit would carry the same stamps.
                content = bytes((await source.read_extent(entry.version, whole_file(entry.size_bytes))).data)
            with open(real, "rb") as file:
                assert file.read() == content
            assert self.contents.setdefault(entry.version, content) == content
            assert by_inode.setdefault(os.lstat(real).st_ino, entry.version) == entry.version
            place = await source.resolve(entry.version)
            assert place is not None
            assert place.identity.ctime_ns == os.lstat(real).st_ctime_ns


async def run(steps: list[tuple[str, str, str, int]]) -> None:
    # On tmpfs where there is one: every batch is synced, and a busy disk takes its time.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as top:
        it = Run(Path(top))
        try:
            await it.started()
            for name, path, other, number in steps:
                if name in OPERATIONS:
                    operate(it.root, name, path, other, number)
                    it.linked |= name == "link"
                else:
                    await it.moment(name)
            await it.moment("settled")
        finally:
            await it.stop()


@settings(max_examples=20)
@given(st.lists(step, min_size=20, max_size=60))
def test_catalog_equals_directory_after_any_operations(steps: list[tuple[str, str, str, int]]) -> None:
    asyncio.run(run(steps))
