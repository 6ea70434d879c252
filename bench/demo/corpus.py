"""Real text to token ids: which files, a byte-level BPE trained on a sample of them, every file a document."""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.demo.formats import Tokens
from common.errors import UsageError

VOCABULARY = 32_000
SAMPLE_BYTES = 8_000_000
FILE_MAX_BYTES = 4_000_000
END_OF_TEXT = "<|endoftext|>"
SUFFIXES = (".py", ".rst", ".txt", ".md")
BATCH_FILES = 64


def default_directories() -> list[Path]:
    """The standard library, then what is installed beside it: Debian's standard library alone is small."""
    return [Path(sysconfig.get_path("stdlib")), *map(Path, site.getsitepackages())]


def collect(directories: Iterable[Path], budget_bytes: int) -> list[str]:
    """The text of ``SUFFIXES`` files, in order of directory and path, until the budget is used. Raises UsageError."""
    texts: list[str] = []
    left_bytes = budget_bytes
    for path in _files(directories):
        if left_bytes <= 0:
            break
        try:
            raw = path.read_bytes()[: min(left_bytes, FILE_MAX_BYTES)]
        except OSError:
            continue  # unreadable or gone meanwhile: there is other text
        if raw.strip():
            texts.append(raw.decode("utf-8", "replace"))
            left_bytes -= len(raw)
    if budget_bytes - left_bytes < 100_000:
        raise UsageError(
            f"found {budget_bytes - left_bytes} bytes of text ({', '.join(SUFFIXES)}) below "
            f"{', '.join(map(str, directories))}; at least 100 kB are needed"
        )
    return texts


def _files(directories: Iterable[Path]) -> Iterator[Path]:
    for directory in directories:
        for folder, below, names in os.walk(directory):
            below[:] = sorted(name for name in below if name not in ("site-packages", "__pycache__"))
            for name in sorted(names):
                path = Path(folder, name)
                if path.suffix in SUFFIXES and path.is_file():
                    yield path


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of ``VOCABULARY`` tokens, from every third file up to ``SAMPLE_BYTES``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sample, sample_bytes = [], 0
    for text in texts[::3]:
        sample.append(text)
        sample_bytes += len(text)
        if sample_bytes > SAMPLE_BYTES:
            break
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str], progress: Callable[[int], object]) -> list[Tokens]:
    """One array of ids a text, each closed by END_OF_TEXT; ``progress`` gets the number of texts done."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    documents: list[Tokens] = []
    for start in range(0, len(texts), BATCH_FILES):
        batch = tokenizer.encode_batch_fast(texts[start : start + BATCH_FILES])
        documents.extend(np.array([*encoding.ids, end], dtype=np.uint32) for encoding in batch)
        progress(len(documents))
    return documents
