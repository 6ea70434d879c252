"""What the loaders themselves read for a case of ``recipe_cases``: the order they produce, from their own code.

Two samplers of Megatron-LM are not in the package megatron-core; they are written here after
megatron/training/datasets/data_samplers.py of NVIDIA/Megatron-LM (MegatronPretrainingSampler, MegatronPretrainingRandomSampler).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from recipe_cases import Case

from bench.megatron_data import gpt_dataset, one_process

Reads = list[tuple[str, int, int]]

NEEDS = {
    "megatron": "megatron.core.datasets.gpt_dataset",
    "mds": "streaming",
    "litdata": "litdata",
    "olmo-core": "olmo_core.data",
    "webdataset": "webdataset",
    "fixed-records": "torch",
}
"""The module without which a recipe's loader is not here."""


def real_lanes(case: Case, directory: Path) -> list[list[Reads]]:
    """For each epoch, for each lane of the recipe: the reads. Tables of chunks are left out for litdata."""
    made = {
        "megatron": _megatron,
        "mds": _mds,
        "litdata": _litdata,
        "olmo-core": _olmo,
        "webdataset": _webdataset,
        "fixed-records": _fixed_records,
    }[case.recipe]
    return made(case, case.options, directory)


# --- Megatron --------------------------------------------------------------------------------------------


def megatron_dataset(
    options: Mapping[str, Any], directory: Path, *, mmap: bool = True, seen_as: Path | None = None
) -> Any:
    """Build it with megatron-core; its indices are kept in ``directory``/cache. ``seen_as``: where the data are."""
    words = str(options.get("prefix") or options["train-data-path"]).split()
    root = seen_as or directory
    return gpt_dataset(
        [word if word.replace(".", "").isdigit() else str(root / word) for word in words],
        options.get("num-samples"),
        directory / "cache",
        seed=int(options["seed"]),
        sequence_length=int(options["seq-length"]),
        split=None if "train-data-path" in options else options["split"],
        part=str(options.get("part", "train")),
        mapped=mmap,
    )


def _megatron(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    with one_process(directory):
        dataset = megatron_dataset(options, directory)
        reads: Reads = []
        for each in getattr(dataset, "datasets", [dataset]):
            _record_bin_reader(each.dataset.bin_reader, Path(each.dataset.path_prefix + ".bin").name, reads)
        micro, ranks = int(options.get("micro-batch-size", 1)), int(options.get("data-parallel-size", 1))
        epochs = []
        for epoch in range(case.epochs):
            lanes = []
            for rank in range(ranks):
                if options.get("dataloader-type") == "cyclic":
                    samples = _cyclic(len(dataset), micro, rank, ranks, epoch, "no-data-sharding" not in options)
                else:
                    samples = _single(len(dataset), int(options.get("consumed-samples", 0)), micro, rank, ranks)
                reads.clear()
                for sample in samples:
                    dataset[sample]
                lanes.append(list(reads))
            epochs.append(lanes)
        return epochs


def _record_bin_reader(reader: Any, name: str, reads: Reads) -> None:
    original = reader.read

    def read(dtype: Any, count: int, offset: int) -> Any:
        got = original(dtype=dtype, count=count, offset=offset)
        if got.nbytes:
            reads.append((name, int(offset), int(got.nbytes)))
        return got

    reader.read = read


def _single(total: int, consumed: int, micro: int, rank: int, ranks: int) -> Iterator[int]:
    batch: list[int] = []
    for index in range(consumed, total):
        batch.append(index)
        if len(batch) == micro * ranks:
            yield from batch[rank * micro : (rank + 1) * micro]
            batch = []


def _cyclic(total: int, micro: int, rank: int, ranks: int, epoch: int, sharding: bool) -> Iterator[int]:
    import torch

    generator = torch.Generator()
    generator.manual_seed(epoch)
    if sharding:
        bucket = total // (micro * ranks) * micro
        indices = [rank * bucket + place for place in torch.randperm(bucket, generator=generator).tolist()]
    else:
        indices = torch.randperm(total // micro * micro, generator=generator).tolist()[rank::ranks]
    for begin in range(0, len(indices) - micro + 1, micro):
        yield from indices[begin : begin + micro]


# --- MosaicML Streaming ----------------------------------------------------------------------------------


def _mds(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    import streaming.base.format.mds.reader as reader_module
    import streaming.base.util
    from streaming import StreamingDataset
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    streaming.base.util.clean_stale_shared_memory()
    world_size = int(options.get("world-size", 1))
    per_node = int(options.get("ranks-per-node", world_size))
    dataset = StreamingDataset(
        local=str(directory / str(options["dir"])),
        shuffle=options.get("shuffle") != "no",
        shuffle_algo=str(options.get("shuffle-algo", "py1e")),
        shuffle_seed=int(options.get("seed", 9176)),
        num_canonical_nodes=int(options["num-canonical-nodes"]),
        shuffle_block_size=int(options.get("shuffle-block-size", 1 << 18)),
        batch_size=4,
    )
    reads: Reads = []

    def recording_open(path: str, mode: str, buffering: int) -> Any:
        return _Recorder(open(path, mode, buffering), os.path.relpath(path, directory), reads)

    epochs = []
    for epoch in range(case.epochs):
        passed = int(options.get("sample-in-epoch", 0)) if epoch == 0 else 0
        work = generate_work("random", dataset, World(world_size // per_node, per_node, 2, 0), epoch, passed)
        lanes = []
        for rank in range(world_size):
            own = work[rank // per_node, rank % per_node].transpose(1, 0, 2).reshape(-1)
            reads.clear()
            with mock.patch.object(reader_module, "open", recording_open, create=True):
                for sample in own[own != -1]:
                    shard, inside = dataset.spanner[int(sample)]
                    dataset.shards[shard].get_sample_data(inside)
            lanes.append(list(reads))
        epochs.append(lanes)
    return epochs


class _Recorder:
    def __init__(self, file: Any, name: str, reads: Reads) -> None:
        self._file, self._name, self._reads = file, name, reads

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, offset: int) -> None:
        self._file.seek(offset)

    def read(self, length: int) -> bytes:
        offset = self._file.tell()
        data: bytes = self._file.read(length)
        self._reads.append((self._name, int(offset), len(data)))
        return data


# --- LitData ---------------------------------------------------------------------------------------------


def _litdata(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    from litdata import StreamingDataset
    from litdata.streaming.item_loader import PyTreeLoader, TokensLoader
    from litdata.utilities.env import _DistributedEnv, _WorkerEnv

    data = directory / str(options["dir"])
    world, workers = int(options.get("world-size", 1)), int(options.get("num-workers", 1))
    nodes, batch = int(options.get("nodes", 1)), int(options.get("batch-size", 1))
    block = options.get("block-size")
    loader_class = PyTreeLoader if block is None else TokensLoader
    original = loader_class.load_item_from_chunk
    reads: Reads = []

    def load(self: Any, index: int, chunk_index: int, path: str, begin: int, *rest: Any, **more: Any) -> Any:
        name, item = os.path.relpath(path, directory), int(index) - int(begin)
        if block is None:
            first, last = struct.unpack("<II", Path(path).read_bytes()[4 + 4 * item :][:8])
            reads.append((name, first, last - first))
        else:
            reads.append((name, 12 + 2 * int(block) * item, 2 * int(block)))
        return original(self, index, chunk_index, path, begin, *rest, **more)

    kind = {"full": "posix", "window": "nfs"}[str(options["shuffle"])]
    epochs = []
    for epoch in range(1, case.epochs + 1):
        lanes = []
        for rank in range(world):
            for worker in range(workers):
                dataset = StreamingDataset(
                    str(data),
                    item_loader=None if block is None else TokensLoader(int(block)),
                    shuffle=True,
                    seed=int(options["seed"]),
                    drop_last=options["drop-last"] == "yes",
                    item_shuffle_window=int(options.get("item-window", 256)),
                )
                if dataset.posix_fast is not None:
                    object.__setattr__(dataset.posix_fast, "kind", kind)
                dataset.distributed_env = _DistributedEnv(world, rank, nodes)
                dataset._forced_worker_env = _WorkerEnv(workers, worker)
                dataset.batch_size = batch
                dataset.current_epoch = epoch
                reads.clear()
                with mock.patch.object(loader_class, "load_item_from_chunk", load):
                    for _ in iter(dataset):
                        pass
                lanes.append(list(reads))
        epochs.append(lanes)
    return epochs


# --- OLMo-core -------------------------------------------------------------------------------------------


def _olmo(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    import numpy as np
    import olmo_core.data.utils as utils
    from olmo_core.data import DataCollator, NumpyFSLDataset
    from olmo_core.data.data_loader import NumpyFSLDataLoader

    masks = options.get("label-mask-paths")
    dataset = NumpyFSLDataset(
        *[str(directory / name) for name in options["paths"]],
        sequence_length=int(options["sequence-length"]),
        pad_token_id=0,
        eos_token_id=0,
        vocab_size=50_000,
        dtype=np.uint16,
        include_instance_metadata=False,
        label_mask_paths=[str(directory / name) for name in masks] if masks else None,
    )
    original = utils.get_bytes_range
    reads: Reads = []

    def get_bytes_range(path: Any, start: int, length: int) -> bytes:
        reads.append((os.path.relpath(path, directory), start, length))
        got: bytes = original(path, start, length)
        return got

    ranks = int(options["data-parallel-size"])
    epochs = []
    for epoch in range(1, case.epochs + 1):
        lanes = []
        for rank in range(ranks):
            loader = NumpyFSLDataLoader(
                dataset,
                collator=DataCollator(pad_token_id=0),
                global_batch_size=int(options["global-batch-size"]),
                work_dir=directory / "work",
                seed=int(options["seed"]),
                dp_world_size=ranks,
                dp_rank=rank,
                chunk_size=int(options.get("chunk-size", 1)),
                num_threads=0,
            )
            loader.reshuffle(epoch=epoch, in_memory=True)
            loader.batches_processed = int(options.get("batches-processed", 0))
            reads.clear()
            with mock.patch.object(utils, "get_bytes_range", get_bytes_range):
                for _ in loader:
                    pass
            lanes.append(list(reads))
        epochs.append(lanes)
    return epochs


# --- WebDataset and DistributedSampler -------------------------------------------------------------------


def _webdataset(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    import webdataset

    world, workers = int(options.get("world-size", 1)), int(options.get("num-workers", 1))
    lanes: list[list[Reads]] = []
    for rank in range(world):
        for worker in range(workers):
            variables = {"RANK": rank, "WORLD_SIZE": world, "WORKER": worker, "NUM_WORKERS": workers}
            if "wds-seed" in options:
                variables["WDS_SEED"] = options["wds-seed"]
            with mock.patch.dict(os.environ, {name: str(value) for name, value in variables.items()}):
                dataset = webdataset.WebDataset(
                    str(directory / str(options["shards"])),
                    shardshuffle=int(options["shardshuffle"]),
                    detshuffle=options.get("detshuffle") == "yes",
                    seed=int(options["seed"]) if "seed" in options else None,
                    nodesplitter=webdataset.split_by_node,
                )
                lanes.append([_shards_of(dataset, directory) for _ in range(case.epochs)])
    return [[lane[epoch] for lane in lanes] for epoch in range(case.epochs)]


def _shards_of(dataset: Any, directory: Path) -> Reads:
    shards = list(dict.fromkeys(sample["__url__"] for sample in dataset))
    return [(os.path.relpath(shard, directory), 0, Path(shard).stat().st_size) for shard in shards]


def _fixed_records(case: Case, options: Mapping[str, Any], directory: Path) -> list[list[Reads]]:
    from torch.utils.data import DistributedSampler

    record, header = int(options["record-bytes"]), int(options.get("header-bytes", 0))
    places = [
        (name, offset, record)
        for name in options["files"]
        for offset in range(header, (directory / name).stat().st_size - record + 1, record)
    ]
    world = int(options["world-size"])
    epochs = []
    for epoch in range(case.epochs):
        lanes = []
        for rank in range(world):
            sampler: Any = DistributedSampler(
                range(len(places)),  # type: ignore[arg-type]
                num_replicas=world,
                rank=rank,
                seed=int(options["seed"]),
                drop_last=options.get("drop-last") == "yes",
            )
            sampler.set_epoch(epoch)
            lanes.append([places[index] for index in sampler])
        epochs.append(lanes)
    return epochs
