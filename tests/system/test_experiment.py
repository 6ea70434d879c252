"""The experiment, small, to its end: all its runs, the same losses, a report that stands alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

for module in ("torch", "matplotlib", "tokenizers"):
    pytest.importorskip(module, reason="the experiment needs the extra demo")

ROOT = Path(__file__).resolve().parents[2]
RUNS = {
    "local", "cold", "cold-2", "warm", "warm-job", "warm-spoke", "cut", "checkpoints", "half", "half-again", "no-prefetch", "copy-first",
    "changed", "local-checkpoints", "local-model", "local-model-again", "model-cold", "model-warm",
}  # fmt: skip


@pytest.mark.mount
@pytest.mark.torch
@pytest.mark.timeout(600)  # a minute and a half alone on two cores; beside other work up to five
@pytest.mark.slow
def test_all_runs_of_a_small_experiment(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.experiment", "--small", "--link", "proxy", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=560, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    result = json.loads((tmp_path / "experiment.json").read_text())
    by_name: dict[str, dict[str, object]] = {phase["name"]: phase for phase in result["phases"]}
    assert set(by_name) == RUNS

    for mount, local in (("model-cold", "local-model"), ("model-warm", "local-model-again")):
        losses = by_name[mount]["losses_hex"]
        assert losses == by_name[local]["losses_hex"]
        assert len(losses) == 2  # ranks
        assert all(len(set(rank)) == 3 for rank in losses)
    assert by_name["changed"]["checksums"] == by_name["local"]["checksums"]  # the last local run, after the change
    assert by_name["changed"]["checksums"] != by_name["cold"]["checksums"]
    assert by_name["copy-first"]["checksums"] == by_name["cold"]["checksums"] == by_name["warm-spoke"]["checksums"]
    assert by_name["cold"]["wan_bytes"] > 1e6
    assert by_name["warm-spoke"]["wan_bytes"] < 0.02 * by_name["cold"]["wan_bytes"]

    page = (tmp_path / "experiment.html").read_text()
    assert page.count("data:image/png;base64,") == 16  # each for a light and a dark screen
    words = re.sub('base64,[^"]*', "", page)  # a picture's bytes may spell anything
    assert "http" not in words.replace("http-equiv", "")
    assert len(result["pairs"]) == 3
    assert result["failures"] == []
    assert "timed step" in page
