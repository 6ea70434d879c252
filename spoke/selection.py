"""What is to be warmed or pinned: files of the tree by path, the ranges of a plan file, the steps of an order. Bounded by runs.

Whatever names it, it ends as block runs of file versions: overlaps merged, ends cut at the file's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import limits
from common.blocks import BLOCK_BYTES, BlockRange, byte_length, coalesce, count_blocks, intersection, whole_file
from common.entries import Kind
from common.errors import UsageError
from spoke.last_job import TouchedFile
from spoke.namespace.tree import Node, Tree
from spoke.plan_file import LINE_MAX_BYTES, read_plan_file
from spoke.prefetch.orders import Order

_STEPS_A_TURN = 2000
_FILES_A_TURN = 64
_MERGE_FROM = 1024
_MAX_LINKS = 40  # as the kernel


class Runs:
    """Block ranges of one file in any order, merged now and then so that memory follows what is distinct.

    ``furthest_bytes``: where the last of them begins.
    """

    def __init__(self) -> None:
        self.furthest_bytes = 0
        self._ranges: list[BlockRange] = []
        self._merge_at = _MERGE_FROM

    def add(self, first_block: int, end_block: int) -> None:
        self._ranges.append(BlockRange(first_block, end_block - first_block))
        if len(self._ranges) >= self._merge_at:
            self.merged()

    def merged(self) -> list[BlockRange]:
        """In order, none touching another."""
        ranges = self._ranges = coalesce(self._ranges)
        self._merge_at = max(_MERGE_FROM, 2 * len(ranges))
        return ranges

    def __len__(self) -> int:
        return len(self._ranges)


@dataclass(slots=True)
class Wanted:
    """Runs of one file version; ``path``: a name it has."""

    path: bytes
    size_bytes: int
    runs: list[BlockRange]

    @property
    def wanted_bytes(self) -> int:
        return sum(byte_length(run, self.size_bytes) for run in self.runs)


@dataclass(slots=True)
class Selection:
    """``files``: by version. ``pin_paths``: what to pin so that all of it stays."""

    files: dict[bytes, Wanted] = field(default_factory=dict)
    pin_paths: list[bytes] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        return sum(wanted.wanted_bytes for wanted in self.files.values())

    def add(self, node: Node, runs: Iterable[BlockRange] | None = None) -> None:
        """``runs`` None: the whole file. Ranges past its end are cut."""
        entry = node.entry
        whole = whole_file(entry.size_bytes)
        wanted = self.files.get(entry.version)
        if wanted is None:
            wanted = self.files[entry.version] = Wanted(node.path(), entry.size_bytes, [])
        if runs is None:
            wanted.runs = [whole] if whole.block_count else []
            return
        cut = (intersection(run, whole) for run in runs)
        wanted.runs = coalesce([*wanted.runs, *(run for run in cut if run.block_count)])

    def add_paths(self, tree: Tree, paths: Sequence[bytes]) -> None:
        """All files at and below these paths of the dataset. Raises UsageError."""
        for path in paths:
            for node in files_at(tree, path):
                self.add(node)
            self.pin_paths.append(path.strip(b"/"))

    async def add_ranges(self, tree: Tree, ranges: dict[bytes, Runs], what: str) -> None:
        """Ranges by path, of a plan ``what``. Raises UsageError when files are not there, or end before a range begins."""
        absent: list[bytes] = []
        short: list[bytes] = []
        for number, (path, runs) in enumerate(ranges.items()):
            node = tree.resolve(path)
            if node is None or node.kind is not Kind.FILE:
                absent.append(path)
            elif runs.furthest_bytes >= max(1, node.entry.size_bytes):
                short.append(path)
            else:
                self.add(node, runs.merged())
                self.pin_paths.append(path)
            if not number % _STEPS_A_TURN:
                await asyncio.sleep(0)
        if absent:
            raise UsageError(
                f"{what}: {len(absent)} of {len(ranges)} files are not in the dataset, the first is {os.fsdecode(absent[0])!r}"
            )
        if short:
            node = tree.resolve(short[0])
            assert node is not None
            raise UsageError(
                f"{what}: {len(short)} of {len(ranges)} files end before a read of them begins, the first is "
                f"{os.fsdecode(short[0])!r}: it has {node.entry.size_bytes} bytes, and a read begins at {ranges[short[0]].furthest_bytes}"
            )

    async def add_last_job(self, tree: Tree, files: Mapping[bytes, TouchedFile], around_bytes: int) -> int:
        """What a job read, in files as they are now; returns how many of its files are gone. Raises UsageError when all are."""
        around_blocks = count_blocks(around_bytes)
        gone = 0
        for number, (path, touched) in enumerate(files.items()):
            node = tree.resolve(path)
            if node is None or node.kind is not Kind.FILE:
                gone += 1
                continue
            runs = Runs()
            for run in touched.runs():
                runs.add(max(0, run.first_block - around_blocks), run.end_block + around_blocks)
            self.add(node, runs.merged())
            self.pin_paths.append(path)
            if not number % _FILES_A_TURN:
                await asyncio.sleep(0)
        if not self.files:
            raise UsageError(f"the last job read {gone} files, and none of them is in the dataset any more")
        return gone

    async def add_order(self, tree: Tree, order: Order, around_bytes: int) -> None:
        """All steps an order holds. Raises UsageError when its files changed since it was made."""
        by_file: dict[int, Runs] = {}
        held = 0
        for lane in range(order.lane_count):
            position = order.first(lane)
            while position < order.length(lane):
                position = max(position, order.first(lane))  # a plan may forget steps meanwhile
                end_position = min(position + _STEPS_A_TURN, order.length(lane))
                for at in range(position, end_position):
                    step = order.step(lane, at)
                    runs = by_file.get(step.file)
                    if runs is None:
                        runs = by_file[step.file] = Runs()
                    held -= len(runs)
                    runs.add(*blocks_of(step.offset_bytes, step.length_bytes, around_bytes))
                    held += len(runs)
                position = end_position
                check_held(held)
                await asyncio.sleep(0)
        stale = [
            facts
            for facts in (order.files[file] for file in by_file)
            if not is_current(tree, facts.path, facts.version)
        ]
        if stale:
            raise UsageError(
                f"the order {order.name!r} was made of other data: {len(stale)} of its {len(by_file)} files changed or are gone, "
                f"the first is {os.fsdecode(stale[0].path)!r}; make it anew"
            )
        for file, runs in by_file.items():
            node = tree.resolve(order.files[file].path)
            assert node is not None
            self.add(node, runs.merged())
            self.pin_paths.append(node.path())


def files_at(tree: Tree, path: bytes) -> Iterator[Node]:
    """The file at a path, or all below the directory there. Raises UsageError when there is nothing."""
    top = tree.resolve(path.strip(b"/"))
    if top is None:
        raise UsageError(f"{os.fsdecode(path)!r} is not in the dataset")
    return (node for node in tree.walk(top) if node.kind is Kind.FILE)


def read_plan(file: Path, mountpoint: str, around_bytes: int) -> dict[bytes, Runs]:
    """The ranges of a plan file by path below the mount. Blocks: call it in a thread. Raises UsageError."""
    found: dict[bytes, Runs] = {}
    held = 0
    try:
        with file.open("rb") as lines:
            for planned in read_plan_file(iter(lambda: lines.readline(LINE_MAX_BYTES + 1), b"")):
                path = os.fsencode(below(mountpoint, planned.path))
                runs = found.get(path)
                if runs is None:
                    runs = found[path] = Runs()
                held -= len(runs)
                runs.add(*blocks_of(planned.offset_bytes, planned.length_bytes, around_bytes))
                runs.furthest_bytes = max(runs.furthest_bytes, planned.offset_bytes)
                held += len(runs)
                check_held(held)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    if not found:
        raise UsageError(f"{file}: no line of it names a read")
    return found


def below(mountpoint: str, path: str) -> str:
    """A path as given (absolute, or relative to the dataset's root) as relative to the root; by its text alone, but for symlinks
    outside the mount that lead to it."""
    inside = os.path.normpath(path)
    if os.path.isabs(path):
        inside = os.path.relpath(inside, mountpoint)
        if _is_outside(inside):
            inside = os.path.relpath(_followed(path, mountpoint), mountpoint)
    if _is_outside(inside):
        raise UsageError(f"{path} is not below the mountpoint {mountpoint}")
    return "" if inside == os.curdir else inside


def _is_outside(relative: str) -> bool:
    return relative == os.pardir or relative.startswith(os.pardir + os.sep)


def _followed(path: str, mountpoint: str) -> str:
    """Symlinks followed as far as they lie outside the mount: nothing in it is touched, which could wait for its spoke."""
    at, ahead = "/", os.path.normpath(path).split(os.sep)[::-1]
    for _ in range(_MAX_LINKS):
        while ahead and at != mountpoint:
            name = ahead.pop()
            step = os.path.normpath(os.path.join(at, name))
            try:
                target = os.readlink(step) if step != mountpoint else None
            except OSError:  # no link; or not there, which whoever looks it up will say
                target = None
            if target is not None:
                at = "/" if os.path.isabs(target) else at
                ahead += target.split(os.sep)[::-1]
                break
            at = step
        else:
            return os.path.normpath(os.path.join(at, *ahead[::-1]))
    return path


def blocks_of(offset_bytes: int, length_bytes: int, around_bytes: int) -> tuple[int, int]:
    """First and end block of a read and so much on both sides of it; the end may lie past the file's."""
    return max(0, offset_bytes - around_bytes) // BLOCK_BYTES, count_blocks(offset_bytes + length_bytes + around_bytes)


def check_held(runs: int) -> None:
    """Raises UsageError when a selection is in too many pieces."""
    if runs > limits.WARM_RUNS_MAX:
        raise UsageError(
            f"what is named is in more than {limits.WARM_RUNS_MAX} separate pieces, more than one warm holds; name the files instead"
        )


def is_current(tree: Tree, path: bytes, version: bytes) -> bool:
    node = tree.resolve(path)
    return node is not None and node.kind is Kind.FILE and node.entry.version == version
