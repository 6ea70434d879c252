"""What is wanted in the order of its place."""

from __future__ import annotations

import heapq

from spoke.hub_client.place_order import PlaceOrder

A, B = b"a" * 16, b"b" * 16


class Queue:
    def __init__(self) -> None:
        self.places = PlaceOrder()
        self.heap: list[tuple[int, int, bytes, int]] = []
        self.asked = 0

    def ask(self, version: bytes, *blocks: int) -> None:
        for block in blocks:
            self.asked += 1
            heapq.heappush(self.heap, (self.places.enter(version, block), self.asked, version, block))

    def take(self, count: int) -> list[tuple[bytes, int]]:
        taken = []
        for _ in range(count):
            key, _, version, block = heapq.heappop(self.heap)
            self.places.leave(version, key)
            taken.append((version, block))
        return taken


def test_what_lies_before_is_next_though_it_was_asked_for_last() -> None:
    queue = Queue()
    queue.ask(A, 300, 400, 500)
    assert queue.take(1) == [(A, 300)]
    queue.ask(A, 450, 100)
    assert queue.take(4) == [(A, 100), (A, 400), (A, 450), (A, 500)]


def test_files_take_turns_wherever_they_are_read() -> None:
    queue = Queue()
    queue.ask(A, *range(1_000_000, 1_001_000, 100))
    queue.take(2)
    queue.ask(B, *range(0, 1000, 100))
    taken = queue.take(8)
    assert [version for version, _ in taken].count(A) in (3, 4, 5)
    queue.take(10)
    queue.ask(A, 0, 100)  # anew from its beginning, beside the other's end: nobody owes anything
    queue.ask(B, 10_000, 10_100)
    assert {version for version, _ in queue.take(2)} == {A, B}


def test_nothing_is_kept_of_files_that_wait_no_more() -> None:
    queue = Queue()
    for number in range(100):
        queue.ask(number.to_bytes(16, "big"), number)
    queue.take(100)
    assert not queue.places._files
