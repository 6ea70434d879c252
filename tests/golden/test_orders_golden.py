"""The order file's bytes are fixed: an order made by one release is followed by the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from common import limits
from spoke.orders.layout import HEADER_BYTES
from spoke.orders.mapped import open_order
from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import FileFacts, Reason, Step

GOLDEN = Path(__file__).parent / "orders" / "order-v1.hex"
FILES = [
    FileFacts(b"shards/b", bytes(range(16, 32)), 1 << 20),
    FileFacts("shards/\N{LATIN SMALL LETTER A WITH DIAERESIS}".encode(), bytes(range(16)), 5000),
    FileFacts(b"link to b", bytes(range(16, 32)), 1 << 20),
]
STEPS = [(0, 0, 8192, 4096), (1, 1, 4999, 1), (0, 2, 0, 1 << 20), (0, 1, 10, 20), (1, 0, 500_000, 131_072)]


def write(path: Path) -> None:
    with OrderWriter(
        path, name="golden: seed=1", reason=Reason.LEARNED, files=FILES, lane_count=3, meta={"made by": "a test"}
    ) as writer:
        for step in STEPS:
            writer.add(*step)
        writer.finish()


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ORDER_SEGMENT_STEPS", 3)
    write(tmp_path / "o")
    written = (tmp_path / "o").read_bytes()
    golden = bytes.fromhex(GOLDEN.read_text())
    assert written[:88] == golden[:88]
    assert written[88:HEADER_BYTES] == bytes(HEADER_BYTES - 88)
    assert written[HEADER_BYTES:] == golden[88:]
    assert [path.name for path in tmp_path.iterdir()] == ["o"]


def test_what_is_read(tmp_path: Path) -> None:
    golden = bytes.fromhex(GOLDEN.read_text())
    (tmp_path / "o").write_bytes(golden[:88].ljust(HEADER_BYTES, b"\0") + golden[88:])
    order = open_order(tmp_path / "o")
    assert (order.name, order.reason, order.meta) == ("golden: seed=1", Reason.LEARNED, {"made by": "a test"})
    assert list(order.files) == FILES
    assert [order.length(lane) for lane in range(3)] == [3, 2, 0]
    assert [order.step(0, at) for at in range(3)] == [Step(0, 8192, 4096), Step(0, 0, 1 << 20), Step(1, 10, 20)]
    assert [order.step(1, at) for at in range(2)] == [Step(1, 4999, 1), Step(0, 500_000, 131_072)]
    assert order.file_of(FILES[2].version) == 0
