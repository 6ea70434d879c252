"""From a READ at the mount to the hub and back: right bytes, one fetch a block, bounded waits, whatever goes wrong."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from common.blocks import BLOCK_BYTES, EXTENT_BYTES, BlockRange
from common.buffers import EXTENT_BUFFERS
from common.errors import CorruptData, DeadlineExceeded, HeadraceError, SourceReadError, StaleVersion
from common.limits import LINK_YOUNG_BYTES
from common.serving.source import Extent
from spoke.prefetch.next_use import NEVER, Use, parts_of
from tests.unit.spoke.conftest import until

MIB = 1 << 20


def noise(size_bytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


async def test_any_range_of_a_cold_file_then_of_the_cached_one(make_read_path) -> None:
    data = noise(3 * MIB + 123)
    path = await make_read_path({b"f": data})
    handle = path.open(b"f")
    dice = random.Random(7)
    for _ in range(60):
        offset, length = dice.randrange(len(data) + 100), dice.choice([1, 4096, 5000, 131072, 2 * MIB])
        assert await path.read(handle, offset, length) == data[offset : offset + length]
    await path.fetcher.written()
    fetched = path.counts.fetched_bytes
    await path.read(handle, 0, len(data))
    fetched_all = path.counts.fetched_bytes
    assert fetched <= fetched_all <= -(-len(data) // BLOCK_BYTES) * BLOCK_BYTES
    await path.fetcher.written()
    path.source.failure = SourceReadError("the hub must not be asked again")
    assert bytes(path.reads.read_nowait(handle, 0, len(data), 1) or b"") == data
    assert path.counts.fetched_bytes == fetched_all


async def test_a_piece_in_memory_counts_as_used_once_however_many_reads_it_serves(make_read_path, monkeypatch) -> None:
    data = noise(MIB + 5000)
    path = await make_read_path({b"f": data})
    handle = path.open(b"f")
    used: list[tuple[int, int]] = []
    monkeypatch.setattr(path.store, "touch", lambda _version, _size, offset, length: used.append((offset, length)))
    path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 258))
    await until(lambda: path.counts.fetched_bytes >= len(data))
    for remembered in (True, False):
        for offset in range(0, len(data), 131072):
            assert path.reads.read_nowait(handle, offset, 131072, 1) == data[offset : offset + 131072]
        if remembered:
            path.fetcher.recent.forget()  # from what waits for the disk, or from the disk itself
    assert sorted(used) == [(0, MIB), (MIB, 5000)]


async def test_an_empty_file_and_a_read_past_the_end(make_read_path) -> None:
    path = await make_read_path({b"empty": b"", b"one": b"x"})
    assert path.reads.read_nowait(path.open(b"empty"), 0, 100, 1) == b""
    assert await path.read(path.open(b"one"), 5, 100) == b""
    assert await path.read(path.open(b"one"), 0, 100) == b"x"


async def test_many_readers_of_one_cold_block_cost_one_request(make_read_path) -> None:
    data = noise(MIB)
    path = await make_read_path({b"f": data})
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    readers = [asyncio.create_task(path.read(handle, 0, 4096 * (1 + number % 3))) for number in range(64)]
    await until(lambda: path.reads.waiting == 64 and path.source.reads_open > 0)
    readers[0].cancel()  # the first one's death must not hurt the rest
    path.source.gate.set()
    answers = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert [answers[number] == data[: 4096 * (1 + number % 3)] for number in range(1, 64)] == [True] * 63
    asked = [block for _, blocks in path.source.reads for block in range(blocks.first_block, blocks.end_block)]
    assert sorted(asked) == [0, 1, 2]


async def test_a_prefetch_that_somebody_waits_for_is_promoted(make_read_path) -> None:
    data = noise(4 * MIB)
    path = await make_read_path({b"f": data})
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    assert path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 1024)) == len(data)
    assert path.fetcher.prefetch_outstanding_bytes == len(data)
    reader = asyncio.create_task(path.read(handle, 3 * MIB, 4096))
    await until(lambda: path.reads.waiting == 1)
    assert path.fetcher.prefetch_outstanding_bytes == 3 * MIB, "one extent is demand now"
    path.source.gate.set()
    assert await reader == data[3 * MIB : 3 * MIB + 4096]
    await until(lambda: path.counts.fetched_bytes == len(data))
    assert (path.counts.late, path.counts.misses) == (1, 0)
    assert path.fetcher.prefetch_outstanding_bytes == 0


async def test_what_readers_stand_before_is_asked_for_as_that_and_what_is_under_way_is_hurried(make_read_path) -> None:
    data = noise(2 * MIB)
    path = await make_read_path({b"f": data})
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    assert path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 64)) == 64 * 4096
    path.fetcher.expedite(handle.version, len(data), BlockRange(32, 400))
    path.fetcher.expedite(handle.version, len(data), BlockRange(0, 432))  # once only
    assert path.fetcher.prefetch_outstanding_bytes == 0, "all of it is demand now"
    path.source.gate.set()
    await until(lambda: path.counts.fetched_bytes == 432 * 4096)
    await path.fetcher.written()
    asked = [block for _, blocks in path.source.reads for block in range(blocks.first_block, blocks.end_block)]
    assert sorted(asked) == list(range(432))
    assert await path.read(handle, 0, 432 * 4096) == data[: 432 * 4096]
    assert path.counts.misses == 0


async def test_what_readers_stand_before_waits_here_for_links_with_room_and_holds_up_no_read(make_read_path) -> None:
    data = noise(16 * MIB)
    path = await make_read_path({b"f": data, b"g": noise(8192, 2)})
    path.source.gate = asyncio.Event()
    handle, other = path.open(b"f"), path.open(b"g")
    await until(lambda: len(path.client.links.up) == 3)
    path.fetcher.expedite(handle.version, len(data), BlockRange(0, 4096))
    links = path.client.links.up
    sent_bytes = sum(link.outstanding_bytes for link in links)
    assert 0 < sent_bytes <= len(links) * (LINK_YOUNG_BYTES + 131072)
    reader = asyncio.create_task(path.read(other, 0, 4096))
    await until(lambda: sum(link.outstanding_bytes for link in links) == sent_bytes + 4096)  # he is asked for at once
    path.source.gate.set()
    assert await reader == noise(8192, 2)[:4096]
    await until(lambda: path.counts.fetched_bytes == len(data) + 4096)
    firsts = [blocks.first_block for version, blocks in path.source.reads if version == handle.version]
    assert all(place <= before + 32 * 2 * len(links) for before, place in zip(sorted(firsts), firsts, strict=True))


async def test_what_lies_between_workers_that_begin_at_once_is_asked_for_as_what_they_wait_for(
    make_read_path, monkeypatch
) -> None:
    data = noise(16 * MIB)
    path = await make_read_path({b"f": data}, prefetch=True)
    handle = path.open(b"f")
    path.reads._observer.opened(handle, 1)
    batch, record, hurried = MIB // 4, MIB // 16, []  # 64 of them: fewer equal steps are parts of a file
    expedite = path.fetcher.expedite

    def noting(version: bytes, size_bytes: int, blocks: BlockRange, why: int = 0) -> None:
        hurried.append(blocks)
        expedite(version, size_bytes, blocks, why)

    monkeypatch.setattr(path.fetcher, "expedite", noting)

    async def work(worker: int) -> None:
        for at in range(worker * batch, (worker + 1) * batch, record):
            assert bytes(await path.reads.read(handle, at, record, worker + 1)) == data[at : at + record]

    await asyncio.gather(*(work(worker) for worker in range(64)))
    assert hurried, "readers abreast were not seen"
    assert max(blocks.end_block for blocks in hurried) == len(data) // 4096
    await until(lambda: path.counts.fetched_bytes == len(data))


async def test_a_changed_file_is_estale_and_nothing_of_it_is_cached(make_read_path) -> None:
    path = await make_read_path({b"f": noise(MIB)})
    handle = path.open(b"f")
    path.source.put(b"f", noise(MIB, seed=2))
    with pytest.raises(StaleVersion):
        await path.read(handle, 0, 4096)
    assert path.store.state(handle.version, handle.size_bytes) == "absent"
    assert path.counts.stale_reads == 1


async def test_no_answer_ends_in_the_read_timeout_and_a_later_read_succeeds(make_read_path) -> None:
    data = noise(MIB)
    path = await make_read_path({b"f": data}, read_timeout_s=0.3)
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    with pytest.raises(DeadlineExceeded, match=r"within the read timeout of 0\.3 s"):
        await path.read(handle, 0, 4096)
    assert path.reads.waiting == 0
    path.source.gate.set()
    assert await path.read(handle, 0, 4096) == data[:4096]


async def test_what_a_read_waited_with_another_worker_is_taken_off_its_read_timeout(make_read_path) -> None:
    path = await make_read_path({b"f": noise(MIB)}, read_timeout_s=20.0)
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    for waited_s, most_s in ((19.0, 1.4), (500.0, 1.4)):
        began_s = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"within the read timeout of 20 s"):
            await path.reads.read(handle, 0, 4096, 1, waited_s)
        assert 0.9 < time.monotonic() - began_s < most_s
        handle.gave_up = ()
    path.source.gate.set()
    assert len(await path.reads.read(handle, 0, 4096, 1, 500.0)) == 4096


async def test_cached_reads_go_on_while_every_fetch_is_stuck(make_read_path) -> None:
    data = noise(2 * MIB)
    path = await make_read_path({b"f": data, b"cold": noise(MIB, seed=3)})
    handle = path.open(b"f")
    await path.read(handle, 0, len(data))
    await path.fetcher.written()
    path.source.gate = asyncio.Event()
    stuck = [asyncio.create_task(path.read(path.open(b"cold"), number * 4096, 4096)) for number in range(200)]
    await until(lambda: path.reads.waiting == 200)
    assert await path.read(handle, MIB, 4096) == data[MIB : MIB + 4096]
    path.source.gate.set()
    await asyncio.gather(*stuck)


async def test_a_disk_error_at_the_hub_is_tried_again_and_then_told(make_read_path, monkeypatch) -> None:
    monkeypatch.setattr("common.limits.RETRY_FIRST_S", 0.01)
    data = noise(MIB)
    path = await make_read_path({b"f": data})
    handle = path.open(b"f")
    path.source.failure = SourceReadError("I/O error")
    reader = asyncio.create_task(path.read(handle, 0, 4096))
    await until(lambda: len(path.source.reads) >= 2)
    path.source.failure = None
    assert await reader == data[:4096]
    path.source.failure = SourceReadError("I/O error")
    with pytest.raises(SourceReadError, match="I/O error"):
        await path.read(handle, 512 * 1024, 4096)


async def test_a_bad_sector_at_the_hub_fails_only_who_reads_it(make_read_path, monkeypatch) -> None:
    """One request may cover what several readers want, and prefetch; the good blocks of it are kept."""
    monkeypatch.setattr("common.limits.RETRY_FIRST_S", 0.01)
    data = noise(MIB)
    path = await make_read_path({b"f": data})
    handle = path.open(b"f")
    honest = path.source.read_extent
    path.source.gate = asyncio.Event()

    async def failing(version: bytes, blocks: BlockRange) -> Extent:
        extent = await honest(version, blocks)
        if blocks.first_block <= 100 < blocks.end_block:
            raise SourceReadError("block 100 cannot be read")
        return extent

    monkeypatch.setattr(path.source, "read_extent", failing)
    path.fetcher.prefetch(handle.version, MIB, BlockRange(0, 256))
    readers = [asyncio.create_task(path.read(handle, block * BLOCK_BYTES, 8192)) for block in (0, 99, 100, 101, 254)]
    await until(lambda: path.reads.waiting == len(readers))
    path.source.gate.set()
    got = await asyncio.gather(*readers, return_exceptions=True)
    assert [type(answer) for answer in got] == [bytes, SourceReadError, SourceReadError, bytes, bytes]
    assert (got[0], got[3], got[4]) == (data[:8192], data[101 * 4096 : 103 * 4096], data[254 * 4096 :])
    assert await path.read(handle, 99 * BLOCK_BYTES, 4096) == data[99 * 4096 : 100 * 4096]
    await path.fetcher.written()
    assert path.fetcher.prefetch_outstanding_bytes == 0
    asked = len(path.source.reads)
    assert await path.read(handle, 254 * BLOCK_BYTES, 8192) == data[254 * 4096 :]
    assert len(path.source.reads) == asked


async def test_wrong_bytes_past_tcps_checksum_are_fetched_again_and_never_delivered(
    make_read_path, monkeypatch
) -> None:
    monkeypatch.setattr("common.limits.RETRY_FIRST_S", 0.01)
    data = noise(MIB)
    path = await make_read_path({b"f": data})
    handle = path.open(b"f")
    honest, lies = path.source.read_extent, [2, 10**9]

    async def lying(version: bytes, blocks: BlockRange) -> Extent:
        extent = await honest(version, blocks)
        if lies[0] > 0:
            lies[0] -= 1
            damaged = bytearray(extent.data)
            damaged[-1] ^= 1
            return extent._replace(data=damaged)
        return extent

    monkeypatch.setattr(path.source, "read_extent", lying)
    assert await path.read(handle, 0, 8192) == data[:8192]
    assert path.counts.corrupt_on_wire == 2
    lies[0] = lies[1]
    with pytest.raises(CorruptData):
        await path.read(handle, 65536, 8192)


async def test_requests_outlive_their_links(make_read_path) -> None:
    data = noise(8 * MIB)
    path = await make_read_path({b"f": data}, links=3)
    await until(lambda: len(path.client.links.up) == 4)
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    readers = [asyncio.create_task(path.read(handle, number * EXTENT_BYTES, EXTENT_BYTES)) for number in range(8)]
    await until(lambda: path.source.reads_open >= 1)
    for link in list(path.client.links.up):
        link._transport.abort()  # type: ignore[union-attr]
    path.source.gate.set()
    assert b"".join(await asyncio.gather(*readers)) == data
    await until(lambda: len(path.client.links.up) == 4)
    assert (path.feed.ups, path.feed.losses) == (2, 1)


async def test_prefetch_runs_ahead_of_a_sequential_reader(make_read_path) -> None:
    data = noise(24 * MIB + 100)
    path = await make_read_path({b"f": data}, prefetch=True)
    handle = path.open(b"f")
    path.reads._observer.opened(handle, 1)
    for offset in range(0, len(data), 131072):
        piece = path.reads.read_nowait(handle, offset, 131072, 1) or await path.read(handle, offset, 131072)
        assert bytes(piece) == data[offset : offset + 131072]
    assert path.counts.misses <= 4, "only the first reads ask for themselves"
    assert path.counts.fetched_bytes == len(data), "and nothing is fetched twice"
    used_bytes = path.reads._observer._planner.scorecard.used_bytes
    assert 20 * MIB < used_bytes <= path.counts.prefetch_asked_bytes, "both in whole blocks"


async def test_a_cache_that_cannot_write_costs_only_refetches(make_read_path, monkeypatch) -> None:
    from common.errors import CacheWriteError

    data = noise(4 * MIB)
    path = await make_read_path({b"f": data}, prefetch=True)

    async def full(*_args: object) -> None:
        raise CacheWriteError("no space left on device")

    monkeypatch.setattr(path.store, "write", full)
    handle = path.open(b"f")
    for offset in range(0, len(data), 65536):
        assert await path.read(handle, offset, 65536) == data[offset : offset + 65536]
    assert path.counts.fetched_bytes <= len(data) + MIB, "what the disk would not take is served from memory"


async def test_kept_memory_is_bounded_when_the_cache_cannot_write(make_read_path, monkeypatch) -> None:
    from common.errors import CacheWriteError

    monkeypatch.setattr("common.limits.BYPASS_MEMORY_BYTES", 2 * MIB)
    data = noise(8 * MIB)
    path = await make_read_path({b"f": data})

    async def full(*_args: object) -> None:
        raise CacheWriteError("no space left on device")

    monkeypatch.setattr(path.store, "write", full)
    handle = path.open(b"f")
    for offset in range(0, len(data), MIB):
        assert await path.read(handle, offset, MIB) == data[offset : offset + MIB]
    await path.fetcher.written()
    assert path.fetcher._kept_bytes <= 2 * MIB
    assert len(path.fetcher._flights) <= 2


async def test_a_cache_smaller_than_the_file_still_makes_progress(make_read_path) -> None:
    data = noise(48 * MIB)
    path = await make_read_path({b"f": data}, prefetch=True, capacity_bytes=16 << 20, stream_max_bytes=2 << 20)
    handle = path.open(b"f")
    path.reads._observer.opened(handle, 1)
    for sweep in (1, 2):
        for offset in range(0, len(data), MIB):
            assert await path.read(handle, offset, MIB) == data[offset : offset + MIB]
        assert path.counts.fetched_bytes <= 1.1 * sweep * len(data), (
            "what is fetched ahead is read before it is evicted"
        )
    assert path.store.usage().used_bytes <= path.store.usage().capacity_bytes


async def test_an_unforeseen_answer_reaches_the_reader_as_an_error(make_read_path) -> None:
    path = await make_read_path({b"f": noise(MIB)})
    path.source.failure = ZeroDivisionError("a bug at the hub")
    with pytest.raises(HeadraceError, match="internal error"):
        await path.read(path.open(b"f"), 0, 4096)


async def test_readers_of_one_open_file_whom_the_kernel_asks_for_again_wait_one_read_timeout_each(
    make_read_path,
) -> None:
    path = await make_read_path({b"f": noise(4 * MIB)}, read_timeout_s=2.0)
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    began_s = asyncio.get_running_loop().time()

    async def read(number: int) -> None:
        for size_bytes in (32768, 4096):  # readahead fails, and the kernel asks for the first page alone
            with pytest.raises(DeadlineExceeded):
                await path.read(handle, number * MIB, size_bytes)

    await asyncio.gather(*(read(number) for number in range(4)))
    assert asyncio.get_running_loop().time() - began_s < 2.0 + 1.0 + 0.7


class UsedUp:
    """An order that will not use anything again."""

    steps_taken = 0

    def knows(self, version: bytes) -> bool:
        return True

    def next_use(self, version: bytes, blocks: BlockRange) -> int:
        return NEVER

    def uses(self, version: bytes, extent: int) -> list[Use]:
        return parts_of(extent, [])

    def take_used(self) -> None:
        return None


async def test_what_was_used_for_the_last_time_is_served_and_not_written_to_a_full_cache(make_read_path) -> None:
    data, warmed = noise(24 * MIB), noise(2 * MIB, seed=2)
    path = await make_read_path({b"f": data, b"warmed": warmed}, capacity_bytes=16 * MIB)
    path.store.foresee(UsedUp())
    handle = path.open(b"f")
    for offset in range(0, len(data), MIB):
        assert await path.read(handle, offset, MIB) == data[offset : offset + MIB]
        await path.fetcher.written()
    assert 14 * MIB < path.store.present_bytes(handle.version, len(data)) <= 16 * MIB
    assert path.store.missing(handle.version, len(data), BlockRange(0, 14 * 256)) == [], (
        "what came first is still there"
    )
    assert path.store.usage().write_errors_total == 0
    # What is fetched to be kept is written all the same.
    other = path.open(b"warmed")
    path.fetcher.prefetch(other.version, len(warmed), BlockRange(0, 512))
    await until(lambda: path.store.state(other.version, len(warmed)) == "verified")


async def test_reads_that_wait_at_the_same_time_run_into_the_read_timeout_each_at_its_own(make_read_path) -> None:
    data = noise(2 * MIB)
    path = await make_read_path({b"f": data}, read_timeout_s=0.4)
    path.source.gate = asyncio.Event()
    handle = path.open(b"f")
    path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 512))
    loop = asyncio.get_running_loop()
    ended_s: dict[int, float] = {}

    async def read(number: int) -> None:
        try:
            await path.read(handle, number * 131072, 131072)
        finally:
            ended_s[number] = loop.time()

    began_s = loop.time()
    first = [asyncio.create_task(read(number)) for number in range(8)]
    await asyncio.sleep(0.15)
    second = [asyncio.create_task(read(number)) for number in range(8, 12)]
    await until(lambda: path.reads.waiting == 12)
    first[3].cancel()
    seen = await asyncio.gather(*first, *second, return_exceptions=True)
    assert [type(error) for error in seen] == [
        asyncio.CancelledError if number == 3 else DeadlineExceeded for number in range(12)
    ]
    assert ended_s[3] - began_s < 0.39
    assert all(0.39 <= ended_s[number] - began_s < 0.54 for number in range(8) if number != 3)
    assert all(ended_s[number] - began_s >= 0.54 for number in range(8, 12))
    assert path.reads.long_waits.timeouts_total == 11
    assert (path.reads.waiting, path.reads.admission.inside_bytes) == (0, 0)
    path.source.gate.set()
    assert await path.read(handle, 0, 4096) == data[:4096]


async def test_what_landed_and_waits_for_a_slow_disk_is_served_at_once(make_read_path, monkeypatch) -> None:
    data = noise(4 * MIB)
    path = await make_read_path({b"f": data})
    disk = asyncio.Event()
    write_run = path.store.write_run

    async def slow(*arguments: object) -> None:
        await disk.wait()
        await write_run(*arguments)

    monkeypatch.setattr(path.store, "write_run", slow)
    handle = path.open(b"f")
    path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 1024))
    await until(lambda: path.counts.fetched_bytes == len(data))
    path.fetcher.recent.forget()
    for offset in range(0, len(data), 131072):
        assert bytes(path.reads.read_nowait(handle, offset, 131072, 1) or b"") == data[offset : offset + 131072]
    assert bytes(path.reads.read_nowait(handle, MIB + 5, 10, 1) or b"") == data[MIB + 5 : MIB + 15]
    assert path.reads.read_nowait(handle, MIB - 5, 10, 1) is None, "of two pieces: put together where it may wait"
    assert await path.read(handle, MIB - 5, 10) == data[MIB - 5 : MIB + 5]
    assert path.counts.hits == 34
    assert (path.counts.late, path.counts.misses) == (0, 0)
    disk.set()
    await path.fetcher.written()
    assert path.fetcher.find_landed(handle.version, 0, 4096) is None, "the cache has it"
    assert bytes(path.reads.read_nowait(handle, 0, 131072, 1) or b"") == data[:131072]


async def test_what_waited_for_the_disk_makes_no_more_room_at_once_than_a_part_of_a_small_cache(
    make_read_path, monkeypatch
) -> None:
    """In one go for a run as large as the cache all went, and then the run did not fit: a cyclic scan found nothing there, ever."""
    data = noise(48 * MIB)
    path = await make_read_path({b"f": data}, capacity_bytes=32 * MIB)
    landed, written_mib = asyncio.Event(), []
    write_run = path.store.write_run

    async def late(version: bytes, size_bytes: int, first_block: int, pieces: Sequence[bytes], digests: bytes) -> None:
        await landed.wait()
        written_mib.append(sum(map(len, pieces)) // MIB)
        await write_run(version, size_bytes, first_block, pieces, digests)

    monkeypatch.setattr(path.store, "write_run", late)
    handle = path.open(b"f")
    path.fetcher.prefetch(handle.version, len(data), BlockRange(0, 48 * 256))
    await until(lambda: path.counts.fetched_bytes == len(data))
    landed.set()
    await path.fetcher.written()
    assert max(written_mib) == 2
    assert path.store.usage().write_errors_total == 0
    assert path.store.usage().used_bytes > 30 * MIB


async def test_nothing_keeps_the_memory_of_what_was_written(make_read_path) -> None:
    def in_use_bytes() -> int:
        return len(EXTENT_BUFFERS) * EXTENT_BYTES - EXTENT_BUFFERS.idle_bytes

    path = await make_read_path({b"f": bytes(8 * MIB)})
    handle = path.open(b"f")
    before_bytes = in_use_bytes()
    path.fetcher.prefetch(handle.version, handle.size_bytes, BlockRange(0, 2048))
    await until(lambda: path.counts.fetched_bytes == 8 * MIB)
    assert in_use_bytes() == before_bytes + 8 * MIB
    await path.fetcher.written()
    path.fetcher.recent.forget()
    await until(lambda: in_use_bytes() == before_bytes)
