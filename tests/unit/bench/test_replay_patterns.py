"""The generators of access patterns: shapes the loaders have, the same for the same seed, and every READ inside its file."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from bench.replay.pages import KIB, MIB, READ, PageCache, Scale, ladder
from bench.replay.patterns import PATTERNS, TRANSFORMS, make
from bench.replay.trace import CLOSE, NOWAIT, OPEN, Process, Trace
from common.errors import UsageError

SMALL = Scale(seed=3, data_bytes=64 * MIB, reads=1500)


def columns(trace: Trace) -> list[tuple[bytes, ...]]:
    return [
        tuple(column.tobytes() for column in (one.files, one.offsets, one.lengths, one.flags, one.batch_ends))
        for one in trace.processes
    ]


def reads_of(process: Process) -> list[tuple[int, int, int]]:
    return list(zip(process.files, process.offsets, process.lengths, strict=True))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_sound_and_the_same_for_a_seed(name: str) -> None:
    trace = make(name, SMALL)
    trace.check()
    assert 100 <= trace.read_count <= 4 * SMALL.reads
    assert len({file.path for file in trace.files}) == len(trace.files)
    assert columns(make(name, SMALL)) == columns(trace)


@pytest.mark.parametrize("name", ["megatron", "nanogpt", "olmo", "mds", "litdata", "hf-arrow", "jsonl", "random"])
def test_another_seed_gives_another_order(name: str) -> None:
    assert columns(make(name, SMALL)) != columns(make(name, Scale(seed=4, data_bytes=64 * MIB, reads=1500)))


@pytest.mark.parametrize("word", TRANSFORMS)
def test_transforms_keep_a_trace_sound(word: str) -> None:
    trace = make(f"olmo+{word}", SMALL)
    trace.check()
    assert trace.name == f"olmo+{word}"
    for process in trace.processes:
        assert all(0 < epoch < process.batch_count for epoch in process.epochs)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="no pattern 'nope'"):
        make("nope", SMALL)
    with pytest.raises(UsageError, match="no transform 'twice'"):
        make("olmo+twice", SMALL)


def test_megatron_faults_are_128_kib_around_unrelated_pages() -> None:
    trace = make("megatron", SMALL)
    lengths = Counter(length for one in trace.processes for file, _, length in reads_of(one) if file == 0)
    assert lengths[READ] >= 0.95 * lengths.total()
    offsets = [offset for one in trace.processes for file, offset, _ in reads_of(one) if file == 0]
    assert all(offset % 4096 == 0 for offset in offsets)
    assert sum(offset % READ == 0 for offset in offsets) < 0.1 * len(offsets), "not aligned to their size"


def test_megatron_samples_are_whole_and_cover_the_epochs() -> None:
    """Every token of a sample comes from the fragments: S + 1 tokens, cut where documents end."""
    from bench.replay.tokens import SEQUENCE, TOKEN_BYTES, _corpus

    corpus = _corpus(7, 4 * MIB, 2, 0, "text")
    for sample in range(len(corpus.samples)):
        pieces = corpus.pieces(sample)
        assert sum(length for _, _, length in pieces) == (SEQUENCE + 1) * TOKEN_BYTES
        for place, offset_bytes, length in pieces:
            document = corpus.documents[place]
            start = int(corpus.starts[document]) * TOKEN_BYTES
            assert start <= offset_bytes < offset_bytes + length <= start + int(corpus.lengths[document]) * TOKEN_BYTES


def test_the_file_reader_opens_and_closes_around_exact_reads() -> None:
    trace = make("megatron-file", SMALL)
    for process in trace.processes:
        for file, length, flags in zip(process.files, process.lengths, process.flags, strict=True):
            if file == 0:
                assert flags == OPEN | CLOSE
                assert length <= 16 * KIB


def test_blends_take_datasets_by_weight() -> None:
    trace = make("blended", SMALL)
    shares = Counter(file // 5 for one in trace.processes for file, _, _ in reads_of(one) if file % 5 == 0)
    assert shares[0] / shares.total() == pytest.approx(0.6, abs=0.05)
    assert shares[2] / shares.total() == pytest.approx(0.1, abs=0.04)


def test_olmo_reads_each_row_once_an_epoch() -> None:
    trace = make("olmo", SMALL)
    by_epoch: list[list[tuple[int, int, int]]] = [[], []]
    for process in trace.processes:
        edge = process.batch_ends[process.epochs[0] - 1]
        by_epoch[0] += reads_of(process)[:edge]
        by_epoch[1] += reads_of(process)[edge:]
    assert len(set(by_epoch[0])) == len(by_epoch[0])
    assert set(by_epoch[0]) == set(by_epoch[1])
    assert by_epoch[0] != by_epoch[1]
    assert all(offset % length == 0 for _, offset, length in by_epoch[0])


def test_a_tar_begins_with_the_ladder() -> None:
    process = make("webdataset", SMALL).processes[0]
    first = [(offset, length) for _, offset, length in reads_of(process)[:5]]
    assert first == [(0, 16 * KIB), (16 * KIB, 32 * KIB), (48 * KIB, 64 * KIB), (112 * KIB, READ), (240 * KIB, READ)]
    assert sum(length for _, length in ladder(10 * MIB + 5)) == 10 * MIB + 5


def test_litdata_hints_are_256_kib_that_nobody_waits_for() -> None:
    trace = make("litdata", Scale(seed=1, data_bytes=256 * MIB, reads=4000, processes=1, workers=2))
    hints = [
        (offset, length)
        for one in trace.processes
        for offset, length, flags in zip(one.offsets, one.lengths, one.flags, strict=True)
        if flags & NOWAIT
    ]
    assert set(hints) == {(0, 256 * KIB)}


def test_checkpoint_ranks_read_the_same_file_whole() -> None:
    trace = make("checkpoint", SMALL)
    assert len(trace.processes) == 8
    for process in trace.processes:
        seen = np.zeros(trace.files[0].size_bytes, dtype=bool)
        for _, offset, length in reads_of(process):
            seen[offset : offset + length] = True
        assert seen.all()


def test_the_page_cache_asks_once_and_only_for_what_is_missing() -> None:
    pages = PageCache(MIB + 100)
    assert pages.fault(512 * KIB) == (448 * KIB, READ)
    assert pages.fault(520 * KIB) is None
    assert pages.fault(576 * KIB) == (576 * KIB, 64 * KIB), "the half that is there is not asked for again"
    assert pages.read(MIB, 50) == (MIB, 100)
    assert pages.read(MIB + 20, 50) is None


def test_the_load_sets_the_pace() -> None:
    trace = make("random", SMALL).at_load(10e6)
    for process in trace.processes:
        asked = sum(process.lengths) / (process.step_s * process.batch_count)
        assert asked == pytest.approx(10e6 / len(trace.processes), rel=0.01)


def test_a_resumed_job_goes_on_where_it_was() -> None:
    whole, resumed = make("olmo", SMALL), make("olmo+resume", SMALL)
    for before, after in zip(whole.processes, resumed.processes, strict=True):
        assert reads_of(after)[-50:] == reads_of(before)[-50:]
        assert after.batch_count == before.batch_count - int(before.batch_count * 0.4) + 1


def test_a_read_outside_its_file_is_refused() -> None:
    trace = make("random", SMALL)
    trace.processes[0].offsets[0] = trace.files[0].size_bytes
    with pytest.raises(ValueError, match="READ 0 of process 0"):
        trace.check()
