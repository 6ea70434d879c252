"""One timer for all that is due after the same time."""

from __future__ import annotations

import asyncio

from spoke.due_once import DueOnce


async def test_each_is_fired_once_at_its_own_time_and_those_dropped_never() -> None:
    loop = asyncio.get_running_loop()
    fired: list[tuple[str, float]] = []
    done = asyncio.Event()

    def fire(item: str) -> None:
        fired.append((item, loop.time()))
        if item == "last":
            done.set()

    due = DueOnce(0.1, fire)
    began_s = loop.time()
    for item in ("dropped first", "first", "dropped later", "second"):
        due.add(item)
    due.drop("dropped first")
    loop.call_later(0.03, due.add, "late")
    loop.call_later(0.05, due.drop, "dropped later")
    loop.call_later(0.06, due.add, "last")
    await asyncio.wait_for(done.wait(), 10)
    due.drop("first")  # long gone
    assert [item for item, _ in fired] == ["first", "second", "late", "last"]
    waited_s = [at_s - began_s for _, at_s in fired]
    assert all(at_s >= least_s for at_s, least_s in zip(waited_s, (0.099, 0.099, 0.129, 0.159), strict=True)), waited_s


async def test_one_that_is_added_while_another_is_fired_comes_after_it() -> None:
    fired: list[int] = []
    done = asyncio.Event()

    def fire(item: int) -> None:
        fired.append(item)
        if item < 3:
            due.add(item + 1)
        else:
            done.set()

    due = DueOnce(0.01, fire)
    due.add(1)
    await asyncio.wait_for(done.wait(), 10)
    assert fired == [1, 2, 3]


async def test_when_all_were_dropped_nothing_fires_and_the_next_one_does() -> None:
    fired: list[str] = []
    due: DueOnce[str] = DueOnce(0.02, fired.append)
    due.add("dropped")
    due.drop("dropped")
    await asyncio.sleep(0.05)
    assert fired == []
    due.add("kept")
    while not fired:
        await asyncio.sleep(0.005)
    assert fired == ["kept"]
