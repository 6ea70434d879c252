"""``verify --cache-dir``: the cache of a spoke that does not run, read and compared with its digests, file by file.

Blocks: runs in the command's own process. With ``repair`` what is bad is taken out, so that the next spoke fetches it again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from common import limits, runtime
from common.blocks import BLOCK_BYTES, BlockRange, coalesce, count_blocks, whole_file
from common.pacing import Pacer
from spoke.cache.cached_file import free_blocks, open_pair, remove_pair
from spoke.cache.disk import Disk
from spoke.cache.examine import PairCheck
from spoke.cache.index import DamagedIndex
from spoke.cache.recovery import CacheDirectory, FoundFile, open_existing
from spoke.namespace import journal_file
from spoke.naming import find_paths

Facts = Mapping[str, Any]


class _Bad(NamedTuple):
    """``reason``: why none of the file can be believed, or empty."""

    blocks: list[BlockRange]
    reason: str


def verify_directory(
    path: Path, *, repair: bool, rate_bytes_per_s: float | None, say: Callable[[Facts], object]
) -> Facts:
    """The outcome, as a running spoke gives it. ``say`` is told of progress. Raises CacheDirectoryError."""
    directory = open_existing(path)
    try:
        return _Check(directory, repair, rate_bytes_per_s, say).run()
    finally:
        directory.close()


class _Check:
    def __init__(
        self, directory: CacheDirectory, repair: bool, rate_bytes_per_s: float | None, say: Callable[[Facts], object]
    ) -> None:
        self._directory = directory
        self._repair = repair
        self._say = say
        self._disk = Disk()
        self._pacer = Pacer(rate_bytes_per_s or None, limits.SCRUB_SLICE_BLOCKS * BLOCK_BYTES)
        self._began_s = self._said_s = runtime.now_s()
        self._files = 0
        self._checked_bytes = self._checked_blocks = self._bad_blocks = self._mended_blocks = self._bad_files = 0
        self._bad: dict[bytes, _Bad] = {}

    def run(self) -> Facts:
        for found in self._directory.scan(self._disk, tidy=self._repair):
            bad = self._check(found)
            if bad is not None:
                self._bad_files += 1
                self._bad_blocks += sum(blocks.block_count for blocks in bad.blocks)
                if len(self._bad) < limits.VERIFY_SHOWN_MAX:
                    self._bad[found.version] = bad
                if self._repair:
                    self._take_out(found, bad)
            self._files += 1
        paths = self._paths()
        return {
            **self._progress(),
            "bad_files": [
                {
                    "path": paths.get(version),
                    "version": version.hex(),
                    "blocks": [[blocks.first_block, blocks.block_count] for blocks in bad.blocks],
                    **({"reason": bad.reason} if bad.reason else {}),
                }
                for version, bad in self._bad.items()
            ],
            "bad_files_not_shown": self._bad_files - len(self._bad),
            "mended_blocks": self._mended_blocks,
        }

    def _progress(self) -> Facts:
        return {
            "files": self._files,
            "files_done": self._files,
            "checked_bytes": self._checked_bytes,
            "checked_blocks": self._checked_blocks,
            "bad_blocks": self._bad_blocks,
            "duration_s": runtime.now_s() - self._began_s,
        }

    def _check(self, found: FoundFile) -> _Bad | None:
        try:
            with contextlib.closing(
                PairCheck(self._disk, self._directory.paths(found.version), found.version, found.size_bytes)
            ) as pair:
                blocks = self._bad_blocks_of(pair)
                return _Bad(blocks, "") if blocks else None
        except (DamagedIndex, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            return _Bad([whole_file(max(1, found.size_bytes))], reason or str(error))

    def _bad_blocks_of(self, pair: PairCheck) -> list[BlockRange]:
        """Raises DamagedIndex for a file that ends early."""
        bad: list[BlockRange] = []
        block: int | None = 0
        while block is not None:
            self._wait()
            try:
                seen = pair.examine(block)
            except OSError:  # this piece cannot be read
                end_block = min(block + limits.SCRUB_SLICE_BLOCKS, count_blocks(pair.size_bytes))
                bad += pair.blocks.present(BlockRange(block, end_block - block))
                block = end_block if end_block < count_blocks(pair.size_bytes) else None
                continue
            self._pacer.sent(runtime.now_s(), seen.checked_bytes)
            self._checked_bytes += seen.checked_bytes
            self._checked_blocks += seen.checked_blocks
            bad += seen.bad
            block = seen.next_block
        return coalesce(bad)

    def _wait(self) -> None:
        now_s = runtime.now_s()
        due_s = self._pacer.next_send_at(now_s, limits.SCRUB_SLICE_BLOCKS * BLOCK_BYTES)
        if due_s > now_s:
            runtime.sleep(due_s - now_s)
        if now_s - self._said_s >= limits.PROGRESS_INTERVAL_S:
            self._said_s = now_s
            self._say(self._progress())

    def _take_out(self, found: FoundFile, bad: _Bad) -> None:
        paths = self._directory.paths(found.version)
        try:
            if bad.reason:
                remove_pair(self._disk, *paths)
            else:
                pair = open_pair(self._disk, *paths)
                try:
                    free_blocks(self._disk, pair, found.size_bytes, bad.blocks)
                finally:
                    for fd in pair:
                        self._disk.close(fd)
            self._mended_blocks += sum(blocks.block_count for blocks in bad.blocks)
        except OSError:
            return  # said to be bad, and not taken out

    def _paths(self) -> dict[bytes, str]:
        """What the names on disk call the bad files, with the dataset's name before the path."""
        found: dict[bytes, str] = {}
        names = self._directory.path / "names"
        if not self._bad or not names.is_dir():
            return found
        for dataset in sorted(names.iterdir()):
            with contextlib.suppress(OSError):
                tree = journal_file.load(dataset, cut=False).tree
                for version, path in find_paths(tree, self._bad).items():
                    found.setdefault(version, f"{unquote(dataset.name)}: {os.fsdecode(path)}")
        return found
