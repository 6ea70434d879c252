"""The row of the experiment's runs: one that fails does not take the others with it, and each is held against its neighbours."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="the experiment's flags name the job's orders")

from bench.experiment.__main__ import parse
from bench.experiment.measures import Epoch, Phase
from bench.experiment.progress import Progress
from bench.experiment.runs import Runs, Step
from bench.lab import LabError
from bench.link import LinkShape


class Ears:
    progress: Progress | None = None

    def __init__(self) -> None:
        self.failed: list[str] = []

    @contextlib.contextmanager
    def say(self, _what: str) -> Iterator[None]:
        yield

    def fail(self, what: str) -> None:
        self.failed.append(what)


def epoch(first: int = 0) -> Epoch:
    return Epoch(0.0, 4, [0.0] * 12, [0.1] * 12, [[]], [[first, *range(11)]], [(0.0, 0.001)])


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    lab: Any = mock.Mock(hub_runs=True)
    lab.last_words.return_value = "the last words"
    return Runs(parse(["--out", str(tmp_path)]), lab, tmp_path, LinkShape(0.06), Ears(), mock.Mock())


def with_plan(runs: Runs, *steps: tuple[str, Any]) -> None:
    runs.plan = lambda: [Step(title, 1.0, None, work) for title, work in steps]  # type: ignore[method-assign]


def local(runs: Runs) -> None:
    runs.local_runs.setdefault("timed step", []).append((len(runs.phases), epoch()))
    runs.phases.append(Phase("local", "local directory", "timed step", epoch()))


def mount(runs: Runs, name: str, first: int = 0) -> None:
    runs.phases.append(Phase(name, name, "timed step", epoch(first), gained={}))


def breaks() -> None:
    raise ValueError("it broke")


def test_one_that_fails_leaves_the_others(runs: Runs) -> None:
    with_plan(
        runs,
        ("local", lambda: local(runs)),
        ("bad", breaks),
        ("cold", lambda: mount(runs, "cold")),
        ("local", lambda: local(runs)),
    )
    runs.all()
    assert [phase.name for phase in runs.finished()] == ["local", "cold", "local"]
    assert len(runs.finished()[1].local) == 2
    assert [(one.run, one.why) for one in runs.failures] == [("bad", "ValueError('it broke')")]
    assert "the last words" in (runs.arguments.out / "failures.txt").read_text()
    runs.jobs.restart.assert_called_once()  # type: ignore[attr-defined]


def test_a_hub_that_ended_ends_the_row(runs: Runs) -> None:
    def hub_ends() -> None:
        runs.lab.hub_runs = False  # type: ignore[misc]
        breaks()

    with_plan(runs, ("local", lambda: local(runs)), ("bad", hub_ends), ("cold", lambda: mount(runs, "cold")))
    runs.all()
    assert [phase.name for phase in runs.finished()] == ["local"]
    assert len(runs.failures) == 2


def test_nothing_to_compare_with_is_an_error(runs: Runs) -> None:
    with_plan(runs, ("local", breaks))
    with pytest.raises(LabError, match="no local run"):
        runs.all()


def test_other_tokens_than_the_local_run_before_are_noted(runs: Runs) -> None:
    with_plan(runs, ("local", lambda: local(runs)), ("warm", lambda: mount(runs, "warm", 77)))
    runs.all()
    assert not runs.finished()[1].same


def test_the_runs_that_are_chosen_bring_what_they_need() -> None:
    made = Runs(parse(["--runs", "changed"]), mock.Mock(), Path("/x"), LinkShape(0.06), Ears(), mock.Mock())
    titles = [step.title for step in made.plan()]
    assert "cold, then warm" in titles
    assert titles[-2:] == ["source changed", "local directory, after the change"]
    assert not any(one == other == "local directory" for one, other in itertools.pairwise(titles))
