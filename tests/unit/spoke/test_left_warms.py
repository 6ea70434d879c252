"""Warms left to the spoke: known to the next worker until they end, and not for ever."""

from __future__ import annotations

from pathlib import Path

from common import limits
from spoke.left_warms import LeftWarms

A, B = {"paths": ["61"], "wait": False}, {"paths": [], "last": True, "wait": False}


async def test_what_did_not_end_is_known_to_the_next_worker(tmp_path: Path) -> None:
    path = tmp_path / "warms.json"
    first = LeftWarms(path)
    assert await first.load() == []
    number = await first.add(A)
    await first.add(B)
    await first.done(number)
    again = LeftWarms(path)
    ((number, request),) = await again.load()
    assert request == B
    await again.done(number)
    assert not path.exists()
    await again.add(A)
    await LeftWarms(path).forget()  # of a start that failed
    assert path.exists()
    await again.forget()
    assert await LeftWarms(path).load() == []


async def test_one_that_ends_its_workers_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "warms.json"
    await LeftWarms(path).add(A)
    for _ in range(limits.WARM_TRIES - 1):
        assert [request for _, request in await LeftWarms(path).load()] == [A]
    assert await LeftWarms(path).load() == []
    assert not path.exists()


async def test_what_cannot_be_read_or_kept_stops_nobody(tmp_path: Path) -> None:
    path = tmp_path / "warms.json"
    for text in ("{", "[]", '{"format": 1}', '{"format": 1, "warms": [{"request": 5, "begun": 1}]}', "\xff"):
        path.write_text(text)
        assert await LeftWarms(path).load() == []
    absent = LeftWarms(tmp_path / "absent" / "warms.json")
    await absent.done(await absent.add(A))
