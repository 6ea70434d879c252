"""The dataset the experiment runs on: shards of packed token ids, from real text, as large as asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.demo import corpus
from bench.demo.formats import Tokens

TEXT_BYTES = 24_000_000
SHARD_BYTES = 64 << 20
SHARDS_MIN = 4


def documents_of(text: Path | None, text_bytes: int) -> list[Tokens]:
    """Token ids of each document, by a BPE trained on a sample of the text. Raises UsageError when there is too little."""
    texts = corpus.collect([text] if text else corpus.default_directories(), text_bytes)
    return corpus.encode(corpus.train(texts), texts, lambda _done: None)


def packed(documents: Sequence[Tokens], tokens: int, seed: int) -> Tokens:
    """So many tokens: the documents one after the other, again and again, each time in another order.

    Text comes back only after megabytes, beyond the reach of a compressor that sees one extent at a time.
    """
    dice = np.random.default_rng(seed)
    parts, have = [], 0
    while have < tokens:
        for number in dice.permutation(len(documents)):
            parts.append(documents[number])
            have += len(documents[number])
            if have >= tokens:
                break
    return np.concatenate(parts)[:tokens]


def shard_sizes(tokens: int, token_bytes: int) -> list[int]:
    """Tokens of each shard: about SHARD_BYTES, at least SHARDS_MIN shards, as even as can be."""
    count = max(SHARDS_MIN, round(tokens * token_bytes / SHARD_BYTES))
    return [tokens // count + (number < tokens % count) for number in range(count)]


def write_shard(path: Path, documents: Sequence[Tokens], tokens: int, dtype: str, seed: int) -> None:
    """By rename, so that readers see the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    packed(documents, tokens, seed).astype(np.dtype(dtype).newbyteorder("<")).tofile(partial)
    partial.replace(path)


def write_all(directory: Path, documents: Sequence[Tokens], tokens: int, dtype: str) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, size in enumerate(shard_sizes(tokens, np.dtype(dtype).itemsize)):
        paths.append(directory / f"train-{number:05d}.bin")
        write_shard(paths[-1], documents, size, dtype, number)
    return paths
