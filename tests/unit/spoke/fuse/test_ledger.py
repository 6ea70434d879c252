"""What the next worker knows of the one before: all that the kernel was told, and nothing wrong, whenever that one was killed."""

from __future__ import annotations

import os
import time

import pytest

from common import limits
from spoke.fuse import ledger as module
from spoke.fuse.kernel import Negotiated
from spoke.fuse.ledger import Ledger, LedgerUnusable


def again(ledger: Ledger) -> Ledger:
    """As the next worker finds it."""
    return Ledger.adopt(os.dup(ledger.fd))


def test_numbers_terms_and_identity_come_back() -> None:
    ledger = Ledger.create({"mountpoint": "/mnt/ä", "minor": 7})
    assert ledger.terms is None
    terms = Negotiated(45, (1 << 39) | 5, 131072, 1024)
    ledger.agree(terms)
    slot = ledger.add_node(1024, 17, b"dir/\xff\n", b"packed")
    ledger.set_lookups(slot, 3)
    ledger.giving_out(2)
    ledger.add_handle(1, 1024, 99 << 1, 0)
    ledger.add_handle(2, 1024, 7, 12)
    other = again(ledger)
    assert other.identity() == {"mountpoint": "/mnt/ä", "minor": 7}
    assert other.terms == terms
    nodes, handles = other.records()
    assert [(n.node_id, n.serial, n.lookups, n.path, n.packed) for n in nodes] == [
        (1024, 17, 3, b"dir/\xff\n", b"packed")
    ]
    assert [(h.handle_id, h.node_id, h.unique, h.backing_id) for h in handles] == [(1, 1024, 198, 0), (2, 1024, 7, 12)]
    assert other.node_ids_from(1024) > 1024
    assert other.handle_ids_from(1) > 2


def test_a_dropped_number_is_forgotten_and_its_memory_given_back() -> None:
    ledger = Ledger.create({})
    slots = [ledger.add_node(number, number, b"p" * 200, b"e" * 40) for number in range(1024, 1024 + 20_000)]
    full_bytes = ledger.used_bytes
    assert full_bytes > 5 * limits.FUSE_LEDGER_SEGMENT_BYTES
    moved: dict[int, int] = {}
    ledger.moved = lambda is_handle, number, slot: moved.__setitem__(number, slot)
    for number, slot in enumerate(slots, 1024):
        if number % 50:
            ledger.drop(moved.get(number, slot))
    assert ledger.used_bytes <= 6 * limits.FUSE_LEDGER_SEGMENT_BYTES
    assert {node.node_id for node in again(ledger).records()[0]} == set(range(1050, 1024 + 20_000, 50))
    blocks = os.fstat(ledger.fd).st_blocks * 512
    assert blocks <= ledger.used_bytes


def test_a_torn_record_is_nothing_and_the_next_one_is_whole() -> None:
    ledger = Ledger.create({})
    ledger.add_node(1024, 1, b"a", b"e")
    segment = ledger._segments[0]
    torn_at = segment.used_bytes
    segment.memory[torn_at + 8 : torn_at + 508] = b"\x30" * 500  # killed before the length was stored
    other = again(ledger)
    other.add_node(1025, 2, b"b", b"e")
    assert [node.path for node in again(other).records()[0]] == [b"a", b"b"]


def test_a_record_that_was_being_moved_counts_once() -> None:
    ledger = Ledger.create({})
    ledger.set_lookups(ledger.add_node(1024, 1, b"a", b"e"), 2)
    ledger.set_lookups(ledger.add_node(1024, 1, b"a", b"e"), 2)
    other = again(ledger)
    nodes, _ = other.records()
    assert [node.lookups for node in nodes] == [2]
    other.drop(nodes[0].slot)
    assert again(other).records() == ([], [])


def test_requests_in_hand_are_known_also_the_one_just_read() -> None:
    ledger = Ledger.create({})
    slots = [ledger.began(unique) for unique in (10, 12, 14)]
    ledger.ended(slots[1])
    ledger.request_buffer[8:16] = (16).to_bytes(8, "little")
    other = again(ledger)
    left = other.left_in_hand()
    assert list(left) == [10, 14, 16]
    assert other.left_in_hand() == {}
    now_s = time.monotonic()
    assert left[16] == 0.0, "it was not noted when this one came"
    assert now_s - 1.0 < left[10] <= now_s
    other.began(10, now_s - 70.0)
    assert again(other).left_in_hand()[10] == pytest.approx(now_s - 70.0, abs=0.2), "handed on from worker to worker"
    many = [ledger.began(2) for _ in range(limits.FUSE_REQUESTS_IN_HAND_MAX + 1)]
    assert many[-1] == -1
    ledger.ended(-1)


def test_a_time_is_not_taken_for_that_of_a_request_noted_by_a_worker_that_writes_no_times() -> None:
    ledger = Ledger.create({})
    slots = [ledger.began(unique, time.monotonic() - 70.0) for unique in (10, 12)]
    ledger.ended(slots[0])
    ledger._in_hand[slots[0]] = 20  # as such a worker does
    other = again(ledger)
    assert other.left_in_hand()[20] == 0.0
    other._in_hand[slots[1]] = 22
    assert again(other).left_in_hand()[22] == 0.0


def test_what_is_no_ledger_is_refused() -> None:
    fd = os.memfd_create("x")
    with pytest.raises(LedgerUnusable, match="0 bytes"):
        Ledger.adopt(fd)
    os.ftruncate(fd, module._FIXED_BYTES)
    with pytest.raises(LedgerUnusable, match="version"):
        Ledger.adopt(fd)
    os.close(fd)
    with pytest.raises(LedgerUnusable, match="more than"):
        Ledger.create({"mountpoint": "x" * 4096})
