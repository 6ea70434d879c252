"""The recipe ``megatron``: options to datasets, blend and ranks. The order of one dataset is in ``megatron_index``.

Both of Megatron's readers (mapped and ``--no-mmap-bin-files``) ask for the same bytes; the follower sees which pages,
and is told which reader to expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles
from spoke.recipes.megatron_blend import (
    SURPLUS,
    Exhaustive,
    Given,
    Mixture,
    normalized,
    parse_blend,
    sizes,
    split_bounds,
)
from spoke.recipes.megatron_index import GptDataset, GptOptions, read_idx, read_npy
from spoke.recipes.model import Epoch, Int64s, Steps, joined
from spoke.recipes.options import Options, rank_set
from spoke.recipes.torch_random import torch_permutation

_PARTS = ("train", "valid", "test")
_SPLIT_WHEN_NONE_IS_SAID = "969, 30, 1"
_INDICES = ("document_index", "sample_index", "shuffle_index")


class Megatron:
    """Samples in lanes, one for each data-parallel rank asked for."""

    def __init__(self, options: Options, files: MountedFiles) -> None:
        self._files = files
        self.is_mapped = not options.flag("no-mmap-bin-files")
        self.paths: list[bytes] = []
        described, self._exact = _described(options, files)
        if described:
            options.add_layer("description", described)
        # names: what is read, and from which directory a job's saved indices
        own_split = options.words("train-data-path")
        words = own_split or options.words("prefix", "data-path")
        if not words:
            raise options.missing("prefix")
        self._blend = parse_blend(words)
        self._part = options.choice("part", among=_PARTS, default="train")
        said = options.words("split")
        self._split = None if own_split else "".join(said) if said else _SPLIT_WHEN_NONE_IS_SAID
        options.notes.setdefault("split", f"{self._split} (default)")
        self._cache = options.text("cache", "data-cache-path")
        self._wanted = self._sample_count(options)
        keep_last = options.flag("keep-last-partial") and self._part == "valid"
        self._gpt = GptOptions(
            options.need("seq-length", "sequence-length", least=2),
            options.count("seed", "random-seed", default=1234),
            None,
            0 if options.flag("no-extra-token") else 1,
            not keep_last,
        )
        self._surplus = options.number("mid-level-dataset-surplus", default=SURPLUS)
        self._split_over_ranks(options)
        self.name = f"megatron:seed={self._gpt.seed}"
        self._used_cache: list[str] = []
        self._build()

    @property
    def lanes(self) -> Sequence[str]:
        return [f"rank {rank}" for rank in self._ranks]

    @property
    def epochs(self) -> int | None:
        return 1 if self._sampler == "single" else None

    def epoch(self, number: int) -> Epoch:
        return _Single(self) if self._sampler == "single" else _Cyclic(self, number)

    # --- options -----------------------------------------------------------------------------------------

    def _sample_count(self, options: Options) -> int | None:
        """The split's ``num_samples``: None is one epoch."""
        told = options.integer("num-samples", "train-samples", least=1)
        iterations, batch = options.integer("train-iters", least=1), options.integer("global-batch-size", least=1)
        if told is None and iterations is not None and batch is not None:
            told = iterations * batch
            options.notes["num-samples"] = f"{told} (train-iters x global-batch-size)"
        return told

    def _split_over_ranks(self, options: Options) -> None:
        self._micro = options.count("micro-batch-size", default=1, least=1)
        world = options.integer("world-size", least=1)
        apart = 1
        for name in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size"):
            apart *= options.count(name, default=1, least=1)
        parallel = options.integer("data-parallel-size", least=1)
        if parallel is None:
            parallel = max(1, (world or apart) // apart)
            options.notes["data-parallel-size"] = f"{parallel} (world size over model parallel sizes)"
        self._parallel = parallel
        self._ranks = rank_set(options.text("ranks", "data-parallel-ranks"), parallel)
        self._consumed = options.count("consumed-samples", default=0)
        self._sampler = options.choice("dataloader-type", among=("single", "cyclic"), default="single")
        self._sharding = not options.flag("no-data-sharding") if self._sampler == "cyclic" else False

    # --- datasets ----------------------------------------------------------------------------------------

    def _build(self) -> None:
        prefixes, weights = self._blend
        if self._cache is not None:
            self._cache = self._files.relative(self._cache)
        self._mixture: Mixture | None = None
        alone = len(prefixes) == 1 and (weights is None or self._split is None)
        if alone:
            self._datasets = [self._dataset(prefixes[0], self._wanted)]
            self.sample_count = self._datasets[0].sample_count
        elif weights is not None:
            if self._wanted is None:
                raise UsageError("a blend with weights needs --num-samples (or --train-iters and --global-batch-size)")
            shares = normalized(weights)
            each: list[int | None] = [*sizes(shares, self._wanted, self._surplus)]
            size = sum(sizes(shares, self._wanted, 0.0))
            if self._exact is not None:
                each, size = self._exact
            self._datasets = [self._dataset(prefix, wanted) for prefix, wanted in zip(prefixes, each, strict=True)]
            self._mix(normalized(shares), size)
        else:
            self._datasets = [self._dataset(prefix, None) for prefix in prefixes]
            counts = [dataset.sample_count for dataset in self._datasets]
            if self._wanted is None:
                self._mixture = Exhaustive(counts, self._files.scratch)
                self.sample_count = self._mixture.count
            else:
                self._mix(normalized([float(count) for count in counts]), min(self._wanted, sum(counts)))
        if self._sampler == "single" and self._consumed >= self.sample_count:
            raise UsageError(
                f"--consumed-samples {self._consumed}: there are {self.sample_count} samples, so none is left"
            )

    def _mix(self, weights: list[float], count: int) -> None:
        if count * 10 > limits.RECIPE_MAX_SAMPLES:
            raise UsageError(f"a blend of {count} samples is longer than what is expanded")
        self._mixture = self._saved_mixture(count) or Mixture(weights, count, self._files.scratch)
        self.sample_count = self._mixture.count

    def _dataset(self, prefix: str, wanted: int | None) -> GptDataset:
        inside = self._files.relative(prefix)
        file = len(self.paths)
        self.paths.append((inside + ".bin").encode("utf-8", "surrogateescape"))
        sequences = read_idx(self._files, inside + ".idx", inside + ".bin")
        options = self._gpt._replace(sample_count=wanted)
        saved = self._saved(prefix, wanted)
        if saved is not None:
            return GptDataset.from_cache(sequences, options, file, self._files, saved)
        count = len(sequences.lengths)
        begin, end = (0, count) if self._split is None else split_bounds(self._split, _PARTS.index(self._part), count)
        return GptDataset(sequences, begin, end, options, file, self._files.scratch)

    def _saved(self, prefix: str, wanted: int | None) -> Mapping[str, str] | None:
        """The indices a job saved for just this dataset, if there are some below the mount."""
        directory = self._cache or self._files.relative(prefix) + "/cache/GPTDataset_indices"
        for base, description in _descriptions(self._files, directory, f"-GPTDataset-{self._part}-description.txt"):
            if (
                self._files.relative(str(description.get("dataset_path"))) == self._files.relative(prefix)
                and description.get("num_samples") == wanted
                and description.get("random_seed") == self._gpt.seed
                and description.get("sequence_length") == self._gpt.sequence_length
                and _plain_split(description.get("split")) == _plain_split(self._split)
            ):
                names = {index: f"{directory}/{base}-GPTDataset-{self._part}-{index}.npy" for index in _INDICES}
                if all(map(self._files.is_file, names.values())):
                    self._used_cache.append(base)
                    return names
        return None

    def _saved_mixture(self, count: int) -> Mixture | None:
        if self._cache is None or len(self._used_cache) != len(self._datasets):
            return None
        for base, description in _descriptions(
            self._files, self._cache, f"-BlendedDataset-{self._part}-description.txt"
        ):
            parts = [dict(part) for part in description.get("datasets", []) if isinstance(part, dict)]
            if description.get("size") != count or [part.get("dataset_path") for part in parts] != self._blend.prefixes:
                continue
            if any(part.get("random_seed") != self._gpt.seed for part in parts):
                continue
            names = [
                f"{self._cache}/{base}-BlendedDataset-{self._part}-{name}.npy"
                for name in ("dataset_index", "dataset_sample_index")
            ]
            if all(map(self._files.is_file, names)):
                self._used_cache.append(base)
                return Given(*(read_npy(self._files, name, 1) for name in names))
        return None

    # --- steps -------------------------------------------------------------------------------------------

    def sample_steps(self, samples: Int64s) -> Steps:
        """The reads of these samples, in their order."""
        if self._mixture is None:
            return self._datasets[0].sample_steps(samples)[1]
        datasets, inside = self._mixture.at(samples)
        rows: list[Int64s] = []
        parts: list[Steps] = []
        for number, dataset in enumerate(self._datasets):
            mine = np.flatnonzero(datasets == number)
            if len(mine):
                own_rows, steps = dataset.sample_steps(inside[mine])
                rows.append(mine[own_rows])
                parts.append(steps)
        order = np.argsort(np.concatenate(rows), kind="stable") if rows else np.empty(0, np.int64)
        every = joined(parts)
        return Steps(every.files[order], every.offsets[order], every.lengths[order])


class _Single:
    """``MegatronPretrainingSampler``: whole global micro-batches in order, a slice of each for each rank."""

    def __init__(self, recipe: Megatron) -> None:
        self._recipe = recipe

    def samples(self, lane: int) -> int:
        del lane
        recipe = self._recipe
        return (recipe.sample_count - recipe._consumed) // (recipe._micro * recipe._parallel) * recipe._micro

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        recipe = self._recipe
        batch, place = np.divmod(np.arange(begin, end, dtype=np.int64), recipe._micro)
        index = recipe._consumed + (batch * recipe._parallel + recipe._ranks[lane]) * recipe._micro + place
        return recipe.sample_steps(index)


class _Cyclic:
    """``MegatronPretrainingRandomSampler``: a new permutation each epoch, seeded with the epoch's number."""

    def __init__(self, recipe: Megatron, number: int) -> None:
        self._recipe = recipe
        step = recipe._micro * recipe._parallel
        active = recipe.sample_count - recipe.sample_count % step
        if active == 0:
            raise UsageError(f"{recipe.sample_count} samples do not fill one global batch of {step}")
        first_epoch, offset = divmod(recipe._consumed, active)
        if number:
            offset = 0
        self._seed = first_epoch + number
        if recipe._sharding:
            self._bucket = recipe.sample_count // step * recipe._micro
            self._order = torch_permutation(self._bucket, self._seed, recipe._files.scratch)[
                offset // recipe._parallel :
            ]
        else:
            whole = recipe.sample_count // recipe._micro * recipe._micro
            self._order = torch_permutation(whole, self._seed, recipe._files.scratch)[offset:]

    def _of(self, lane: int) -> Int64s:
        rank = self._recipe._ranks[lane]
        if self._recipe._sharding:
            return self._order
        return self._order[rank :: self._recipe._parallel]

    def samples(self, lane: int) -> int:
        return len(self._of(lane)) // self._recipe._micro * self._recipe._micro

    def steps(self, lane: int, begin: int, end: int) -> Steps:
        recipe = self._recipe
        index = self._of(lane)[begin:end]
        if recipe._sharding:
            index = index + recipe._ranks[lane] * self._bucket
        return recipe.sample_steps(index)


def _described(
    options: Options, files: MountedFiles
) -> tuple[dict[str, str | list[str]], tuple[list[int | None], int] | None]:
    """Parameters from a ``*-description.txt`` named with ``--description``; for a blend also the samples of each dataset and of all."""
    path = options.text("description")
    if path is None:
        return {}, None
    inside = files.relative(path)
    description = _load(files, inside)
    if description is None:
        raise UsageError(f"{path} is not a description that Megatron wrote: no JSON object is in it")
    found: dict[str, str | list[str]] = {"cache": inside.rpartition("/")[0] or "."}
    parts = [part for part in description.get("datasets") or [] if isinstance(part, dict)]
    one = parts[0] if parts else description
    if "dataset_path" not in one:
        raise UsageError(
            f"{path} names no dataset_path; a description of a GPTDataset or of a blend of them was expected"
        )
    exact: tuple[list[int | None], int] | None = None
    count = description.get("size") if parts else one.get("num_samples")
    if parts:
        weights = description.get("weights") or []
        names: str | list[str] = [
            f"{weight} {part['dataset_path']}" for weight, part in zip(weights, parts, strict=True)
        ]
        if isinstance(count, int):
            exact = [part.get("num_samples") for part in parts], count
        else:
            names = [str(part["dataset_path"]) for part in parts]
    else:
        names = str(one["dataset_path"])
    found["prefix" if one.get("split") is not None else "train-data-path"] = names
    if count is not None:
        found["num-samples"] = str(count)
    for name, key in (
        ("seed", "random_seed"),
        ("seq-length", "sequence_length"),
        ("part", "index_split"),
        ("split", "split"),
    ):
        if one.get(key) is not None:
            found[name] = str(one[key])
    return found, exact


def _descriptions(files: MountedFiles, directory: str, ending: str) -> list[tuple[str, dict[str, Any]]]:
    try:
        names = files.names(directory)
    except UsageError:
        return []
    found = []
    for name in names:
        if name.endswith(ending):
            description = _load(files, f"{directory}/{name}")
            if description is not None:
                found.append((name.removesuffix(ending), description))
    return found


def _load(files: MountedFiles, path: str) -> dict[str, Any] | None:
    try:
        description = json.loads(files.read(path, limits.RECIPE_DESCRIPTION_MAX_BYTES))
    except ValueError:
        return None
    return description if isinstance(description, dict) else None


def _plain_split(split: object) -> str | None:
    return None if split is None else str(split).replace(" ", "")
