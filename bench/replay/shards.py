"""Patterns P5 to P9, and P11 to P13: datasets in shards. MosaicML, LitData, WebDataset, Hugging Face streams, TensorStore, JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from bench.replay.pages import KIB, MIB, PAGE, READ, PageCache, Scale, ladder, shard_files, sweep
from bench.replay.trace import CLOSE, NOWAIT, OPEN, Numbers, Process, Trace, TraceFile

_Read = tuple[int, int, int, int]
PIECE = 8
"""READs of 128 KiB in a batch of those that read shards front to back."""


# --- MosaicML ------------------------------------------------------------------------------------------------

MDS_SHARD = 8 * MIB
MDS_SAMPLE = 32 * KIB
MDS_LIVE_SHARDS = 64


def _mds_orders(scale: Scale, shards: int, per_shard: int) -> list[Numbers]:
    """py1e: shards permuted, samples inside, then each moved within a block that some 64 shards share; ids by epoch."""
    run = np.random.default_rng(scale.seed)
    fixed = np.arange(shards)
    run.shuffle(fixed)
    block = min(MDS_LIVE_SHARDS, max(2, shards // 2)) * per_shard
    orders = []
    for epoch in range(scale.epochs):
        dice = np.random.default_rng(scale.seed + epoch)
        order = fixed.copy()
        dice.shuffle(order)
        ids = np.concatenate([shard * per_shard + dice.permutation(per_shard) for shard in order])
        half = np.repeat(np.maximum(0.0, (block * dice.uniform(0.75, 1.25, shards) - per_shard) / 2), per_shard)
        orders.append(ids[np.argsort(np.arange(len(ids)) + dice.uniform(-half, half), kind="stable")])
    return orders


def _mds_shape(scale: Scale, reads_per_epoch: int) -> tuple[list[TraceFile], int]:
    per_shard = (MDS_SHARD - 4 * KIB) // MDS_SAMPLE
    shards = max(4, min(scale.data_bytes // MDS_SHARD, reads_per_epoch // per_shard))
    return shard_files("shard.", ".mds", shards, MDS_SHARD), per_shard


def mds(scale: Scale) -> Trace:
    """P5: MDS read in place: open, 8 bytes of the shard's table, the sample, close; some 64 shards are live at once."""
    files, per_shard = _mds_shape(scale, scale.reads // scale.epochs)
    tables = [PageCache(PAGE * 4) for _ in files]
    processes = [Process(workers=scale.workers) for _ in range(scale.processes)]
    table_bytes = 4 * (per_shard + 2)
    for epoch, order in enumerate(_mds_orders(scale, len(files), per_shard)):
        share = len(order) // scale.processes
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            for number, sample in enumerate(order[rank * share : (rank + 1) * share].tolist()):
                shard, place = divmod(sample, per_shard)
                entry = tables[shard].read(4 + 4 * place, 8)
                if entry is not None:
                    process.add(shard, entry[0], entry[1], OPEN)
                first = (table_bytes + place * MDS_SAMPLE) // PAGE * PAGE
                end = -(-(table_bytes + (place + 1) * MDS_SAMPLE) // PAGE) * PAGE
                process.add(shard, first, min(end, MDS_SHARD) - first, CLOSE if entry is not None else OPEN | CLOSE)
                if number % scale.batch == scale.batch - 1:
                    process.end_batch()
            process.end_batch()
    return Trace("mds", files, processes)


def mds_copy(scale: Scale) -> Trace:
    """P6: whole MDS shards copied to local disk in the order of first use, each once a node, a worker one at a time."""
    shards = max(4, min(scale.data_bytes, scale.reads * READ) // MDS_SHARD)
    files = shard_files("shard.", ".mds", shards, MDS_SHARD)
    per_shard = 64
    order = _mds_orders(scale, shards, per_shard)[0]
    first_use = order[np.sort(np.unique(order // per_shard, return_index=True)[1])] // per_shard
    process = Process(workers=scale.workers, depth=2)
    _take_turns(process, [_shards_in_turn(mine, files, plain=True) for mine in _deal(first_use, scale.workers)])
    return Trace("mds-copy", files, [process])


# --- LitData -------------------------------------------------------------------------------------------------

LITDATA_CHUNK = 16 * MIB
LITDATA_ITEM = 16 * KIB
LITDATA_HINTS = 4
LITDATA_WINDOW = 16


def _litdata(scale: Scale, name: str, *, windowed: bool) -> Trace:
    """Chunks by permutation, each read by one worker through a mapping; hints at the beginnings of its next chunks."""
    per_chunk = LITDATA_CHUNK // LITDATA_ITEM
    lanes = scale.processes * scale.workers
    # A chunk of 16 MiB is at least 128 READs of 128 KiB, and some 145 with those that overlap.
    count = max(lanes, min(scale.data_bytes // LITDATA_CHUNK, scale.reads // scale.epochs // 145))
    files = shard_files("chunk-0-", ".bin", count, LITDATA_CHUNK)
    processes = [Process(workers=scale.workers) for _ in range(scale.processes)]
    for epoch in range(scale.epochs):
        dice = np.random.RandomState([scale.seed, epoch])
        order = np.arange(count) if windowed else dice.permutation(count)
        if windowed:
            order = _window_shuffled(dice, order)
        deal = _deal(order, lanes)
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            mine = deal[rank * scale.workers : (rank + 1) * scale.workers]
            streams = [
                _litdata_items(chunks, files, per_chunk, np.random.RandomState([scale.seed, epoch, lane]), windowed)
                for lane, chunks in enumerate(mine, start=rank * scale.workers)
            ]
            _take_turns(process, streams, scale.batch)
    return Trace(name, files, processes)


def _window_shuffled(dice: np.random.RandomState, order: Numbers) -> Numbers:
    parts = [order[at : at + LITDATA_WINDOW] for at in range(0, len(order), LITDATA_WINDOW)]
    return np.concatenate([dice.permutation(part) for part in parts])


def _litdata_items(
    chunks: Numbers, files: list[TraceFile], per_chunk: int, dice: np.random.RandomState, windowed: bool
) -> Iterator[_Read | None]:
    hinted: set[int] = set()
    for place, chunk in enumerate(chunks.tolist()):
        for following in chunks[place + 1 : place + 1 + LITDATA_HINTS].tolist():
            if following not in hinted:
                hinted.add(following)
                yield following, 0, min(2 * READ, files[following].size_bytes), NOWAIT
        items = np.arange(per_chunk)
        items = _window_shuffled(dice, items) if windowed else dice.permutation(items)
        pages = PageCache(files[chunk].size_bytes)
        pages.read(0, 2 * READ if chunk in hinted else 0)
        for item in items.tolist():
            found = pages.fault(item * LITDATA_ITEM)
            if found is not None:
                yield (chunk, *found, 0)
            yield None


def litdata(scale: Scale) -> Trace:
    """P7: LitData, FullShuffle: random faults inside one chunk a worker; READs of 256 KiB nobody waits for as hints."""
    return _litdata(scale, "litdata", windowed=False)


def litdata_window(scale: Scale) -> Trace:
    """P8: LitData, WindowShuffle (what it chooses on network file systems): nearly in order, shuffled within 16."""
    return _litdata(scale, "litdata-window", windowed=True)


# --- WebDataset, Hugging Face --------------------------------------------------------------------------------

TAR_SHARD = 32 * MIB
PARQUET_SHARD = 16 * MIB
PARQUET_GROUP = 4 * MIB
HF_LANES = 10


def _deal(order: Numbers, lanes: int) -> list[Numbers]:
    return [order[lane::lanes] for lane in range(lanes)]


def _shards_in_turn(order: Numbers, files: list[TraceFile], *, plain: bool) -> Iterator[_Read]:
    """Each shard from its first byte to its last. ``plain``: by large reads, so that no ladder comes first."""
    for shard in order.tolist():
        size_bytes = files[shard].size_bytes
        reads = ((at, min(READ, size_bytes - at)) for at in range(0, size_bytes, READ)) if plain else ladder(size_bytes)
        for offset, length in reads:
            yield shard, offset, length, 0


def _take_turns(process: Process, streams: Sequence[Iterator[_Read | None]], batch: int = 0) -> None:
    """Batch by batch from each worker's stream in turn, as the loader hands them on, until all have ended.

    ``batch``: items in one, ended in the stream by None; 0: a batch is ``PIECE`` READs.
    """
    live = list(streams)
    while live:
        for stream in list(live):
            count = 0
            for read in stream:
                if read is not None:
                    process.add(*read)
                count += (read is None) if batch else 1
                if count >= (batch or PIECE):
                    break
            else:
                live.remove(stream)
            process.end_batch()


def _tar(scale: Scale) -> tuple[list[TraceFile], int]:
    lanes = scale.processes * scale.workers
    per_epoch = max(scale.reads // scale.epochs, 1)
    count = max(lanes, min(scale.data_bytes, per_epoch * READ) // TAR_SHARD)
    size_bytes = min(TAR_SHARD, max(MIB, min(scale.data_bytes, per_epoch * READ) // count // MIB * MIB))
    return shard_files("train-", ".tar", count, size_bytes), lanes


def webdataset(scale: Scale) -> Trace:
    """P9: tar shards front to back, each worker its own in a new order each epoch, beginning with the 16-32-64-128 KiB ladder."""
    files, lanes = _tar(scale)
    processes = [Process(workers=scale.workers, depth=2) for _ in range(scale.processes)]
    deal = _deal(np.arange(len(files)), lanes)
    for epoch in range(scale.epochs):
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            mine = range(rank * scale.workers, (rank + 1) * scale.workers)
            orders = [scale.dice(9, epoch, lane).permutation(deal[lane]) for lane in mine]
            _take_turns(process, [_shards_in_turn(order, files, plain=False) for order in orders])
    return Trace("webdataset", files, processes)


def webdataset_resampled(scale: Scale) -> Trace:
    """P9b: the same, but each worker's next shard is a uniform draw."""
    files, _ = _tar(scale)
    processes = [Process(workers=scale.workers, depth=2) for _ in range(scale.processes)]
    draws = max(1, scale.epochs * len(files) // (scale.processes * scale.workers))
    for rank, process in enumerate(processes):
        orders = [scale.dice(91, rank, worker).integers(0, len(files), draws) for worker in range(scale.workers)]
        _take_turns(process, [_shards_in_turn(order, files, plain=False) for order in orders])
    return Trace("webdataset-resampled", files, processes)


def hf_parquet(scale: Scale) -> Trace:
    """P11: parquet streamed: each worker keeps 10 shards open in threads, footer first, hints, then row groups front to back."""
    lanes = scale.processes * scale.workers
    per_epoch = max(1, scale.reads // scale.epochs)
    count = max(lanes, min(scale.data_bytes, per_epoch * READ) // PARQUET_SHARD)
    files = shard_files("part-", ".parquet", count, PARQUET_SHARD)
    processes = [Process(workers=scale.workers, depth=HF_LANES) for _ in range(scale.processes)]
    for epoch in range(scale.epochs):
        order = np.random.default_rng(scale.seed + epoch).permutation(count)
        deal = _deal(order, lanes)
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            mine = deal[rank * scale.workers : (rank + 1) * scale.workers]
            _take_turns(process, [_ten_at_once(shards, files) for shards in mine])
    return Trace("hf-parquet", files, processes)


def _ten_at_once(shards: Numbers, files: list[TraceFile]) -> Iterator[_Read]:
    waiting = iter(shards.tolist())
    open_now = [_parquet(shard, files[shard].size_bytes) for shard in islice(waiting, HF_LANES)]
    while open_now:
        for place, shard in enumerate(open_now):
            read = next(shard, None)
            if read is not None:
                yield read
                continue
            following = next(waiting, None)
            if following is None:
                del open_now[place]
            else:
                open_now[place] = _parquet(following, files[following].size_bytes)
            break


def _parquet(shard: int, size_bytes: int) -> Iterator[_Read]:
    footer = 17 * PAGE  # 64 KiB at the end, not aligned: 69,632 bytes of pages
    yield shard, size_bytes - footer, footer, 0
    for group in range(0, size_bytes - footer, PARQUET_GROUP):
        end = min(group + PARQUET_GROUP, size_bytes - footer)
        for column in range(group, end, MIB):
            yield shard, column, min(READ, end - column), NOWAIT
        for at in range(group, end, READ):
            if (at - group) % MIB:  # the hint brought the first piece of each column into the page cache
                yield shard, at, min(READ, end - at), 0


# --- TensorStore, JSON lines ---------------------------------------------------------------------------------

ZARR_SHARD = 32 * MIB
ZARR_CHUNK = 512 * KIB


def tensorstore(scale: Scale) -> Trace:
    """P12: zarr3 shards: the index at the end of the file, then one inner chunk by 128 KiB READs; both open and close; rows random."""
    per_shard = ZARR_SHARD // ZARR_CHUNK
    per_chunk = ZARR_CHUNK // READ + 1
    count = max(2, min(scale.data_bytes // ZARR_SHARD, scale.reads // scale.epochs // per_chunk // per_shard))
    index_bytes = -(-(16 * per_shard + 4) // PAGE) * PAGE
    files = shard_files("c/", "", count, ZARR_SHARD + index_bytes)
    processes = [Process(workers=scale.workers, depth=2) for _ in range(scale.processes)]
    for epoch in range(scale.epochs):
        order = scale.dice(12, epoch).permutation(count * per_shard)
        for rank, process in enumerate(processes):
            if epoch:
                process.new_epoch()
            for number, chunk in enumerate(order[rank :: scale.processes].tolist()):
                shard, inner = divmod(chunk, per_shard)
                process.add(shard, ZARR_SHARD, index_bytes, OPEN | CLOSE)
                starts = np.arange(inner * ZARR_CHUNK, (inner + 1) * ZARR_CHUNK, READ)
                flags = np.array([OPEN, *([0] * (len(starts) - 2)), CLOSE])
                process.extend(shard, starts, READ, flags)
                if number % scale.batch == scale.batch - 1:
                    process.end_batch()
            process.end_batch()
    return Trace("tensorstore", files, processes)


def jsonl(scale: Scale) -> Trace:
    """P13: every rank scans all lines at the start, then 16 threads a rank read rows in random order from a slice of their own."""
    scan_reads = scale.reads // 3 // scale.processes
    size_bytes = max(4, min(scale.data_bytes // MIB, scan_reads * READ // MIB)) * MIB
    files = [TraceFile(b"data.jsonl", size_bytes)]
    processes = []
    for _ in range(scale.processes):
        scan = Process(workers=1, depth=2)
        sweep(scan, 0, 0, size_bytes)
        scan.end_batches(PIECE)
        processes.append(scan)
    rows = max(scale.processes, (scale.reads - 2 * scan_reads) // scale.epochs)
    dice = scale.dice(13)
    cuts = np.sort(dice.choice(size_bytes // PAGE - 1, min(rows, size_bytes // PAGE - 1), replace=False)) * PAGE
    lengths = np.minimum(np.diff(np.append(cuts, size_bytes)), READ)
    share = len(cuts) // scale.processes
    for rank in range(scale.processes):
        process = Process(workers=16, phase=1)
        for epoch in range(scale.epochs):
            if epoch:
                process.new_epoch()
            order = rank * share + scale.dice(131, epoch, rank).permutation(share)
            process.extend(0, cuts[order], lengths[order])
            process.end_batches(scale.batch)
        processes.append(process)
    return Trace("jsonl", files, processes)
