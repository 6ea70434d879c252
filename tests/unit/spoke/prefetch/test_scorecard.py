"""The scorecard's accounts: every prefetched block is used, wasted, or still unread."""

from __future__ import annotations

import pytest

from common.blocks import BLOCK_BYTES, BlockRange
from spoke.prefetch.planner import FileFacts, Planner, ReadSeen
from spoke.prefetch.scorecard import Ledger, Reason, ReasonScore, Scorecard

VERSION = b"v" * 16


@pytest.fixture
def score() -> Scorecard:
    return Scorecard()


@pytest.fixture
def ledger(score: Scorecard) -> Ledger:
    return Ledger(score)


def blocks(first: int, count: int) -> BlockRange:
    return BlockRange(first, count)


def test_what_is_on_its_way_is_not_planned_again(ledger: Ledger) -> None:
    assert ledger.plan(0.0, VERSION, blocks(250, 10), Reason.SEQUENTIAL) == [blocks(250, 10)]
    assert ledger.plan(0.0, VERSION, blocks(240, 30), Reason.SEQUENTIAL) == [blocks(240, 10), blocks(260, 10)]
    ledger.arrived(1.0, VERSION, blocks(252, 2))
    assert ledger.plan(2.0, VERSION, blocks(240, 30), Reason.SEQUENTIAL) == [blocks(252, 2)]
    ledger.failed(VERSION, blocks(0, 1000))
    assert ledger.plan(2.0, VERSION, blocks(240, 30), Reason.SEQUENTIAL) == [blocks(240, 30)]
    assert ledger.plan(2.0, b"w" * 16, blocks(240, 30), Reason.SEQUENTIAL) == [blocks(240, 30)]


def test_read_after_arrival_is_used_with_its_lead(ledger: Ledger, score: Scorecard) -> None:
    ledger.plan(0.0, VERSION, blocks(0, 8), Reason.SEQUENTIAL)
    assert ledger.arrived(1.0, VERSION, blocks(0, 8)) == 1.0
    ledger.read(3.5, VERSION, blocks(0, 4), late=False)
    ledger.read(3.5, VERSION, blocks(0, 4), late=False)
    assert score.reasons[Reason.SEQUENTIAL] == ReasonScore(
        planned_bytes=8 * BLOCK_BYTES,
        arrived_bytes=8 * BLOCK_BYTES,
        used_bytes=4 * BLOCK_BYTES,
        lead_s_total=2.5,
        leads=1,
    )
    assert ledger.evicted(VERSION, blocks(0, 256)) == {Reason.SEQUENTIAL: 4 * BLOCK_BYTES}
    assert ledger.evicted(VERSION, blocks(0, 256)) == {}
    assert (score.used_bytes, score.wasted_bytes) == (4 * BLOCK_BYTES, 4 * BLOCK_BYTES)
    assert len(ledger) == 0


def test_a_late_reader_uses_what_it_waits_for(ledger: Ledger, score: Scorecard) -> None:
    ledger.plan(0.0, VERSION, blocks(0, 8), Reason.NEXT_FILE)
    ledger.read(0.5, VERSION, blocks(0, 3), late=True)
    assert ledger.plan(0.6, VERSION, blocks(0, 8), Reason.NEXT_FILE) == []
    ledger.arrived(1.0, VERSION, blocks(0, 8))
    ledger.evicted(VERSION, blocks(0, 8))
    assert (score.used_bytes, score.wasted_bytes) == (3 * BLOCK_BYTES, 5 * BLOCK_BYTES)


def test_what_was_there_all_along_counts_for_nothing(ledger: Ledger, score: Scorecard) -> None:
    ledger.plan(0.0, VERSION, blocks(0, 8), Reason.SEQUENTIAL)
    ledger.read(0.5, VERSION, blocks(0, 8), late=False)
    assert len(ledger) == 0
    assert (score.used_bytes, score.wasted_bytes) == (0, 0)
    assert ledger.arrived(1.0, VERSION, blocks(0, 8)) is None, "a demand read's own arrival"


def test_reads_are_counted_as_the_read_path_judged_them() -> None:
    planner = Planner()
    planner.opened(0.0, 1, FileFacts(b"f", VERSION, 1 << 30), 1)
    for number, result in enumerate(("miss", "late", "hit", "hit")):
        planner.read(0.0, ReadSeen(1, 1, VERSION, number * 4096, 4096, result))  # type: ignore[arg-type]
    card = planner.scorecard
    assert (card.misses, card.late, card.hits, card.read_bytes) == (1, 1, 2, 4 * 4096)
