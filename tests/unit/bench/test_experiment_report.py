"""The experiment's report: what it concludes, what it shows when runs are missing, its flags, and the time that is left."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the report draws")
pytest.importorskip("torch", reason="the experiment's flags name the job's orders")

from bench.experiment.__main__ import parse
from bench.experiment.costs import Prices
from bench.experiment.measures import Epoch, Pair, Phase
from bench.experiment.page import Result, Verdict, against_reference, as_json, page, verdicts
from bench.experiment.pictures import draw_all
from bench.experiment.progress import Progress
from common.errors import UsageError

SETTINGS: dict[str, Any] = {
    "summary": "s", "mode_words": "Mode: m.", "mode": "timed step", "samples": 4, "rate_bytes_per_s": 125e6, "rtt_ms": 60.0,
    "link": "proxy",
    "link_words": "w", "machine": "m", "step_s": 0.1, "step_bytes": 1e6, "data_words": "d", "dtype": "uint32", "cut_s": 20.0,
    "command": "c", "flags": {"a": "b"},
}  # fmt: skip


def epoch(waits: list[float], losses: list[str] | None = None) -> Epoch:
    return Epoch(0.0, 4, waits, [0.1] * len(waits), [losses or []], [list(range(len(waits)))], [(0.0, 0.001)])


LOCAL = epoch([0.0] * 40)
QUIET = Phase("local", "local directory", "timed step", LOCAL)


def run(name: str, waits: list[float], **more: Any) -> Phase:
    return Phase(name, name, "timed step", epoch(waits), local=[LOCAL], gained={}, **more)


def told(result: Result) -> dict[str, Verdict]:
    return {one.name: one for one in verdicts(result)}


def test_the_median_of_several_cold_starts_and_warm_runs_counts() -> None:
    hiccup = [0.0] * 20 + [0.05] * 20
    phases = [
        QUIET, run("cold", hiccup), run("cold-2", [0.3, 0.3, *[0.0] * 20]), run("cold-3", [0.2, *[0.0] * 20]),
        run("warm", [0.0] * 40), run("warm-job", [0.05] * 40), run("warm-spoke", [0.0] * 40),
    ]  # fmt: skip
    found = told(Result(phases, SETTINGS))
    full = found["batches until a cold job runs at full speed"]
    assert (full.value, full.met) == ("1", True)
    assert "0, 2, 1" in full.detail
    lost = found["of 100,000 batches lost by a cold start"]
    assert (lost.value, lost.met) == ("0.0060 %", True)
    warm = found["warm / local, samples per second"]
    assert (warm.value, warm.met) == ("1.000", True)
    assert "0.667 to 1.000" in warm.detail


def test_a_link_that_cannot_carry_the_job_has_no_target_for_cold_starts() -> None:
    settings = {**SETTINGS, "mode": "no step", "step_bytes": 30e6}
    result = Result([QUIET, run("cold", [0.3] * 40)], settings, [Pair(100, 98), Pair(100, 99.5), Pair(100, 101)])
    found = told(result)
    full = found["batches until a cold job runs at full speed"]
    assert (full.value, full.met) == ("never", None)
    assert "300 MB/s, the link carries 125" in full.target
    assert found["warm / local, samples per second"].value == "0.995"


def test_other_tokens_and_losses_are_told() -> None:
    wrong = replace(run("model-cold", [0.0] * 5), epoch=epoch([0.0] * 5, ["0x1p0"]), same=False)
    found = told(Result([QUIET, wrong], SETTINGS))
    assert not found["losses, mount and local"].met
    assert found["tokens and their order, against local"].value == "DIFFERENT"


@pytest.mark.parametrize(
    "missing",
    [("cold",), ("warm-job", "cut"), ("copy-first", "changed"), ("cold", "warm-job", "no-prefetch", "half-again")],
)
def test_a_report_is_made_of_the_runs_there_are(tmp_path: Path, missing: tuple[str, ...]) -> None:
    changed = {"changed_bytes": 5e6, "seen_after_s": 0.2}
    phases = [
        QUIET, run("cold", [0.3, *[0.0] * 39]), run("warm-job", [0.0] * 40), run("cut", [0.5] * 40), run("no-prefetch", [1.0] * 12),
        run("copy-first", [0.0] * 40, before_s=3.0, before_bytes=5e6, before_seen=[(0.0, 0), (3.0, 5e6)]),
        run("changed", [0.0] * 40, notes=changed), run("half-again", [0.0] * 40), run("checkpoints", [0.0] * 40),
    ]  # fmt: skip
    looked = [replace(phase, seconds=[]) for phase in phases if phase.name not in missing]
    result = Result(looked, SETTINGS, failures=[("cut", "the <hub> ended")], interrupted=True)
    no_looks = [
        phase for phase in looked if phase.name not in ("cold", "cut")
    ]  # their pictures need a spoke's counters
    drawn = draw_all(no_looks, tmp_path, Prices(0.02, 2.5, 16, 1e12), 125e6)
    made = page(result, drawn)
    assert "the &lt;hub&gt; ended" in made
    assert "interrupted" in made
    assert made.count("prefers-color-scheme: dark") == len(drawn) // 2
    assert len(as_json(result)["phases"]) == len(looked)
    assert all(len(row) == 3 for row in against_reference(result))


def test_flags_beside_small_win_and_zero_is_no_step() -> None:
    arguments = parse(["--small", "--step-time", "0", "--batches", "20"])
    assert (arguments.step_time, arguments.batches, arguments.gpus) == (0.0, 20, 8)
    assert parse([]).step_time == 0.2
    assert parse(["--step-time", "50ms"]).step_time == 0.05
    assert parse(["--train"]).train


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train", "--step-time", "0.1"], "exclude"),
        (["--data", "/nowhere/at/all"], "there is no"),
        (["--gpus", "6", "--ranks", "4"], "divided"),
        (["--text", "/nowhere/at/all"], "not a directory"),
        (["--step-time", "soon"], "duration"),
    ],
)
def test_wrong_flags_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(words)


def test_own_data_lower_the_batches_or_are_refused(tmp_path: Path) -> None:
    import numpy as np

    (np.arange(40 * 8 * 64 + 1) % 999).astype("<u2").tofile(tmp_path / "train.bin")
    small = ["--data", str(tmp_path), "--batch", "4", "--gpus", "2", "--window", "64", "--runs", "warm"]
    assert parse(small).batches == 40
    assert parse([*small, "--batches", "15"]).batches == 15
    with pytest.raises(UsageError, match="12 are needed"):
        parse([*small, "--window", "640"])


def test_the_time_left_follows_what_was_seen() -> None:
    progress = Progress([10, 10, 20])
    assert progress.left_s == 40
    progress.step_done(20)
    assert progress.left_s == 60
    assert progress.words == "2 of 3, about 60 s left"
    progress.step_done(20)
    progress.step_done(1)
    assert progress.left_s == 0
