"""The bytes of a report are fixed: what one release tells the hub the next one reads, and the digest is the same for ever."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

from common.order_report import OrderReport, ReportedFile, pack, unpack

GOLDEN = Path(__file__).parent / "orders" / "report-v1.hex"
DIGEST = bytes.fromhex("8c2450461d888b845a0736206365a6c3")
REPORT = OrderReport(
    [
        ReportedFile(bytes(range(16, 32)), 1 << 40, b"shards/b"),
        ReportedFile(bytes(range(16)), 5000, "shards/\N{LATIN SMALL LETTER A WITH DIAERESIS}".encode()),
    ],
    array("I", [0, 1, 0, 1]),
    array("Q", [(1 << 39) + 8192, 4999, 0, 10]),
    array("I", [4096, 1, 1 << 20, 20]),
)


def test_what_is_read() -> None:
    if not GOLDEN.exists() and os.environ.get("HEADRACE_GOLDEN_WRITE") == "1":
        GOLDEN.write_text(pack(REPORT).data.hex("\n", 32) + "\n")
    assert unpack(bytes.fromhex(GOLDEN.read_text()), DIGEST) == REPORT


def test_the_digest_is_of_the_content_and_not_of_how_it_was_packed() -> None:
    assert pack(REPORT).digest == DIGEST
