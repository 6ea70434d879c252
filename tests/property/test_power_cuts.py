"""200 seeded power cuts, and kills: what a legal disk leaves of cache and names is right or missing, and goes on by itself.

A failing seed replays alone: ``pytest "tests/property/test_power_cuts.py::test_…[fill-3]"`` (the seeds are SEEDS_A_TEST times
the number, and those that follow).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from cache_support import File
from names_support import CATALOG, Model, change_model, contents, directory, file
from power_cut import RecordingDisk, killed, power_cut

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, byte_length, count_blocks, split_at_extents, subtract, whole_file
from common.entries import Change
from common.wire.messages import Changes
from spoke.cache import quota
from spoke.cache.store import BlocksMissing, Store
from spoke.namespace.journal import Journal
from spoke.namespace.tree import Tree

SEEDS_A_TEST = 10
TESTS = [pytest.param(number, marks=[pytest.mark.slow] if number > 1 else []) for number in range(5)]
CAPACITY_BYTES = 3 << 19
_SIZES = {  # bytes of the files, most blocks written at once, rounds
    "fill": ((30_000, 100_001, 300_000), 48, 24),
    "eviction": ((300_000, 1_200_000, 2_200_000), 80, 36),
    "index": ((1_500_000, 5_000, 16_384), 3, 80),
}


@dataclass
class Filled:
    """A recorded life of a cache. ``events``: (operations so far, version, blocks, whether they were committed or let go)."""

    disk: RecordingDisk
    files: dict[bytes, File]
    events: list[tuple[int, bytes, BlockRange, bool]] = field(default_factory=list)

    def committed(self, at: int, until: int) -> dict[bytes, set[int]]:
        """Blocks that were in the cache after ``at`` operations and were not let go before ``until``."""
        held: dict[bytes, set[int]] = {version: set() for version in self.files}
        for place, version, blocks, came in self.events:
            span = range(blocks.first_block, blocks.end_block)
            if came and place <= at:
                held[version].update(span)
            elif not came and place <= until:
                held[version].difference_update(span)
        return held


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "CACHE_MIN_BYTES", 1 << 20)
    monkeypatch.setattr(limits, "JOURNAL_COMPACT_MIN_BYTES", 2000)
    monkeypatch.setattr(limits, "JOURNAL_PAGE_ENTRIES", 7)


async def live(kind: str, cache: Path, seed: int) -> Filled:
    """Fill a cache in a seeded way, everything recorded."""
    sizes, most_blocks, rounds = _SIZES[kind]
    dice = Random(seed)
    Store.open(cache, CAPACITY_BYTES, 0, 0, Random(1))._directory.close()
    disk = RecordingDisk(cache)
    files = [File(number, dice.choice(sizes) + dice.randrange(5000)) for number in range(8)]
    filled = Filled(disk, {found.version: found for found in files})
    store = Store.open(cache, CAPACITY_BYTES, 0, 0, Random(seed), disk=disk)
    store.on_gone = lambda version, blocks: filled.events.append((len(disk.ops), version, blocks, False))
    async with store:
        for _ in range(rounds):
            found = dice.choice(files)
            total = count_blocks(found.size_bytes)
            first = dice.randrange(total)
            blocks = BlockRange(first, min(dice.randrange(1, most_blocks + 1), total - first))
            for piece in split_at_extents(blocks):  # the second may evict the first
                await found.put(store, piece)
                filled.events.append((len(disk.ops), found.version, piece, True))
            if dice.random() < 0.05:
                store.drop(dice.choice(files).version)
    return filled


async def compared(store: Store, found: File) -> set[int]:
    """Compare every byte that can be read; the blocks that cannot."""
    for _ in range(count_blocks(found.size_bytes) + 1):
        absent = found.missing(store)
        present = [whole_file(found.size_bytes)]
        for part in absent:
            present = subtract(present, part)
        try:
            for part in present:
                await found.check(store, part.first_block * BLOCK_BYTES, byte_length(part, found.size_bytes))
        except BlocksMissing:
            continue  # a block turned out bad, and is missing from now on
        return {block for part in absent for block in range(part.first_block, part.end_block)}
    raise AssertionError("bad blocks stay")


async def survives(cache: Path, filled: Filled, held: dict[bytes, set[int]]) -> None:
    """No wrong byte, what was committed is here, and the cache goes on without anybody's help."""
    async with Store.open(cache, CAPACITY_BYTES, 0, 0, Random(1)) as store:
        kept = expected = 0
        for version, found in filled.files.items():
            absent = await compared(store, found)
            expected += len(held[version])
            kept += len(held[version] - absent)
        assert kept >= 0.99 * expected, f"{kept} of {expected} committed blocks were kept"
        one = min(filled.files.values(), key=lambda found: found.size_bytes)
        await one.put(store)
        await one.check(store)
    names = {path.suffix for path in cache.glob("versions/*/*")}
    assert names <= {".data", ".index"}
    async with Store.open(cache, CAPACITY_BYTES, 0, 0, Random(1)) as store:
        await one.check(store)


@pytest.mark.parametrize("number", TESTS)
@pytest.mark.parametrize("kind", list(_SIZES))
async def test_a_cache_after_a_power_cut(tmp_path: Path, kind: str, number: int) -> None:
    filled = await live(kind, tmp_path / "cache", number)
    for seed in range(number * SEEDS_A_TEST, (number + 1) * SEEDS_A_TEST):
        dice = Random(seed)
        count = dice.randrange(1, len(filled.disk.ops) + 1)
        synced = dice.choice((0, dice.randrange(count), dice.randrange(count)))
        cut = tmp_path / f"cut{seed}"
        power_cut(filled.disk, count, synced, dice, cut)
        # What the kernel had written out before is committed for good; what came after may be any part of it.
        await survives(cut, filled, filled.committed(synced, count))
        if seed % 4 == 0:
            gone = tmp_path / f"killed{seed}"
            killed(filled.disk, count, dice, gone)
            await survives(gone, filled, filled.committed(count, count))


@dataclass
class Named:
    """A recorded life of the names. ``history``: the tree at each revision; ``flushed``: (operations so far, revision on disk)."""

    disk: RecordingDisk
    history: dict[int, Model]
    flushed: list[tuple[int, int]]


async def live_names(where: Path, seed: int) -> Named:
    dice = Random(seed)
    where.mkdir()
    disk = RecordingDisk(where)
    journal = await Journal.open(where, disk)  # type: ignore[arg-type]
    model: Model = {b"d%d" % number: directory() for number in range(4)}
    fill(journal.tree, model)
    named = Named(disk, {1: dict(model)}, [])
    async with journal:
        journal.rewrite()
        await journal.flush()
        named.flushed.append((len(disk.ops), 1))
        for _ in range(40):
            change_some(journal, model, dice)
            named.history[journal.tree.revision] = dict(model)
            if dice.random() < 0.05:
                journal.rewrite()
            if dice.random() < 0.6:
                await journal.flush()
                named.flushed.append((len(disk.ops), journal.tree.revision))
    named.flushed.append((len(disk.ops), journal.tree.revision))
    return named


def fill(tree: Tree, model: Model) -> None:
    for path in sorted(model):
        tree.upsert(path, model[path])
    tree.revision, tree.catalog_id = 1, CATALOG


def change_some(journal: Journal, model: Model, dice: Random) -> None:
    tree = journal.tree
    after = tree.revision
    changes = []
    for revision in range(after + 1, after + dice.randrange(2, 5)):
        path = b"d%d/file%d" % (dice.randrange(4), dice.randrange(6))
        entry = None if path in model and dice.random() < 0.3 else file(revision)
        change_model(model, path, entry)
        changes.append(Change(revision, path, entry))
        tree.apply(changes[-1])
        tree.revision = revision
    journal.append(Changes(CATALOG, after, tree.revision, tuple(changes)))


async def names_survive(where: Path, named: Named, at_least: int) -> None:
    for _ in range(2):  # the second start finds what the first one left
        journal = await Journal.open(where)
        tree = journal.tree
        if not tree.catalog_id:
            assert at_least == 0, "names that were on disk are lost"
            assert tree.entry_count == 0
            fill(tree, named.history[1])
            async with journal:
                journal.rewrite()
            named.history[1] = contents(tree)
            continue
        assert contents(tree) == named.history[tree.revision]
        assert tree.revision >= at_least
    model = dict(contents(tree))
    async with journal:
        change_some(journal, model, Random(1))
    assert contents((await Journal.open(where)).tree) == model


@pytest.mark.parametrize("number", TESTS)
async def test_names_after_a_power_cut(tmp_path: Path, number: int) -> None:
    named = await live_names(tmp_path / "names", number)
    for seed in range(number * SEEDS_A_TEST, (number + 1) * SEEDS_A_TEST):
        dice = Random(seed)
        renames = [place for place, op in enumerate(named.disk.ops) if op.kind == "rename"]
        # Half of the cuts fall just after a new generation took the old one's place.
        count = dice.choice((dice.randrange(1, len(named.disk.ops) + 1), dice.choice(renames) + 1))
        synced = dice.choice((0, dice.randrange(count), dice.randrange(count)))
        ends: list[tuple[Callable[..., None], tuple[int, ...], int]] = [
            (power_cut, (count, synced), synced),
            (killed, (count,), count),
        ]
        for end, places, sure in ends:
            where = tmp_path / f"{end.__name__}{seed}"
            end(named.disk, *places, dice, where)
            on_disk = max((revision for at, revision in named.flushed if at <= sure), default=0)
            await names_survive(where, named, on_disk)


async def test_the_simulated_disk_tells_a_sync_from_none(tmp_path: Path) -> None:
    """It can fail: the same writes without the syncs lose the names."""
    named = await live_names(tmp_path / "names", 1)
    named.disk.ops = [op for op in named.disk.ops if op.kind not in ("sync", "syncdir")]
    lost = 0
    for seed in range(30):
        where = tmp_path / f"cut{seed}"
        power_cut(named.disk, len(named.disk.ops), 0, Random(seed), where)
        lost += not (await Journal.open(where)).tree.catalog_id
    assert lost > 5
