"""megatron-core's own GPTDataset, built as a training job builds it: for benches and tests that hold what it reads against ours.

megatron-core is no dependency of ours, nor typed; neither is it imported before something is asked of it here.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

PARTS = ("train", "valid", "test")


class Tokenizer:
    """What the data set asks of one: names no token that the data hold."""

    vocab_size = 50_000
    eod = eos = 0
    pad = -1
    special_tokens_dict: ClassVar[dict[str, int]] = {}
    unique_identifiers: ClassVar[dict[str, str]] = {"class": "none"}


@contextlib.contextmanager
def one_process(directory: Path) -> Iterator[None]:
    """A process group of this process alone, which the builder needs; its rendezvous is a file in ``directory``."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def gpt_dataset(
    blend: Sequence[str],
    samples: int | None,
    cache_dir: Path,
    *,
    seed: int,
    sequence_length: int,
    split: str | None,
    part: str = "train",
    mapped: bool = True,
) -> Any:
    """Within ``one_process``. Its indices are kept in ``cache_dir``.

    ``blend``: a path prefix, or weights and prefixes in turn. ``samples``: of this part; None for one epoch. ``split``: the
    parts' shares ("99,1,0"); None when the blend is this part's alone.
    """
    datasets = "megatron.core.datasets"
    builder: Any = importlib.import_module(f"{datasets}.blended_megatron_dataset_builder").BlendedMegatronDatasetBuilder
    gpt: Any = importlib.import_module(f"{datasets}.gpt_dataset")
    found = importlib.import_module(f"{datasets}.utils").get_blend_from_list(list(blend))
    number = PARTS.index(part)
    config = gpt.GPTDatasetConfig(
        random_seed=seed,
        sequence_length=sequence_length,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        tokenizer=Tokenizer(),
        path_to_cache=str(cache_dir),
        mmap_bin_files=mapped,
        blend=found if split is not None else None,
        blend_per_split=[found if name == part else None for name in PARTS] if split is None else None,
        split=split,
    )
    sizes = [samples if name == part or samples is None else 1 for name in PARTS]
    return builder(gpt.GPTDataset, sizes, lambda: True, config).build()[number]
