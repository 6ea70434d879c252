"""Patterns P1 to P4: token files. Megatron by page faults and by its file reader, blends, nanoGPT, OLMo's fixed rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.replay.pages import PAGE, READ, PageCache, Scale, fault, fault_lengths, fault_starts, page_rounded
from bench.replay.trace import CLOSE, OPEN, Numbers, Process, Trace, TraceFile

SEQUENCE = 4096
TOKEN_BYTES = 2
DOCUMENT_LOG_MEAN, DOCUMENT_LOG_SIGMA = 6.8, 1.0
"""Document lengths in tokens are lognormal: 1,480 in the mean."""


@dataclass(frozen=True)
class _Corpus:
    """One Megatron dataset: where documents lie, which of them each sample takes; its files from ``first_file`` on."""

    lengths: Numbers
    starts: Numbers
    documents: Numbers
    ends: Numbers
    samples: Numbers
    first_file: int
    names: list[TraceFile]

    def pieces(self, shuffled: int) -> list[tuple[int, int, int]]:
        """(place in the document index, byte offset, bytes) of the documents a sample is cut from: S + 1 tokens."""
        first = int(self.samples[shuffled]) * SEQUENCE
        end = first + SEQUENCE + 1
        found = []
        place = int(np.searchsorted(self.ends, first, side="right"))
        at = first
        while at < end:
            document = self.documents[place]
            in_document = at - (int(self.ends[place]) - int(self.lengths[document]))
            count = min(end, int(self.ends[place])) - at
            found.append((place, (int(self.starts[document]) + in_document) * TOKEN_BYTES, count * TOKEN_BYTES))
            at += count
            place += 1
        return found


def _corpus(seed: int, size_bytes: int, epochs: int, first_file: int, prefix: str) -> _Corpus:
    """The algorithm of GPTDataset: documents of all epochs shuffled together, cut into samples, samples shuffled."""
    dice = np.random.default_rng([seed, first_file])
    mean = np.exp(DOCUMENT_LOG_MEAN + DOCUMENT_LOG_SIGMA**2 / 2)
    count = max(2, int(size_bytes / TOKEN_BYTES / mean))
    lengths = np.maximum(8, dice.lognormal(DOCUMENT_LOG_MEAN, DOCUMENT_LOG_SIGMA, count)).astype(np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    order = np.random.RandomState(seed)
    documents = np.tile(np.arange(count), epochs)
    order.shuffle(documents)
    ends = np.cumsum(lengths[documents])
    samples = np.arange((int(ends[-1]) - 1) // SEQUENCE)
    order.shuffle(samples)
    names = [
        TraceFile(f"{prefix}.bin".encode(), int(lengths.sum()) * TOKEN_BYTES),
        TraceFile(f"{prefix}.idx".encode(), 34 + 20 * count),
        *(
            TraceFile(f"cache/{prefix}-{kind}.npy".encode(), 128 + width * entries)
            for kind, width, entries in (
                ("document_index", 4, len(documents)),
                ("sample_index", 8, len(samples) + 1),
                ("shuffle_index", 4, len(samples)),
            )
        ),
    ]
    return _Corpus(lengths, starts, documents, ends, samples, first_file, names)


class _Reader:
    """Turns samples of a corpus into READs of one process; the index files stay in the node's page cache."""

    def __init__(self, corpus: _Corpus, caches: list[PageCache], *, mapped: bool) -> None:
        self._corpus = corpus
        self._caches = caches
        self._mapped = mapped

    def _index(self, process: Process, which: int, offset_bytes: int) -> None:
        found = self._caches[which].fault(offset_bytes)
        if found is not None:
            process.add(self._corpus.first_file + which, *found)

    def read(self, process: Process, sample: int) -> None:
        corpus = self._corpus
        self._index(process, 4, 128 + 4 * sample)
        self._index(process, 3, 128 + 8 * int(corpus.samples[sample]))
        size_bytes = corpus.names[0].size_bytes
        count = len(corpus.lengths)
        for place, offset_bytes, length_bytes in corpus.pieces(sample):
            self._index(process, 2, 128 + 4 * place)
            document = int(corpus.documents[place])
            self._index(process, 1, 34 + 4 * document)
            self._index(process, 1, 34 + 4 * count + 8 * document)
            if self._mapped:
                process.add(corpus.first_file, *fault(offset_bytes, size_bytes))
            else:
                process.add(corpus.first_file, *page_rounded(offset_bytes, length_bytes, size_bytes), OPEN | CLOSE)


def _megatron(scale: Scale, name: str, weights: tuple[float, ...], *, mapped: bool) -> Trace:
    """Ranks take consecutive slices of the global batch; ``weights`` blend as many datasets."""
    corpora: list[_Corpus] = []
    for number, weight in enumerate(weights):
        size_bytes = int(scale.data_bytes * weight / sum(weights))
        prefix = f"data{number}_text_document" if len(weights) > 1 else "text_document"
        corpora.append(_corpus(scale.seed, size_bytes, scale.epochs, 5 * number, prefix))
    caches = [[PageCache(file.size_bytes) for file in corpus.names] for corpus in corpora]
    readers = [_Reader(corpus, made, mapped=mapped) for corpus, made in zip(corpora, caches, strict=True)]
    processes = [Process(workers=scale.workers) for _ in range(scale.processes)]
    total = sum(weights)
    taken = [0] * len(weights)
    # Every process opens its files at the start and sums the sequence lengths: the head of each .idx, front to back.
    for corpus, made in zip(corpora, caches, strict=True):
        head = 34 + 4 * len(corpus.lengths)
        for at in range(0, head, READ):
            found = made[1].read(at, min(READ, head - at))
            if found is not None:
                processes[0].add(corpus.first_file + 1, *found)
    number = 0
    while sum(process.read_count for process in processes) < scale.reads:
        for process in processes:
            for _ in range(scale.batch):
                want = [weight / total * max(number, 1) - count for weight, count in zip(weights, taken, strict=True)]
                which = want.index(max(want))
                if taken[which] < len(corpora[which].samples):
                    readers[which].read(process, taken[which])
                taken[which] += 1
                number += 1
            process.end_batch()
        if all(count >= len(corpus.samples) for count, corpus in zip(taken, corpora, strict=True)):
            break
    return Trace(name, [file for corpus in corpora for file in corpus.names], processes)


def megatron(scale: Scale) -> Trace:
    """P1: Megatron through np.memmap: a fault of 128 KiB for each fragment, index faults while those files are cold."""
    return _megatron(scale, "megatron", (1.0,), mapped=True)


def blended(scale: Scale) -> Trace:
    """P1 blend: three datasets by weight, each in its own order."""
    return _megatron(scale, "blended", (0.6, 0.3, 0.1), mapped=True)


def megatron_file(scale: Scale) -> Trace:
    """P2: Megatron's file reader: open, one page-rounded READ, close, for each fragment."""
    return _megatron(scale, "megatron-file", (1.0,), mapped=False)


def nanogpt(scale: Scale) -> Trace:
    """P3: batches of 12 windows at uniform places with replacement, one stream a process; now and then an evaluation."""
    block, per_batch = 1024, 12
    train = TraceFile(b"train.bin", scale.data_bytes // PAGE * PAGE)
    val = TraceFile(b"val.bin", max(PAGE, scale.data_bytes // 2000 // PAGE * PAGE))
    batches = max(1, scale.reads // scale.processes // per_batch)
    every = max(1, min(250, batches // 3))
    processes = []
    for rank in range(scale.processes):
        process = Process(workers=1, prefetch_batches=1)
        dice = scale.dice(3, rank)

        def batch(which: int, file: TraceFile, process: Process = process, dice: np.random.Generator = dice) -> None:
            offsets = dice.integers(0, max(1, file.size_bytes // 2 - block - 1), per_batch) * TOKEN_BYTES
            starts = fault_starts(offsets)
            process.extend(which, starts, fault_lengths(starts, file.size_bytes))
            process.end_batch()

        while process.batch_count < batches:
            batch(0, train)
            if process.batch_count % every == 0:
                for _ in range(every * 4 // 5):
                    batch(0, train)
                for _ in range(every * 4 // 5):
                    batch(1, val)
        processes.append(process)
    return Trace("nanogpt", [train, val], processes)


def olmo(scale: Scale) -> Trace:
    """P4: aligned rows of 32 KiB over all files in a new permutation each epoch; open, READ, close for each."""
    row_bytes = 2 * SEQUENCE * 4
    per_epoch = max(scale.batch * scale.processes, scale.reads // scale.epochs)
    total = min(scale.data_bytes // row_bytes, per_epoch)
    count = max(2, min(64, total * row_bytes // (8 << 20)))
    rows_per_file = max(1, total // count)
    files = [TraceFile(b"part-%03d.npy" % number, rows_per_file * row_bytes) for number in range(count)]
    processes = [Process(workers=scale.workers) for _ in range(scale.processes)]
    rows = np.arange(count * rows_per_file)
    for epoch in range(scale.epochs):
        order = rows.copy()
        np.random.Generator(np.random.PCG64(scale.seed + epoch)).shuffle(order)
        order = order[: len(order) - len(order) % scale.processes]
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            mine = order[rank :: scale.processes]
            process.extend(mine // rows_per_file, mine % rows_per_file * row_bytes, row_bytes, OPEN | CLOSE)
            process.end_batches(scale.batch)
    return Trace("olmo", files, processes)
