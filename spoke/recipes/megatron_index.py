"""Megatron's GPTDataset: the .idx file, the document, sample and shuffle index, and the reads of a sample. No option is parsed here.

An .idx file (version 1): ``MMIDIDX\\0\\0``, u64 version, u8 type of a token, u64 sequences, u64 documents, then i32 lengths (tokens)
and i64 pointers (bytes into the .bin) of each sequence. A sample is ``sequence_length`` tokens, and one more for the labels, of all
sequences laid end to end in the order of the document index; so sample s begins at token s x sequence_length.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common import limits
from common.errors import UsageError
from spoke.recipes.files import MountedFiles, read_at
from spoke.recipes.model import Int64s, Steps, spread
from spoke.recipes.scratch import Scratch

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TOKEN_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}
_FINAL_EPOCH_SHARE = 0.80
"""A last epoch that gives less than this share of its samples is shuffled apart from the others."""


class Sequences(NamedTuple):
    """What an .idx tells: lengths in tokens, pointers in bytes, a number each for every sequence."""

    lengths: NDArray[np.int32]
    pointers: Int64s
    token_bytes: int


def read_idx(files: MountedFiles, path: str, bin_path: str) -> Sequences:
    """Raises UsageError for what is not an index of version 1, or not of this .bin."""
    with files.opened(path) as descriptor:
        size_bytes = files.facts(path).size_bytes
        head = read_at(descriptor, path, 0, min(_HEADER.size, size_bytes))
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise UsageError(f"{path} is not a Megatron index: it begins with {head[:9]!r} and not with {_MAGIC!r}")
    _, version, code, sequences, _documents = _HEADER.unpack(head)
    if version != 1 or code not in _TOKEN_BYTES:
        raise UsageError(f"{path}: version {version} with tokens of type {code}; version 1 with types 1 to 8 is known")
    if sequences > limits.RECIPE_MAX_SAMPLES:
        raise UsageError(f"{path} announces {sequences} sequences; at most {limits.RECIPE_MAX_SAMPLES} are expanded")
    lengths = files.array(path, _HEADER.size, sequences, np.int32)
    pointers = files.array(path, _HEADER.size + 4 * sequences, sequences, np.int64)
    bin_bytes = files.facts(bin_path).size_bytes
    for begin in range(0, sequences, limits.RECIPE_PIECE_ROWS):
        some = slice(begin, begin + limits.RECIPE_PIECE_ROWS)
        ends = pointers[some] + lengths[some].astype(np.int64) * _TOKEN_BYTES[code]
        if int(lengths[some].min()) < 0 or int(pointers[some].min()) < 0 or int(ends.max()) > bin_bytes:
            raise UsageError(f"{path} tells of sequences outside of {bin_path}, which has {bin_bytes} bytes")
    return Sequences(lengths, pointers, _TOKEN_BYTES[code])


class GptOptions(NamedTuple):
    """``sample_count`` None: one epoch. ``extra_tokens``: 1 unless sequences are cut without the label's token."""

    sequence_length: int
    seed: int
    sample_count: int | None
    extra_tokens: int = 1
    drop_last_partial: bool = True


class GptDataset:
    """The samples of one .idx/.bin pair in the order a job sees them. ``file``: the .bin's index among the recipe's paths."""

    def __init__(
        self,
        sequences: Sequences,
        begin: int,
        end: int,
        options: GptOptions,
        file: int,
        scratch: Scratch,
    ) -> None:
        """``begin`` to ``end``: the sequences of the split."""
        self._sequences = sequences
        self._file = file
        self._options = options
        tokens_per_epoch = _sum(sequences.lengths[begin:end])
        if tokens_per_epoch < 1:
            raise UsageError(
                f"the split has {tokens_per_epoch} tokens in sequences {begin} to {end}: no sample comes of it"
            )
        epochs, separate = _epochs(tokens_per_epoch, options)
        random = np.random.RandomState(options.seed)
        self._documents = _document_index(begin, end, epochs, random, scratch, separate=separate)
        all_tokens = epochs * tokens_per_epoch - options.extra_tokens
        length = options.sequence_length
        if options.drop_last_partial:
            self.sample_count = all_tokens // length
        else:  # the original divides a float of 32 bits
            self.sample_count = int(np.ceil(np.float32(all_tokens) / np.float32(length)))
        if self.sample_count < 1:
            raise UsageError(f"{tokens_per_epoch} tokens give no sample of {length}")
        self._starts, self._start_offsets = self._sample_index(scratch)
        before = ((epochs - 1) * tokens_per_epoch - options.extra_tokens) // length if separate else self.sample_count
        self._shuffle = scratch.arange(
            0, self.sample_count, np.uint32 if self.sample_count < (1 << 32) - 2 else np.int64
        )
        random.shuffle(self._shuffle[:before])
        if separate:
            random.shuffle(self._shuffle[before:])

    @classmethod
    def from_cache(
        cls, sequences: Sequences, options: GptOptions, file: int, files: MountedFiles, names: Mapping[str, str]
    ) -> GptDataset:
        """From the indices a job has saved. ``names``: ``document_index``, ``sample_index``, ``shuffle_index`` to their .npy."""
        made = cls.__new__(cls)
        made._sequences, made._file, made._options = sequences, file, options
        made._documents = read_npy(files, names["document_index"], 1)
        samples = read_npy(files, names["sample_index"], 2)
        made._starts, made._start_offsets = samples[:, 0], samples[:, 1]
        made._shuffle = read_npy(files, names["shuffle_index"], 1)
        made.sample_count = len(samples) - 1
        if len(made._shuffle) != made.sample_count or (
            len(made._documents) and int(made._documents.max()) >= len(sequences.lengths)
        ):
            raise UsageError(f"{names['shuffle_index']} and its neighbours do not belong together, or not to this .idx")
        return made

    def sample_steps(self, samples: Int64s) -> tuple[Int64s, Steps]:
        """The reads of these samples (as a job numbers them), and for each read the row of ``samples`` it belongs to."""
        index = self._shuffle[samples].astype(np.int64)
        first, first_offset = self._starts[index].astype(np.int64), self._start_offsets[index].astype(np.int64)
        last, last_offset = self._starts[index + 1].astype(np.int64), self._start_offsets[index + 1].astype(np.int64)
        rows, place = spread(last - first + 1)
        documents = self._documents[first[rows] + place].astype(np.int64)
        lengths = self._sequences.lengths[documents].astype(np.int64)
        begin = np.where(place == 0, first_offset[rows], 0)
        end = np.where(first[rows] + place == last[rows], last_offset[rows] + self._options.extra_tokens, lengths)
        end = np.minimum(end, lengths)
        token_bytes = self._sequences.token_bytes
        offsets = self._sequences.pointers[documents] + begin * token_bytes
        wanted = end > begin
        kept = Steps(
            np.full(int(wanted.sum()), self._file, np.int64), offsets[wanted], ((end - begin) * token_bytes)[wanted]
        )
        return rows[wanted], kept

    def _sample_index(self, scratch: Scratch) -> tuple[NDArray[Any], NDArray[Any]]:
        """Where each sample begins: place in the document index, and tokens into that document. One entry more than samples."""
        count, length = self.sample_count, self._options.sequence_length
        starts, offsets = scratch.empty(count + 1, np.int64), scratch.empty(count + 1, np.int64)
        passed_tokens = 0
        sample = 0
        for begin in range(0, len(self._documents), limits.RECIPE_PIECE_ROWS):
            lengths = self._sequences.lengths[self._documents[begin : begin + limits.RECIPE_PIECE_ROWS]].astype(
                np.int64
            )
            ends = np.cumsum(lengths) + passed_tokens
            upto = min(count + 1, -(-int(ends[-1]) // length))
            if upto > sample:
                tokens = np.arange(sample, upto, dtype=np.int64) * length
                places = np.searchsorted(ends, tokens, side="right")
                starts[sample:upto] = places + begin
                offsets[sample:upto] = tokens - (ends - lengths)[places]
                sample = upto
            passed_tokens = int(ends[-1])
        if sample <= count:  # the last sample ends where the documents do
            starts[sample:] = len(self._documents) - 1
            offsets[sample:] = int(self._sequences.lengths[self._documents[-1]]) - self._options.extra_tokens
        return starts, offsets


def _epochs(tokens_per_epoch: int, options: GptOptions) -> tuple[int, bool]:
    """How often the documents are gone through, and whether the last time is shuffled apart."""
    if options.sample_count is None:
        return 1, False
    length, extra = options.sequence_length, options.extra_tokens
    epochs = max(1, -(-(options.sample_count * length + extra) // tokens_per_epoch))
    if epochs == 1:
        return 1, False
    before = ((epochs - 1) * tokens_per_epoch - extra) // length
    per_epoch = (tokens_per_epoch - extra) // length
    return epochs, options.sample_count - before < int(_FINAL_EPOCH_SHARE * per_epoch)


def _document_index(
    begin: int, end: int, epochs: int, random: np.random.RandomState, scratch: Scratch, *, separate: bool
) -> NDArray[np.int32]:
    documents = end - begin
    if epochs * documents > limits.RECIPE_MAX_SAMPLES:
        raise UsageError(
            f"{epochs} epochs of {documents} documents: at most {limits.RECIPE_MAX_SAMPLES} are expanded; give a smaller --num-samples"
        )
    index = scratch.empty(epochs * documents, np.int32)
    for epoch in range(epochs):
        index[epoch * documents : (epoch + 1) * documents] = np.arange(begin, end, dtype=np.int32)
    cut = (epochs - 1) * documents if separate else epochs * documents
    random.shuffle(index[:cut])
    if separate:
        random.shuffle(index[cut:])
    return index


def _sum(lengths: NDArray[np.int32]) -> int:
    return int(lengths.sum(dtype=np.int64))


def read_npy(files: MountedFiles, path: str, dimensions: int) -> NDArray[Any]:
    """An array of numbers that ``numpy.save`` wrote, in scratch. Raises UsageError for anything else; no object is unpickled."""
    with files.opened(path) as descriptor:
        size_bytes = files.facts(path).size_bytes
        head = read_at(descriptor, path, 0, min(size_bytes, limits.RECIPE_NPY_HEADER_BYTES))
    import io

    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_columns, kind = reader(stream)
    except ValueError as error:
        raise UsageError(f"{path} is not a NumPy array: {error}") from None
    if len(shape) != dimensions or in_columns or kind.kind not in "iu":
        raise UsageError(
            f"{path} holds {kind} of shape {shape}; whole numbers in {dimensions} dimensions were expected"
        )
    count = int(np.prod(shape))
    return files.array(path, stream.tell(), count, kind).reshape(shape)
