"""An order beside the cache is followed by a real spoke: a reader is found by its READs, served ahead of them, and shown."""

from __future__ import annotations

import json
import os
from random import Random

import pytest
from pair import Pair

from spoke.orders.writer import OrderWriter
from spoke.prefetch.orders import FileFacts, Reason, Step

pytestmark = pytest.mark.mount

MIB = 1024 * 1024
ROW = 16 * 1024
READS = 600


def test_a_reader_of_one_lane_is_found_and_served_ahead(pair: Pair) -> None:
    contents = [Random(number).randbytes(16 * MIB) for number in range(3)]
    for number, content in enumerate(contents):
        (pair.data / f"rows-{number}").write_bytes(content)
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    files = [
        FileFacts(
            b"rows-%d" % number,
            bytes.fromhex(os.getxattr(spoke.mountpoint / f"rows-{number}", "user.headrace.version").decode()),
            16 * MIB,
        )
        for number in range(3)
    ]
    assert spoke.terminate() == 0
    rows = [Step(number, offset_bytes, ROW) for number in range(3) for offset_bytes in range(0, 16 * MIB, ROW)]
    Random(7).shuffle(rows)
    lanes = [rows[0::2], rows[1::2]]
    orders = pair.work_dir / "cache" / "orders"
    with OrderWriter(orders / "rows.order", name="rows", reason=Reason.RECIPE, files=files, lane_count=2) as writer:
        for lane, steps in enumerate(lanes):
            for step in steps:
                writer.add(lane, *step)
        writer.finish()
    (orders / "damaged.order").write_bytes(b"no order")

    spoke = pair.spoke(hub.address)
    assert [order["state"] for order in spoke.facts()["orders"]] == ["waiting"]
    opened = [os.open(spoke.mountpoint / f"rows-{number}", os.O_RDONLY) for number in range(3)]
    try:
        for fd in opened:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for file, offset_bytes, length_bytes in lanes[1][100 : 100 + READS]:
            got = os.pread(opened[file], length_bytes, offset_bytes)
            assert got == contents[file][offset_bytes : offset_bytes + length_bytes]
    finally:
        for fd in opened:
            os.close(fd)
    facts = spoke.facts()
    (order,) = facts["orders"]
    assert (order["name"], order["reason"], order["lane_count"]) == ("rows", "recipe", 2)
    assert [entry["lane"] for entry in order["lanes"]] == [1]
    assert abs(order["lanes"][0]["position"] - 100 - READS) <= 2
    assert order["used_bytes"] >= 0.9 * READS * ROW
    assert facts["reads"]["miss"] <= 0.05 * READS
    log = [json.loads(line) for line in spoke.log().splitlines()]
    assert any("given up" in line["event"] and "damaged" in line["path"] for line in log)
