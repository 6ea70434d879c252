"""What a warm names becomes block runs of file versions, cut at the files' ends; what is not there, or not the same, is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import limits
from common.blocks import BlockRange
from common.entries import Change, Entry, Kind
from common.errors import UsageError
from spoke.namespace.tree import Tree
from spoke.orders.growing import GrowingOrder
from spoke.prefetch.orders import FileFacts, Reason
from spoke.selection import Runs, Selection, below, read_plan

SIZE = 100_000  # 25 blocks, the last one short


def version(number: int) -> bytes:
    return bytes([number]) * 16


def tree() -> Tree:
    made = Tree()
    made.apply(Change(1, b"d", Entry(Kind.DIRECTORY, 0o755, 0, 0, b"")))
    for number, path in enumerate((b"d/a", b"d/b", b"c"), 1):
        made.apply(Change(1 + number, path, Entry(Kind.FILE, 0o644, SIZE, 0, version(number))))
    made.apply(Change(5, b"empty", Entry(Kind.FILE, 0o644, 0, 0, version(9))))
    return made


def order_of(*files: tuple[bytes, bytes]) -> GrowingOrder:
    order = GrowingOrder("o", Reason.RECIPE)
    for path, named in files:
        order.append(0, order.add_file(FileFacts(path, named, SIZE)), 5000, 100)
        order.append(1, order.add_file(FileFacts(path, named, SIZE)), 90_000, 10_000)
    return order


def lines(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_paths_name_whole_files() -> None:
    selection = Selection()
    selection.add_paths(tree(), [b"d/", b"d/a", b"empty"])
    assert {found: wanted.runs for found, wanted in selection.files.items()} == {
        version(1): [BlockRange(0, 25)], version(2): [BlockRange(0, 25)], version(9): [],
    }  # fmt: skip
    assert selection.total_bytes == 2 * SIZE
    with pytest.raises(UsageError, match="'x' is not in the dataset"):
        selection.add_paths(tree(), [b"x"])


async def test_a_plan_file_names_ranges_and_a_whole_file_beside_it_wins(tmp_path: Path) -> None:
    plan = lines(tmp_path / "p", "\ufeff# a job\r\nd/a 0 10\r\n/m/d/a 8000 200\nd/b 99000 5000\nc 4096 4096\n")
    selection = Selection()
    await selection.add_ranges(tree(), read_plan(plan, "/m", 0), "p")
    assert [wanted.runs for wanted in selection.files.values()] == [
        [BlockRange(0, 3)], [BlockRange(24, 1)], [BlockRange(1, 1)],
    ]  # fmt: skip
    assert selection.total_bytes == 3 * 4096 + SIZE - 24 * 4096 + 4096
    assert selection.pin_paths == [b"d/a", b"d/b", b"c"]
    selection.add_paths(tree(), [b"c"])
    assert selection.files[version(3)].runs == [BlockRange(0, 25)]


async def test_around_widens_both_ways(tmp_path: Path) -> None:
    selection = Selection()
    await selection.add_ranges(tree(), read_plan(lines(tmp_path / "p", "c 40960 1\n"), "/m", 8192), "p")
    assert selection.files[version(3)].runs == [BlockRange(8, 5)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("d/a 0 10\nnosuch 0 1\n", "1 of 2 files are not in the dataset, the first is 'nosuch'"),
        ("d 0 10\n", "not in the dataset"),
        ("d/a 0\n", "line 1 of the plan"),
        ("d/a 0 10\n/etc/passwd 0 10\n", "not below the mountpoint"),
        ("../x 0 10\n", "not below the mountpoint"),
        ("\n# nothing\n", "no line of it names a read"),
        (
            "d/a 0 10\nc 4096 1\nc 100000 5\n",
            "1 of 2 files end before a read of them begins, the first is 'c': it has 100000 bytes",
        ),
    ],
)
async def test_plans_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        await Selection().add_ranges(tree(), read_plan(lines(tmp_path / "p", text), "/m", 0), "p")


def test_a_plan_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_plan(tmp_path / "none", "/m", 0)


async def test_an_order_names_its_steps_of_all_lanes() -> None:
    selection = Selection()
    await selection.add_order(tree(), order_of((b"d/a", version(1)), (b"c", version(3))), 0)
    assert {found: wanted.runs for found, wanted in selection.files.items()} == {
        version(1): [BlockRange(1, 1), BlockRange(21, 4)], version(3): [BlockRange(1, 1), BlockRange(21, 4)],
    }  # fmt: skip


async def test_an_order_of_other_data_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1 of its 2 files changed or are gone, the first is 'd/b'"):
        await Selection().add_order(tree(), order_of((b"d/a", version(1)), (b"d/b", version(7))), 0)


async def test_too_many_pieces_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "WARM_RUNS_MAX", 3)
    with pytest.raises(UsageError, match="more than 3 separate pieces"):
        read_plan(lines(tmp_path / "p", "".join(f"c {number * 8192} 1\n" for number in range(5))), "/m", 0)


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 40)), max_size=3000))
def test_runs_hold_exactly_what_was_added(ranges: list[tuple[int, int]]) -> None:
    runs = Runs()
    for first, count in ranges:
        runs.add(first, first + count)
    merged = runs.merged()
    assert {block for run in merged for block in range(run.first_block, run.end_block)} == {
        block for first, count in ranges for block in range(first, first + count)
    }
    assert all(one.end_block < other.first_block for one, other in pairwise(merged))
    assert len(runs) <= 4041


@pytest.mark.parametrize(("given", "relative"), [("a/b", "a/b"), ("/m/a", "a"), ("/m", ""), (".", ""), ("a/../b", "b")])
def test_below(given: str, relative: str) -> None:
    assert below("/m", given) == relative


def test_symlinks_that_lead_to_the_mount_are_followed_and_those_in_it_are_not(tmp_path: Path) -> None:
    mountpoint = tmp_path / "real" / "mnt"
    mountpoint.mkdir(parents=True)
    (mountpoint / "train").symlink_to("/etc")  # as a dataset may hold: never looked at
    (tmp_path / "data").symlink_to("real/mnt")
    (tmp_path / "far").symlink_to(tmp_path / "data")
    (tmp_path / "round").symlink_to("round")
    root = str(mountpoint)
    assert below(root, str(tmp_path / "data/train/a")) == "train/a"
    assert below(root, str(tmp_path / "far/b")) == "b"
    assert below(root, str(tmp_path / "far")) == ""
    assert below(root, str(tmp_path / "real/../data/b")) == "b"
    for outside in ("round/a", "real/a", "far/../a", "nowhere/a"):
        with pytest.raises(UsageError, match="not below the mountpoint"):
            below(root, str(tmp_path / outside))


async def test_a_plan_that_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    selection = Selection()
    await selection.add_ranges(tree(), read_plan(lines(tmp_path / "p", "\ufeffc 0 1\r\nempty 0 1\r\n"), "/m", 0), "p")
    assert [wanted.path for wanted in selection.files.values()] == [b"c", b"empty"]
