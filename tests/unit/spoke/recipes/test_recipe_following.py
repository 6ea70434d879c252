"""A run longer than a segment: the command makes each next segment in time, and drops those that were read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="recipes need NumPy")

from recipe_support import LocalFiles, write_rows

from common.errors import HeadraceError
from spoke.orders.mapped import open_order
from spoke.recipes import command, files, run


class Daemon:
    """Answers as a spoke does; the job reads ``stride`` steps between two questions. ``gives_up``: it drops everything."""

    def __init__(self, directory: Path, stride: int, *, gives_up: bool = False) -> None:
        self.directory = directory
        self.stride = stride
        self.gives_up = gives_up
        self.orders: dict[str, tuple[int, list[int]]] = {}
        self.read = 0
        self.log: list[str] = []
        self.offsets: list[int] = []

    def ask_once(self, socket: Path, request: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
        del socket, timeout_s
        what = request["command"]
        if what == "order-load":
            order = open_order(Path(request["path"]))
            steps = [order.step(0, at).offset_bytes for at in range(order.length(0))]
            if order.name in self.orders:
                assert steps[: len(self.offsets)] == self.offsets  # the same and more
            begin = self.offsets.index(steps[0]) if steps[0] in self.offsets else len(self.offsets)
            assert self.offsets[begin:] == steps[: len(self.offsets) - begin]  # it begins with what is known already
            self.offsets[begin:] = steps
            self.orders[order.name] = begin, steps
            self.log.append(f"load {order.name}")
            return {}
        if what == "order-drop":
            begin, steps = self.orders.pop(request["name"])
            assert self.read >= begin + len(steps)  # nobody needs it any more
            self.log.append(f"drop {request['name']}")
            return {}
        return {"directory": str(self.directory), "orders": [] if self.gives_up else self._facts()}

    def _facts(self) -> list[dict[str, Any]]:
        self.read = min(self.read + self.stride, len(self.offsets))
        return [
            {
                "name": name,
                "state": "locked",
                "lanes": [{"lane": 0, "position": self.read - begin, "length": len(steps)}]
                if self.read > begin
                else [],
            }
            for name, (begin, steps) in self.orders.items()
        ]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    write_rows(tmp_path / "r", 100 * 4000)
    monkeypatch.setattr(command, "locate", str)
    monkeypatch.setattr(command.time, "sleep", lambda _: None)
    monkeypatch.setattr(files, "MountedFiles", LocalFiles)
    return {"files": "r", "record-bytes": "100", "epochs": "1", "segment-steps": "1000"}


def test_segments_follow_one_another_until_the_last(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, stride=150)
    monkeypatch.setattr(command.control, "ask_once", daemon.ask_once)
    facts = run("fixed-records", job, tmp_path, say=lambda _: None)
    assert facts["whole"] is False
    assert len(daemon.offsets) == len(set(daemon.offsets)) == 4000
    loads = [entry for entry in daemon.log if entry.startswith("load")]
    assert loads == [
        "load fixed-records:seed=0",
        *(f"load fixed-records:seed=0#{number}" for number in range(2, len(loads) + 1)),
    ]
    assert 4 <= len(loads) <= 8
    assert daemon.log.index("drop fixed-records:seed=0") > daemon.log.index("load fixed-records:seed=0#2")


def test_it_ends_when_the_spoke_follows_it_no_longer(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.control, "ask_once", Daemon(tmp_path, stride=150, gives_up=True).ask_once)
    with pytest.raises(HeadraceError, match="follows fixed-records:seed=0 no longer"):
        run("fixed-records", job, tmp_path, say=lambda _: None)


def test_a_dry_run_loads_nothing_and_leaves_nothing(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path, stride=1)
    monkeypatch.setattr(command.control, "ask_once", daemon.ask_once)
    said: list[str] = []
    run("fixed-records", {**job, "dry-run": "yes"}, tmp_path, say=said.append)
    run("fixed-records", {**job, "dry-run": "yes"}, tmp_path, say=said.append)  # a second time in one process
    assert daemon.log == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r"]
    assert any("seed = 0 (default)" in line for line in said)


def test_the_job_is_known_before_all_of_a_segment_is_computed(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.limits.RECIPE_FIRST_STEPS", 500)
    del job["segment-steps"]
    daemon = Daemon(tmp_path, stride=1)
    monkeypatch.setattr(command.control, "ask_once", daemon.ask_once)
    said: list[str] = []
    facts = run("fixed-records", job, tmp_path, say=said.append)
    first, whole = [line for line in said if "reads" in line]
    begun = int(first.removeprefix("fixed-records:seed=0: ").removesuffix(" reads to begin with"))
    assert 500 <= begun < 4000
    assert whole == "fixed-records:seed=0: 1 lanes, 4000 reads of 400000 bytes"
    assert (facts["whole"], facts["steps"]) == (True, 4000)
    assert daemon.log == ["load fixed-records:seed=0"] * 2
    assert len(daemon.orders["fixed-records:seed=0"][1]) == 4000


def test_epochs_of_few_records_end_a_segment(
    job: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.limits.RECIPE_FIRST_EPOCHS", 2)
    loaded: list[int] = []

    def ask_once(_socket: Path, request: Mapping[str, Any], *, timeout_s: float = 5.0) -> Any:
        del timeout_s
        if request["command"] == "order-load":
            loaded.append(open_order(Path(request["path"])).step_count)
        return {"directory": str(tmp_path)}

    monkeypatch.setattr(command.control, "ask_once", ask_once)
    facts = run("fixed-records", {"files": "r", "record-bytes": "80000"}, tmp_path, say=lambda _: None, follow=False)
    assert loaded == [2 * 5, 4096 * 5]
    assert (facts["whole"], facts["steps"]) == (False, 4096 * 5)
