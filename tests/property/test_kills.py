"""A real process that fills, evicts and keeps names, killed with SIGKILL at seeded moments: what it had said it kept is there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from cache_support import BlocksMissing, File
from names_support import contents, directory
from test_power_cuts import change_some, compared, fill

from common.blocks import BlockRange, count_blocks
from spoke.cache import quota
from spoke.cache.store import Store
from spoke.namespace.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
CAPACITY_BYTES = 6 << 20
SIZES = (3_000_000, 5_500_001, 700_000, 9_000_000, 4096, 2_000_000)

LIFE = """
import asyncio, sys
sys.path[:0] = [{root!r}, {tests!r}, {tests!r} + "/property"]
from random import Random
from pathlib import Path
from cache_support import File
from test_kills import CAPACITY_BYTES, SIZES, some_blocks, first_names
from test_power_cuts import change_some
from spoke.cache.store import Store
from spoke.namespace.journal import Journal
from common import limits
from spoke.cache import quota
quota.CACHE_MIN_BYTES = 1 << 20
limits.JOURNAL_COMPACT_MIN_BYTES = 4000

async def cache(dice):
    store = Store.open({work!r} + "/cache", CAPACITY_BYTES, 0, 0, Random(1))
    files = [File(number, size) for number, size in enumerate(SIZES)]
    numbers = {{file.version: number for number, file in enumerate(files)}}
    # Said before the first byte of it goes: nothing that was said is missing when we die in between.
    store.on_gone = lambda version, blocks: print("gone", numbers[version], blocks.first_block, blocks.block_count, flush=True)
    while True:
        number, blocks = some_blocks(dice)
        await files[number].put(store, blocks)
        print("wrote", number, blocks.first_block, blocks.block_count, flush=True)

async def names(dice):
    journal = await Journal.open(Path({work!r}) / "names")
    model = first_names(journal.tree)
    async with journal:
        journal.rewrite()
        while True:
            change_some(journal, model, dice)
            if dice.random() < 0.1:
                journal.rewrite()
            await journal.flush()
            print("names", journal.tree.revision, flush=True)
            await asyncio.sleep(0.001)

async def main():
    await asyncio.gather(cache(Random({seed})), cache_names(Random({seed})))

async def cache_names(dice):
    await names(dice)

asyncio.run(main())
"""


def some_blocks(dice: Random) -> tuple[int, BlockRange]:
    """Inside one extent, so that a write is one commit."""
    number = dice.randrange(len(SIZES))
    total = count_blocks(SIZES[number])
    first = dice.randrange(total)
    most = min(64, total - first, 256 - first % 256)
    return number, BlockRange(first, dice.randrange(1, most + 1))


def first_names(tree) -> dict:
    model = {b"d%d" % number: directory() for number in range(4)}
    fill(tree, model)
    return dict(model)


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
async def test_what_was_committed_outlives_sigkill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(quota, "CACHE_MIN_BYTES", 1 << 20)
    script = LIFE.format(root=str(ROOT), tests=str(ROOT / "tests"), seed=seed, work=str(tmp_path))
    kill_after = Random(seed).randrange(150, 900)
    held: dict[int, set[int]] = {number: set() for number in range(len(SIZES))}
    revision = said = evictions = 0
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            said += 1
            if said == kill_after:
                child.send_signal(signal.SIGKILL)  # what it says until it is dead counts too
            words = line.split()
            if not line.endswith("\n"):
                break
            if words[0] == "names":
                revision = int(words[1])
            elif words[0] in ("wrote", "gone"):
                number, first, count = map(int, words[1:])
                span = range(first, first + count)
                (held[number].update if words[0] == "wrote" else held[number].difference_update)(span)
                evictions += words[0] == "gone"
    assert said >= kill_after

    async with Store.open(tmp_path / "cache", CAPACITY_BYTES, 0, 0, Random(1)) as store:
        kept = expected = 0
        for number, size_bytes in enumerate(SIZES):
            absent = await compared(store, File(number, size_bytes))
            expected += len(held[number])
            kept += len(held[number] - absent)
        print(f"{kept} of {expected} committed blocks kept after {evictions} evictions")
        assert expected
        assert kept >= 0.99 * expected
        for number in (2, 4):  # and it goes on
            file = File(number, SIZES[number])
            await file.put(store)
            try:
                await file.check(store)
            except BlocksMissing:
                pytest.fail("what was just written is missing")

    tree = (await Journal.open(tmp_path / "names")).tree
    if revision or tree.catalog_id:
        assert tree.revision >= revision
        again = await Journal.open(tmp_path / "again")
        model, dice = first_names(again.tree), Random(seed)
        async with again:
            while again.tree.revision < tree.revision:
                change_some(again, model, dice)
                dice.random()
        assert contents(tree) == model
