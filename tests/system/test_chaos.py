"""Chaos on a real pair: no wrong byte, no hang, nothing left behind; and the command says so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos.faults import usual
from bench.chaos.run import FEW_READERS, READERS, Run

pytestmark = pytest.mark.mount


@pytest.mark.slow
def test_three_faults_and_not_one_wrong_byte(tmp_path: Path) -> None:
    kinds = ["wire_reset", "wire_flip_data", "data_replaced"]
    run = Run(5, 3.0, kinds, readers=FEW_READERS, scale=0.3, say=print)
    report = run(tmp_path)
    assert report.passed, json.dumps(report.failures, indent=1)[:4000]
    assert sorted(report.kinds_done) == sorted(kinds)
    assert report.bytes_checked > 1 << 20
    assert not run.rig.work.exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_fault_once(tmp_path: Path) -> None:
    report = Run(1, 1.0, usual(), readers=READERS, say=print)(tmp_path)
    assert report.passed, json.dumps(report.failures, indent=1)[:8000]
    assert len(report.kinds_done) >= 20


def test_the_command_refuses_what_it_does_not_know() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.chaos", "--faults", "wire_reste"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no fault is called wire_reste; there are" in done.stdout
