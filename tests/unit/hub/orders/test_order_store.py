"""Kept orders on disk: once each, dropped for good by an operator, beside other processes, damaged, full, of a later release."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from common.errors import DiskError, OrderError, OrderTooNew
from common.order_report import PackedReport, pack, sketch
from hub.orders.store import OrderStore, datasets_with_orders, orders_path
from tests.property.test_order_report_properties import drifted, report_of, shuffled

ONE, OTHER = shuffled(1, 500), shuffled(2, 500)


class Rig:
    def __init__(self, directory: Path) -> None:
        self.path = orders_path(directory, "corpus/a")
        self.store = OrderStore(self.path)
        self.now_s = 100.0

    def take(self, records: list[int], teller: str = "gpu-1", *, followed: bool = False) -> tuple[PackedReport, str]:
        report = report_of(records)
        packed = pack(report)
        self.now_s += 1
        taken = self.store.take(packed.digest, packed.data, 7, sketch(report), teller, followed, self.now_s)
        return packed, taken


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_is_kept_is_read_back_piece_by_piece_also_after_a_restart(rig: Rig, tmp_path: Path) -> None:
    packed, taken = rig.take(ONE)
    assert taken == "kept"
    rig.store.close()
    store = OrderStore(rig.path)
    total_bytes, piece = store.read(packed.digest, 0, 100)
    assert (total_bytes, piece) == (len(packed.data), packed.data[:100])
    assert store.read(packed.digest, 100, 1 << 20) == (total_bytes, packed.data[100:])
    assert store.read(packed.digest, 1 << 30, 100) == (total_bytes, b"")
    with pytest.raises(OrderError, match="any more"):
        store.read(bytes(16), 0, 100)
    (row,) = store.rows()
    assert (row.steps, row.files, row.teller, row.tellers, row.followed) == (500, 7, "gpu-1", 1, False)
    assert datasets_with_orders(tmp_path) == ["corpus/a"]
    assert rig.path.stat().st_mode & 0o077 == 0


def test_the_same_order_from_64_spokes_is_kept_once_by_digest_and_by_what_it_says(rig: Rig) -> None:
    from random import Random

    packed, _ = rig.take(ONE)
    for number in range(2, 40):
        assert rig.store.tell(packed.digest, f"gpu-{number}", False, 200.0)
    for number in range(40, 70):
        other, taken = rig.take(drifted(ONE, Random(number), 4, 8), f"gpu-{number}")
        assert taken == "same"
        assert rig.store.tell(other.digest, f"gpu-{number}", False, 201.0), "it need not be sent again"
    (row,) = rig.store.rows()
    assert (row.digest, row.tellers, row.is_proven) == (packed.digest, 64, True)
    assert rig.take(OTHER)[1] == "kept"


def test_what_an_operator_dropped_is_not_taken_again_and_what_was_forgotten_is(rig: Rig) -> None:
    from random import Random

    packed, _ = rig.take(ONE)
    other, _ = rig.take(OTHER)
    beside = OrderStore(rig.path)  # the command, while the hub runs
    beside.drop([packed.digest], 300.0)
    beside.close()
    assert [row.digest for row in rig.store.rows()] == [other.digest]
    assert rig.store.tell(packed.digest, "gpu-1", False, 301.0), "the spoke need not send it"
    assert rig.take(drifted(ONE, Random(1), 4, 8))[1] == "dropped"
    rig.store.forget([other.digest])
    assert not rig.store.tell(other.digest, "gpu-1", False, 302.0)
    assert rig.take(OTHER)[1] == "kept"


def test_a_damaged_file_is_moved_aside_and_one_of_a_later_release_is_left(rig: Rig) -> None:
    rig.take(ONE)
    rig.store.close()
    for suffix in ("-wal", "-shm"):
        rig.path.with_name(rig.path.name + suffix).unlink(missing_ok=True)
    rig.path.write_bytes(b"no database" * 1000)
    store = OrderStore(rig.path)
    assert store.rows() == []
    assert rig.path.with_name(rig.path.name + ".broken").read_bytes().startswith(b"no database")
    store.close()
    database = sqlite3.connect(rig.path)
    database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(OrderTooNew, match="later release"):
        OrderStore(rig.path)
    assert rig.path.exists()


def test_a_full_disk_is_an_error_and_nothing_is_half_kept(rig: Rig) -> None:
    rig.take(ONE)
    rig.store._database.execute("PRAGMA max_page_count = 5")
    with pytest.raises(DiskError, match="full"):
        rig.take(shuffled(3, 50_000))
    assert len(rig.store.rows()) == 1
    rig.store._database.execute("PRAGMA max_page_count = 100000")
    assert rig.take(OTHER)[1] == "kept"
