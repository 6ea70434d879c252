"""The recipe ``webdataset``: tar shards read from end to end, in an order drawn from a seed.

A lane is one worker of one rank: it takes every R-th shard of the list, of those every W-th, mixes them through a buffer, and
streams one shard after the other. A shard counts as one sample; its reads are pieces of one MiB in order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from common.blocks import EXTENT_BYTES
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.model import Epoch, Steps, joined
from spoke.recipes.options import Options, rank_set

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_SHARDS = 10_000_000
_BUFFER_FILL = 100


class Webdataset:
    """Shards in lanes: workers of the ranks asked for, rank by rank."""

    epochs: int | None = None
    is_mapped = False

    def __init__(self, options: Options, files: MountedFiles) -> None:
        words = options.words("shards", "urls")
        if not words:
            raise options.missing("shards")
        names = [files.relative(name.removeprefix("file:")) for word in words for name in _expanded(word, files)]
        if not names:
            raise UsageError(f"no shards in {' '.join(words)}")
        self.paths = [name.encode("utf-8", "surrogateescape") for name in names]
        self._sizes = [files.facts(name).size_bytes for name in names]
        seed = options.text("seed")
        environment = options.text("wds-seed")
        self._shuffle = options.count("shardshuffle", default=100)
        self._deterministic = options.flag("detshuffle")
        self._resampled = options.flag("resampled")
        if seed is None and environment is None and (self._shuffle or self._resampled):
            raise UsageError(
                "without a seed (seed= in the code, or WDS_SEED) the shards come in an order nobody can know"
            )
        # What comes from the environment is a text for the loader, and seeds otherwise than the same number.
        try:
            self._seed: int | str = int(seed) if seed is not None else str(environment)
            if self._deterministic:
                self._seed = int(self._seed)
        except ValueError:
            raise UsageError(f"--seed {seed or environment} is not a whole number") from None
        self._world = options.count("world-size", default=1, least=1)
        self._workers = max(1, options.count("num-workers", default=1))
        self._by_node = options.flag("split-by-node", default=self._world > 1)
        self._by_worker = not options.flag("no-split-by-worker")
        self._persistent = options.flag("persistent-workers")
        self._first_epoch = options.count("epoch", default=0)
        self._per_epoch = options.count("shards-per-epoch", default=len(names), least=1)
        self._ranks = rank_set(options.text("ranks"), self._world)
        self.name = f"webdataset:seed={self._seed}"

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank} worker {worker}" for rank in self._ranks for worker in range(self._workers)]

    def epoch(self, number: int) -> Epoch:
        # Workers that are started anew each epoch count their epochs from 0 again.
        return _Epoch(self, self._first_epoch + number if self._persistent else self._first_epoch)

    def shards(self, lane: int, epoch: int) -> list[int]:
        """The shards of a lane in one epoch, in order."""
        place, worker = divmod(lane, self._workers)
        rank = self._ranks[place]
        if self._resampled:
            return self._drawn(rank, worker, epoch)
        shards: Sequence[int] = range(len(self.paths))
        if self._by_node and self._world > 1:
            shards = shards[rank :: self._world]
        if self._by_worker and self._workers > 1:
            shards = shards[worker :: self._workers]
        if not self._shuffle:
            return list(shards)
        seed = self._seed
        if self._deterministic:
            assert isinstance(seed, int)
            seed += epoch
        return list(_mixed(iter(shards), self._shuffle, Random(seed)))

    def _drawn(self, rank: int, worker: int, epoch: int) -> list[int]:
        """``ResampledShards(deterministic=True)``: uniform draws, seeded by worker, epoch and seed."""
        assert isinstance(self._seed, int) or self._seed.isdigit()
        seed = 0
        for part in (rank * 1000 + worker, epoch, int(self._seed)):
            seed = (seed * 31 + hash(part)) & 0x7FFFFFFF
        random = Random(seed)
        return [random.randint(0, len(self.paths) - 1) for _ in range(self._per_epoch)]

    def shard_steps(self, shard: int) -> Steps:
        offsets = np.arange(0, self._sizes[shard], EXTENT_BYTES, dtype=np.int64)
        lengths = np.minimum(self._sizes[shard] - offsets, EXTENT_BYTES)
        return Steps(np.full(len(offsets), shard, np.int64), offsets, lengths)


class _Epoch:
    def __init__(self, recipe: Webdataset, number: int) -> None:
        self._recipe = recipe
        self._shards = [recipe.shards(lane, number) for lane in range(len(recipe.lanes))]

    def samples(self, lane: int) -> int:
        return len(self._shards[lane])

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        return joined([self._recipe.shard_steps(shard) for shard in self._shards[lane][begin:end]])


def _mixed(source: Iterator[int], buffer_size: int, random: Random) -> Iterator[int]:
    """A buffer that is filled two at a time and drawn from once it holds enough; the place drawn is taken by the last."""
    enough = min(_BUFFER_FILL, buffer_size)
    held: list[int] = []
    for item in source:
        held.append(item)
        if len(held) < buffer_size:
            held.extend(itertools.islice(source, 1))
        if len(held) >= enough:
            yield _draw(held, random)
    while held:
        yield _draw(held, random)


def _draw(held: list[int], random: Random) -> int:
    place = random.randint(0, len(held) - 1)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def _expanded(word: str, files: MountedFiles) -> Iterator[str]:
    """``a-{000..009}.tar`` and ``{a,b}.tar`` as all they stand for; a directory (ending in /) as the .tar files in it."""
    for text in word.split("::"):
        if text.endswith("/"):
            inside = files.relative(text)
            yield from (f"{inside}/{name}" for name in files.names(inside) if name.endswith(".tar"))
        else:
            for count, name in enumerate(_braces(text)):
                if count >= _MAX_SHARDS:
                    raise UsageError(f"{word} stands for more than {_MAX_SHARDS} shards")
                yield name


def _braces(text: str) -> Iterator[str]:
    found = _BRACES.search(text)
    if found is None:
        yield text
        return
    before, inside, after = text[: found.start()], found.group(1), text[found.end() :]
    numbers = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?", inside)
    if numbers is None:
        choices: Iterator[str] = iter(inside.split(","))
    else:
        first, last = int(numbers[1]), int(numbers[2])
        step = max(1, int(numbers[3] or 1))
        width = (
            max(len(numbers[1]), len(numbers[2]))
            if "0" in (numbers[1].lstrip("-")[0], numbers[2].lstrip("-")[0])
            else 0
        )
        span = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
        choices = (f"{number:0{width}d}" for number in span)
    for choice in choices:
        for rest in _braces(after):
            yield before + choice + rest
